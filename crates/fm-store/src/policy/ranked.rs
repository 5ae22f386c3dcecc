//! Policies that turn uses into one number: the resident with the lowest rank goes first.

use std::fmt;

use super::{Policy, Standing, Turn, victims::Victims};

/// How a use changes a rank. Ranks change only when an expert is used, so a heap orders them.
pub(super) trait Rule: Send + fmt::Debug {
    /// The rank after one more use.
    ///
    /// `rank` is what it was, negative infinity before the first use; `now` counts turns, every row
    /// of a prompt among them, and never goes back.
    fn used(&self, rank: f64, now: u64) -> f64;
}

/// See the file.
#[derive(Debug)]
pub(super) struct Ranked<R> {
    rule: R,
    victims: Victims,
}

impl<R: Rule> Ranked<R> {
    pub(super) fn new(rule: R, slots: usize) -> Self {
        Self { rule, victims: Victims::new(slots) }
    }
}

impl<R: Rule> Policy for Ranked<R> {
    fn used(&mut self, standing: &mut Standing, turn: Turn) {
        standing.rank = self.rule.used(standing.rank, turn.now);
    }

    fn insert(&mut self, slot: u32, standing: &Standing) {
        self.victims.insert(slot, standing.rank, standing.id);
    }

    fn remove(&mut self, slot: u32) {
        self.victims.remove(slot);
    }

    fn take(&mut self, newcomer: Option<&Standing>, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        let limit = newcomer.map_or(f64::INFINITY, |newcomer| newcomer.rank);
        self.victims.take(limit, may_go)
    }
}
