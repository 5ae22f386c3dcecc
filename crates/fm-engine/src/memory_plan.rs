//! What goes where, decided before the first byte is loaded: the budget is a ceiling.

use fm_model::{
    decoder::DecoderOptions,
    footprint::Footprint,
    spec::{FfnSpec, ModelSpec},
};
use fm_store::{CHUNK_BYTES, Plan, StoreError, StoreOptions, reader};

use crate::{
    Load,
    bytes::Bytes,
    grammar::{self, Room},
    machine::MemoryLimits,
    options::EngineOptions,
    prefix::{BUFFERS, BUFFERS_BYTES},
};

/// Share of what the machine allows that is used without `--memory`.
const BUDGET_SHARE: f64 = 0.85;

/// Prompt tokens that are computed together if all experts stay in memory.
const PREFILL_CHUNK: usize = 512;

/// The same if they do not: a chunk reads nearly all of them, however short it is.
const PREFILL_CHUNK_STREAMED: usize = 2048;

/// Rows of prompts that overtake longer ones, where there are several sessions: enough for a question, and
/// their residual stream takes 4 MB where it is 2,048 wide.
const SHORT_ROWS: usize = 512;

/// Work space takes at most this share of the budget by default.
const SCRATCH_SHARE: u64 = 8;

/// Without `--context`, keys and values take at most this share of what the trunk leaves.
const KV_SHARE: u64 = 4;

/// The program itself, its stacks, and what the allocator keeps: measured 9 MB, rounded up. The lists of tokens of
/// kept sessions are in it.
pub const OVERHEAD_BYTES: u64 = 24_000_000;

/// Recurrent memories that are kept for later texts take at most this share of what the trunk leaves.
const MARKS_SHARE: u64 = 16;

/// Memory that a tokenizer takes for every byte of its `tokenizer.json`: measured 7.2 while a
/// vocabulary of 248,000 is converted, 2.2 where that was done before.
const TOKENIZER_FACTOR: u64 = 9;

/// Memory of a catalog entry: a record's pieces with their offsets.
const PIECE_BYTES: u64 = 64;

/// What is to be planned for.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// The user's wishes.
    pub options: &'a EngineOptions,
    /// What will be asked of it.
    pub load: Load,
    /// Length of `tokenizer.json`.
    pub tokenizer_bytes: u64,
}

