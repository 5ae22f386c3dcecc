//! `<tool_call><function=f><parameter=k>v</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5.

use super::{
    Dialect, Way, Written,
    grammar::{Again, Form, Lines, Shape},
    splitter::Open,
    tagged::{Tagged, Tags},
};

const OPEN: &str = "<tool_call>";

static TAGS: Tags = Tags {
    name: ("<function=", ">"),
    key: ("<parameter=", ">"),
    value: ("", "</parameter>"),
    broken_lines: true,
    end: "</function>",
    close: "</tool_call>",
};

pub(super) const QWEN_XML: Dialect = Dialect {
    name: "qwen_xml",
    signs: &[TAGS.name.0],
    marks: &[],
    way: Way::Calls(&[
        Open { mark: OPEN, skip: OPEN.len(), reader: || Box::new(Tagged::new(&TAGS)) },
        // The models forget the outer tag now and then.
        Open { mark: TAGS.name.0, skip: 0, reader: || Box::new(Tagged::new(&TAGS)) },
    ]),
    opening: |name| match name {
        None => format!("{OPEN}\n"),
        Some(name) => format!("{OPEN}\n<function={name}>\n"),
    },
    written: Written::Between(TAGS.name.1, TAGS.end),
    forms: &[
        Form {
            open: "<tool_call>\n",
            shape: Shape::Tagged(&TAGS, Lines { name: "\n", key: "\n", value: "\n" }),
            close: "\n</tool_call>",
            again: Again::Block(&["\n"]),
        },
        // Without the outer tag.
        Form {
            open: "",
            shape: Shape::Tagged(&TAGS, Lines { name: "\n", key: "\n", value: "\n" }),
            close: "",
            again: Again::Block(&["\n"]),
        },
    ],
    prepare: |_| {},
};
