//! Qwen3.5-MoE: the network of Qwen3-Next with flat delta-net projections, inside a multimodal
//! checkpoint whose vision tower and MTP head are skipped by name.

use fm_format::source::Checkpoint;
use fm_kernels::backend::{DeltaShape, HeadOrder, RouterScale};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::LoadError,
    spec::{ModelSpec, Publisher},
    weights::{Bias, Weights},
};

use super::{
    attention::{Attention, OutputGate, QueryKeyNorm},
    config::{MoeConfig, RopeConfig, TrunkConfig, parse},
    decoder_frame::{Frame, LayerSite, names, publisher},
    qwen::{self, DeltaInputsSpec, Family, Linear, LinearConfig},
};

const MODEL_TYPE: &str = "qwen3_5_moe";

/// Prefix and head as transformers, mlx-lm and text-only exports write them.
const NAMES: [(&str, &str); 3] = [
    ("model.language_model.", "lm_head"),
    ("language_model.model.", "language_model.lm_head"),
    ("model.", "lm_head"),
];

/// Vision towers and MTP heads, by either publisher.
const SKIPPED: [&str; 5] =
    ["model.visual.", "visual.", "vision_tower.", "mtp.", "language_model.mtp."];

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
    #[serde(default = "gated")]
    attn_output_gate: bool,
}

fn gated() -> bool {
    true
}

/// See [`super::describe`].
pub(super) fn describe(checkpoint: &Checkpoint, config: &Value) -> Result<ModelSpec, LoadError> {
    let text = config.get("text_config").unwrap_or(config);
    let Config { trunk, moe, rope, linear, attn_output_gate } = parse(MODEL_TYPE, text)?;
    trunk.check()?;
    moe.check()?;
    let publisher = publisher(checkpoint)?;
    let norm = publisher.zero_centred_norm();
    // llama.cpp's converter tiles the value heads of this family, and of no other.
    let head_order =
        if publisher == Publisher::Gguf { HeadOrder::Tiled } else { HeadOrder::Grouped };
    let weights = Weights::new(checkpoint)?;
    // The outer configuration decides where both say something.
    let outer = config.get("tie_word_embeddings").and_then(Value::as_bool);
    let family = Family {
        frame: Frame {
            model_type: MODEL_TYPE,
            trunk: &trunk,
            names: names(&weights, &NAMES),
            tied: outer.or(trunk.tie_word_embeddings).unwrap_or(false),
            norm,
            skipped: &SKIPPED,
        },
        attention: Attention {
            trunk: &trunk,
            rotary: rope.rotary(trunk.head_dim(), 0.25)?,
            output_gate: if attn_output_gate { OutputGate::PerHead } else { OutputGate::None },
            norm: QueryKeyNorm::PerHead(norm),
            window: None,
            bias: trunk.attention_bias(Bias::None),
            sinks: None,
        },
        moe: &moe,
        router_scale: RouterScale::Renormalised, // the family has no key for it
        linear: Some(Linear {
            attends: linear.attends(trunk.num_hidden_layers)?,
            shape: linear.shape(head_order)?,
            publisher,
            inputs,
        }),
    };
    qwen::describe(weights, &family)
}

fn inputs(layer: &LayerSite<'_, '_>, shape: DeltaShape) -> Result<DeltaInputsSpec, LoadError> {
    let matrix = |name: &str, rows| {
        let module = layer.name(&format!("linear_attn.{name}"));
        layer.weights.matrix(&module, rows, layer.hidden)
    };
    Ok(DeltaInputsSpec {
        qkv: matrix("in_proj_qkv", shape.channels())?,
        z: matrix("in_proj_z", shape.value_heads * shape.v_dim)?,
        b: matrix("in_proj_b", shape.value_heads)?,
        a: matrix("in_proj_a", shape.value_heads)?,
    })
}
