//! Latent attention: its tensors, and how mlx-lm rearranges them.

use super::{
    TinyModel,
    weights::{GAIN, Kind, Maker, NORM_SPREAD, Weight},
};

/// Shapes of latent attention.
#[derive(Clone, Copy, Debug)]
pub struct LatentShape {
    /// `q_lora_rank`
    pub q_rank: Option<usize>,
    /// `kv_lora_rank`
    pub rank: usize,
    /// `qk_nope_head_dim`
    pub nope: usize,
    /// `qk_rope_head_dim`
    pub rope: usize,
    /// `v_head_dim`
    pub value: usize,
    /// `rope_interleave`; the key is missing where this is `None`
    pub rope_interleave: Option<bool>,
}

/// `rope_scaling` of type `yarn`.
#[derive(Clone, Copy, Debug)]
pub struct YarnShape {
    /// `factor`
    pub factor: f64,
    /// `mscale`
    pub mscale: f64,
    /// `mscale_all_dim`
    pub mscale_all_dim: f64,
}

/// `self_attn` of a layer.
pub(super) fn attention(model: &TinyModel, all: &mut Maker) {
    let LatentShape { q_rank, rank, nope, rope, value, .. } = model.latent;
    let (hidden, heads) = (model.hidden, model.heads);
    let mut projections = vec![
        ("kv_a_proj_with_mqa", rank + rope, hidden, true),
        ("kv_b_proj", heads * (nope + value), rank, false),
        ("o_proj", hidden, heads * value, true),
    ];
    let queries = heads * (nope + rope);
    match q_rank {
        None => projections.push(("q_proj", queries, hidden, false)),
        Some(q_rank) => {
            projections.push(("q_a_proj", q_rank, hidden, true));
            projections.push(("q_b_proj", queries, q_rank, false));
            all.normal(Kind::Norm, "self_attn.q_a_layernorm.weight", &[q_rank], NORM_SPREAD);
        }
    }
    all.normal(Kind::Norm, "self_attn.kv_a_layernorm.weight", &[rank], NORM_SPREAD);
    for (name, rows, columns, may_have_bias) in projections {
        all.matrix(&format!("self_attn.{name}.weight"), rows, columns, GAIN);
        if model.attention_bias && may_have_bias {
            all.normal(Kind::Vector, &format!("self_attn.{name}.bias"), &[rows], 0.5);
        }
    }
}

/// `kv_b_proj` as mlx-lm stores it: what takes a latent to the keys transposed, as `embed_q`, and
/// what takes it to the values, as `unembed_out`. Others stay.
pub(super) fn absorbed(model: &TinyModel, weights: &[Weight]) -> Vec<Weight> {
    let LatentShape { rank, nope, value, .. } = model.latent;
    let split = |weight: &Weight| {
        let Some(layer) = weight.name.strip_suffix("kv_b_proj.weight") else {
            return vec![weight.clone()];
        };
        let heads = || weight.values.chunks((nope + value) * rank);
        let transposed = |keys: &[f32]| -> Vec<f32> {
            (0..rank).flat_map(|column| keys.iter().skip(column).step_by(rank).copied()).collect()
        };
        let part = |name: &str, shape: [usize; 2], values: Vec<f32>| Weight {
            name: format!("{layer}{name}.weight"),
            kind: Kind::Matrix,
            shape: vec![model.heads, shape[0], shape[1]],
            values,
        };
        let keys = heads().flat_map(|head| transposed(&head[..nope * rank])).collect();
        let values = heads().flat_map(|head| head[nope * rank..].to_vec()).collect();
        vec![part("embed_q", [rank, nope], keys), part("unembed_out", [value, rank], values)]
    };
    weights.iter().flat_map(split).collect()
}
