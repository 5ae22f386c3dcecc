//! Belady's rule: whoever is needed last goes first. It has to know the future, so it is a bound.
//!
//! Source: Belady, *A study of replacement algorithms for a virtual-storage computer*, IBM Systems
//! Journal 5(2), 1966.

use std::{collections::HashMap, sync::Arc};

use fm_format::key::{ExpertIndex, ExpertKey, LayerIndex};

use crate::{
    policy::{Policy, Standing, Turn, victims::Victims},
    trace::Frame,
};

/// When every expert is used, in requests of all layers, counted from 1.
#[derive(Debug)]
pub(super) struct Uses(HashMap<ExpertKey, Vec<u64>>);

impl Uses {
    pub(super) fn new<'a>(unions: impl Iterator<Item = (&'a Frame, &'a [ExpertIndex])>) -> Self {
        let mut uses: HashMap<ExpertKey, Vec<u64>> = HashMap::new();
        for ((frame, union), now) in unions.zip(1_u64..) {
            for expert in union {
                let key = ExpertKey { layer: LayerIndex(frame.layer), expert: *expert };
                uses.entry(key).or_default().push(now);
            }
        }
        Self(uses)
    }

    /// The first use after `now`.
    fn after(&self, key: ExpertKey, now: u64) -> Option<u64> {
        let uses = self.0.get(&key)?;
        uses.get(uses.partition_point(|at| *at <= now)).copied()
    }
}

/// See the file.
#[derive(Debug)]
pub(super) struct Belady {
    uses: Arc<Uses>,
    victims: Victims,
}

impl Belady {
    pub(super) fn new(uses: Arc<Uses>, slots: usize) -> Self {
        Self { uses, victims: Victims::new(slots) }
    }
}

impl Policy for Belady {
    fn used(&mut self, standing: &mut Standing, turn: Turn) {
        let next = self.uses.after(standing.key, turn.now);
        standing.rank = next.map_or(f64::NEG_INFINITY, |next| -(next as f64));
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
