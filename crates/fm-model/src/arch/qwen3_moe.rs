//! Qwen3-MoE: attention with per-head query and key norms, routed experts, no shared one.

use fm_format::source::Checkpoint;
use fm_kernels::backend::RouterScale;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::LoadError,
    spec::{ModelSpec, VectorTransform},
    weights::{Bias, Weights},
};

use super::{
    attention::{Attention, OutputGate, QueryKeyNorm},
    config::{MoeConfig, RopeConfig, TrunkConfig, parse},
    decoder_frame::{Frame, NAMES},
    qwen::{self, Family},
};

const MODEL_TYPE: &str = "qwen3_moe";

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    trunk: TrunkConfig,
    #[serde(flatten)]
    moe: MoeConfig,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// See [`super::describe`].
pub(super) fn describe(checkpoint: &Checkpoint, config: &Value) -> Result<ModelSpec, LoadError> {
    let Config { trunk, mut moe, rope } = parse(MODEL_TYPE, config)?;
    trunk.check()?;
    moe.check()?;
    moe.shared_expert_intermediate_size = None; // the family has none
    let router_scale = match moe.norm_topk_prob {
        Some(true) => RouterScale::Renormalised,
        Some(false) | None => RouterScale::Plain,
    };
    let norm = VectorTransform::Plain;
    let family = Family {
        frame: Frame {
            model_type: MODEL_TYPE,
            trunk: &trunk,
            names: NAMES,
            tied: trunk.tie_word_embeddings.unwrap_or(false),
            norm,
            skipped: &[],
        },
        attention: Attention {
            trunk: &trunk,
            rotary: rope.whole_heads(trunk.head_dim())?,
            output_gate: OutputGate::None,
            norm: QueryKeyNorm::PerHead(norm),
            window: None,
            bias: trunk.attention_bias(Bias::None),
            sinks: None,
        },
        moe: &moe,
        router_scale,
        linear: None,
    };
    qwen::describe(Weights::new(checkpoint)?, &family)
}
