//! How many bytes a model takes, before any of them is allocated: what the memory plan counts with.

use std::collections::HashSet;

use fm_format::record::MatrixRole;
use fm_kernels::{
    backend::{KV_BLOCK_TOKENS, KvFormat},
    host::{EXPERT_ROWS_PER_PASS, arranging_bytes},
};

use crate::{
    decoder::DecoderOptions,
    experts::ARRIVAL_ROWS_MAX,
    layer::mla::MLA_ROWS_MAX,
    spec::{FfnSpec, MlaSpec, ModelSpec, for_each_tensor},
    state::{delta_state::DeltaState, kv_blocks::block_bytes},
};

/// Bytes of a model's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Everything that is always in memory: all weights but the routed experts.
    pub trunk: u64,
    /// One block of keys and values, [`KV_BLOCK_TOKENS`] tokens of all attention layers.
    pub kv_block: u64,
    /// Memories of the delta nets of one session, with the room for one checkpoint.
    pub recurrent: u64,
    /// The same at one position.
    pub memories: u64,
    /// The largest parts of a session that are moved at once: a layer's keys or values, and its memories.
    pub state_part: u64,
    /// Work space of a step per row of the batch.
    pub scratch_row: u64,
    /// Beside that for each of the rows whose heads latent attention works on at once.
    pub scratch_head_row: u64,
    /// Residual stream of a row that passes while a batch rests between two layers.
    pub aside_row: u64,
    /// Work space of a step whatever its size, with one row of logits.
    pub scratch_fixed: u64,
    /// Weights that one token reads from memory, routed experts included.
    pub active: u64,
    /// Of these, the routed experts'.
    pub active_experts: u64,
}

impl Footprint {
    /// Counts the bytes of a described model.
    pub fn of(spec: &ModelSpec, top_k: Option<usize>, kv: KvFormat) -> Self {
        let (active_experts, memories) = (active_expert_bytes(spec, top_k), memories(spec));
        let trunk = trunk_bytes(spec);
        // A token reads one row of the embedding, and all of it only where it is the head too.
        let embed = if spec.head.is_some() { spec.embed.shape.bytes() as u64 } else { 0 };
        Self {
            trunk,
            kv_block: block_bytes(spec.kv_shapes(), kv),
            recurrent: 2 * memories,
            memories,
            state_part: state_part(spec, kv),
            scratch_row: scratch_row(spec, top_k),
            scratch_head_row: scratch_head_row(spec),
            aside_row: 4 * spec.hidden as u64,
            scratch_fixed: scratch_fixed(spec, top_k),
            active: trunk - embed + active_experts,
            active_experts,
        }
    }

    /// Work space for batches of the given size.
    pub fn scratch(&self, options: DecoderOptions, vocab: usize) -> u64 {
        // A row of logits is there twice: on the device and for the reader.
        let logits = 8 * options.logits_rows_max.saturating_sub(1) as u64 * vocab as u64;
        let heads = self.scratch_head_row * options.rows_max.min(MLA_ROWS_MAX) as u64;
        let beside = |rows: usize| self.aside_row * rows.min(options.rows_max) as u64;
        let aside = beside(options.logits_rows_max) + beside(options.short_rows_max);
        let rows = self.scratch_row * options.rows_max as u64;
        self.scratch_fixed + rows + heads + logits + aside
    }

    /// Blocks of keys and values for a context.
    pub fn kv_blocks(&self, context: u32) -> u64 {
        if self.kv_block == 0 { 0 } else { u64::from(context).div_ceil(KV_BLOCK_TOKENS as u64) }
    }
}

/// Bytes of keys, values and memories that the token at `position` reads.
pub fn state_bytes(spec: &ModelSpec, position: usize, kv: KvFormat) -> u64 {
    let kept = spec.layers.iter().filter_map(|layer| {
        let token_bytes = block_bytes(std::iter::once(layer.mixer.kv_shape()?), kv);
        Some(layer.mixer.seen_from(position) as u64 * token_bytes / KV_BLOCK_TOKENS as u64)
    });
    kept.sum::<u64>() + memories(spec)
}

fn state_part(spec: &ModelSpec, kv: KvFormat) -> u64 {
    let parts = spec.kv_shapes().map(|shape| shape.kv_heads * shape.k_dim.max(shape.v_dim));
    let block = kv.value_bytes() * KV_BLOCK_TOKENS * parts.max().unwrap_or(0);
    let memories = spec.delta_layers().map(|layer| DeltaState::<Nowhere>::bytes(layer.shape));
    block as u64 + memories.max().unwrap_or(0)
}

/// Bytes of the delta nets' memories of one session.
fn memories(spec: &ModelSpec) -> u64 {
    spec.delta_layers().map(|layer| DeltaState::<Nowhere>::bytes(layer.shape)).sum()
}

/// Bytes do not depend on the device.
type Nowhere = fm_kernels::reference::Reference;

