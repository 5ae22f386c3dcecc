//! The numbers of `config.json` that the equations need.
//!
//! Conventions held here: where each family keeps its keys, which layers attend and which
//! remember, which layers route and which are dense, how many dimensions rotate.

use std::{fs, path::Path};

use serde_json::Value;

/// One of the families, as `model_type` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Plain attention, experts in every layer.
    Mixtral,
    /// Queries and keys normalised over whole rows; experts by sigmoid and bias.
    MinimaxM2,
    /// Sinks, windows, biases everywhere, a clamped activation.
    GptOss,
    /// Latent attention over stretched positions, experts by sigmoid, bias and group.
    DeepseekV3,
    /// Latent attention, experts by sigmoid and bias.
    Glm4MoeLite,
    /// Attention in every layer, no shared expert.
    Qwen3Moe,
    /// Hybrid of attention and delta-net; packed `in_proj_qkvz`, one tensor per expert.
    Qwen3Next,
    /// Hybrid; separate delta-net projections, fused experts, config nested in `text_config`.
    Qwen3_5Moe,
}

impl Family {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 8] = [
        ("deepseek_v3", Self::DeepseekV3),
        ("glm4_moe_lite", Self::Glm4MoeLite),
        ("mixtral", Self::Mixtral),
        ("minimax_m2", Self::MinimaxM2),
        ("gpt_oss", Self::GptOss),
        ("qwen3_moe", Self::Qwen3Moe),
        ("qwen3_next", Self::Qwen3Next),
        ("qwen3_5_moe", Self::Qwen3_5Moe),
    ];

    /// The family of a `model_type`.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find_map(|(known, family)| (known == name).then_some(family))
    }

    /// Its `model_type`.
    pub fn name(self) -> &'static str {
        let named = Self::ALL.into_iter().find(|(_, family)| *family == self);
        named.expect("every family has a name").0
    }

    /// Whether all heads attend to one compressed key.
    pub fn is_latent(self) -> bool {
        matches!(self, Self::DeepseekV3 | Self::Glm4MoeLite)
    }

    /// Whether it mixes attention with delta-nets.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen3_5Moe)
    }
}

/// The norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryKeyNorm {
    None,
    PerHead,
    WholeRow,
}

/// What experts are chosen and weighed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scoring {
    /// Softmax over all.
    Softmax,
    /// A sigmoid each, and a bias for the choice.
    Sigmoid,
    /// Softmax over the chosen.
    SoftmaxOfChosen,
}

/// `(up + 1) · gate · sigmoid(alpha · gate)` of clamped inputs instead of `silu(gate) · up`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clamped {
    pub(super) limit: f64,
    pub(super) alpha: f64,
}

/// Shapes of latent attention.
#[derive(Clone, Debug)]
pub(super) struct LatentConfig {
    /// Whether queries go through few dimensions.
    pub(super) compresses_queries: bool,
    pub(super) rank: usize,
    pub(super) nope: usize,
    pub(super) rope: usize,
    pub(super) value: usize,
    /// Whether neighbours make a pair.
    pub(super) interleaved: bool,
    /// What scores are multiplied by.
    pub(super) scale: f64,
}

/// Groups of experts of which only some are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    pub(super) count: usize,
    pub(super) chosen: usize,
}

/// Shapes of the delta-net mixer.
#[derive(Clone, Debug)]
pub(super) struct LinearConfig {
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    pub(super) kernel: usize,
}

/// `config.json`, understood.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) family: Family,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rotary_dim: usize,
    pub(super) rope_theta: f64,
    /// `yarn`, if positions are stretched.
    pub(super) yarn: Option<Yarn>,
    pub(super) query_key_norm: QueryKeyNorm,
    /// Per layer: how many positions a token sees, itself included, if not all.
    pub(super) window: Vec<Option<usize>>,
    pub(super) scoring: Scoring,
    pub(super) groups: Option<Groups>,
    /// What the weights of routes are multiplied by.
    pub(super) route_factor: f64,
    pub(super) latent: Option<LatentConfig>,
    pub(super) clamped: Option<Clamped>,
    pub(super) eps: f64,
    pub(super) attention_bias: bool,
    pub(super) tied: bool,
    pub(super) experts: usize,
    pub(super) top_k: usize,
    pub(super) norm_topk_prob: bool,
    /// Per layer: softmax attention (`true`) or delta-net.
    pub(super) attends: Vec<bool>,
    /// Per layer: routed experts (`true`) or one dense FFN.
    pub(super) routed: Vec<bool>,
    pub(super) linear: Option<LinearConfig>,
    /// The `quantization` object of an MLX checkpoint, or null.
    pub(super) quantization: Value,
}

impl Config {
    pub(super) fn load(dir: &Path) -> Self {
        let path = dir.join("config.json");
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        Self::parse(&serde_json::from_str(&text).expect("config.json is JSON"))
    }

