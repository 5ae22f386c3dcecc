//! Attention of one query head over the blocks of its session, with an online softmax.

use crate::{
    backend::{AttentionShape, KV_BLOCK_TOKENS},
    host::{Kept, Kernels, KvLanes},
};

/// One query head at `position`: sees positions `0..=position`, or the latest of them that are in
/// its window.
///
/// ```text
/// m, l, out ← sink, 1, 0                       or, without one, −∞, 0, 0
/// per block of 64 positions, ascending:
///   s_t ← scale · q·k_t          m' ← max(m, max s)
///   l   ← l · e^(m−m') + Σ e^(s_t−m')
///   out ← out · e^(m−m') + Σ e^(s_t−m') v_t
/// out ← out / l
/// ```
///
/// The block is the unit whatever the chunking of a prompt, so a row's bits depend on nothing but
/// its own history. `q` is `[k_dim]`, `out` is `[v_dim]`, `head` is a query head.
pub fn attend<K: Kernels, E: Kept>(
    kernels: &K,
    shape: AttentionShape,
    q: &[f32],
    (kv, head): (KvLanes<'_, E>, usize),
    position: usize,
    out: &mut [f32],
) {
    let kv_head = head / (shape.heads / shape.kv_heads);
    let (mut peak, mut sum) = kv.sinks.map_or((f32::NEG_INFINITY, 0.0), |sinks| (sinks[head], 1.0));
    let from = shape.first_seen(position);
    let (mut scores, mut row) = ([0.0; KV_BLOCK_TOKENS], Vec::new());
    out.fill(0.0);
    let blocks = (0..=position).step_by(KV_BLOCK_TOKENS).zip(kv.table);
    for (first, block) in blocks.skip(from / KV_BLOCK_TOKENS) {
        let unseen = from.saturating_sub(first);
        let lane = (*block as usize * shape.kv_heads + kv_head) * KV_BLOCK_TOKENS + unseen;
        let scores = &mut scores[unseen..KV_BLOCK_TOKENS.min(position + 1 - first)];
        let keys = kv.keys[lane * shape.k_dim..].chunks_exact(shape.k_dim);
        for (score, key) in scores.iter_mut().zip(keys) {
            row.clear();
            row.extend(key.iter().map(|kept| kept.value()));
            *score = shape.scale * kernels.dot(q, &row);
        }
        let higher = scores.iter().copied().fold(peak, f32::max);
        let fade = (peak - higher).exp(); // e^-∞ = 0 for the first block
        peak = higher;
        sum *= fade;
        out.iter_mut().for_each(|out| *out *= fade);
        let (values, stride) = kv.values(shape, lane);
        for (score, value) in scores.iter().zip(values.chunks(stride)) {
            let share = (score - peak).exp();
            sum += share;
            row.clear();
            row.extend(value[..shape.v_dim].iter().map(|kept| kept.value()));
            kernels.axpy(share, &row, out);
        }
    }
    out.iter_mut().for_each(|out| *out /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Scalar;
    use proptest::prelude::*;

    /// Plain softmax over all positions in f64, keys and values laid out by position.
    fn naive(
        (q, sink): (&[f32], Option<f32>),
        keys: &[Vec<f32>],
        values: &[Vec<f32>],
        scale: f32,
    ) -> Vec<f64> {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let weights: Vec<f64> =
            keys.iter().map(|key| (f64::from(scale) * dot(q, key)).exp()).collect();
        let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| f64::from(sink).exp());
        (0..values[0].len())
            .map(|i| weights.iter().zip(values).map(|(w, v)| w / sum * f64::from(v[i])).sum())
            .collect()
    }

    fn noise(seed: usize, len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i + 1) as f32 * (seed as f32 + 0.37)).sin()).collect()
    }

    proptest! {
        #[test]
        fn matches_the_plain_softmax_across_blocks(
            position in 0_usize..200,
            seed in 0_usize..50,
            window in prop::option::of(1_usize..150),
            sinks in prop::option::of(prop::collection::vec(-3.0_f32..3.0, 6)),
        ) {
            let dims = AttentionShape {
                heads: 6, kv_heads: 3, k_dim: 5, v_dim: 7, scale: 0.9, window: None,
            };
            let shape = AttentionShape { window, ..dims };
            let from = window.map_or(0, |window| (position + 1).saturating_sub(window));
            let blocks = position / KV_BLOCK_TOKENS + 1;
            // The table is reversed, so that a block's number is not its position.
            let table: Vec<u32> = (0..blocks as u32).rev().collect();
            let keys = noise(seed, blocks * 3 * KV_BLOCK_TOKENS * 5);
            let values = noise(seed + 1, blocks * 3 * KV_BLOCK_TOKENS * 7);
            let q = noise(seed + 2, 5);
            let kv = KvLanes {
                keys: &keys, values: Some(&values), table: &table, sinks: sinks.as_deref(),
            };
            for head in 0..shape.heads {
                let mut out = vec![0.0; 7];
                attend(&Scalar::PLAIN, shape, &q, (kv, head), position, &mut out);
                let rows = |data: &[f32], dim: usize| -> Vec<Vec<f32>> {
                    (from..=position).map(|at| {
                        let block = table[at / KV_BLOCK_TOKENS] as usize;
                        let row = (block * 3 + head / 2) * KV_BLOCK_TOKENS + at % KV_BLOCK_TOKENS;
                        data[row * dim..][..dim].to_vec()
                    }).collect()
                };
                let sink = sinks.as_ref().map(|sinks| sinks[head]);
                let want = naive((&q, sink), &rows(&keys, 5), &rows(&values, 7), shape.scale);
                for (got, want) in out.iter().zip(want) {
                    prop_assert!((f64::from(*got) - want).abs() < 1e-5, "head {head}");
                }
            }
        }
    }
}
