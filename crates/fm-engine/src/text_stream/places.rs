//! Which tokens the answer is made of.
//!
//! A token belongs where its first byte belongs. The text of all tokens has a place for every byte, and every part of
//! it that is told says where it stood there; so a part of the answer finds its tokens, and what it passes
//! over are tokens of thoughts, calls, headers and tags. What the answer holds back for a stop string
//! keeps its tokens, by their place in the answer, until it is told. Tokens without bytes have no place.

use std::collections::VecDeque;

/// See the module. Keeps its room from token to token.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Tokens so far.
    tokens: usize,
    /// Of tokens whose part has not come: where in the text of all tokens they begin, and which they are.
    spelled: VecDeque<(usize, usize)>,
    /// Of tokens of the answer that have not been told: the same, in the answer.
    held: VecDeque<(usize, usize)>,
    /// Bytes of the answer, with what is held back.
    bytes: usize,
}

impl Places {
    /// Adds a token that begins there in the text of all tokens, if it has bytes.
    pub(super) fn token(&mut self, begins: Option<usize>) {
        self.spelled.extend(begins.map(|at| (at, self.tokens)));
        self.tokens += 1;
    }

    /// The text of all tokens is not the answer up to there.
    pub(super) fn pass(&mut self, end: usize) {
        while self.spelled.pop_front_if(|(begins, _)| *begins < end).is_some() {}
    }

    /// So many bytes that stand there in the text of all tokens are the next of the answer.
    pub(super) fn answer(&mut self, at: usize, bytes: usize) {
        self.pass(at);
        while let Some((begins, token)) =
            self.spelled.pop_front_if(|(begins, _)| *begins < at + bytes)
        {
            self.held.push_back((self.bytes + begins - at, token));
        }
        self.bytes += bytes;
    }

    /// So many bytes of the answer come next that no token has.
    pub(super) fn unwritten(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// The next token that begins in so much of the answer: where, and which it is.
    pub(super) fn next(&mut self, told: usize) -> Option<(usize, usize)> {
        self.held.pop_front_if(|(at, _)| *at < told)
    }
}
