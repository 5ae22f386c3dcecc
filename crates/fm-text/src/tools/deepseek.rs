//! `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`: DeepSeek-V3.1, and V3 with the type before the
//! name and the arguments in a fence.

use super::{
    Dialect, Way, Written,
    grammar::{Again, Form, Shape},
    marked::{Marked, Marks},
    splitter::Open,
};

const OPEN: &str = "<｜tool▁calls▁begin｜>";
const CLOSE: &str = "<｜tool▁calls▁end｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const NAMED: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";

const MARKS: Marks = Marks {
    call: CALL,
    named: NAMED,
    end: END,
    close: CLOSE,
    name: |first, second| if second.is_empty() { first } else { second },
};

pub(super) const DEEPSEEK: Dialect = Dialect {
    name: "deepseek",
    signs: &[OPEN],
    marks: &[OPEN, CLOSE, CALL, NAMED, END],
    way: Way::Calls(&[
        Open { mark: OPEN, skip: OPEN.len(), reader: || Box::new(Marked::new(&MARKS)) },
        // The models forget the outer mark now and then.
        Open { mark: CALL, skip: 0, reader: || Box::new(Marked::new(&MARKS)) },
    ]),
    opening: |_| format!("{OPEN}{CALL}"),
    written: Written::Object,
    forms: &[
        Form {
            open: OPEN,
            shape: Shape::Json { name: (CALL, NAMED), end: END },
            close: CLOSE,
            again: Again::Within(""),
        },
        Form {
            open: OPEN,
            shape: Shape::Json {
                name: ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n"),
                end: "\n```<｜tool▁call▁end｜>",
            },
            close: CLOSE,
            again: Again::Within("\n"),
        },
        // Without the outer mark.
        Form {
            open: "",
            shape: Shape::Json { name: (CALL, NAMED), end: END },
            close: "",
            again: Again::Block(&[""]),
        },
    ],
    prepare: |_| {},
};
