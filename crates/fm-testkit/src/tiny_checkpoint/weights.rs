//! The noise itself: every tensor of a model, before any layout.
//!
//! Scales are chosen so that a random model behaves like a trained one where tests care: logits
//! with a standard deviation of 1 to 4, routers that prefer some experts clearly, memories that
//! last for 2 to 100 tokens, norms near neutral.

use super::{LinearShape, TinyModel, latent, mxfp4};
use crate::{noise::Noise, oracle::Family};

/// Standard deviation of the logits for an output of unit size.
const LOGIT_SCALE: f64 = 2.5;
/// Of router logits: with the usual 2 for experts and vocabulary the gap between the last chosen
/// and the first rejected expert would often be lost in rounding.
const ROUTER_SCALE: f64 = 4.0;
/// Of norm weights around their neutral value.
pub(super) const NORM_SPREAD: f64 = 0.15;
/// Of the sinks, which compete with scores of this size.
const SINK_SPREAD: f64 = 1.5;
/// Of the biases of experts and routers.
const BIAS_SPREAD: f64 = 0.3;
/// Of `e_score_correction_bias`, and its mean: no sigmoid makes up for it, so that every biased
/// score is negative.
const CHOICE_SPREAD: f64 = 0.5;
const CHOICE_MEAN: f64 = -4.0;
/// Of every other linear map for inputs of unit size.
pub(super) const GAIN: f64 = 1.2;

/// What a tensor is, which decides how layouts store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A linear map or the embedding table `[rows, columns]`: MLX packs it.
    Matrix,
    /// One matrix per expert `[experts, rows, columns]`: MLX packs it, HF splits or fuses it.
    Experts,
    /// Values are `w − 1`; HF files of the hybrids store them so, all others store `w`.
    Norm,
    /// The delta-net's norm: values are `w`, in every layout.
    GatedNorm,
    /// One vector per expert `[experts, rows]`.
    ExpertBiases,
    /// `[channels, kernel]`.
    Conv,
    /// `A_log`: kept in f32 by HF.
    DecayRate,
    /// `e_score_correction_bias`: kept in f32 by everybody.
    ChoiceBias,
    /// Biases and the like.
    Vector,
}

/// One tensor by its name inside the language model, e.g. `layers.0.mlp.gate.weight`.
#[derive(Clone, Debug)]
pub(super) struct Weight {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
}

/// All tensors of the language model.
pub(super) fn noise_weights(model: &TinyModel) -> Vec<Weight> {
    let mut all = Maker { seed: model.seed, prefix: String::new(), weights: Vec::new() };
    let (hidden, vocab) = (model.hidden, model.vocab);
    let head_gain = LOGIT_SCALE / (hidden as f64).sqrt();
    if model.tie_embeddings {
        all.normal(Kind::Matrix, "embed_tokens.weight", &[vocab, hidden], head_gain);
    } else {
        let size = model.embedding_size;
        all.normal(Kind::Matrix, "embed_tokens.weight", &[vocab, hidden], size);
        all.normal(Kind::Matrix, "lm_head.weight", &[vocab, hidden], head_gain);
    }
    all.normal(Kind::Norm, "norm.weight", &[hidden], NORM_SPREAD);
    for layer in 0..model.layers {
        all.prefix = format!("layers.{layer}.");
        all.normal(Kind::Norm, "input_layernorm.weight", &[hidden], NORM_SPREAD);
        all.normal(Kind::Norm, "post_attention_layernorm.weight", &[hidden], NORM_SPREAD);
        if model.attends(layer) {
            attention(model, &mut all);
        } else {
            delta_net(model, &mut all);
        }
        if model.routes(layer) {
            experts(model, &mut all);
        } else {
            gated_ffn(&mut all, "mlp", hidden, model.dense_ffn);
        }
    }
    all.weights
}

fn attention(model: &TinyModel, all: &mut Maker) {
    if model.family.is_latent() {
        return latent::attention(model, all);
    }
    let (hidden, dim) = (model.hidden, model.head_dim);
    let gate = if model.is_hybrid() { 2 } else { 1 };
    let q_rows = model.heads * dim * gate;
    let kv_rows = model.kv_heads * dim;
    let projections = [
        ("q_proj", q_rows, hidden),
        ("k_proj", kv_rows, hidden),
        ("v_proj", kv_rows, hidden),
        ("o_proj", hidden, model.heads * dim),
    ];
    for (name, rows, columns) in projections {
        all.matrix(&format!("self_attn.{name}.weight"), rows, columns, GAIN);
        if model.attention_bias || model.family == Family::GptOss {
            all.normal(Kind::Vector, &format!("self_attn.{name}.bias"), &[rows], 0.5);
        }
    }
    if model.family == Family::GptOss {
        all.normal(Kind::Vector, "self_attn.sinks", &[model.heads], SINK_SPREAD);
    }
    let (q_norm, k_norm) = match model.family {
        Family::Mixtral | Family::GptOss | Family::DeepseekV3 | Family::Glm4MoeLite => return,
        Family::MinimaxM2 => (model.heads * dim, kv_rows),
        Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen3_5Moe => (dim, dim),
    };
    all.normal(Kind::Norm, "self_attn.q_norm.weight", &[q_norm], NORM_SPREAD);
    all.normal(Kind::Norm, "self_attn.k_norm.weight", &[k_norm], NORM_SPREAD);
}

