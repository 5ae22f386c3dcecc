//! Softmax attention over the whole prompt.
//!
//! Conventions held here: `q_proj` rows of the hybrids are per head `[query | gate]`; queries and
//! keys are normalised per head, then rotated; rotation pairs dimension `j` with `j + r/2` of the
//! first `r`; query head `h` reads key/value head `h / (heads / kv_heads)`; the gate is neither
//! normalised nor rotated.

use super::{
    config::Config,
    maths::{dot, rms_norm, sigmoid, softmax},
    weights::Scope,
};

/// `o_proj( softmax(q kᵀ / √d, causal) v · sigmoid(gate) )` for every token of `x`.
pub(super) fn attention(config: &Config, weights: Scope<'_>, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
    if config.attention_bias {
        weights.get("q_proj.bias");
    }
    let projected: Vec<Heads> =
        x.iter().enumerate().map(|(position, x)| project(config, weights, position, x)).collect();
    let mixed = (0..x.len()).map(|token| {
        let heads = (0..config.heads).flat_map(|head| {
            let mut out = attend(config, &projected[..=token], head);
            if config.is_hybrid() {
                let gate = &projected[token].gates[head];
                out.iter_mut().zip(gate).for_each(|(out, gate)| *out *= sigmoid(*gate));
            }
            out
        });
        weights.linear("o_proj", &heads.collect::<Vec<_>>())
    });
    mixed.collect()
}

/// What one token contributes, per head.
struct Heads {
    queries: Vec<Vec<f64>>,
    gates: Vec<Vec<f64>>,
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

fn project(config: &Config, weights: Scope<'_>, position: usize, x: &[f64]) -> Heads {
    let dim = config.head_dim;
    let per_head = if config.is_hybrid() { 2 * dim } else { dim };
    let q = weights.linear("q_proj", x);
    let k = weights.linear("k_proj", x);
    let v = weights.linear("v_proj", x);
    assert_eq!(q.len(), config.heads * per_head, "q_proj has its rows per head");
    assert_eq!(k.len(), config.kv_heads * dim, "k_proj has its rows per head");

    let prepare = |head: &[f64], norm: &str| {
        let normed = rms_norm(head, &weights.get(norm).data, config.eps);
        rotate(config, position, &normed)
    };
    Heads {
        queries: q.chunks(per_head).map(|row| prepare(&row[..dim], "q_norm.weight")).collect(),
        gates: q.chunks(per_head).map(|row| row[dim..].to_vec()).collect(),
        keys: k.chunks(dim).map(|row| prepare(row, "k_norm.weight")).collect(),
        values: v.chunks(dim).map(<[f64]>::to_vec).collect(),
    }
}

/// Rotates the pairs `(j, j + r/2)` of the first `r` dimensions by `position · theta^(−2j/r)`.
fn rotate(config: &Config, position: usize, head: &[f64]) -> Vec<f64> {
    let dims = config.rotary_dim;
    assert!(dims.is_multiple_of(2), "rotation needs pairs");
    let mut out = head.to_vec();
    for j in 0..dims / 2 {
        let angle = position as f64 * config.rope_theta.powf(-2.0 * j as f64 / dims as f64);
        let (low, high) = (head[j], head[j + dims / 2]);
        out[j] = low * angle.cos() - high * angle.sin();
        out[j + dims / 2] = high * angle.cos() + low * angle.sin();
    }
    out
}

/// The last of `tokens` looks back at all of them with one head.
fn attend(config: &Config, tokens: &[Heads], head: usize) -> Vec<f64> {
    let kv_head = head / (config.heads / config.kv_heads);
    let query = &tokens[tokens.len() - 1].queries[head];
    let scale = 1.0 / (config.head_dim as f64).sqrt();
    let scores: Vec<f64> =
        tokens.iter().map(|token| dot(query, &token.keys[kv_head]) * scale).collect();
    let mut out = vec![0.0; config.head_dim];
    for (weight, token) in softmax(&scores).iter().zip(tokens) {
        out.iter_mut().zip(&token.values[kv_head]).for_each(|(out, v)| *out += weight * v);
    }
    out
}
