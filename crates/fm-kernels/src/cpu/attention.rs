//! Attention of some query heads, block by block.

use crate::{
    backend::{AttentionShape, KV_BLOCK_TOKENS, KvView},
    host::HEADS_PER_TASK_MAX,
};

use super::{
    activation::{exp_sum, largest},
    lanes::{LANES, Lanes, Work, load_some, store_some},
};

/// Keys that run side by side: they share the query and hide each other's latency.
const KEYS: usize = 4;

/// Vectors of the output that stay in registers while the values of a block stream by.
const COLUMNS: usize = 4;

/// Query heads at `position` that share a key/value head, see
/// [`crate::reference::attention::attend`]: the same equations in the same order of blocks and
/// positions. Every head meets a block before the next block is read.
pub(super) struct Attend<'a> {
    pub(super) shape: AttentionShape,
    /// `[heads, k_dim]`
    pub(super) q: &'a [f32],
    pub(super) kv: &'a KvView<'a, Vec<f32>>,
    /// The first of them.
    pub(super) head: usize,
    pub(super) position: usize,
    /// `[heads, v_dim]`
    pub(super) out: &'a mut [f32],
}

impl Work for Attend<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { shape, q, kv, head, position, out } = self;
        let AttentionShape { k_dim, v_dim, .. } = shape;
        let kv_head = head / (shape.heads / shape.kv_heads);
        let (mut peaks, mut sums) =
            ([f32::NEG_INFINITY; HEADS_PER_TASK_MAX], [0.0; HEADS_PER_TASK_MAX]);
        if let Some(sinks) = kv.sinks {
            let own = &sinks[head..][..q.len() / k_dim];
            for ((peak, sum), sink) in peaks.iter_mut().zip(&mut sums).zip(own) {
                (*peak, *sum) = (*sink, 1.0);
            }
        }
        let from = shape.first_seen(position);
        let mut scores = [0.0; KV_BLOCK_TOKENS];
        out.fill(0.0);
        let blocks = (0..=position).step_by(KV_BLOCK_TOKENS).zip(kv.table);
        for (first, block) in blocks.skip(from / KV_BLOCK_TOKENS) {
            let unseen = from.saturating_sub(first);
            let lane = (*block as usize * shape.kv_heads + kv_head) * KV_BLOCK_TOKENS + unseen;
            let tokens = KV_BLOCK_TOKENS.min(position + 1 - first) - unseen;
            let scores = &mut scores[..tokens];
            let keys = &kv.keys[lane * k_dim..][..tokens * k_dim];
            let heads = q.chunks_exact(k_dim).zip(out.chunks_exact_mut(v_dim));
            for ((q, out), (peak, sum)) in heads.zip(peaks.iter_mut().zip(&mut sums)) {
                score(lanes, shape.scale, q, keys, scores);
                let higher = largest(lanes, scores, *peak);
                let fade = (*peak - higher).exp(); // e^-∞ = 0 for the first block
                *peak = higher;
                *sum = *sum * fade + exp_sum(lanes, higher, scores);
                gather(lanes, fade, scores, kv.values(shape, lane), out);
            }
        }
        for (out, sum) in out.chunks_exact_mut(v_dim).zip(sums) {
            let share = 1.0 / sum;
            out.iter_mut().for_each(|out| *out *= share);
        }
    }
}

/// `scores[t] = scale · q·keys[t]`.
#[inline(always)]
fn score<L: Lanes>(lanes: L, scale: f32, q: &[f32], keys: &[f32], scores: &mut [f32]) {
    let k_dim = q.len();
    let full = scores.len() / KEYS * KEYS;
    let (keys, last_keys) = keys.split_at(full * k_dim);
    let (scores, last_scores) = scores.split_at_mut(full);
    for (keys, scores) in keys.chunks_exact(KEYS * k_dim).zip(scores.chunks_exact_mut(KEYS)) {
        score_keys::<L, KEYS>(lanes, scale, q, keys, scores);
    }
    for (key, score) in last_keys.chunks_exact(k_dim).zip(last_scores.chunks_exact_mut(1)) {
        score_keys::<L, 1>(lanes, scale, q, key, score);
    }
}

/// `T` keys; a score does not depend on `T`.
#[inline(always)]
fn score_keys<L: Lanes, const T: usize>(
    lanes: L,
    scale: f32,
    q: &[f32],
    keys: &[f32],
    scores: &mut [f32],
) {
    let k_dim = q.len();
    let mut sums = [lanes.splat(0.0); T];
    for (i, q) in q.chunks(LANES).enumerate() {
        let (at, len, q) = (i * LANES, q.len(), load_some(lanes, q));
        for t in 0..T {
            let key = load_some(lanes, &keys[t * k_dim + at..][..len]);
            sums[t] = lanes.fma(q, key, sums[t]);
        }
    }
    for t in 0..T {
        scores[t] = scale * lanes.sum(sums[t]);
    }
}

/// `out = fade · out + Σ shares[t] · values[t]`, positions ascending; `values` come with their
/// stride.
#[inline(always)]
fn gather<L: Lanes>(
    lanes: L,
    fade: f32,
    shares: &[f32],
    (values, stride): (&[f32], usize),
    out: &mut [f32],
) {
    let wide = out.len() / (COLUMNS * LANES) * (COLUMNS * LANES);
    let (many, rest) = out.split_at_mut(wide);
    for (i, out) in many.chunks_exact_mut(COLUMNS * LANES).enumerate() {
        let at = i * COLUMNS * LANES;
        gather_columns::<L, COLUMNS>(lanes, fade, shares, (&values[at..], stride), out);
    }
    for (i, out) in rest.chunks_mut(LANES).enumerate() {
        let at = wide + i * LANES;
        gather_columns::<L, 1>(lanes, fade, shares, (&values[at..], stride), out);
    }
}

/// `C` vectors of the output, the last of which may be short.
#[inline(always)]
fn gather_columns<L: Lanes, const C: usize>(
    lanes: L,
    fade: f32,
    shares: &[f32],
    (values, stride): (&[f32], usize),
    out: &mut [f32],
) {
    let mut sums = [lanes.splat(fade); C];
    for (sum, out) in sums.iter_mut().zip(out.chunks(LANES)) {
        *sum = lanes.mul(*sum, load_some(lanes, out));
    }
    for (share, values) in shares.iter().zip(values.chunks(stride)) {
        let share = lanes.splat(*share);
        for (sum, values) in sums.iter_mut().zip(values[..out.len()].chunks(LANES)) {
            *sum = lanes.fma(share, load_some(lanes, values), *sum);
        }
    }
    for (sum, out) in sums.iter().zip(out.chunks_mut(LANES)) {
        store_some(lanes, *sum, out);
    }
}
