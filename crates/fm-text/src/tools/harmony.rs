//! gpt-oss: everything is a message in a channel, thinking and calls too.
//!
//! ```text
//! <|channel|>analysis<|message|>…<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
//! <|start|>assistant<|channel|>final<|message|>…<|return|>
//! ```

use std::sync::Arc;

use serde_json::Value;

use super::{
    Channels, Definitions, Dialect, Way, Written,
    grammar::{Again, Calls, Form, Shape},
    object::{Arguments, Found},
    parts::Parts,
    reader::valid_name,
    scan::{find, undecided},
};
use crate::{chat::Message, held::Held, thinking::Channel};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
pub(super) const CHANNELS: Channels = Channels {
    think: "<|channel|>analysis<|message|>",
    end: "<|end|>",
    again: "<|start|>assistant",
    answer: "<|channel|>final<|message|>",
    efforts: &[("none", "low"), ("minimal", "low"), ("xhigh", "high"), ("max", "high")],
};
/// The channels that the models know.
const NAMES: [&str; 3] = ["analysis", "commentary", "final"];

/// Bytes of a header's words: a channel, a name of up to 128 and what its arguments are.
const HEADER_MAX: usize = 256;

/// What ends a message for good.
const ENDED: [&str; 3] = ["<|end|>", "<|call|>", "<|return|>"];

/// What a header ends with, or comes too late before.
const BETWEEN: [&str; 6] = ["<|end|>", "<|call|>", "<|return|>", START, CHANNEL, MESSAGE];

/// What a message may end with.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];

pub(super) const HARMONY: Dialect = Dialect {
    name: "harmony",
    signs: &[CHANNEL],
    marks: &[START, CHANNEL, MESSAGE, CONSTRAIN, "<|end|>", "<|call|>", "<|return|>"],
    way: Way::Harmony,
    opening: |name| match name {
        None => format!("{CHANNEL}commentary to=functions."),
        Some(name) => {
            format!("{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}")
        }
    },
    written: Written::Object,
    forms: &[
        Form {
            open: "<|channel|>commentary to=functions.",
            shape: Shape::Json { name: ("", " <|constrain|>json<|message|>"), end: "" },
            close: "",
            again: Again::Never,
        },
        Form {
            open: " to=functions.",
            shape: Shape::Json {
                name: ("", "<|channel|>commentary <|constrain|>json<|message|>"),
                end: "",
            },
            close: "",
            again: Again::Never,
        },
    ],
    prepare: |messages| messages.iter_mut().for_each(one_thought),
};

/// A turn in which whatever is addressed to a function is a call: a thought, of which only the marks are
/// seen here, what is said on the way, and a call or the answer.
pub(super) fn messages(calls: Calls<'_>) -> String {
    let again = literal(CHANNELS.again);
    let said = literal("<|channel|>commentary<|message|>");
    // What a reader takes for the end of a message.
    let others = r"<\|(start|channel|call|return)\|>";
    let rules = format!(
        "said: {said} text\n\
         text[lazy]: TEXT\n\
         TEXT: /(?s:.*)<\\|end\\|>/ & ~/(?s:.*){others}(?s:.*)/\n\
         answer: | ANSWER\n\
         ANSWER: /(?s:.+)/ & ~/(?s:.*)({others}|<\\|end\\|>)(?s:.*)/\n"
    );
    turn(&format!("(said {again})*"), &rules, calls)
}

/// A turn whose answer is of a given form, by the body of a rule, and may be a call instead. Nothing is said
/// on the way: it could not be told from the answer.
pub(super) fn answer_or_call(calls: Calls<'_>, answer: &str) -> String {
    turn("", &format!("answer: {answer}\n"), calls)
}

fn turn(on_the_way: &str, rules: &str, calls: Calls<'_>) -> String {
    let [think, again, answer] = [CHANNELS.think, CHANNELS.again, CHANNELS.answer].map(literal);
    let blocks = calls.blocks(HARMONY.forms);
    let thought = if calls.thoughts { format!("({think} {again})?") } else { String::new() };
    format!("start: {thought} {on_the_way} (call | {answer} answer)\n{rules}{blocks}")
}

fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Harmony {
    definitions: Option<Arc<Definitions>>,
    place: Place,
    /// Text that is not said yet; in a call all of it, its header too.
    held: Held,
    /// Bytes of a call's text that are read.
    read: usize,
    /// Where its arguments begin.
    arguments: usize,
    /// The channels in which something has been said.
    said: Vec<Channel>,
}

#[derive(Debug)]
enum Place {
    Header,
    /// In a message of a channel.
    Text(Channel),
    /// Before the text of a further message of a channel: a line of its own.
    Further(Channel),
    Call(Arguments),
    /// Behind the arguments of a call.
    Tail,
}