    fn parse(root: &Value) -> Self {
        let model_type = root["model_type"].as_str().expect("model_type is a string");
        let family = Family::by_name(model_type)
            .unwrap_or_else(|| panic!("the oracle does not know model_type {model_type}"));
        let text = if family == Family::Qwen3_5Moe { &root["text_config"] } else { root };
        let layers = count(text, "num_hidden_layers");
        let heads = count(text, "num_attention_heads");
        let head_dim =
            maybe_count(text, "head_dim").unwrap_or_else(|| count(text, "hidden_size") / heads);
        let hybrid = family.is_hybrid();
        let partial =
            rope(text, "partial_rotary_factor").unwrap_or(if hybrid { 0.25 } else { 1.0 });
        let rotary_dim = (head_dim as f64 * partial) as usize;
        assert!(!flag(text, "use_sliding_window", false), "the oracle has no such windows");
        Self {
            family,
            layers,
            heads,
            kv_heads: maybe_count(text, "num_key_value_heads").unwrap_or(heads),
            head_dim,
            rotary_dim: match latent(family, text) {
                Some(latent) => latent.rope,
                None => maybe_count(text, "rotary_dim").unwrap_or(rotary_dim),
            },
            latent: latent(family, text),
            groups: family.is_latent().then(|| Groups {
                count: count(text, "n_group"),
                chosen: count(text, "topk_group"),
            }),
            route_factor: text["routed_scaling_factor"].as_f64().unwrap_or(1.0),
            rope_theta: rope(text, "rope_theta").expect("config.json has a rope_theta"),
            yarn: yarn(&text["rope_scaling"]),
            query_key_norm: query_key_norm(family, text),
            window: (0..layers).map(|layer| window(text, layer)).collect(),
            scoring: match family {
                Family::MinimaxM2 | Family::DeepseekV3 | Family::Glm4MoeLite => Scoring::Sigmoid,
                Family::GptOss => Scoring::SoftmaxOfChosen,
                _ => Scoring::Softmax,
            },
            clamped: (family == Family::GptOss).then(|| Clamped {
                limit: text["swiglu_limit"].as_f64().unwrap_or(7.0),
                alpha: 1.702,
            }),
            eps: text["rms_norm_eps"].as_f64().expect("rms_norm_eps is a number"),
            attention_bias: flag(text, "attention_bias", false),
            tied: flag(root, "tie_word_embeddings", flag(text, "tie_word_embeddings", false)),
            experts: experts(text),
            top_k: count(text, "num_experts_per_tok"),
            norm_topk_prob: match family {
                Family::Mixtral | Family::MinimaxM2 | Family::Qwen3_5Moe => true,
                Family::GptOss => false,
                Family::DeepseekV3 | Family::Glm4MoeLite | Family::Qwen3Next => {
                    flag(text, "norm_topk_prob", true)
                }
                Family::Qwen3Moe => flag(text, "norm_topk_prob", false),
            },
            attends: (0..layers).map(|layer| attends(family, text, layer)).collect(),
            routed: (0..layers).map(|layer| routed(text, layer)).collect(),
            linear: hybrid.then(|| LinearConfig {
                key_heads: count(text, "linear_num_key_heads"),
                value_heads: count(text, "linear_num_value_heads"),
                key_dim: count(text, "linear_key_head_dim"),
                value_dim: count(text, "linear_value_head_dim"),
                kernel: count(text, "linear_conv_kernel_dim"),
            }),
            quantization: root["quantization"].clone(),
        }
    }

    /// Whether `q_proj` also makes a gate for the attention output, and whether HF files store
    /// norm weights around zero.
    pub(super) fn is_hybrid(&self) -> bool {
        self.family.is_hybrid()
    }
}

fn query_key_norm(family: Family, text: &Value) -> QueryKeyNorm {
    match family {
        Family::MinimaxM2 if flag(text, "use_qk_norm", true) => QueryKeyNorm::WholeRow,
        Family::Mixtral
        | Family::MinimaxM2
        | Family::GptOss
        | Family::DeepseekV3
        | Family::Glm4MoeLite => QueryKeyNorm::None,
        Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen3_5Moe => QueryKeyNorm::PerHead,
    }
}

/// `sliding_window`, in the layers that have it: all, unless `layer_types` tells them apart.
fn window(text: &Value, layer: usize) -> Option<usize> {
    match text["layer_types"][layer].as_str() {
        None | Some("sliding_attention") => maybe_count(text, "sliding_window"),
        Some(_) => None,
    }
}

fn experts(text: &Value) -> usize {
    let names = ["num_experts", "num_local_experts", "n_routed_experts"];
    names.iter().find_map(|name| maybe_count(text, name)).expect("config.json counts the experts")
}

