//! Memory of grammars: how much there is, and who has how much of it.
//!
//! What follows a text has an allowance of its own. All else is shared: what compiling takes at its peak, and what has
//! been compiled, whoever has it: a text, a request that waits, or `Recent`, which forgets when others need room.

use std::sync::{Arc, Mutex, PoisonError};

use super::{GrammarError, Grammars};

/// The least of an allowance: ten thousand states of 500 bytes, rows of an answer of some 50 KB, and what one mask
/// may add before anybody looks.
const PARSER_LEAST: u64 = 12_000_000;

/// The most of it: answers of JSON with some 130 KB.
const PARSER_MOST: u64 = 24_000_000;

/// The least that is shared.
const SHARED_LEAST: u64 = 16_000_000;

/// Part of a budget that texts have, and all else.
const SHARES: u64 = 24;

/// The most of it: the calls of 900 tools, whose half a megabyte of schemas takes 74 MB to compile.
const SHARED_MOST: u64 = 96_000_000;

/// How much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// For following one text.
    pub parser: u64,
    /// For all else.
    pub shared: u64,
}

impl Default for Room {
    fn default() -> Self {
        Self { parser: PARSER_MOST, shared: SHARED_MOST }
    }
}

impl Room {
    /// A share of a budget for all texts together, and the same for all else.
    pub fn within(budget: u64, sessions: usize) -> Self {
        let share = budget / SHARES;
        Self {
            parser: (share / texts(sessions)).clamp(PARSER_LEAST, PARSER_MOST),
            shared: share.clamp(SHARED_LEAST, SHARED_MOST),
        }
    }

    /// All of it.
    pub(crate) fn bytes(self, sessions: usize) -> u64 {
        self.shared + self.parser * texts(sessions)
    }
}

/// Texts that are followed at once: those of sessions, and the copy that looks at what could be, of which there is one
/// at a time.
fn texts(sessions: usize) -> u64 {
    sessions as u64 + 1
}

/// What is taken of what is shared.
pub(super) struct Ledger {
    shared: u64,
    taken: Mutex<u64>,
}

/// A part of it, given back in the end.
pub(super) struct Share {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Ledger {
    pub(super) fn new(shared: u64) -> Arc<Self> {
        Arc::new(Self { shared, taken: Mutex::new(0) })
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many more, if there are.
    fn take(&self, bytes: u64) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = *taken + bytes <= self.shared;
        if fits {
            *taken += bytes;
        }
        fits
    }
}

impl Share {
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back all but so many.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let back = self.bytes.saturating_sub(bytes);
        *self.ledger.taken.lock().unwrap_or_else(PoisonError::into_inner) -= back;
        self.bytes -= back;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

impl Grammars {
    /// Nothing yet.
    pub(super) fn share(&self) -> Share {
        Share { ledger: Arc::clone(&self.ledger), bytes: 0 }
    }

    /// Makes a share as large as this, if need be by forgetting grammars that nobody has.
    pub(super) fn grow(&self, share: &mut Share, bytes: u64) -> Result<(), GrammarError> {
        if bytes > self.ledger.shared {
            return Err(GrammarError::TooLarge { needs: bytes, room: self.ledger.shared });
        }
        let more = bytes.saturating_sub(share.bytes);
        while !self.ledger.take(more) {
            if !self.recent.forget() {
                return Err(GrammarError::Full);
            }
        }
        share.bytes += more;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::{
        super::{
            Grammar,
            tests::{demo, grammars_within},
        },
        *,
    };

    #[test]
    fn room_is_some_percent_of_a_budget_within_bounds() {
        assert_eq!(Room::within(0, 4), Room { parser: PARSER_LEAST, shared: SHARED_LEAST });
        assert_eq!(Room::within(u64::MAX, 4), Room::default());
        let room = Room { parser: 16_000_000, shared: 80_000_000 };
        assert_eq!(Room::within(1_920_000_000, 4), room);
        assert_eq!(Room::within(1_920_000_000, 64).parser, PARSER_LEAST);
        assert_eq!(Room { parser: 3, shared: 10 }.bytes(2), 19);
    }

    #[test]
    fn what_is_taken_is_given_back() {
        let grammars = grammars_within(&demo(), Room { parser: PARSER_LEAST, shared: 10 });
        let (mut first, mut second) = (grammars.share(), grammars.share());
        grammars.grow(&mut first, 6).unwrap();
        grammars.grow(&mut first, 4).unwrap();
        assert_eq!(
            (first.bytes(), grammars.ledger.taken()),
            (6, 6),
            "it does not shrink by growing"
        );
        assert_eq!(grammars.grow(&mut second, 5), Err(GrammarError::Full));
        assert_eq!(
            grammars.grow(&mut second, 11),
            Err(GrammarError::TooLarge { needs: 11, room: 10 })
        );
        first.shrink(5);
        grammars.grow(&mut second, 5).unwrap();
        drop(first);
        assert_eq!(grammars.ledger.taken(), 5);
        drop(second);
        assert_eq!(grammars.ledger.taken(), 0);
    }

    #[test]
    fn grammars_that_nobody_has_make_room_and_others_do_not() {
        let shared = SHARED_LEAST;
        let grammars = grammars_within(&demo(), Room { parser: PARSER_LEAST, shared });
        let grammar = |name: &str| Grammar::Regex(format!("{name}+"));
        let kept = grammars.constraint(grammar("a")).unwrap();
        grammars.constraint(grammar("b")).unwrap();
        grammars.constraint(grammar("c")).unwrap();
        #[allow(clippy::used_underscore_binding)] // only tests ask how much it is
        let each = kept.compiled._share.bytes();
        assert!(each > 0 && grammars.ledger.taken() >= 3 * each);
        let mut share = grammars.share();
        // The thread that compiled the last of them may have it still.
        let grown = (0..5000).any(|_| {
            thread::park_timeout(Duration::from_millis(1));
            grammars.grow(&mut share, shared - each).is_ok()
        });
        assert!(grown);
        assert_eq!(grammars.recent.len(), 1, "one is followed");
        assert_eq!(grammars.constraint(grammar("d")).map(drop), Err(GrammarError::Full));
        drop(share);
        assert!(grammars.constraint(grammar("d")).is_ok());
        drop(kept);
        drop(grammars.constraint(grammar("a")).unwrap());
        assert_eq!(grammars.recent.len(), 2);
    }
}
