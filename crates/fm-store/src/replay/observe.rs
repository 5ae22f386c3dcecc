//! What a policy could do that sees the scores of all experts, and not only which were chosen.
//!
//! ```text
//! fading ← (fading + p) / 2           at every turn of the layer: half-life of one turn
//! mean   = Σ p / turns
//! rank   = fading + mean              p: the router's probability for this row
//! ```
//!
//! The store has no such policy: on a trained model it is worth nothing
//! (`docs/experiments/0030-cache-policies.md`). Costs O(experts of the layer · log slots) per turn.

use super::Replay;
use crate::policy::{Policy, Standing, Turn, victims::Victims};

/// What the scores said of an expert.
#[derive(Clone, Copy, Debug, Default)]
struct Observed {
    fading: f64,
    sum: f64,
    turns: u32,
    /// The slot that its expert may leave.
    slot: Option<u32>,
}

impl Observed {
    fn see(&mut self, probability: f32) {
        self.fading = f64::midpoint(self.fading, f64::from(probability));
        self.sum += f64::from(probability);
        self.turns += 1;
    }

    fn rank(&self) -> f64 {
        self.fading + self.sum / f64::from(self.turns.max(1))
    }
}

/// See the file.
#[derive(Debug)]
pub(super) struct Observe<'a> {
    replay: &'a Replay<'a>,
    /// By expert of the model.
    observed: Vec<Observed>,
    /// By slot: who may leave it.
    tenants: Vec<u32>,
    victims: Victims,
    /// The frame that was observed last, counted from 1.
    now: u64,
}

impl<'a> Observe<'a> {
    pub(super) fn new(replay: &'a Replay<'a>, slots: usize, experts: usize) -> Self {
        Self {
            replay,
            observed: vec![Observed::default(); experts],
            tenants: vec![0; slots],
            victims: Victims::new(slots),
            now: 0,
        }
    }

    /// The tenant of a slot, if it has one, has none to leave any more.
    fn leave(&mut self, slot: u32) {
        let left = &mut self.observed[self.tenants[slot as usize] as usize].slot;
        *left = left.filter(|of_tenant| *of_tenant != slot);
    }

    /// Sees the scores of a frame, whose layer's experts begin at `first`.
    fn see(&mut self, frame: usize, first: usize) {
        let trace = self.replay.trace;
        let frame = &trace.frames[frame];
        let scores = trace.scores(frame).unwrap_or(&[]);
        let experts = scores.len() / frame.rows;
        for (expert, observed) in (first..).zip(&mut self.observed[first..][..experts]) {
            let of_expert = scores.iter().skip(expert - first).step_by(experts);
            of_expert.for_each(|probability| observed.see(*probability));
            if let Some(slot) = observed.slot {
                self.victims.remove(slot);
                self.victims.insert(slot, observed.rank(), expert as u32);
            }
        }
    }
}

impl Policy for Observe<'_> {
    fn used(&mut self, standing: &mut Standing, turn: Turn) {
        if self.now != turn.now {
            self.now = turn.now;
            let first = standing.id as usize - standing.key.expert.index();
            self.see(turn.now as usize - 1, first);
        }
    }

    fn insert(&mut self, slot: u32, standing: &Standing) {
        let observed = &mut self.observed[standing.id as usize];
        observed.slot = Some(slot);
        self.tenants[slot as usize] = standing.id;
        self.victims.insert(slot, observed.rank(), standing.id);
    }

    fn remove(&mut self, slot: u32) {
        self.leave(slot);
        self.victims.remove(slot);
    }

    fn take(&mut self, newcomer: Option<&Standing>, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        let worth = |it: &Standing| self.observed[it.id as usize].rank();
        let slot = self.victims.take(newcomer.map_or(f64::INFINITY, worth), may_go)?;
        self.leave(slot);
        Some(slot)
    }
}