fn latent(family: Family, text: &Value) -> Option<LatentConfig> {
    if !family.is_latent() {
        return None;
    }
    let (nope, rope) = (count(text, "qk_nope_head_dim"), count(text, "qk_rope_head_dim"));
    let sharper = yarn(&text["rope_scaling"]).map_or(1.0, |yarn| yarn.sharper());
    Some(LatentConfig {
        compresses_queries: maybe_count(text, "q_lora_rank").is_some(),
        rank: count(text, "kv_lora_rank"),
        nope,
        rope,
        value: count(text, "v_head_dim"),
        interleaved: flag(text, "rope_interleave", true),
        scale: sharper / ((nope + rope) as f64).sqrt(),
    })
}

fn attends(family: Family, text: &Value, layer: usize) -> bool {
    if !family.is_hybrid() {
        return true;
    }
    match text["layer_types"][layer].as_str() {
        Some("full_attention") => true,
        Some("linear_attention") => false,
        Some(other) => panic!("the oracle does not know layer type {other}"),
        None => {
            let interval = maybe_count(text, "full_attention_interval").unwrap_or(4);
            (layer + 1).is_multiple_of(interval)
        }
    }
}

fn routed(text: &Value, layer: usize) -> bool {
    let only_dense = text["mlp_only_layers"]
        .as_array()
        .is_some_and(|layers| layers.iter().any(|dense| dense.as_u64() == Some(layer as u64)));
    let step = maybe_count(text, "decoder_sparse_step").unwrap_or(1);
    let first = maybe_count(text, "first_k_dense_replace").unwrap_or(0);
    !only_dense && experts(text) > 0 && layer >= first && (layer + 1).is_multiple_of(step)
}

/// Positions beyond the training context: slow rotations are slowed down further, fast ones stay.
/// Source: Peng et al., *`YaRN`*, 2023, arXiv:2309.00071.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yarn {
    pub(super) factor: f64,
    reach: f64,
    beta_fast: f64,
    beta_slow: f64,
    /// Whether the ramp begins and ends at whole dimensions.
    pub(super) truncate: bool,
    /// `mscale` and `mscale_all_dim`, which come together.
    pub(super) mscales: Option<(f64, f64)>,
}

impl Yarn {
    /// Of the frequency of pair `j`, how much is kept; the rest is divided by `factor`.
    pub(super) fn kept(&self, j: usize, dims: usize, theta: f64) -> f64 {
        // The pair that turns `turns` times within the training context.
        let pair_of = |turns: f64| {
            let wave = self.reach / (turns * 2.0 * std::f64::consts::PI);
            dims as f64 * wave.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
        let width = if low == high { 0.001 } else { high - low };
        1.0 - ((j as f64 - low) / width).clamp(0.0, 1.0)
    }

    /// What sines and cosines are multiplied by.
    pub(super) fn amplitude(&self) -> f64 {
        match self.mscales {
            None => self.mscale(1.0),
            Some((one, all)) => self.mscale(one) / self.mscale(all),
        }
    }

    /// What the scores of latent attention are multiplied by.
    pub(super) fn sharper(&self) -> f64 {
        self.mscales.map_or(1.0, |(_, all)| self.mscale(all).powi(2))
    }

    fn mscale(&self, mscale: f64) -> f64 {
        0.1 * mscale * self.factor.ln() + 1.0
    }
}

fn yarn(scaling: &Value) -> Option<Yarn> {
    if scaling.is_null() {
        return None;
    }
    let kind = if scaling["type"].is_null() { &scaling["rope_type"] } else { &scaling["type"] };
    assert_eq!(kind, "yarn", "the oracle has no other rope scaling");
    let number = |key: &str| scaling[key].as_f64();
    Some(Yarn {
        factor: number("factor").expect("yarn has a factor"),
        reach: number("original_max_position_embeddings").expect("yarn knows the trained context"),
        beta_fast: number("beta_fast").unwrap_or(32.0),
        beta_slow: number("beta_slow").unwrap_or(1.0),
        truncate: flag(scaling, "truncate", true),
        mscales: number("mscale").zip(number("mscale_all_dim")),
    })
}

/// A rope setting: in `rope_parameters` (newer configs) or beside the other keys (older ones).
fn rope(text: &Value, key: &str) -> Option<f64> {
    text["rope_parameters"][key].as_f64().or_else(|| text[key].as_f64())
}

fn maybe_count(object: &Value, key: &str) -> Option<usize> {
    object[key].as_u64().map(|count| count as usize)
}

fn count(object: &Value, key: &str) -> usize {
    maybe_count(object, key).unwrap_or_else(|| panic!("config.json lacks the number {key}"))
}

fn flag(object: &Value, key: &str, default: bool) -> bool {
    object[key].as_bool().unwrap_or(default)
}
