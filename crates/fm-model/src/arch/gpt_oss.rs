//! gpt-oss: attention in windows and over everything by turns, with sinks; biases everywhere; experts
//! in mxfp4 with a clamped activation.

use fm_format::source::Checkpoint;
use fm_kernels::backend::{Activation, Clamp, RouterScale, RouterScoring, RouterSpec};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::LoadError,
    spec::{ExpertBiasesSpec, MixerSpec, ModelSpec, VectorTransform},
    weights::{Bias, Weights},
};

use super::{
    attention::{Attention, OutputGate, QueryKeyNorm},
    config::{LocalExpertsConfig, RopeConfig, TrunkConfig, announced, layer_kinds, parse, require},
    decoder_frame::{self, Frame, LayerHalves, LayerSite, NAMES},
    experts::ExpertDims,
    ffn::{Experts, Router},
};

const MODEL_TYPE: &str = "gpt_oss";

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    trunk: TrunkConfig,
    #[serde(flatten)]
    experts: LocalExpertsConfig,
    #[serde(flatten)]
    rope: RopeConfig,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    #[serde(default = "limit")]
    swiglu_limit: f32,
    #[serde(default = "alpha")]
    swiglu_alpha: f32,
}

fn limit() -> f32 {
    7.0
}

/// Steepness of the activation's sigmoid, which older configurations do not say.
fn alpha() -> f32 {
    1.702
}

impl Config {
    fn check(&self) -> Result<(), LoadError> {
        self.trunk.check()?;
        self.experts.check()?;
        let numbers = [("swiglu_limit", self.swiglu_limit), ("swiglu_alpha", self.swiglu_alpha)];
        numbers.into_iter().try_for_each(|(field, number)| {
            let number = f64::from(number);
            require(number > 0.0 && number.is_finite(), field, number, "expected a number above 0")
        })
    }

    /// Of every layer. Every second one has a window, the first to begin with, unless
    /// `layer_types` says otherwise.
    fn windows(&self) -> Result<Vec<Option<usize>>, LoadError> {
        let list = ("layer_types", self.layer_types.as_deref());
        let words = [("full_attention", false), ("sliding_attention", true)];
        let words = (words, "`full_attention` or `sliding_attention`");
        let layers = self.trunk.num_hidden_layers;
        let slides = layer_kinds(list, layers, words, |layer| layer.is_multiple_of(2))?;
        let window = self.sliding_window.unwrap_or(0);
        let needed = slides.contains(&true);
        require(window > 0 || !needed, "sliding_window", window, "layers that slide need it")?;
        Ok(slides.into_iter().map(|slides| slides.then_some(window)).collect())
    }

    fn experts(&self) -> Experts<'static> {
        Experts {
            dims: self.experts.dims(self.trunk.hidden_size),
            router: Router { module: "router", bias: Bias::Added, choice_bias: None },
            routing: RouterSpec {
                top_k: self.experts.num_experts_per_tok,
                scoring: RouterScoring::SoftmaxOfChosen,
                scale: RouterScale::Renormalised,
                groups: None,
                factor: 1.0,
            },
            activation: Activation::Clamped(Clamp {
                limit: self.swiglu_limit,
                alpha: self.swiglu_alpha,
            }),
            biases: Some(biases),
            shared: None,
        }
    }
}

/// See [`super::describe`].
pub(super) fn describe(checkpoint: &Checkpoint, config: &Value) -> Result<ModelSpec, LoadError> {
    announced(config, &["rope_scaling", "rope_parameters"])?;
    let config: Config = parse(MODEL_TYPE, config)?;
    config.check()?;
    let (trunk, windows, experts) = (&config.trunk, config.windows()?, config.experts());
    let rotary = config.rope.whole_heads(trunk.head_dim())?;
    let frame = Frame {
        model_type: MODEL_TYPE,
        trunk,
        names: NAMES,
        tied: trunk.tie_word_embeddings.unwrap_or(false),
        norm: VectorTransform::Plain,
        skipped: &[],
    };
    decoder_frame::describe(Weights::new(checkpoint)?, &frame, |layer| {
        refuse_transposed(layer)?;
        let attention = Attention {
            trunk,
            rotary,
            output_gate: OutputGate::None,
            norm: QueryKeyNorm::None,
            window: windows[layer.index],
            bias: trunk.attention_bias(Bias::Added),
            sinks: Some("sinks"),
        };
        let mixer = MixerSpec::Attention(Box::new(attention.describe(layer)?));
        let (ffn, records) = experts.describe(layer, "mlp")?;
        Ok(LayerHalves { mixer, ffn, records })
    })
}

/// Experts that somebody has unpacked to floats are stored by columns, under a name that means rows
/// in other families.
fn refuse_transposed(layer: &LayerSite<'_, '_>) -> Result<(), LoadError> {
    let tensor = layer.name("mlp.experts.gate_up_proj");
    if layer.weights.has(&tensor) {
        return Err(LoadError::UnknownTensor { tensor, model_type: MODEL_TYPE });
    }
    Ok(())
}

/// One tensor for gate and up, in turns, or one for each.
fn biases(
    weights: &Weights<'_>,
    mlp: &str,
    dims: ExpertDims,
) -> Result<ExpertBiasesSpec, LoadError> {
    let ExpertDims { experts, hidden, ffn } = dims;
    let vector = |name: &str, len: usize| {
        weights.vector(&format!("{mlp}.experts.{name}"), &[experts, len], VectorTransform::Plain)
    };
    if weights.has(&format!("{mlp}.experts.gate_up_proj_bias")) {
        let both = vector("gate_up_proj_bias", 2 * ffn)?;
        return Ok(ExpertBiasesSpec {
            gate: both.clone().every_second(0),
            up: both.every_second(1),
            down: vector("down_proj_bias", hidden)?,
        });
    }
    Ok(ExpertBiasesSpec {
        gate: vector("gate_proj.bias", ffn)?,
        up: vector("up_proj.bias", ffn)?,
        down: vector("down_proj.bias", hidden)?,
    })
}
