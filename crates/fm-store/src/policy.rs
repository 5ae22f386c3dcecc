//! Which resident an expert replaces: one file and one row per policy.
//!
//! A policy learns of every use, and keeps those residents in order that nobody needs. What it
//! remembers of an expert outlives eviction: one that comes back is as popular as it was.

mod arc;
mod least_stale;
mod lfru;
mod lfu;
mod lru;
mod odds;
#[cfg(test)]
mod one_by_one;
mod queues;
mod ranked;
mod s3_fifo;
mod tenants;
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
    /// Its number among all experts of the model, by layer, then by expert. It orders experts that are
    /// worth the same.
    pub id: u32,
    /// The policy's number; negative infinity before the first use.
    pub rank: f64,
    /// The turn of its layer in which it was last used; 0 before the first use.
    pub last_turn: u32,
    /// The policy's opinion at the last use.
    pub class: u8,
}

impl Standing {
    /// Of an expert that was never used.
    pub fn new(key: ExpertKey, id: u32) -> Self {
        Self { key, id, rank: f64::NEG_INFINITY, last_turn: 0, class: 0 }
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
    /// Least frequently used.
    Lfu,
    /// Least frequently and recently used.
    Lfru,
    /// Adaptive replacement: used once or again, in shares that adapt.
    Arc,
    /// A small queue for newcomers in front of a large one.
    S3Fifo,
    /// Not used in the last pass, and farthest from its turn.
    LeastStale,
    /// Least likely to be used soon, as learned from the run.
    Odds,
}

/// What a policy is called, and what makes it.
struct PolicyRow {
    name: &'static str,
    build: fn(PolicyScope) -> Box<dyn Policy>,
}

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
    /// Routed experts of all layers of the model.
    pub experts: usize,
    /// Experts of a layer, on average over the layers of the class.
    pub experts_per_layer: usize,
}

impl PolicyScope {
    /// Of a class of a model whose layers have so many experts; `None` without routed ones.
    pub fn new(
        class: &ClassPlan,
        top_k: usize,
        experts: impl Iterator<Item = Option<usize>> + Clone,
    ) -> Self {
        Self {
            slots: class.slots,
            top_k,
            requests_per_token: experts.clone().flatten().count(),
            layers: experts.clone().count(),
            experts: experts.flatten().sum(),
            experts_per_layer: class.experts / class.layers,
        }
    }
}

impl PolicyKind {
    /// Every policy, in the order of help.
    const ALL: [Self; 8] = [
        Self::Auto,
        Self::Lru,
        Self::Lfu,
        Self::Lfru,
        Self::Arc,
        Self::S3Fifo,
        Self::LeastStale,
        Self::Odds,
    ];

    /// The names of all policies, for help and completion.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().map(Self::name)
    }

    /// Finds a policy by name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Makes the policy of a class.
    pub fn build(self, scope: PolicyScope) -> Box<dyn Policy> {
        (self.row().build)(scope)
    }

    fn row(self) -> PolicyRow {
        let row = |name, build| PolicyRow { name, build };
        match self {
            Self::Auto => row("auto", |of| Box::new(odds::Odds::new(of))),
            Self::Lru => row("lru", |of| Box::new(Ranked::new(lru::Lru, of.slots))),
            Self::Lfu => row("lfu", |of| Box::new(Ranked::new(lfu::Lfu, of.slots))),
            Self::Lfru => row("lfru", |of| {
                Box::new(Ranked::new(lfru::Lfru::new(of.requests_per_token), of.slots))
            }),
            Self::Arc => row("arc", |of| Box::new(arc::Arc::new(of.slots, of.experts))),
            Self::S3Fifo => {
                row("s3-fifo", |of| Box::new(s3_fifo::S3Fifo::new(of.slots, of.experts)))
            }
            Self::LeastStale => {
                row("least-stale", |of| Box::new(least_stale::LeastStale::new(of.slots, of.layers)))
            }
            Self::Odds => row("odds", |of| Box::new(odds::Odds::new(of))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{one_by_one::Cache, *};

    #[test]
    fn names_lead_back_to_their_kinds() {
        for name in PolicyKind::names() {
            assert_eq!(PolicyKind::by_name(name).unwrap().name(), name);
        }
        assert_eq!(PolicyKind::by_name("fifo"), None);
    }

    #[test]
    fn who_goes_does_not_depend_on_who_arrived_first() {
        for kind in PolicyKind::names().filter_map(PolicyKind::by_name) {
            // Two layers, three turns of each; six experts, and whoever arrives first gets the first slot.
            let play = |arrivals: [usize; 6]| {
                let mut policy = kind.build(Cache::scope(6, 2));
                let mut standings = [0, 1, 2, 32, 33, 34].map(|id| Cache::standing(id, 2));
                for now in 1..=6 {
                    let of_layer = (now as u32).div_ceil(2);
                    for at in (0..3).filter(|at| now < 3 || *at as u32 == of_layer - 2) {
                        let at = if now % 2 == 0 { at + 3 } else { at };
                        policy.used(&mut standings[at], Turn { now, of_layer });
                    }
                }
                for (slot, at) in (0..).zip(arrivals) {
                    policy.insert(slot, &standings[at]);
                }
                let may_go = |slot: u32| arrivals[slot as usize] != 4;
                let leaves = std::iter::from_fn(|| policy.take(None, &may_go));
                leaves.map(|slot| arrivals[slot as usize]).collect::<Vec<_>>()
            };
            let ascending = play([0, 1, 2, 3, 4, 5]);
            assert_eq!(ascending.len(), 5, "{kind:?}: everybody but the leased one goes");
            assert_eq!(play([5, 3, 1, 0, 2, 4]), ascending, "{kind:?}");
            assert_eq!(play([2, 4, 0, 5, 1, 3]), ascending, "{kind:?}");
        }
    }
}
