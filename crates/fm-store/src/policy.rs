//! Which resident an expert replaces: one file and one row per policy.
//!
//! A policy learns of every use, and keeps those residents in order that nobody needs. What it
//! remembers of an expert outlives eviction: one that comes back is as popular as it was.

mod lfru;
mod lru;
mod odds;
mod ranked;
pub(crate) mod victims;

use std::fmt;

use fm_format::key::ExpertKey;

use self::ranked::Ranked;
use crate::plan::ClassPlan;

/// A replacement policy of one size class.
pub trait Policy: Send + fmt::Debug {
    /// One more use of an expert, resident or not.
    fn used(&mut self, standing: &mut Standing, turn: Turn);

    /// A resident that may go from now on, because nobody waits for it.
    fn insert(&mut self, slot: u32, standing: &Standing);

    /// A resident that must stay, or is gone. Nothing happens if it was not in.
    fn remove(&mut self, slot: u32);

    /// Takes out who goes next among those that `may_go`; with a `newcomer` only somebody who is
    /// worth no more than it.
    fn take(&mut self, newcomer: Option<&Standing>, may_go: &dyn Fn(u32) -> bool) -> Option<u32>;

    /// How much an expert was used lately, for later runs to know; 0 of a policy that does not count.
    fn heat(&self, _standing: &Standing) -> f32 {
        0.0
    }

    /// What an earlier run knew of an expert that has not been used yet: its heat, and the `mean` of
    /// its layer.
    fn warm(&mut self, _standing: &mut Standing, _heat: f32, _mean: f32) {}
}

/// What a policy remembers of an expert, resident or not.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Whose it is.
    pub key: ExpertKey,
    /// The policy's number; negative infinity before the first use.
    pub rank: f64,
    /// The turn of its layer in which it was last used; 0 before the first use.
    pub last_turn: u32,
    /// The policy's opinion at the last use.
    pub class: u8,
}

impl Standing {
    /// Of an expert that was never used.
    pub fn new(key: ExpertKey) -> Self {
        Self { key, rank: f64::NEG_INFINITY, last_turn: 0, class: 0 }
    }

    /// Orders experts that are worth the same.
    pub(crate) fn tie(&self) -> u32 {
        u32::from(self.key.layer.0) << 16 | u32::from(self.key.expert.0)
    }
}

/// When an expert is used. A step of few rows is one turn of every layer, and so is each row of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Turns of all layers so far; never goes back.
    pub now: u64,
    /// Turns of the expert's layer so far, this one included.
    pub of_layer: u32,
}

/// The policies one can choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// [`PolicyKind::Odds`].
    ///
    /// Measured on tapes and a trained model, from one working set to half of the experts
    /// (`docs/experiments/0030-cache-policies.md`): there is no capacity at which another policy is better
    /// by a point on all of them, and many at which it is worse by ten.
    #[default]
    Auto,
    /// Least recently used.
    Lru,
    /// Least frequently and recently used.
    Lfru,
    /// Least likely to be used soon, as learned from the run.
    Odds,
}

/// A row of the registry.
struct PolicyRow {
    kind: PolicyKind,
    name: &'static str,
}

/// Every policy, by name.
const POLICIES: [PolicyRow; 4] = [
    PolicyRow { kind: PolicyKind::Auto, name: "auto" },
    PolicyRow { kind: PolicyKind::Lru, name: "lru" },
    PolicyRow { kind: PolicyKind::Lfru, name: "lfru" },
    PolicyRow { kind: PolicyKind::Odds, name: "odds" },
];

/// What a policy of one class is made for.
#[derive(Clone, Copy, Debug)]
pub struct PolicyScope {
    /// Slots of the class.
    pub slots: usize,
    /// Experts that one token uses in a layer.
    pub top_k: usize,
    /// Requests that one token makes: layers with routed experts, of all classes.
    pub requests_per_token: usize,
    /// Layers of the model, with routed experts or without.
    pub layers: usize,
    /// Experts of a layer, on average over the layers of the class.
    pub experts_per_layer: usize,
}

impl PolicyScope {
    /// Of a class of a model with `layers` layers, `routed` of them with routed experts.
    pub fn new(class: &ClassPlan, top_k: usize, layers: usize, routed: usize) -> Self {
        Self {
            slots: class.slots,
            top_k,
            requests_per_token: routed,
            layers,
            experts_per_layer: class.experts / class.layers,
        }
    }
}

impl PolicyKind {
    /// The names of all policies, for help and completion.
    pub fn names() -> impl Iterator<Item = &'static str> {
        POLICIES.iter().map(|row| row.name)
    }

    /// Finds a policy by name.
    pub fn by_name(name: &str) -> Option<Self> {
        POLICIES.iter().find(|row| row.name == name).map(|row| row.kind)
    }

    /// Its name.
    ///
    /// # Panics
    /// Never: every kind has a row.
    pub fn name(self) -> &'static str {
        let row = POLICIES.iter().find(|row| row.kind == self);
        row.expect("every kind has a row").name
    }

    /// Makes the policy of a class.
    pub fn build(self, scope: PolicyScope) -> Box<dyn Policy> {
        let slots = scope.slots;
        match self {
            Self::Lfru => Box::new(Ranked::new(lfru::Lfru::new(scope.requests_per_token), slots)),
            Self::Odds | Self::Auto => Box::new(odds::Odds::new(scope)),
            Self::Lru => Box::new(Ranked::new(lru::Lru, slots)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_kinds() {
        for name in PolicyKind::names() {
            assert_eq!(PolicyKind::by_name(name).unwrap().name(), name);
        }
        assert_eq!(PolicyKind::by_name("fifo"), None);
    }
}
