//! Qwen3-Next: gated delta net with gated attention in between, routed experts and a shared one.
//!
//! Queries, keys, values and output gates of the delta net are stored per key head:
//! `in_proj_qkvz` is `[q | k | v · r | z · r]` and `in_proj_ba` is `[b · r | a · r]` for each key
//! head, with `r` value heads per key head.

use std::ops::Range;

use fm_format::source::Checkpoint;
use fm_kernels::backend::{DeltaShape, HeadOrder, RouterScale};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::LoadError,
    spec::{ModelSpec, Publisher, VectorTransform},
    weights::{Bias, Weights},
};

use super::{
    attention::{Attention, OutputGate, QueryKeyNorm},
    config::{MoeConfig, RopeConfig, TrunkConfig, parse},
    decoder_frame::{Frame, LayerSite, NAMES, publisher},
    qwen::{self, DeltaInputsSpec, Family, Linear, LinearConfig},
};

const MODEL_TYPE: &str = "qwen3_next";

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    trunk: TrunkConfig,
    #[serde(flatten)]
    moe: MoeConfig,
    #[serde(flatten)]
    rope: RopeConfig,
    #[serde(flatten)]
    linear: LinearConfig,
}

/// See [`super::describe`].
pub(super) fn describe(checkpoint: &Checkpoint, config: &Value) -> Result<ModelSpec, LoadError> {
    let Config { trunk, moe, rope, linear } = parse(MODEL_TYPE, config)?;
    trunk.check()?;
    moe.check()?;
    let publisher = publisher(checkpoint)?;
    let norm = publisher.zero_centred_norm();
    let router_scale = match moe.norm_topk_prob {
        Some(false) => RouterScale::Plain,
        Some(true) | None => RouterScale::Renormalised,
    };
    let family = Family {
        frame: Frame {
            model_type: MODEL_TYPE,
            trunk: &trunk,
            names: NAMES,
            tied: trunk.tie_word_embeddings.unwrap_or(false),
            norm,
            skipped: &["mtp."],
        },
        attention: Attention {
            trunk: &trunk,
            rotary: rope.rotary(trunk.head_dim(), 0.25)?,
            output_gate: OutputGate::PerHead,
            norm: QueryKeyNorm::PerHead(norm),
            window: None,
            bias: trunk.attention_bias(Bias::None),
            sinks: None,
        },
        moe: &moe,
        router_scale,
        linear: Some(Linear {
            attends: linear.attends(trunk.num_hidden_layers)?,
            shape: linear.shape(HeadOrder::Grouped)?,
            publisher,
            inputs,
        }),
    };
    qwen::describe(Weights::new(checkpoint)?, &family)
}

fn inputs(layer: &LayerSite<'_, '_>, shape: DeltaShape) -> Result<DeltaInputsSpec, LoadError> {
    let DeltaShape { key_heads, value_heads, k_dim, v_dim, .. } = shape;
    let per_key_head = value_heads / key_heads;
    let values = per_key_head * v_dim;
    let group = 2 * k_dim + 2 * values;
    let matrix = |name: &str, rows| layer.weights.matrix(&layer.name(name), rows, layer.hidden);
    let ba = matrix("linear_attn.in_proj_ba", 2 * value_heads)?;
    let half = |first: usize| -> Vec<Range<usize>> {
        let begin = |head: usize| (2 * head + first) * per_key_head;
        (0..key_heads).map(|head| begin(head)..begin(head) + per_key_head).collect()
    };
    let (b, a) = (ba.select(half(0)), ba.select(half(1)));
    if layer.weights.has(&layer.name("linear_attn.in_proj_z.weight")) {
        // llama.cpp's converter takes the first of the two matrices apart.
        let qkv = matrix("linear_attn.in_proj_qkv", shape.channels())?;
        let z = matrix("linear_attn.in_proj_z", value_heads * v_dim)?;
        return Ok(DeltaInputsSpec { qkv, z, b, a });
    }
    let qkvz = matrix("linear_attn.in_proj_qkvz", key_heads * group)?;
    let part = |first: usize, len: usize| -> Vec<Range<usize>> {
        (0..key_heads).map(|head| head * group + first..head * group + first + len).collect()
    };
    let qkv = [part(0, k_dim), part(k_dim, k_dim), part(2 * k_dim, values)].concat();
    let z = qkvz.select(part(2 * k_dim + values, values));
    Ok(DeltaInputsSpec { qkv: qkvz.select(qkv), z, b, a })
}

impl Publisher {
    /// Norms of the hybrids are stored around zero; the other converters add the one.
    pub(super) fn zero_centred_norm(self) -> VectorTransform {
        match self {
            Self::HuggingFace => VectorTransform::PlusOne,
            Self::Mlx | Self::Gguf => VectorTransform::Plain,
        }
    }
}