/// Who gets how many bytes.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// The ceiling.
    pub budget: u64,
    /// What the machine allows.
    pub allowed: u64,
    /// The program, tokenizer and catalog, and grammars.
    pub overhead: u64,
    /// What of it grammars may take beside their vocabulary, if there are any.
    pub grammars: Room,
    /// Weights that are always in memory.
    pub trunk: u64,
    /// Keys and values.
    pub kv: u64,
    /// Memories of delta nets.
    pub recurrent: u64,
    /// Work space.
    pub scratch: u64,
    /// Slots and staging of the expert store.
    pub store: Plan,
    /// Who leaves the store, and the like.
    pub store_options: StoreOptions,
    /// Tokens of a session.
    pub context: u32,
    /// Tokens the model was made for.
    pub context_model: u32,
    /// Sessions that may be open at once.
    pub sessions: usize,
    /// Recurrent memories that may be kept beside those of sessions.
    pub marks: usize,
    /// Blocks of keys and values for all sessions.
    pub kv_blocks: usize,
    /// Size of a step.
    pub decoder: DecoderOptions,
    /// Bytes of all routed experts in slots.
    pub experts: u64,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The least that works is more than the budget.
    #[error(
        "a memory budget of {} is too small: this model needs at least {} \
         (trunk {}, work space and state {}, the experts of one token {}, the program {})",
        Bytes(*budget), Bytes(trunk + state + experts + overhead).up(), Bytes(*trunk), Bytes(*state),
        Bytes(*experts), Bytes(*overhead)
    )]
    BudgetTooSmall {
        /// The ceiling.
        budget: u64,
        /// Weights that are always in memory.
        trunk: u64,
        /// Smallest work space, memories, and keys and values of one block.
        state: u64,
        /// Slots and staging for one token's experts.
        experts: u64,
        /// The program.
        overhead: u64,
        /// Sessions that are to be open at once, which all of it is for.
        sessions: usize,
    },
    /// The context asked for does not fit beside the rest.
    #[error(
        "a context of {wanted} tokens takes {} of keys and values, the budget of {} leaves {}: \
         room for {possible} tokens", Bytes(*bytes), Bytes(*budget), Bytes(*left)
    )]
    Context {
        /// Tokens asked for.
        wanted: u32,
        /// What they take.
        bytes: u64,
        /// The ceiling.
        budget: u64,
        /// What is left for them.
        left: u64,
        /// Tokens that would fit.
        possible: u64,
    },
    /// The context asked for is longer than the model can be trusted with.
    #[error("a context of {wanted} tokens is longer than the model's own {model}")]
    LongerThanModel {
        /// Tokens asked for.
        wanted: u32,
        /// Tokens the model was made for.
        model: u32,
    },
    /// More experts per token than there are.
    #[error("--k {wanted} is more than the {experts} experts of a layer")]
    TopK {
        /// Experts per token asked for.
        wanted: usize,
        /// Experts of a layer.
        experts: usize,
    },
    /// A step has no row for every session: the last ones would wait until others have ended.
    #[error(
        "--prefill-chunk {chunk} is less than the {sessions} sessions that are computed at once"
    )]
    ChunkTooSmall {
        /// Rows of a step asked for.
        chunk: usize,
        /// Sessions asked for.
        sessions: usize,
    },
    /// The store cannot be planned.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl MemoryPlan {
    /// Divides the budget: program and trunk first, then work space, then keys and values, and all
    /// the rest to expert slots.
    ///
    /// # Errors
    /// If it cannot work, with the numbers.
    pub fn new(demand: Demand<'_>, limits: &MemoryLimits) -> Result<Self, PlanError> {
        let Demand { spec, options, load: Load { sessions, logits_rows, .. }, .. } = demand;
        check_top_k(spec, options.top_k)?;
        let allowed = limits.allowed();
        let budget = options.memory.unwrap_or_else(|| default_budget(limits));
        let footprint = Footprint::of(spec, options.top_k, options.kv);
        let grammars = Room::within(budget, sessions);
        let overhead = overhead(&demand, grammars) + disk_buffers(&demand, &footprint);
        let recurrent = footprint.recurrent * sessions as u64;
        let decoder = |rows_max| DecoderOptions {
            rows_max,
            logits_rows_max: logits_rows,
            short_rows_max: if sessions > 1 { SHORT_ROWS } else { 0 },
            top_k: options.top_k,
        };
        let scratch = |rows| footprint.scratch(decoder(rows), spec.vocab);
        let resident = overhead + footprint.trunk + recurrent + spec.catalog.slot_bytes();
        let staging = reader::staging_bytes(&spec.catalog, reader::DEPTH_DEFAULT);
        let top_k = spec.moe_dims(options.top_k).top_k;
        let least = Plan::minimum(&spec.catalog, top_k, staging).bytes();
        let one_block = kv_bytes(&demand, &footprint, 1);
        let kv_least = kv_bytes(&demand, &footprint, options.context.unwrap_or(1));
        let others = overhead + footprint.trunk + recurrent + least + kv_least;
        let room = WorkRoom {
            beside_all: budget.saturating_sub(resident),
            beside_least: budget.saturating_sub(others).min(budget / SCRATCH_SHARE),
        };
        let chunk = prefill_chunk(&demand, room, scratch)?;
        let scratch = scratch(chunk);
        let fixed = overhead + footprint.trunk + recurrent + scratch;
        let left = budget.checked_sub(fixed + least + one_block).ok_or({
            let state = recurrent + scratch + one_block;
            let (trunk, experts) = (footprint.trunk, least);
            PlanError::BudgetTooSmall { budget, trunk, state, experts, overhead, sessions }
        })? + one_block;
        let marks = marks(&demand, &footprint, left.saturating_sub(kv_least));
        let kept = marks as u64 * footprint.memories;
        let (recurrent, fixed, left) = (recurrent + kept, fixed + kept, left - kept);
        let context = context(&demand, &footprint, (budget, left, least))?;
        let kv_blocks = footprint.kv_blocks(context) * sessions as u64;
        let kv = kv_bytes(&demand, &footprint, context);
        let store_options = StoreOptions {
            budget_bytes: slot_budget(&demand, staging, budget - fixed - kv),
            policy: options.policy,
            top_k,
            chunk_bytes: CHUNK_BYTES,
        };
        Ok(Self {
            budget,
            allowed,
            overhead,
            grammars,
            trunk: footprint.trunk,
            kv,
            recurrent,
            scratch,
            store: Plan::new(&spec.catalog, store_options, staging)?,
            store_options,
            context,
            context_model: spec.context_max,
            sessions,
            marks,
            kv_blocks: kv_blocks as usize,
            decoder: decoder(chunk),
            experts: spec.catalog.slot_bytes(),
        })
    }

    /// What the plan takes of the budget.
    pub fn total(&self) -> u64 {
        let state = self.kv + self.recurrent + self.scratch;
        self.overhead + self.trunk + state + self.store.bytes()
    }
}

/// The ceiling without `--memory`.
pub fn default_budget(limits: &MemoryLimits) -> u64 {
    (limits.allowed() as f64 * BUDGET_SHARE) as u64
}

fn check_top_k(spec: &ModelSpec, top_k: Option<usize>) -> Result<(), PlanError> {
    let layers = spec.layers.iter().zip(&spec.catalog.layers);
    let reachable = layers.filter_map(|(layer, records)| match (&layer.ffn, records) {
        (FfnSpec::Moe(moe), Some(records)) => Some(moe.routing.reachable(records.records.len())),
        _ => None,
    });
    match (top_k, reachable.min()) {
        (Some(wanted), Some(experts)) if wanted > experts => {
            Err(PlanError::TopK { wanted, experts })
        }
        _ => Ok(()),
    }
}

