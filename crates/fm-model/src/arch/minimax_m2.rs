//! MiniMax-M2: attention that rotates a part of each head and normalises queries and keys over whole
//! rows, and experts chosen by sigmoids with a bias.

use fm_format::source::Checkpoint;
use fm_kernels::backend::{Activation, RouterScale, RouterScoring, RouterSpec};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::LoadError,
    spec::{MixerSpec, ModelSpec, Rotary, VectorTransform},
    weights::{Bias, Weights},
};

use super::{
    attention::{Attention, OutputGate, QueryKeyNorm},
    config::{LocalExpertsConfig, RopeConfig, TrunkConfig, parse, require},
    decoder_frame::{self, Frame, LayerHalves, NAMES},
    ffn::{Experts, Router, sparse_module},
};

const MODEL_TYPE: &str = "minimax_m2";

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    trunk: TrunkConfig,
    #[serde(flatten)]
    experts: LocalExpertsConfig,
    #[serde(flatten)]
    rope: RopeConfig,
    rotary_dim: Option<usize>,
    #[serde(default = "yes")]
    use_qk_norm: bool,
    qk_norm_type: Option<String>,
    #[serde(default = "yes")]
    use_routing_bias: bool,
    scoring_func: Option<String>,
    shared_intermediate_size: Option<usize>,
    /// 1 is attention; an ancestor of the family had other mixers.
    #[serde(default)]
    attn_type_list: Vec<usize>,
}

fn yes() -> bool {
    true
}

impl Config {
    fn check(&self) -> Result<(), LoadError> {
        self.trunk.check()?;
        self.experts.check()?;
        let scoring = self.scoring_func.as_deref().unwrap_or("sigmoid");
        require(scoring == "sigmoid", "scoring_func", scoring, "this family uses `sigmoid`")?;
        let norm = self.qk_norm_type.as_deref().unwrap_or("per_layer");
        require(norm == "per_layer", "qk_norm_type", norm, "this family uses `per_layer`")?;
        let shared = self.shared_intermediate_size.unwrap_or(0);
        require(shared == 0, "shared_intermediate_size", shared, "this family has no shared one")?;
        let other = self.attn_type_list.iter().find(|kind| **kind != 1);
        let expected = "this family has attention (1) in every layer";
        require(other.is_none(), "attn_type_list", other.copied().unwrap_or(1), expected)
    }

    fn rotary(&self) -> Result<Rotary, LoadError> {
        let head_dim = self.trunk.head_dim();
        let rotary = self.rope.rotary(head_dim, 1.0)?;
        let Some(dim) = self.rotary_dim else { return Ok(rotary) };
        require(
            dim > 0 && dim.is_multiple_of(2) && dim <= head_dim,
            "rotary_dim",
            dim,
            "expected an even number of values, at most the head",
        )?;
        let agrees = rotary.dim == head_dim || rotary.dim == dim;
        require(agrees, "rotary_dim", dim, "expected what partial_rotary_factor says")?;
        Ok(Rotary { dim, ..rotary })
    }
}

/// See [`super::describe`].
pub(super) fn describe(checkpoint: &Checkpoint, config: &Value) -> Result<ModelSpec, LoadError> {
    let config: Config = parse(MODEL_TYPE, config)?;
    config.check()?;
    let trunk = &config.trunk;
    let attention = Attention {
        trunk,
        rotary: config.rotary()?,
        output_gate: OutputGate::None,
        norm: if config.use_qk_norm { QueryKeyNorm::WholeRow } else { QueryKeyNorm::None },
        window: None,
        bias: trunk.attention_bias(Bias::None),
        sinks: None,
    };
    let experts = Experts {
        dims: config.experts.dims(trunk.hidden_size),
        router: Router {
            choice_bias: config.use_routing_bias.then_some("e_score_correction_bias"),
            ..Router::GATE
        },
        routing: RouterSpec {
            top_k: config.experts.num_experts_per_tok,
            scoring: RouterScoring::Sigmoid,
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
        trunk,
        names: NAMES,
        tied: trunk.tie_word_embeddings.unwrap_or(false),
        norm: VectorTransform::Plain,
        skipped: &["model.mtp", "mtp."],
    };
    decoder_frame::describe(Weights::new(checkpoint)?, &frame, |layer| {
        let mixer = MixerSpec::Attention(Box::new(attention.describe(layer)?));
        let (ffn, records) = experts.describe(layer, sparse_module(layer))?;
        Ok(LayerHalves { mixer, ffn, records })
    })
}
