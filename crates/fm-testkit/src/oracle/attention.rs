//! Softmax attention over the whole prompt.
//!
//! Conventions held here: `q_proj` rows of the hybrids are per head `[query | gate]`; queries and
//! keys are normalised per head, then rotated; rotation pairs dimension `j` with `j + r/2` of the
//! first `r`; query head `h` reads key/value head `h / (heads / kv_heads)`; the gate is neither
//! normalised nor rotated; a window counts the token itself; a sink takes its share of the softmax
//! and gives nothing.

use super::{
    config::{Config, QueryKeyNorm},
    maths::{dot, rms_norm, sigmoid, softmax},
    weights::Scope,
};

/// `o_proj( softmax(q kᵀ / √d, causal) v · sigmoid(gate) )` for every token of `x`.
pub(super) fn attention(
    config: &Config,
    layer: usize,
    weights: Scope<'_>,
    x: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    if config.attention_bias {
        weights.get("q_proj.bias");
    }
    let projected: Vec<Heads> =
        x.iter().enumerate().map(|(position, x)| project(config, weights, position, x)).collect();
    let sinks = weights.has("sinks").then(|| &weights.get("sinks").data);
    let mixed = (0..x.len()).map(|token| {
        let first = config.window[layer].map_or(0, |window| (token + 1).saturating_sub(window));
        let heads = (0..config.heads).flat_map(|head| {
            let sink = sinks.map(|sinks| sinks[head]);
            let mut out = attend(config, &projected[first..=token], head, sink);
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

    let norm = |x: &[f64], name: &str, kind: QueryKeyNorm| {
        if config.query_key_norm == kind {
            rms_norm(x, &weights.get(name).data, config.eps)
        } else {
            x.to_vec()
        }
    };
    let whole = QueryKeyNorm::WholeRow;
    let (q, k) = (norm(&q, "q_norm.weight", whole), norm(&k, "k_norm.weight", whole));
    let prepare = |head: &[f64], name: &str| {
        rotate(config, position, &norm(head, name, QueryKeyNorm::PerHead))
    };
    Heads {
        queries: q.chunks(per_head).map(|row| prepare(&row[..dim], "q_norm.weight")).collect(),
        gates: q.chunks(per_head).map(|row| row[dim..].to_vec()).collect(),
        keys: k.chunks(dim).map(|row| prepare(row, "k_norm.weight")).collect(),
        values: v.chunks(dim).map(<[f64]>::to_vec).collect(),
    }
}

/// Rotates the pairs `(j, j + r/2)` of the first `r` dimensions by `position · theta^(−2j/r)`, or as
/// `YaRN` has it.
pub(super) fn rotate(config: &Config, position: usize, head: &[f64]) -> Vec<f64> {
    let dims = config.rotary_dim;
    assert!(dims.is_multiple_of(2), "rotation needs pairs");
    let mut out = head.to_vec();
    for j in 0..dims / 2 {
        let mut frequency = config.rope_theta.powf(-2.0 * j as f64 / dims as f64);
        let mut amplitude = 1.0;
        if let Some(yarn) = &config.yarn {
            let kept = yarn.kept(j, dims, config.rope_theta);
            frequency = frequency * kept + frequency / yarn.factor * (1.0 - kept);
            amplitude = yarn.amplitude();
        }
        let angle = position as f64 * frequency;
        let (sin, cos) = (amplitude * angle.sin(), amplitude * angle.cos());
        let (low, high) = (head[j], head[j + dims / 2]);
        out[j] = low * cos - high * sin;
        out[j + dims / 2] = high * cos + low * sin;
    }
    out
}

/// The last of `tokens` looks back at all of them with one head.
fn attend(config: &Config, tokens: &[Heads], head: usize, sink: Option<f64>) -> Vec<f64> {
    let kv_head = head / (config.heads / config.kv_heads);
    let query = &tokens[tokens.len() - 1].queries[head];
    let scale = 1.0 / (config.head_dim as f64).sqrt();
    let scores = tokens.iter().map(|token| dot(query, &token.keys[kv_head]) * scale);
    let scores: Vec<f64> = scores.chain(sink).collect();
    let mut out = vec![0.0; config.head_dim];
    for (weight, token) in softmax(&scores).iter().zip(tokens) {
        out.iter_mut().zip(&token.values[kv_head]).for_each(|(out, v)| *out += weight * v);
    }
    out
}
