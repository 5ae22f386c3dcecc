//! Calls of tools, in the words of the model.
//!
//! A model was trained to write its calls in one dialect, which its chat template shows. A dialect is
//! a file and a row of [`DIALECTS`]: how calls are told apart from text while it streams, how one is
//! begun on demand, and where the arguments lie in what the template writes.

mod deepseek;
mod definitions;
mod glm;
mod grammar;
mod harmony;
mod hermes;
mod kimi;
mod marked;
mod minimax;
mod mistral;
mod object;
mod parameters;
mod parts;
mod qwen_xml;
mod reader;
mod scan;
mod schema;
mod splitter;
mod tagged;
mod value;

use std::{fmt, ops::Range, sync::Arc};

use serde_json::Value;

pub use self::{
    definitions::Definitions,
    grammar::{Callable, Calls, GRAMMAR_BYTES_MAX},
    parameters::Unkept,
    parts::{CallPart, Part},
    reader::valid_name,
};
pub(crate) use self::{harmony::Harmony, parts::Parts, splitter::CallSplitter};
use crate::chat::Message;

/// Bytes between a name and what belongs to it, at most.
const NEAR: usize = 64;

/// All dialects; the first one whose signs a template has is the model's.
pub static DIALECTS: &[Dialect] = &[
    harmony::HARMONY,
    deepseek::DEEPSEEK,
    kimi::KIMI,
    mistral::MISTRAL,
    minimax::MINIMAX,
    glm::GLM,
    qwen_xml::QWEN_XML,
    hermes::HERMES,
];

/// How a model writes its calls.
pub struct Dialect {
    /// Its name.
    pub name: &'static str,
    /// What its templates contain.
    signs: &'static [&'static str],
    /// Special tokens that are part of it.
    marks: &'static [&'static str],
    way: Way,
    /// What a turn begins with that shall be a call, of this function if one is named.
    opening: fn(Option<&str>) -> String,
    written: Written,
    /// How its templates write calls; the likeliest first.
    forms: &'static [grammar::Form],
    /// What its templates want of messages.
    prepare: fn(&mut [Message]),
}

enum Way {
    Calls(&'static [splitter::Open]),
    Harmony,
}

/// What a turn is put together from where thoughts and answers are messages in channels.
#[derive(Debug)]
pub struct Channels {
    /// Begins a thought behind what the prompt ends with.
    pub think: &'static str,
    /// Ends it.
    pub end: &'static str,
    /// Begins another message behind that.
    pub again: &'static str,
    /// Begins the answer behind that, or behind what the prompt ends with.
    pub answer: &'static str,
    /// Efforts that the models were not trained with, and the nearest that they were.
    pub(crate) efforts: &'static [(&'static str, &'static str)],
}

/// Where the arguments lie behind the name of a call.
enum Written {
    /// They are the first object.
    Object,
    /// Between these tags.
    Between(&'static str, &'static str),
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Dialect {
    /// The dialect that a chat template shows.
    pub fn of_template(text: &str) -> Option<&'static Dialect> {
        DIALECTS.iter().find(|dialect| dialect.signs.iter().all(|sign| text.contains(sign)))
    }

    /// Special tokens that are part of its text.
    pub fn marks(&self) -> &'static [&'static str] {
        self.marks
    }

    /// What a turn begins with that shall be a call, of this function if one is named.
    pub fn opening(&self, name: Option<&str>) -> String {
        (self.opening)(name)
    }

    /// All marks that a call may begin with.
    pub fn first_marks(&self) -> Vec<&'static str> {
        match self.way {
            Way::Calls(opens) => opens.iter().map(|open| open.mark).collect(),
            Way::Harmony => Vec::new(),
        }
    }

    /// Whether its calls can be held to a schema of parameters.
    ///
    /// # Errors
    /// If they cannot: the grammar lets any arguments through then.
    pub fn keeps_to(&self, parameters: &Value) -> Result<(), Unkept> {
        self.forms.iter().try_for_each(|form| grammar::keeps(form, parameters))
    }

    /// Whether its calls have parameters in tags, with strings as they stand.
    pub fn is_tagged(&self) -> bool {
        self.forms.iter().any(|form| matches!(form.shape, grammar::Shape::Tagged(..)))
    }

    /// The grammar of calls and nothing else, behind what the prompt has begun the answer with.
    pub fn calls_alone(&self, calls: Calls<'_>, opening: &str) -> Option<String> {
        calls.alone(self.forms, opening)
    }

    /// The grammar of text in which whatever begins like a call is one. Of a thought in a channel it sees
    /// the marks around it.
    pub fn calls_in_text(&self, calls: Calls<'_>) -> String {
        match self.way {
            Way::Calls(_) => calls.in_text(self.forms, &self.first_marks()),
            Way::Harmony => harmony::messages(calls),
        }
    }

    /// The grammar of an answer by the body of a rule, or of calls and nothing else; where those are messages in
    /// channels, with the marks of a thought before them.
    pub fn calls_or(&self, calls: Calls<'_>, answer: &str) -> Option<String> {
        match self.way {
            Way::Calls(_) => calls.or(self.forms, answer),
            Way::Harmony => Some(harmony::answer_or_call(calls, answer)),
        }
    }

    /// How channels are written, if thoughts and answers are told apart by them and not by tags.
    pub fn channels(&self) -> Option<&'static Channels> {
        self.is_harmony().then_some(&harmony::CHANNELS)
    }

    /// The first mark of a call.
    pub fn first_mark(&self) -> Option<&'static str> {
        match self.way {
            Way::Calls(opens) => opens.first().map(|open| open.mark),
            Way::Harmony => None,
        }
    }

    /// Where the arguments of a call lie in the text that begins with its name, if they are empty.
    pub(crate) fn empty_arguments(&self, text: &str, name: &str) -> Option<Range<usize>> {
        let behind = text.strip_prefix(name)?;
        let near = |at: &usize| *at < NEAR;
        let (start, end) = match self.written {
            Written::Object => {
                let start = behind.find("{}").filter(near)?;
                (start, start + "{}".len())
            }
            Written::Between(open, close) => {
                let inside = behind.strip_prefix(open)?;
                (open.len(), open.len() + inside.find(close).filter(near)?)
            }
        };
        Some(name.len() + start..name.len() + end)
    }

    pub(crate) fn prepare(&self, messages: &mut [Message]) {
        (self.prepare)(messages);
    }

    /// The splitter of calls; none if the dialect is more than calls.
    pub(crate) fn splitter(&self, definitions: Arc<Definitions>) -> Option<CallSplitter> {
        match self.way {
            Way::Calls(opens) => Some(CallSplitter::new(opens, definitions)),
            Way::Harmony => None,
        }
    }

    pub(crate) fn is_harmony(&self) -> bool {
        matches!(self.way, Way::Harmony)
    }
}