fn delta_net(model: &TinyModel, all: &mut Maker) {
    let hidden = model.hidden;
    let LinearShape { key_heads, value_heads, key_dim, value_dim, conv } = model.linear;
    let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
    let projections: &[(&str, usize)] = if model.family == Family::Qwen3Next {
        &[("in_proj_qkvz", 2 * keys + 2 * values), ("in_proj_ba", 2 * value_heads)]
    } else {
        &[
            ("in_proj_qkv", 2 * keys + values),
            ("in_proj_z", values),
            ("in_proj_b", value_heads),
            ("in_proj_a", value_heads),
        ]
    };
    for (name, rows) in projections {
        all.matrix(&format!("linear_attn.{name}.weight"), *rows, hidden, GAIN);
    }
    let tap = GAIN / (conv as f64).sqrt();
    all.normal(Kind::Conv, "linear_attn.conv1d.weight", &[2 * keys + values, conv], tap);
    all.drawn(Kind::DecayRate, "linear_attn.A_log", value_heads, |noise| {
        noise.uniform(1.0, 16.0).ln()
    });
    // softplus(dt_bias) is log-uniform in [0.001, 0.1], as the inventors initialise it.
    all.drawn(Kind::Vector, "linear_attn.dt_bias", value_heads, |noise| {
        let dt = noise.uniform(0.001_f64.ln(), 0.1_f64.ln()).exp();
        dt + (-(-dt).exp_m1()).ln()
    });
    all.drawn(Kind::GatedNorm, "linear_attn.norm.weight", value_dim, |noise| {
        1.0 + NORM_SPREAD * noise.normal()
    });
    all.matrix("linear_attn.out_proj.weight", hidden, values, GAIN);
}

fn experts(model: &TinyModel, all: &mut Maker) {
    let (hidden, inner, experts) = (model.hidden, model.moe_ffn, model.experts);
    all.matrix("mlp.gate.weight", experts, hidden, ROUTER_SCALE);
    for (name, rows, columns) in
        [("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)]
    {
        let scale = GAIN / (columns as f64).sqrt();
        let name = format!("mlp.experts.{name}");
        all.normal(Kind::Experts, &name, &[experts, rows, columns], scale);
        if model.family == Family::GptOss {
            let experts = all.weights.last_mut().expect("just made");
            experts.values = mxfp4::rounded(&experts.values);
            let name = format!("{name}.bias");
            all.normal(Kind::ExpertBiases, &name, &[model.experts, rows], BIAS_SPREAD);
        }
    }
    if model.family == Family::GptOss {
        all.normal(Kind::Vector, "mlp.gate.bias", &[experts], BIAS_SPREAD);
    }
    let choice_bias = match model.family {
        Family::MinimaxM2 => Some("mlp.e_score_correction_bias"),
        Family::DeepseekV3 | Family::Glm4MoeLite => Some("mlp.gate.e_score_correction_bias"),
        _ => None,
    };
    if let Some(name) = choice_bias {
        all.drawn(Kind::ChoiceBias, name, experts, |noise| {
            CHOICE_MEAN + CHOICE_SPREAD * noise.normal()
        });
    }
    if model.family.is_latent() && model.shared_experts > 0 {
        gated_ffn(all, "mlp.shared_experts", hidden, model.shared_experts * inner);
    }
    if model.is_hybrid() {
        gated_ffn(all, "mlp.shared_expert", hidden, model.shared_ffn);
        all.matrix("mlp.shared_expert_gate.weight", 1, hidden, GAIN);
    }
}

fn gated_ffn(all: &mut Maker, module: &str, hidden: usize, inner: usize) {
    all.matrix(&format!("{module}.gate_proj.weight"), inner, hidden, GAIN);
    all.matrix(&format!("{module}.up_proj.weight"), inner, hidden, GAIN);
    all.matrix(&format!("{module}.down_proj.weight"), hidden, inner, GAIN);
}

/// Collects tensors and draws each from the stream of its own name.
pub(super) struct Maker {
    seed: u64,
    prefix: String,
    weights: Vec<Weight>,
}

impl Maker {
    /// A linear map that turns inputs of unit size into outputs of size `gain`.
    pub(super) fn matrix(&mut self, name: &str, rows: usize, columns: usize, gain: f64) {
        let scale = gain / (columns as f64).sqrt();
        self.normal(Kind::Matrix, name, &[rows, columns], scale);
    }

    pub(super) fn normal(&mut self, kind: Kind, name: &str, shape: &[usize], scale: f64) {
        let name = format!("{}{name}", self.prefix);
        let values = Noise::named(self.seed, &name).normals(shape.iter().product(), scale);
        self.weights.push(Weight { name, kind, shape: shape.to_vec(), values });
    }

    fn drawn(&mut self, kind: Kind, name: &str, count: usize, draw: impl Fn(&mut Noise) -> f64) {
        let name = format!("{}{name}", self.prefix);
        let mut noise = Noise::named(self.seed, &name);
        let values = (0..count).map(|_| draw(&mut noise) as f32).collect();
        self.weights.push(Weight { name, kind, shape: vec![count], values });
    }
}
