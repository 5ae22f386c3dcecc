//! Multi-head latent attention over the whole prompt, with keys and values of every head in full.
//!
//! Conventions held here: rows of `kv_b_proj` are per head `[key without position | value]`; only
//! the latent part of `kv_a_proj_with_mqa` is normalised, and only the rest of it is rotated; the
//! rotated key is every head's; rotation pairs neighbours, or halves where the configuration says
//! so; the root of the scale counts both parts of a key. mlx-lm stores the key's part of
//! `kv_b_proj` transposed, as `embed_q`, and the value's as `unembed_out`.

use super::{
    attention::rotate,
    config::{Config, LatentConfig},
    maths::{dot, rms_norm, softmax},
    weights::{Scope, Tensor},
};

/// `o_proj( softmax(q kᵀ · scale, causal) v )` for every token of `x`.
pub(super) fn latent_attention(
    config: &Config,
    latent: &LatentConfig,
    weights: Scope<'_>,
    x: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let heads: Vec<Head> = (0..config.heads).map(|head| Head::of(latent, weights, head)).collect();
    let projected: Vec<Projected> =
        x.iter().enumerate().map(|(at, x)| project(config, latent, weights, at, x)).collect();
    let mixed = (0..x.len()).map(|token| {
        let read = heads.iter().enumerate().flat_map(|(index, head)| {
            let query = &projected[token].queries[index];
            let seen = &projected[..=token];
            let keys = seen
                .iter()
                .map(|token| [head.key.times(&token.latent), token.rotated_key.clone()].concat());
            let scores: Vec<f64> = keys.map(|key| dot(query, &key) * latent.scale).collect();
            let mut out = vec![0.0; latent.value];
            for (share, token) in softmax(&scores).iter().zip(seen) {
                let value = head.value.times(&token.latent);
                out.iter_mut().zip(&value).for_each(|(out, v)| *out += share * v);
            }
            out
        });
        weights.linear("o_proj", &read.collect::<Vec<_>>())
    });
    mixed.collect()
}

/// What takes a latent to the key and the value of a head.
struct Head {
    /// `[nope, rank]`
    key: Tensor,
    /// `[value, rank]`
    value: Tensor,
}

impl Head {
    fn of(latent: &LatentConfig, weights: Scope<'_>, head: usize) -> Self {
        if weights.has("embed_q.weight") {
            let key = weights.get("embed_q.weight").part(head).transposed();
            return Self { key, value: weights.get("unembed_out.weight").part(head) };
        }
        let both = weights.get("kv_b_proj.weight");
        let first = head * (latent.nope + latent.value);
        let middle = first + latent.nope;
        let value = both.reordered(middle..middle + latent.value);
        Self { key: both.reordered(first..middle), value }
    }
}

/// What one token contributes.
struct Projected {
    /// Per head `[without position | rotated]`.
    queries: Vec<Vec<f64>>,
    latent: Vec<f64>,
    rotated_key: Vec<f64>,
}

fn project(
    config: &Config,
    latent: &LatentConfig,
    weights: Scope<'_>,
    position: usize,
    x: &[f64],
) -> Projected {
    let norm = |x: &[f64], name: &str| rms_norm(x, &weights.get(name).data, config.eps);
    let queries = if latent.compresses_queries {
        let short = norm(&weights.linear("q_a_proj", x), "q_a_layernorm.weight");
        weights.linear("q_b_proj", &short)
    } else {
        weights.linear("q_proj", x)
    };
    let rotated = |part: &[f64]| {
        // Neighbours go to where halves would be: queries and keys alike, so no score notices.
        let part: Vec<f64> = if latent.interleaved {
            [0, 1].iter().flat_map(|first| part.iter().skip(*first).step_by(2).copied()).collect()
        } else {
            part.to_vec()
        };
        rotate(config, position, &part)
    };
    let dim = latent.nope + latent.rope;
    assert_eq!(queries.len(), config.heads * dim, "queries have their rows per head");
    let query =
        |head: &[f64]| [head[..latent.nope].to_vec(), rotated(&head[latent.nope..])].concat();
    let shared = weights.linear("kv_a_proj_with_mqa", x);
    assert_eq!(shared.len(), latent.rank + latent.rope, "what is shared is a latent and a key");
    Projected {
        queries: queries.chunks(dim).map(query).collect(),
        latent: norm(&shared[..latent.rank], "kv_a_layernorm.weight"),
        rotated_key: rotated(&shared[latent.rank..]),
    }
}
