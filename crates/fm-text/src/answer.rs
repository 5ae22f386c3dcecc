//! An answer, taken apart while it streams: what was thought, what was said, what is called.

use std::sync::Arc;

use crate::{
    thinking::{Channel, Segment, ThinkingSplitter, ThinkingState, ThinkingTags},
    tools::{CallSplitter, Definitions, Dialect, Harmony, Part, Parts},
};

/// What an answer may consist of.
#[derive(Clone, Debug, Default)]
pub struct AnswerForm {
    /// How the model writes calls, if that is known.
    pub dialect: Option<&'static Dialect>,
    /// What it may call. Without it calls are text.
    pub calls: Option<Arc<Definitions>>,
}

/// See the module.
#[derive(Debug)]
pub struct AnswerSplitter {
    way: Way,
    /// Bytes that have come.
    bytes: usize,
    parts: Parts,
}

#[derive(Debug)]
enum Way {
    Tags { thinking: ThinkingSplitter, calls: Option<CallSplitter> },
    Harmony(Harmony),
}

impl AnswerSplitter {
    /// Starts where the prompt ended.
    pub fn new(tags: ThinkingTags, state: ThinkingState, form: &AnswerForm) -> AnswerSplitter {
        let way = match form.dialect {
            Some(dialect) if dialect.is_harmony() => Way::Harmony(Harmony::new(form.calls.clone())),
            dialect => Way::Tags {
                thinking: ThinkingSplitter::new(tags, state),
                calls: dialect.and_then(|dialect| dialect.splitter(form.calls.clone()?)),
            },
        };
        AnswerSplitter { way, bytes: 0, parts: Parts::default() }
    }

    /// Adds text and returns what is decided now.
    pub fn push(&mut self, text: &str) -> impl Iterator<Item = Part<'_>> {
        self.parts.clear();
        self.read(text);
        self.parts.iter()
    }

    /// Ends the stream: the last text, and all that was held back.
    pub fn finish(&mut self, text: &str) -> impl Iterator<Item = Part<'_>> {
        self.parts.clear();
        self.read(text);
        let Self { way, parts, .. } = self;
        match way {
            Way::Harmony(harmony) => harmony.finish(parts),
            Way::Tags { thinking, calls } => {
                thinking.finish().for_each(|segment| add(parts, calls, segment));
                calls.iter_mut().for_each(|calls| calls.finish(parts));
            }
        }
        self.parts.iter()
    }

    /// Whether the next text would be thinking.
    pub fn is_thinking(&self) -> bool {
        match &self.way {
            Way::Tags { thinking, .. } => thinking.is_thinking(),
            Way::Harmony(harmony) => harmony.is_thinking(),
        }
    }

    /// Whether an answer has begun that has a channel of its own.
    pub fn is_in_answer_channel(&self) -> bool {
        matches!(&self.way, Way::Harmony(harmony) if harmony.is_answering())
    }

    fn read(&mut self, text: &str) {
        let Self { way, bytes, parts } = self;
        match way {
            Way::Harmony(harmony) => harmony.push(*bytes, text, parts),
            Way::Tags { thinking, calls } => {
                thinking.push(text).for_each(|segment| add(parts, calls, segment));
            }
        }
        *bytes += text.len();
    }
}

fn add(parts: &mut Parts, calls: &mut Option<CallSplitter>, segment: Segment<'_>) {
    match (segment.channel, calls) {
        (Channel::Answer, Some(calls)) => calls.push(segment.at, segment.text, parts),
        _ => parts.text(segment),
    }
}
