//! What a piece of text turned out to be.

use std::ops::Range;

use crate::thinking::Channel;

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text, never empty.
    Text(Channel, &'a str),
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

    fn add(&mut self, kind: Kind, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        let call = self.begun.saturating_sub(1);
        self.entries.push((kind, call, start..self.text.len()));
    }

    pub(crate) fn text(&mut self, channel: Channel, text: &str) {
        if !text.is_empty() {
            self.add(Kind::Text(channel), text);
        }
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

    /// Calls that have begun so far.
    pub(super) fn begun(&self) -> usize {
        self.begun
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Part<'_>> {
        self.entries.iter().map(|(kind, call, range)| {
            let text = &self.text[range.clone()];
            match kind {
                Kind::Text(channel) => Part::Text(*channel, text),
                Kind::Begin => Part::Call(*call, CallPart::Begin(text)),
                Kind::Arguments => Part::Call(*call, CallPart::Arguments(text)),
                Kind::End => Part::Call(*call, CallPart::End(Some(text))),
                Kind::EndUnwritten => Part::Call(*call, CallPart::End(None)),
                Kind::Broken => Part::Call(*call, CallPart::Broken),
            }
        })
    }
}
