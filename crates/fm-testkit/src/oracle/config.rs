//! The numbers of `config.json` that the equations need.
//!
//! Conventions held here: where each family keeps its keys, which layers attend and which
//! remember, which layers route and which are dense, how many dimensions rotate.

use std::{fs, path::Path};

use serde_json::Value;

/// One of the three families, as `model_type` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Attention in every layer, no shared expert.
    Qwen3Moe,
    /// Hybrid of attention and delta-net; packed `in_proj_qkvz`, one tensor per expert.
    Qwen3Next,
    /// Hybrid; separate delta-net projections, fused experts, config nested in `text_config`.
    Qwen3_5Moe,
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
        let family = match root["model_type"].as_str().expect("model_type is a string") {
            "qwen3_moe" => Family::Qwen3Moe,
            "qwen3_next" => Family::Qwen3Next,
            "qwen3_5_moe" => Family::Qwen3_5Moe,
            other => panic!("the oracle does not know model_type {other}"),
        };
        let text = if family == Family::Qwen3_5Moe { &root["text_config"] } else { root };
        let layers = count(text, "num_hidden_layers");
        let heads = count(text, "num_attention_heads");
        let head_dim =
            maybe_count(text, "head_dim").unwrap_or_else(|| count(text, "hidden_size") / heads);
        let hybrid = family != Family::Qwen3Moe;
        let partial =
            rope(text, "partial_rotary_factor").unwrap_or(if hybrid { 0.25 } else { 1.0 });
        assert!(text["rope_scaling"].is_null(), "the oracle has no rope scaling");
        assert!(!flag(text, "use_sliding_window", false), "the oracle has no sliding window");
        Self {
            family,
            layers,
            heads,
            kv_heads: maybe_count(text, "num_key_value_heads").unwrap_or(heads),
            head_dim,
            rotary_dim: (head_dim as f64 * partial) as usize,
            rope_theta: rope(text, "rope_theta").expect("config.json has a rope_theta"),
            eps: text["rms_norm_eps"].as_f64().expect("rms_norm_eps is a number"),
            attention_bias: flag(text, "attention_bias", false),
            tied: flag(root, "tie_word_embeddings", flag(text, "tie_word_embeddings", false)),
            experts: count(text, "num_experts"),
            top_k: count(text, "num_experts_per_tok"),
            norm_topk_prob: match family {
                Family::Qwen3_5Moe => true,
                Family::Qwen3Next => flag(text, "norm_topk_prob", true),
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
        self.family != Family::Qwen3Moe
    }
}

fn attends(family: Family, text: &Value, layer: usize) -> bool {
    if family == Family::Qwen3Moe {
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
    !only_dense && count(text, "num_experts") > 0 && (layer + 1).is_multiple_of(step)
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
