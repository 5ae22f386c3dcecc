//! `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`: GLM from 4.5 on.

use super::{
    Dialect, Way, Written,
    grammar::{Again, Form, Lines, MAYBE, Shape},
    splitter::Open,
    tagged::{Tagged, Tags},
};

const OPEN: &str = "<tool_call>";

static TAGS: Tags = Tags {
    name: ("", ""),
    key: ("<arg_key>", "</arg_key>"),
    value: ("<arg_value>", "</arg_value>"),
    broken_lines: false,
    end: "",
    close: "</tool_call>",
};

pub(super) const GLM: Dialect = Dialect {
    name: "glm",
    signs: &[TAGS.key.0],
    marks: &[OPEN, TAGS.close, TAGS.key.0, TAGS.key.1, TAGS.value.0, TAGS.value.1],
    way: Way::Calls(&[Open {
        mark: OPEN,
        skip: OPEN.len(),
        reader: || Box::new(Tagged::new(&TAGS)),
    }]),
    opening: |name| [OPEN, name.unwrap_or_default()].concat(),
    written: Written::Between("", TAGS.close),
    forms: &[Form {
        open: OPEN,
        shape: Shape::Tagged(&TAGS, Lines { name: MAYBE, key: MAYBE, value: MAYBE }),
        close: TAGS.close,
        again: Again::Block(&["", "\n"]),
    }],
    prepare: |_| {},
};
