//! `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`: DeepSeek-V3.1, and V3 with the type before the
//! name and the arguments in a fence.

use super::{
    Definitions, Dialect, Way, Written,
    grammar::{Again, Form, Shape},
    object::Arguments,
    parts::Parts,
    reader::{Read, Step, valid_name},
    scan::{Is, one_of, spaces, undecided},
    splitter::Open,
};

const OPEN: &str = "<｜tool▁calls▁begin｜>";
const CLOSE: &str = "<｜tool▁calls▁end｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const NAMED: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";
const FENCE: &str = "```";

pub(super) const DEEPSEEK: Dialect = Dialect {
    name: "deepseek",
    signs: &[OPEN],
    marks: &[OPEN, CLOSE, CALL, NAMED, END],
    way: Way::Calls(&[
        Open { mark: OPEN, skip: OPEN.len(), reader: || Box::<Deepseek>::default() },
        // The models forget the outer mark now and then.
        Open { mark: CALL, skip: 0, reader: || Box::<Deepseek>::default() },
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

#[derive(Debug, Default)]
enum Deepseek {
    /// Before a call or the end.
    #[default]
    Head,
    Name,
    Arguments(Arguments),
    /// Behind the arguments.
    Ended,
    Tail,
}

/// Name of a call, and where its arguments begin.
fn name(text: &str) -> Result<(&str, usize), Step> {
    let end = text.find(NAMED);
    let first = text[..end.unwrap_or_else(|| undecided(text, &[NAMED]))].trim_end();
    if !first.is_empty() && !valid_name(first) {
        return Err(Step::Broken(0));
    }
    let Some(behind) = end.map(|end| end + NAMED.len()) else { return Err(Step::More) };
    let Some(start) = text[behind..].find('{').map(|at| behind + at) else {
        return Err(Step::More);
    };
    let second = text[behind..start].trim();
    let second = second.strip_suffix("json").unwrap_or(second);
    let second = second.strip_suffix(FENCE).unwrap_or(second).trim();
    let name = if second.is_empty() { first } else { second };
    if valid_name(name) { Ok((name, start)) } else { Err(Step::Broken(0)) }
}

impl Read for Deepseek {
    fn read(&mut self, rest: &str, last: bool, _: &Definitions, parts: &mut Parts) -> Step {
        if !matches!(self, Self::Arguments(_) | Self::Ended) && spaces(rest) > 0 {
            return Step::Took(spaces(rest));
        }
        match self {
            Self::Head => match one_of(rest, &[CALL, CLOSE], last) {
                Ok(CLOSE) => Step::Close(CLOSE.len()),
                Ok(_) => {
                    *self = Self::Name;
                    Step::Took(CALL.len())
                }
                Err(Is::Maybe) => Step::More,
                Err(_) => Step::Close(0),
            },
            Self::Name => match name(rest) {
                Err(step) => step,
                Ok((name, start)) => {
                    parts.begin(name);
                    *self = Self::Arguments(Arguments::default());
                    Step::Took(start)
                }
            },
            Self::Arguments(arguments) => arguments.read(rest, parts).step(|| *self = Self::Ended),
            Self::Ended => {
                *self = Self::Tail;
                Step::Call(0)
            }
            Self::Tail => match one_of(rest, &[FENCE, END], last) {
                Ok(FENCE) => Step::Took(FENCE.len()),
                Ok(_) => {
                    *self = Self::Head;
                    Step::Took(END.len())
                }
                Err(Is::Maybe) => Step::More,
                Err(_) => Step::Close(0),
            },
        }
    }
}