impl Harmony {
    /// The prompt has opened a message of the assistant. Without definitions a call is text.
    pub(crate) fn new(definitions: Option<Arc<Definitions>>) -> Self {
        let (held, said) = (Held::default(), Vec::new());
        Self { definitions, place: Place::Header, held, read: 0, arguments: 0, said }
    }

    pub(crate) fn is_thinking(&self) -> bool {
        match self.place {
            Place::Text(channel) | Place::Further(channel) => channel == Channel::Thinking,
            // What a header will say is a grammar's business until it is complete.
            Place::Header | Place::Call(_) | Place::Tail => false,
        }
    }

    /// Whether the next text would be said.
    pub(crate) fn is_answering(&self) -> bool {
        matches!(self.place, Place::Text(Channel::Answer) | Place::Further(Channel::Answer))
    }

    /// Adds text that stands at `at` of all text.
    pub(crate) fn push(&mut self, at: usize, text: &str, parts: &mut Parts) {
        self.held.push(at, text);
        while self.decide(parts) {}
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts) {
        match self.place {
            Place::Text(channel) | Place::Further(channel) => {
                self.say(self.held.len(), channel, parts);
            }
            Place::Call(_) => {
                parts.broken();
                self.begin(Channel::Answer);
                self.say(self.held.len(), Channel::Answer, parts);
            }
            // A header without a message says nothing; text without a header does.
            Place::Header if !HARMONY.marks.iter().any(|mark| self.held.contains(mark)) => {
                self.begin(Channel::Answer);
                self.say(self.held.len(), Channel::Answer, parts);
            }
            Place::Header => {
                if let Header::None(bytes, channel) = Header::read_last(&self.held) {
                    self.held.pass(bytes);
                    self.begin(channel);
                    self.say(self.held.len(), channel, parts);
                }
            }
            Place::Tail => {}
        }
        self.held.clear();
    }

    /// Returns whether there is more to do.
    fn decide(&mut self, parts: &mut Parts) -> bool {
        match &mut self.place {
            Place::Header => self.header(parts),
            &mut (Place::Text(channel) | Place::Further(channel)) => {
                let end = find(&self.held, &ENDS);
                let said = end.map_or_else(|| undecided(&self.held, &ENDS), |(at, _)| at);
                self.say(said, channel, parts);
                self.next_header(end.is_some())
            }
            Place::Call(arguments) => match arguments.read(&self.held[self.read..], parts) {
                Found::More => false,
                Found::Took(bytes) => {
                    self.read += bytes;
                    true
                }
                Found::End(bytes) => {
                    self.read += bytes;
                    parts.end(Some(&self.held[self.arguments..self.read]));
                    self.held.pass(self.read);
                    self.place = Place::Tail;
                    true
                }
                Found::Broken(bytes) => {
                    self.read += bytes;
                    parts.broken();
                    self.begin(Channel::Answer);
                    self.say(self.read, Channel::Answer, parts);
                    true
                }
            },
            Place::Tail => {
                let end = find(&self.held, &ENDS);
                let past = end.map_or_else(|| undecided(&self.held, &ENDS), |(at, _)| at);
                self.held.pass(past);
                self.next_header(end.is_some())
            }
        }
    }

    /// Begins a message of a channel.
    fn begin(&mut self, channel: Channel) {
        let is_further = self.said.contains(&channel);
        self.place = if is_further { Place::Further(channel) } else { Place::Text(channel) };
    }

    /// Says so many bytes in the channel of the message, behind the line of an earlier one.
    fn say(&mut self, bytes: usize, channel: Channel, parts: &mut Parts) {
        if bytes == 0 {
            return;
        }
        if matches!(self.place, Place::Further(_)) {
            parts.end_line(channel);
        }
        self.place = Place::Text(channel);
        if !self.said.contains(&channel) {
            self.said.push(channel);
        }
        parts.text(self.held.first(bytes, channel));
        self.held.pass(bytes);
    }

    fn next_header(&mut self, ended: bool) -> bool {
        if ended {
            self.place = Place::Header;
        }
        ended
    }

    fn header(&mut self, parts: &mut Parts) -> bool {
        let end = match Header::read(&self.held) {
            Header::Undecided => return false,
            Header::Nothing(bytes) => {
                self.held.pass(bytes);
                return true;
            }
            Header::None(bytes, channel) => {
                self.held.pass(bytes);
                self.begin(channel);
                return true;
            }
            Header::Whole(end) => end,
        };
        let header = &self.held[..end];
        let past = end + MESSAGE.len();
        let words = header.split_once(CHANNEL).map_or("", |(_, channel)| channel);
        if let (Some(name), Some(_)) = (called(header), &self.definitions) {
            parts.begin(name);
            (self.read, self.arguments) = (past, past);
            self.place = Place::Call(Arguments::default());
        } else {
            self.begin(channel_of(first_word(words)));
            self.held.pass(past);
        }
        true
    }
}