fn overhead(demand: &Demand<'_>, room: Room) -> u64 {
    let records = demand.spec.catalog.layers.iter().flatten().flat_map(|layer| &layer.records);
    let pieces: u64 = records.map(|record| record.pieces.len() as u64 + 2).sum();
    // 29 bytes per token and session: the sampler's counts, candidates and logits, the likeliest tokens, and logits
    // that wait for a mask.
    let sampling = 32 * (demand.spec.vocab * demand.load.sessions) as u64;
    // The catalog is there twice while the store takes over.
    let catalog = 2 * pieces * PIECE_BYTES;
    let tries = grammar::TRIE_TOKEN_BYTES * demand.spec.vocab as u64;
    let grammars = if demand.load.grammars { tries + room.bytes(demand.load.sessions) } else { 0 };
    OVERHEAD_BYTES + demand.tokenizer_bytes * TOKENIZER_FACTOR + catalog + sampling + grammars
}

/// What moves sessions between memory and disk: a part is in every buffer, and on both sides of them.
fn disk_buffers(demand: &Demand<'_>, footprint: &Footprint) -> u64 {
    let parts = (BUFFERS as u64 + 2) * footprint.state_part;
    if demand.load.prefix_disk { BUFFERS_BYTES + parts } else { 0 }
}

/// Bytes that may go to work space.
#[derive(Clone, Copy, Debug)]
struct WorkRoom {
    /// Where all experts stay in memory.
    beside_all: u64,
    /// Where as few of them stay as may be.
    beside_least: u64,
}

/// The chunk asked for, or the largest one whose work space has room. Every session has a row of it.
fn prefill_chunk(
    demand: &Demand<'_>,
    room: WorkRoom,
    scratch: impl Fn(usize) -> u64,
) -> Result<usize, PlanError> {
    let sessions = demand.load.sessions;
    match demand.options.prefill_chunk {
        Some(chunk) if chunk < sessions => {
            return Err(PlanError::ChunkTooSmall { chunk, sessions });
        }
        Some(chunk) => return Ok(chunk),
        None => {}
    }
    let context = demand.options.context.unwrap_or(demand.spec.context_max) as usize;
    let fits = scratch(PREFILL_CHUNK) <= room.beside_all;
    let most = if fits { PREFILL_CHUNK } else { PREFILL_CHUNK_STREAMED };
    let mut chunk = most.min(context.next_power_of_two());
    while chunk > 16 && scratch(chunk) > room.beside_least {
        chunk /= 2;
    }
    Ok(chunk.max(sessions))
}

/// As many as are asked for, within their share.
fn marks(demand: &Demand<'_>, footprint: &Footprint, left: u64) -> usize {
    let fitting = (left / MARKS_SHARE).checked_div(footprint.memories);
    fitting.map_or(0, |fitting| demand.load.marks.min(fitting as usize))
}

/// Keys and values of all sessions.
fn kv_bytes(demand: &Demand<'_>, footprint: &Footprint, context: u32) -> u64 {
    footprint.kv_blocks(context) * footprint.kv_block * demand.load.sessions as u64
}

fn context(
    demand: &Demand<'_>,
    footprint: &Footprint,
    (budget, left, least): (u64, u64, u64),
) -> Result<u32, PlanError> {
    let model = demand.spec.context_max;
    let sessions = demand.load.sessions as u64;
    let fitting = |bytes: u64| {
        let blocks = bytes.checked_div(footprint.kv_block * sessions);
        blocks
            .map_or(u64::from(model), |blocks| blocks * fm_kernels::backend::KV_BLOCK_TOKENS as u64)
    };
    if let Some(wanted) = demand.options.context {
        if wanted > model {
            return Err(PlanError::LongerThanModel { wanted, model });
        }
        let (bytes, possible) = (kv_bytes(demand, footprint, wanted), fitting(left));
        if bytes > left {
            return Err(PlanError::Context { wanted, bytes, budget, left, possible });
        }
        return Ok(wanted);
    }
    let everything = demand.spec.catalog.slot_bytes().saturating_sub(least);
    let share = (left / KV_SHARE).max(left.saturating_sub(everything));
    let smallest = fitting(left).min(fm_kernels::backend::KV_BLOCK_TOKENS as u64);
    Ok(fitting(share).max(smallest).min(u64::from(model)) as u32)
}

/// Bytes for slots and staging: all that is left, or what the user's number of slots takes.
fn slot_budget(demand: &Demand<'_>, staging: u64, left: u64) -> u64 {
    let layers = demand.spec.catalog.layers.iter().flatten();
    let largest = layers.map(|layer| layer.layout.bytes()).max().unwrap_or(0);
    let largest = (largest + demand.spec.catalog.room_bytes()) as u64;
    match demand.options.slots {
        Some(slots) => left.min((slots as u64).saturating_mul(largest).saturating_add(staging)),
        None => left,
    }
}
