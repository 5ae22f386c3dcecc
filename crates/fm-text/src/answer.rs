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
    thought: Thought,
    parts: Parts,
}

#[derive(Debug)]
enum Way {
    Tags { thinking: ThinkingSplitter, calls: Option<CallSplitter> },
    Harmony(Harmony),
}

/// A thought so far, of which nobody knows yet whether it will be closed; kept where there may be calls.
#[derive(Debug, Default)]
struct Thought {
    text: String,
    /// Where it stands in all text.
    at: usize,
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
        AnswerSplitter { way, bytes: 0, thought: Thought::default(), parts: Parts::default() }
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
        let Self { way, thought, parts, .. } = self;
        match way {
            Way::Harmony(harmony) => harmony.finish(parts),
            Way::Tags { thinking, calls } => {
                thinking.finish().for_each(|segment| add(parts, (calls, thought), segment));
                calls.iter_mut().for_each(|calls| calls.finish(parts));
            }
        }
        self.parts.iter()
    }

    /// The calls that a thought ends with that was not closed when the model ended its turn: behind
    /// [`finish`](Self::finish). Models of the Qwen3.5 family call so now and then; the thought keeps the text.
    pub fn called_as_thought(&mut self) -> impl Iterator<Item = Part<'_>> {
        let Self { way, bytes, thought, parts } = self;
        parts.clear();
        if let Way::Tags { calls: Some(calls), .. } = way
            && thought.at + thought.text.len() == *bytes
        {
            call_as_thought(calls, thought, parts);
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
        let Self { way, bytes, thought, parts } = self;
        match way {
            Way::Harmony(harmony) => harmony.push(*bytes, text, parts),
            Way::Tags { thinking, calls } => {
                thinking.push(text).for_each(|segment| add(parts, (calls, thought), segment));
            }
        }
        *bytes += text.len();
    }
}

fn add(
    parts: &mut Parts,
    (calls, thought): (&mut Option<CallSplitter>, &mut Thought),
    segment: Segment<'_>,
) {
    let Some(calls) = calls else { return parts.text(segment) };
    if segment.channel == Channel::Answer {
        thought.text.clear();
        return calls.push(segment.at, segment.text, parts);
    }
    // Another one, behind tags.
    if thought.at + thought.text.len() != segment.at {
        *thought = Thought { text: String::new(), at: segment.at };
    }
    thought.text.push_str(segment.text);
    parts.text(segment);
}

/// Marks of calls in a thought that ends with calls, at most: what is behind each is read.
const MARKS_MAX: usize = 128;

/// Adds the calls that a thought ends with.
fn call_as_thought(calls: &mut CallSplitter, thought: &Thought, parts: &mut Parts) {
    let Thought { text, at } = thought;
    let is_calls = |from: &usize| {
        let (mut trial, mut found) = (calls.fresh(), Parts::default());
        trial.push(0, &text[*from..], &mut found);
        trial.finish(&mut found);
        found.all_calls()
    };
    let marks = calls.places(text);
    if marks.len() > MARKS_MAX {
        return;
    }
    // From the first on behind which there is nothing else.
    if let Some(&first) = marks.iter().find(|from| is_calls(from)) {
        calls.push(*at + first, &text[first..], parts);
        calls.finish(parts);
    }
}