fn active_expert_bytes(spec: &ModelSpec, top_k: Option<usize>) -> u64 {
    let layers = spec.layers.iter().zip(&spec.catalog.layers);
    let active = layers.filter_map(|(layer, records)| match (&layer.ffn, records) {
        (FfnSpec::Moe(moe), Some(records)) => {
            let chosen = top_k.unwrap_or(moe.routing.top_k);
            Some((chosen * records.layout.weight_bytes()) as u64)
        }
        _ => None,
    });
    active.sum()
}

fn trunk_bytes(spec: &ModelSpec) -> u64 {
    let (mut matrices, mut values) = (0, 0);
    for_each_tensor(spec, &mut |matrix| matrices += matrix.shape.bytes(), &mut |vector| {
        values += vector.len;
    });
    (matrices + 4 * values) as u64
}

/// f32 values per row: the buffers of `Workspace` and of the scratch structures, in their order.
fn scratch_row(spec: &ModelSpec, top_k: Option<usize>) -> u64 {
    let dims = spec.moe_dims(top_k);
    let hidden = spec.hidden;
    let attention = spec.attention_layers().map(|layer| {
        let s = layer.shape;
        s.heads * (s.k_dim + 3 * s.v_dim) + s.kv_heads * (s.k_dim + s.v_dim)
    });
    let mla = spec.mla_layers().map(MlaSpec::scratch_row);
    let delta = spec.delta_layers().map(|layer| {
        let s = layer.shape;
        s.channels() + 3 * s.value_heads * s.v_dim + 2 * s.value_heads
    });
    let experts = spec.catalog.layers.iter().flatten().map(|layer| layer.records.len());
    let router = 2 * experts.max().unwrap_or(0) + 1;
    let ffn = 3 * dims.ffn + hidden;
    // Results of a product in weight-row order, the widest but the head's and those of few rows.
    let of_heads: HashSet<&str> = spec.mla_layers().flat_map(MlaSpec::of_few_rows).collect();
    let mut widest = 0;
    for_each_tensor(
        spec,
        &mut |matrix| {
            if matrix.shape.rows != spec.vocab && !of_heads.contains(matrix.name.as_str()) {
                widest = matrix.shape.rows.max(widest);
            }
        },
        &mut |_| {},
    );
    let values = 4 * hidden
        + attention.max().unwrap_or(0)
        + mla.max().unwrap_or(0)
        + delta.max().unwrap_or(0)
        + router
        + ffn
        + widest.max(hidden).max(dims.ffn);
    // What arranged matrices read is there as integers, too: three bytes per value at most.
    let mixed = spec.attention_layers().map(|layer| layer.shape.heads * layer.shape.v_dim);
    let mixed = mixed.chain(spec.mla_layers().map(|layer| layer.shape.heads * layer.shape.v_dim));
    let mixed =
        mixed.chain(spec.delta_layers().map(|layer| layer.shape.value_heads * layer.shape.v_dim));
    let prepared = hidden + dims.ffn + mixed.max().unwrap_or(0).max(hidden);
    // Prepared activations are padded, and the host keeps a few words per row and choice.
    (4 * values + 3 * prepared + 1536 + 32 * dims.top_k) as u64
}

fn scratch_head_row(spec: &ModelSpec) -> u64 {
    4 * spec.mla_layers().map(MlaSpec::scratch_head_row).max().unwrap_or(0) as u64
}

fn scratch_fixed(spec: &ModelSpec, top_k: Option<usize>) -> u64 {
    let dims = spec.moe_dims(top_k);
    // Of experts that are computed together: their results, what gate and up say, and that prepared.
    let of_choice = 4 * (dims.hidden + 3 * dims.ffn) + 3 * dims.ffn + 512;
    let arrivals = ARRIVAL_ROWS_MAX * dims.top_k * of_choice;
    let experts = spec.catalog.layers.iter().flatten().map(|layer| layer.records.len());
    // Of a guess at the next layer's routes.
    let guess = 2 * (dims.hidden + experts.max().unwrap_or(0) + dims.top_k) + 32;
    let mut row_bytes = 0;
    for_each_tensor(
        spec,
        &mut |matrix| row_bytes = matrix.shape.row_bytes().max(row_bytes),
        &mut |_| {},
    );
    for layer in spec.catalog.layers.iter().flatten() {
        let widest = MatrixRole::ALL.map(|role| layer.layout.shape(role).row_bytes());
        row_bytes = widest.into_iter().fold(row_bytes, usize::max);
    }
    // Rows of an expert side by side: three bytes per value, and a block between rows.
    let gathered = EXPERT_ROWS_PER_PASS * (3 * dims.hidden + 192);
    (4 * (ARRIVAL_ROWS_MAX * guess + 2 * spec.vocab)
        + arrivals
        + arranging_bytes(row_bytes)
        + gathered) as u64
}
