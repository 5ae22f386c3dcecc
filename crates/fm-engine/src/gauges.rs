//! What a running model shows to another thread: counters, memory, limits, its experts at a glance.

use std::{path::PathBuf, sync::Arc};

use fm_store::{ExpertMap, Stats};

use crate::{
    Engine, Places,
    limits::Limits,
    local::{SharedStats, read_stats},
    machine::held_bytes,
};

/// See the module. Looking takes nothing from the model but a lock for as long as counters are copied.
#[derive(Clone, Debug)]
pub struct Gauges {
    /// Family, as in `config.json`.
    pub model_type: &'static str,
    /// Arithmetic in force.
    pub numerics: &'static str,
    /// What was asked for that changes the model's answers, in words.
    pub lossy: Vec<String>,
    /// Threads that compute.
    pub threads: usize,
    /// How experts are read.
    pub reader: String,
    /// Ceiling for all memory but clean page cache.
    pub budget_bytes: u64,
    /// Bytes of expert slots.
    pub slot_bytes: u64,
    /// Weights that a step reads from memory whatever its experts are.
    pub step_bytes: u64,
    /// Weights of one expert, the mean of all layers.
    pub expert_bytes: u64,
    /// What the machine can do, as far as it has been measured.
    pub limits: Limits,
    /// Whether all experts have a slot, so that each is read once.
    pub holds_everything: bool,
    stats: SharedStats,
    map: Arc<ExpertMap>,
    /// Root of `/proc`.
    root: PathBuf,
}

impl Gauges {
    /// Those of an engine on a machine of these limits.
    pub fn of(engine: &Engine, limits: Limits, places: &Places) -> Self {
        let (plan, footprint) = (&engine.plan, &engine.footprint);
        let routed: usize = plan.store.classes.iter().map(|class| class.layers).sum();
        let experts_per_token = (routed * plan.store_options.top_k).max(1) as u64;
        Self {
            model_type: engine.model_type,
            numerics: engine.numerics.name(),
            lossy: engine.lossy.clone(),
            threads: engine.threads,
            reader: engine.reader.to_string(),
            budget_bytes: plan.budget,
            slot_bytes: plan.store.slot_bytes(),
            step_bytes: footprint.active - footprint.active_experts,
            expert_bytes: footprint.active_experts / experts_per_token,
            limits,
            holds_everything: plan.store.holds_everything(),
            stats: engine.stats_handle(),
            map: engine.map_handle(),
            root: places.root.clone(),
        }
    }

    /// The expert store's counters.
    pub fn stats(&self) -> Stats {
        read_stats(&self.stats)
    }

    /// Where every expert is, and what happens to it.
    pub fn map(&self) -> &ExpertMap {
        &self.map
    }

    /// Memory held now that cannot be dropped; `None` where the system does not tell.
    pub fn held_bytes(&self) -> Option<u64> {
        held_bytes(&self.root)
    }
}