/// What a text begins with where a message should.
#[derive(Debug)]
enum Header {
    Undecided,
    /// So many bytes that say nothing: a mark, or a header without a message.
    Nothing(usize),
    /// No header: behind so many bytes there is text.
    None(usize, Channel),
    /// A header up to here, where the mark of its message stands.
    Whole(usize),
}

impl Header {
    /// What is left at the end of all text, which no message follows.
    fn read_last(text: &str) -> Self {
        let lead = if text.starts_with(START) { START.len() } else { 0 };
        let from = text.find(CHANNEL).map_or(lead, |at| at + CHANNEL.len());
        let words = &text[from..];
        if are_of_header(words, 1) {
            return Self::Nothing(text.len());
        }
        Self::none_behind(words, from)
    }

    fn read(text: &str) -> Self {
        if let Some(mark) = ENDED.iter().find(|mark| text.starts_with(**mark)) {
            return Self::Nothing(mark.len());
        }
        let lead = if text.starts_with(START) { START.len() } else { 0 };
        let (words, mark) = words_before(&text[lead..]);
        let at = lead + words.len();
        let no_header = Self::None(lead, Channel::Answer);
        // Behind its mark a header begins with any role.
        if words.len() > HEADER_MAX || (lead == 0 && !may_begin(words)) {
            return no_header;
        }
        match mark {
            Some(MESSAGE) => Self::Whole(at),
            Some(CHANNEL) => Self::read_channel(text, at + CHANNEL.len()),
            Some(_) if are_of_header(words, usize::from(lead > 0)) => Self::Nothing(at),
            Some(_) => no_header,
            None => Self::Undecided,
        }
    }

    /// The same behind the mark of a channel, which ends at `from`.
    fn read_channel(text: &str, from: usize) -> Self {
        let (words, mark) = words_before(&text[from..]);
        match mark {
            _ if words.len() > HEADER_MAX => Self::none_behind(words, from),
            Some(MESSAGE) => Self::Whole(from + words.len()),
            Some(_) if are_of_header(words, 1) => Self::Nothing(from + words.len()),
            Some(_) => Self::none_behind(words, from),
            None => Self::Undecided,
        }
    }

    /// A text in the channel that its words begin with, if they do.
    fn none_behind(words: &str, from: usize) -> Self {
        let name = Some(first_word(words)).filter(|name| NAMES.contains(name)).unwrap_or_default();
        let behind = words.find(name).map_or(0, |at| at + name.len());
        Self::None(from + behind, channel_of(name))
    }
}

/// The words before the first mark that a header does not have within, and which mark that is.
fn words_before(text: &str) -> (&str, Option<&'static str>) {
    let found = find(text, &BETWEEN);
    let end = found.map_or_else(|| undecided(text, &BETWEEN), |(at, _)| at);
    (&text[..end], found.map(|(_, mark)| mark))
}

fn first_word(words: &str) -> &str {
    words.trim_start().split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default()
}

fn channel_of(name: &str) -> Channel {
    if name == NAMES[0] { Channel::Thinking } else { Channel::Answer }
}

/// Whether a header may begin with these words, or go on to.
fn may_begin(words: &str) -> bool {
    let first = words.split_whitespace().next().unwrap_or_default();
    "assistant".starts_with(first) || "to=".starts_with(first) || first.starts_with("to=")
}

/// Whether words are those of a header, behind `free` ones that may be anything.
fn are_of_header(words: &str, free: usize) -> bool {
    let known = |word: &str| {
        matches!(word, "assistant" | "json" | "code")
            || word.starts_with("to=")
            || word.starts_with(CONSTRAIN)
    };
    words.split_whitespace().skip(free).all(known)
}

/// The function that a header is addressed to.
fn called(header: &str) -> Option<&str> {
    let (_, to) = header.split_once("to=")?;
    let to = to.split(|c: char| c.is_whitespace() || c == '<').next()?;
    let name = to.strip_prefix("functions.").unwrap_or(to);
    (valid_name(name) && name != "assistant" && name != "user").then_some(name)
}

/// A message with calls has one thing before them: what it thought, with what it said behind it.
fn one_thought(message: &mut Message) {
    let said = message.content.as_ref().and_then(Value::as_str).filter(|text| !text.is_empty());
    let (Some(said), Some(thought), Some(_)) =
        (said, &mut message.reasoning_content, &message.tool_calls)
    else {
        return;
    };
    thought.push('\n');
    thought.push_str(said);
    message.content = None;
}
