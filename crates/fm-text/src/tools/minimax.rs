//! `<minimax:tool_call><invoke name="f"><parameter name="k">v</parameter></invoke>…`: MiniMax-M2.

use super::{
    Dialect, Way, Written,
    grammar::{Again, Form, Lines, Shape},
    splitter::Open,
    tagged::{Tagged, Tags},
};

const OPEN: &str = "<minimax:tool_call>";

static TAGS: Tags = Tags {
    name: ("<invoke name=\"", "\">"),
    key: ("<parameter name=\"", "\">"),
    value: ("", "</parameter>"),
    broken_lines: false,
    end: "</invoke>",
    close: "</minimax:tool_call>",
};

pub(super) const MINIMAX: Dialect = Dialect {
    name: "minimax",
    signs: &[OPEN],
    marks: &[OPEN, TAGS.close],
    way: Way::Calls(&[Open {
        mark: OPEN,
        skip: OPEN.len(),
        reader: || Box::new(Tagged::new(&TAGS)),
    }]),
    opening: |name| match name {
        None => format!("{OPEN}\n<invoke name=\""),
        Some(name) => format!("{OPEN}\n<invoke name=\"{name}\">\n"),
    },
    written: Written::Between(TAGS.name.1, TAGS.end),
    forms: &[Form {
        open: "<minimax:tool_call>\n",
        shape: Shape::Tagged(&TAGS, Lines { name: "\n", key: "", value: "\n" }),
        close: "\n</minimax:tool_call>",
        again: Again::Within("\n"),
    }],
    prepare: |_| {},
};
