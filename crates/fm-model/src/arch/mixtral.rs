//! Mixtral: plain attention, routed experts, no shared one.

use fm_format::source::Checkpoint;
use fm_kernels::backend::{Activation, RopeLayout, RouterScale, RouterScoring, RouterSpec};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::LoadError,
    spec::{MixerSpec, ModelSpec, Publisher, Rotary, VectorTransform},
    weights::{Bias, Weights},
};

use super::{
    attention::{Attention, OutputGate, QueryKeyNorm},
    config::{LocalExpertsConfig, RopeConfig, TrunkConfig, parse, require},
    decoder_frame::{self, Frame, LayerHalves, NAMES, publisher},
    ffn::{Experts, Router, sparse_module},
};

const MODEL_TYPE: &str = "mixtral";

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    trunk: TrunkConfig,
    #[serde(flatten)]
    experts: LocalExpertsConfig,
    #[serde(flatten)]
    rope: RopeConfig,
    sliding_window: Option<usize>,
}

/// See [`super::describe`].
pub(super) fn describe(checkpoint: &Checkpoint, config: &Value) -> Result<ModelSpec, LoadError> {
    let Config { trunk, experts, rope, sliding_window } = parse(MODEL_TYPE, config)?;
    trunk.check()?;
    experts.check()?;
    require(sliding_window != Some(0), "sliding_window", 0, "expected null or at least 1")?;
    // llama.cpp's converter reorders the rows of queries and keys so that pairs stand together.
    let layout = match publisher(checkpoint)? {
        Publisher::Gguf => RopeLayout::Interleaved,
        Publisher::HuggingFace | Publisher::Mlx => RopeLayout::HalfSplit,
    };
    let attention = Attention {
        trunk: &trunk,
        rotary: Rotary { layout, ..rope.whole_heads(trunk.head_dim())? },
        output_gate: OutputGate::None,
        norm: QueryKeyNorm::None,
        window: sliding_window,
        bias: trunk.attention_bias(Bias::None),
        sinks: None,
    };
    let experts = Experts {
        dims: experts.dims(trunk.hidden_size),
        router: Router::GATE,
        routing: RouterSpec {
            top_k: experts.num_experts_per_tok,
            scoring: RouterScoring::Softmax,
            scale: RouterScale::Renormalised,
            groups: None,
            factor: 1.0,
        },
        activation: Activation::Silu,
        biases: None,
        shared: None,
    };
    let frame = Frame {
        model_type: MODEL_TYPE,
        trunk: &trunk,
        names: NAMES,
        tied: trunk.tie_word_embeddings.unwrap_or(false),
        norm: VectorTransform::Plain,
        skipped: &[],
    };
    decoder_frame::describe(Weights::new(checkpoint)?, &frame, |layer| {
        let mixer = MixerSpec::Attention(Box::new(attention.describe(layer)?));
        let (ffn, records) = experts.describe(layer, sparse_module(layer))?;
        Ok(LayerHalves { mixer, ffn, records })
    })
}
