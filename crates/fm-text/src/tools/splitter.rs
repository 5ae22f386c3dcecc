//! Calls, told apart from the text around them while it streams.

use std::sync::Arc;

use super::{
    Definitions,
    parts::Parts,
    reader::{Read, Step},
    scan::{find, undecided},
};
use crate::{held::Held, thinking::Channel};

/// Splits the answers of one dialect.
#[derive(Debug)]
pub(crate) struct CallSplitter {
    opens: &'static [Open],
    marks: Vec<&'static str>,
    definitions: Arc<Definitions>,
    reader: Option<Box<dyn Read>>,
    /// Text that is not said yet: white space and what may open a call, or a call so far.
    held: Held,
    /// Bytes of it that the reader has read.
    read: usize,
    /// Where the arguments of the call begin in it.
    arguments: Option<usize>,
    /// Whether the last thing was a call: white space behind it belongs to nobody.
    after_call: bool,
}

/// A mark that opens calls.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) mark: &'static str,
    /// Bytes of it that the reader does not need to see.
    pub(super) skip: usize,
    pub(super) reader: fn() -> Box<dyn Read>,
}

impl CallSplitter {
    pub(super) fn new(opens: &'static [Open], definitions: Arc<Definitions>) -> Self {
        Self {
            opens,
            marks: opens.iter().map(|open| open.mark).collect(),
            definitions,
            reader: None,
            held: Held::default(),
            read: 0,
            arguments: None,
            after_call: false,
        }
    }

    /// One for other text.
    pub(crate) fn fresh(&self) -> Self {
        Self::new(self.opens, Arc::clone(&self.definitions))
    }

    /// Where marks that open calls stand in a text, ascending.
    pub(crate) fn places(&self, text: &str) -> Vec<usize> {
        let mut places: Vec<usize> =
            self.marks.iter().flat_map(|mark| text.match_indices(mark)).map(|(at, _)| at).collect();
        places.sort_unstable();
        places
    }

    /// Adds text that stands at `at` of all text, behind what came before, and says what is decided now.
    pub(crate) fn push(&mut self, at: usize, text: &str, parts: &mut Parts) {
        self.held.push(at, text);
        self.decide(false, parts);
    }

    /// Ends the stream: a call that is not complete is text.
    pub(crate) fn finish(&mut self, parts: &mut Parts) {
        self.decide(true, parts);
        if self.reader.take().is_some() {
            parts.broken();
            self.after_call = false;
        }
        if !(self.after_call && self.held.trim().is_empty()) {
            parts.text(self.held.all(Channel::Answer));
        }
        self.held.clear();
    }

    fn decide(&mut self, last: bool, parts: &mut Parts) {
        while match self.reader.take() {
            None => self.outside(last, parts),
            Some(reader) => self.inside(reader, last, parts),
        } {}
    }

    /// Before a call: says text up to a mark, or to what may become one. Returns whether there is more
    /// to do.
    fn outside(&mut self, last: bool, parts: &mut Parts) -> bool {
        if self.after_call {
            let spaces = self.held.len() - self.held.trim_start().len();
            self.held.pass(spaces);
            if self.held.is_empty() {
                return false;
            }
        }
        let found = find(&self.held, &self.marks);
        let end = match found {
            Some((at, _)) => at,
            None if last => self.held.len(),
            None => undecided(&self.held, &self.marks),
        };
        // White space before a call is not said, so none is said before it is known not to be.
        let said = if last && found.is_none() { end } else { self.held[..end].trim_end().len() };
        parts.text(self.held.first(said, Channel::Answer));
        self.after_call &= said == 0;
        self.held.pass(said);
        let Some((_, mark)) = found else { return false };
        let open = self.opens.iter().find(|open| open.mark == mark);
        let open = open.expect("the mark is one of these");
        self.reader = Some((open.reader)());
        self.read = end - said + open.skip;
        self.arguments = None;
        true
    }

    /// In a call. Returns whether there is more to do.
    fn inside(&mut self, mut reader: Box<dyn Read>, last: bool, parts: &mut Parts) -> bool {
        let begun = parts.begun();
        let step = reader.read(&self.held[self.read..], last, &self.definitions, parts);
        match step {
            Step::More => {
                self.reader = Some(reader);
                return false;
            }
            Step::Took(bytes) => {
                self.read += bytes;
                if parts.begun() > begun {
                    self.arguments = Some(self.read);
                }
                self.reader = Some(reader);
            }
            Step::Call(bytes) | Step::Odd(bytes) => {
                let start = self.arguments.take().filter(|_| matches!(step, Step::Call(_)));
                parts.end(start.map(|start| &self.held[start..self.read]));
                self.held.pass(self.read + bytes);
                self.read = 0;
                self.after_call = true;
                self.reader = Some(reader);
            }
            Step::Close(bytes) => {
                self.held.pass(self.read + bytes);
            }
            Step::Broken(bytes) => {
                // Where nothing has begun only the mark is text: another one may follow.
                let start = self.held.len() - self.held.trim_start().len();
                let mark = self.held[start..].chars().next().map_or(0, char::len_utf8);
                let said = if parts.broken() { self.read + bytes } else { start + mark };
                parts.text(self.held.first(said, Channel::Answer));
                self.held.pass(said);
                self.after_call = false;
            }
        }
        true
    }
}
