//! What a piece of text turned out to be.

use std::ops::Range;

use crate::thinking::{Channel, Segment};

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text, never empty.
    Text(Segment<'a>),
    /// The end of a line between two messages of a channel, which nobody wrote.
    LineEnd(Channel),
    /// Something of a call, with the call's place among those that began.
    Call(usize, CallPart<'a>),
}

/// A part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPart<'a> {
    /// A function of this name is called.
    Begin(&'a str),
    /// The next piece of its arguments, as JSON. Without the last piece it is no JSON.
    Arguments(&'a str),
    /// The call is complete. Holds its arguments as the model wrote them, if that is one stretch.
    End(Option<&'a str>),
    /// It was none after all: its text follows.
    Broken,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Text(Channel),
    LineEnd(Channel),
    Begin,
    Arguments,
    End,
    EndUnwritten,
    Broken,
}

/// Parts of the latest piece of text. Keeps its room from piece to piece.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    text: String,
    /// The number is a text's place or a call's.
    entries: Vec<(Kind, usize, Range<usize>)>,
    /// Calls that began.
    begun: usize,
    /// Whether the last one has not ended.
    open: bool,
}

impl Parts {
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }

    /// Adds something of the latest call.
    fn add(&mut self, kind: Kind, text: &str) {
        self.put(kind, self.begun.saturating_sub(1), text);
    }

    fn put(&mut self, kind: Kind, number: usize, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        self.entries.push((kind, number, start..self.text.len()));
    }

    pub(crate) fn text(&mut self, Segment { channel, at, text }: Segment<'_>) {
        if !text.is_empty() {
            self.put(Kind::Text(channel), at, text);
        }
    }

    pub(super) fn end_line(&mut self, channel: Channel) {
        self.put(Kind::LineEnd(channel), 0, "");
    }

    pub(super) fn begin(&mut self, name: &str) {
        self.begun += 1;
        self.open = true;
        self.add(Kind::Begin, name);
    }

    pub(super) fn arguments(&mut self, json: &str) {
        if !json.is_empty() {
            self.add(Kind::Arguments, json);
        }
    }

    pub(super) fn end(&mut self, written: Option<&str>) {
        self.open = false;
        match written {
            Some(written) => self.add(Kind::End, written),
            None => self.add(Kind::EndUnwritten, ""),
        }
    }

    /// Takes back a call that has begun, if one has.
    pub(super) fn broken(&mut self) -> bool {
        let open = std::mem::take(&mut self.open);
        if open {
            self.add(Kind::Broken, "");
        }
        open
    }

    /// Whether there are calls, all of them complete, and nothing else.
    pub(crate) fn all_calls(&self) -> bool {
        let is_call =
            |kind: &Kind| !matches!(kind, Kind::Text(_) | Kind::LineEnd(_) | Kind::Broken);
        !self.entries.is_empty() && self.entries.iter().all(|(kind, ..)| is_call(kind))
    }

    /// Calls that have begun so far.
    pub(super) fn begun(&self) -> usize {
        self.begun
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Part<'_>> {
        self.entries.iter().map(|(kind, number, range)| {
            let text = &self.text[range.clone()];
            match kind {
                Kind::Text(channel) => Part::Text(Segment { channel: *channel, at: *number, text }),
                Kind::LineEnd(channel) => Part::LineEnd(*channel),
                Kind::Begin => Part::Call(*number, CallPart::Begin(text)),
                Kind::Arguments => Part::Call(*number, CallPart::Arguments(text)),
                Kind::End => Part::Call(*number, CallPart::End(Some(text))),
                Kind::EndUnwritten => Part::Call(*number, CallPart::End(None)),
                Kind::Broken => Part::Call(*number, CallPart::Broken),
            }
        })
    }
}
