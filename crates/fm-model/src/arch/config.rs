//! Reading a family's part of `config.json`.

use fm_format::record::DIM_MAX;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    error::{FieldValue, LoadError},
    weights::Bias,
};

use super::experts::ExpertDims;

mod rope;

pub(super) use rope::RopeConfig;

/// Deserialises a configuration; unknown keys are allowed, missing ones named.
pub(super) fn parse<T: DeserializeOwned>(
    model_type: &'static str,
    config: &Value,
) -> Result<T, LoadError> {
    T::deserialize(config).map_err(|source| LoadError::Config { model_type, source })
}

/// Refuses a value that the family's arithmetic has no meaning for.
pub(super) fn require(
    holds: bool,
    field: &'static str,
    found: impl Into<FieldValue>,
    expected: &'static str,
) -> Result<(), LoadError> {
    if holds { Ok(()) } else { Err(LoadError::Field { field, found: found.into(), expected }) }
}

/// Refuses a configuration that leaves out what its family's own implementation has a default for that published models
/// do not have. Null is said.
pub(super) fn announced(config: &Value, fields: &[&'static str]) -> Result<(), LoadError> {
    let said = fields.iter().any(|field| config.get(field).is_some());
    require(said, fields[0], "missing", "expected, or null where there is none")
}

/// Refuses what would make another program compute something else than the family's network.
pub(super) fn check_foreign(config: &Value) -> Result<(), LoadError> {
    const ROWS: [(&str, &str); 3] = [
        (
            "quantize_activations",
            "mlx-lm would round activations to fewer bits as well, which this build does not do; convert the \
             model without",
        ),
        (
            "model_file",
            "mlx-lm would run the code in that file, which this build does not; if the model is a plain one \
             of its family, remove the field",
        ),
        (
            "dual_chunk_attention_config",
            "vLLM would attend in chunks, for contexts beyond those of training, which this build does not do; use the \
             configuration that the model comes with",
        ),
    ];
    for (field, reason) in ROWS {
        let found = config.get(field).unwrap_or(&Value::Null);
        if !matches!(found, Value::Null | Value::Bool(false)) {
            return Err(LoadError::Foreign { field, found: found.to_string(), reason });
        }
    }
    Ok(())
}

/// What the feed-forward networks of the Qwen families have in common.
#[derive(Debug, Deserialize)]
pub(super) struct MoeConfig {
    num_experts: Option<usize>,
    /// What the same number is called where transformers 5 has saved it.
    num_local_experts: Option<usize>,
    pub(super) num_experts_per_tok: usize,
    pub(super) moe_intermediate_size: usize,
    pub(super) intermediate_size: Option<usize>,
    pub(super) shared_expert_intermediate_size: Option<usize>,
    pub(super) norm_topk_prob: Option<bool>,
    #[serde(default)]
    pub(super) mlp_only_layers: Vec<usize>,
    #[serde(default = "one")]
    pub(super) decoder_sparse_step: usize,
}

fn one() -> usize {
    1
}

impl MoeConfig {
    /// Routed experts of a layer, under whichever name.
    pub(super) fn experts(&self) -> usize {
        self.num_experts.or(self.num_local_experts).unwrap_or(0)
    }

    /// Whether a layer has routed experts.
    pub(super) fn is_sparse(&self, layer: usize) -> bool {
        self.experts() > 0
            && !self.mlp_only_layers.contains(&layer)
            && (layer + 1).is_multiple_of(self.decoder_sparse_step)
    }

    pub(super) fn check(&self) -> Result<(), LoadError> {
        require(self.decoder_sparse_step > 0, "decoder_sparse_step", 0, "expected at least 1")?;
        check_dims(&[
            ("moe_intermediate_size", self.moe_intermediate_size),
            ("intermediate_size", self.intermediate_size.unwrap_or(1).max(1)),
            (
                "shared_expert_intermediate_size",
                self.shared_expert_intermediate_size.unwrap_or(1).max(1),
            ),
        ])?;
        let counts = [self.num_experts, self.num_local_experts];
        let said = counts.iter().any(Option::is_some);
        require(said, "num_experts", "missing", "expected the number of experts of a layer")?;
        if let [Some(experts), Some(local)] = counts {
            let agrees = experts == local;
            require(agrees, "num_local_experts", local, "expected what `num_experts` says")?;
        }
        if self.experts() == 0 {
            return Ok(());
        }
        check_experts(("num_experts", self.experts()), self.num_experts_per_tok)
    }
}

/// Refuses dimensions that no matrix has.
pub(super) fn check_dims(dims: &[(&'static str, usize)]) -> Result<(), LoadError> {
    dims.iter().try_for_each(|(field, value)| {
        let fits = (1..=DIM_MAX).contains(&(*value as u64));
        require(fits, field, *value, "expected at least 1 and at most 16777216")
    })
}

/// Refuses numbers of experts that no router can choose from.
pub(super) fn check_experts(
    (field, experts): (&'static str, usize),
    top_k: usize,
) -> Result<(), LoadError> {
    let fits = (1..=usize::from(u16::MAX)).contains(&experts);
    require(fits, field, experts, "expected at least 1 and at most 65535")?;
    require(
        (1..=experts).contains(&top_k),
        "num_experts_per_tok",
        top_k,
        "expected at least 1 and at most the number of experts",
    )
}

/// The experts of the families that call them local; none of their layers is dense.
#[derive(Debug, Deserialize)]
pub(super) struct LocalExpertsConfig {
    pub(super) num_local_experts: usize,
    pub(super) num_experts_per_tok: usize,
    /// Of one expert.
    pub(super) intermediate_size: usize,
}

impl LocalExpertsConfig {
    pub(super) fn check(&self) -> Result<(), LoadError> {
        check_dims(&[("intermediate_size", self.intermediate_size)])?;
        check_experts(("num_local_experts", self.num_local_experts), self.num_experts_per_tok)
    }

    pub(super) fn dims(&self, hidden: usize) -> ExpertDims {
        ExpertDims { experts: self.num_local_experts, hidden, ffn: self.intermediate_size }
    }
}

/// Dimensions every decoder has.
#[derive(Debug, Deserialize)]
pub(super) struct TrunkConfig {
    pub(super) hidden_size: usize,
    pub(super) vocab_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: usize,
    pub(super) head_dim: Option<usize>,
    pub(super) rms_norm_eps: f32,
    pub(super) max_position_embeddings: u32,
    #[serde(default = "silu")]
    pub(super) hidden_act: String,
    pub(super) tie_word_embeddings: Option<bool>,
    #[serde(default)]
    pub(super) use_sliding_window: bool,
    attention_bias: Option<bool>,
}

fn silu() -> String {
    "silu".to_owned()
}

impl TrunkConfig {
    pub(super) fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Whether projections of attention have a bias, and what is meant where nobody says so.
    pub(super) fn attention_bias(&self, default: Bias) -> Bias {
        match self.attention_bias {
            Some(true) => Bias::Added,
            Some(false) => Bias::None,
            None => default,
        }
    }

    pub(super) fn check(&self) -> Result<(), LoadError> {
        check_dims(&[
            ("hidden_size", self.hidden_size),
            ("vocab_size", self.vocab_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim()),
        ])?;
        require(
            (0.0..1.0).contains(&self.rms_norm_eps),
            "rms_norm_eps",
            f64::from(self.rms_norm_eps),
            "expected at least 0 and less than 1",
        )?;
        let context = self.max_position_embeddings as usize;
        require(context > 0, "max_position_embeddings", context, "expected at least 1")?;
        require(
            u16::try_from(self.num_hidden_layers).is_ok(),
            "num_hidden_layers",
            self.num_hidden_layers,
            "at most 65535",
        )?;
        require(
            self.num_attention_heads.is_multiple_of(self.num_key_value_heads),
            "num_key_value_heads",
            self.num_key_value_heads,
            "expected a divisor of num_attention_heads",
        )?;
        require(
            self.hidden_act == "silu",
            "hidden_act",
            self.hidden_act.as_str(),
            "this family uses `silu`",
        )?;
        require(!self.use_sliding_window, "use_sliding_window", "true", "expected false")
    }
}

/// What a list of `config.json` says of every layer, in either of two words; where there is no list, what holds by the
/// number of the layer.
///
/// # Errors
/// If the list has another length, or a word that is not `expected`.
pub(super) fn layer_kinds<T: Copy>(
    (field, list): (&'static str, Option<&[String]>),
    layers: usize,
    (words, expected): ([(&'static str, T); 2], &'static str),
    by_number: impl Fn(usize) -> T,
) -> Result<Vec<T>, LoadError> {
    let Some(list) = list else { return Ok((0..layers).map(by_number).collect()) };
    require(list.len() == layers, field, list.len(), "one entry per layer")?;
    let kind = |word: &String| {
        let known = words.iter().find(|(known, _)| known == word);
        let unknown = || LoadError::Field { field, found: word.as_str().into(), expected };
        known.map(|(_, kind)| *kind).ok_or_else(unknown)
    };
    list.iter().map(kind).collect()
}
