//! Text that is not decided yet, and where in its stream it stands.

use std::ops::Deref;

use crate::thinking::{Channel, Segment};

/// See the module. What is decided leaves it at the front.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    text: String,
    /// Bytes of the stream before it.
    at: usize,
}

impl Held {
    /// Adds text that stands at `at` of the stream: behind what is held, or anywhere if nothing is.
    pub(crate) fn push(&mut self, at: usize, text: &str) {
        if self.text.is_empty() {
            self.at = at;
        }
        self.text.push_str(text);
    }

    /// So many bytes of it as text of a channel.
    pub(crate) fn first(&self, bytes: usize, channel: Channel) -> Segment<'_> {
        Segment { channel, at: self.at, text: &self.text[..bytes] }
    }

    /// All of it as text of a channel.
    pub(crate) fn all(&self, channel: Channel) -> Segment<'_> {
        self.first(self.text.len(), channel)
    }

    /// Lets go of so many bytes.
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.text.drain(..bytes);
        self.at += bytes;
    }

    /// Lets go of everything.
    pub(crate) fn clear(&mut self) {
        self.pass(self.text.len());
    }
}

impl Deref for Held {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}
