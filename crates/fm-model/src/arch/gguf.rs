//! GGUF as one more publisher: its metadata told in the words of `config.json`, so that a family
//! reads one kind of configuration and asks for tensors by one kind of name.
//!
//! What a key of the file's own architecture says is used, or known to change nothing for us; any
//! other is an error, because it may change the arithmetic. Source of the keys: files of
//! llama.cpp's converter, checked against the checkpoints they were made from.

use std::{cell::RefCell, collections::BTreeSet};

use fm_format::source::{
    Checkpoint,
    gguf::{Metadata, Value as MetadataValue},
};
use serde_json::{Map, Value, json};

use crate::error::LoadError;

pub(crate) mod names;

/// An architecture of GGUF that is one of our families.
struct Architecture {
    /// `general.architecture`.
    name: &'static str,
    model_type: &'static str,
    /// What it calls the norm before the feed-forward half.
    ffn_norm: &'static str,
    /// Adds what is special about the family.
    special: fn(&Keys<'_>, &mut Map<String, Value>) -> Result<(), LoadError>,
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        ffn_norm: "ffn_norm",
        special: |keys, config| {
            // The format has no key for it; every model of the family has it.
            config.insert("norm_topk_prob".to_owned(), json!(true));
            keys.softmax_router()
        },
    },
    Architecture {
        name: "qwen3next",
        model_type: "qwen3_next",
        ffn_norm: "post_attention_norm",
        special: hybrid,
    },
    Architecture {
        name: "qwen35moe",
        model_type: "qwen3_5_moe",
        ffn_norm: "post_attention_norm",
        special: hybrid,
    },
];

/// Keys that change nothing for us: descriptions, and what follows from other keys.
const SILENT: &[&str] = &[
    // Multimodal rope is plain rope for text.
    "rope.dimension_sections",
    // The embedding has as many rows.
    "vocab_size",
];

/// What the file calls the norm before the feed-forward half of a layer.
///
/// # Errors
/// If the architecture is none of ours.
pub(crate) fn ffn_norm(metadata: &Metadata) -> Result<&'static str, LoadError> {
    architecture(metadata).map(|architecture| architecture.ffn_norm)
}

fn architecture(metadata: &Metadata) -> Result<&'static Architecture, LoadError> {
    let name = text(metadata, "general.architecture")?.unwrap_or_default();
    ARCHITECTURES.iter().find(|known| known.name == name).ok_or_else(|| {
        LoadError::UnknownArchitecture {
            architecture: name.to_owned(),
            known: ARCHITECTURES.iter().map(|known| known.name).collect(),
        }
    })
}

fn text<'a>(metadata: &'a Metadata, key: &str) -> Result<Option<&'a str>, LoadError> {
    metadata.text(key).map_err(LoadError::Metadata)
}

/// What `config.json` would say.
///
/// # Errors
/// If the architecture is none of ours, a key is missing or has the wrong type, or there is one
/// that we do not know.
pub(crate) fn config(checkpoint: &Checkpoint, metadata: &Metadata) -> Result<Value, LoadError> {
    let architecture = architecture(metadata)?;
    let keys = Keys { metadata, architecture: architecture.name, used: RefCell::default() };
    let mut config = Map::new();
    config.insert("model_type".to_owned(), json!(architecture.model_type));
    keys.decoder(checkpoint, &mut config)?;
    keys.rope(&mut config)?;
    keys.experts(&mut config)?;
    (architecture.special)(&keys, &mut config)?;
    keys.refuse_others()?;
    Ok(Value::Object(config))
}

/// The metadata of one file, and which keys have been asked for.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'static str,
    used: RefCell<BTreeSet<&'static str>>,
}

impl Keys<'_> {
    fn key(&self, key: &'static str) -> String {
        self.used.borrow_mut().insert(key);
        format!("{}.{key}", self.architecture)
    }

    /// A count; where a file has one per layer, those that are not zero have to be equal.
    fn count(&self, key: &'static str) -> Result<Option<u64>, LoadError> {
        let name = self.key(key);
        if !matches!(self.metadata.get(&name), Some(MetadataValue::Numbers(_))) {
            return self.metadata.unsigned(&name).map_err(LoadError::Metadata);
        }
        let each = self.metadata.unsigned_array(&name).map_err(LoadError::Metadata)?;
        let mut counts = each.into_iter().flatten().filter(|count| *count > 0);
        let first = counts.next();
        if counts.any(|count| Some(count) != first) {
            return Err(LoadError::PerLayer { key: name });
        }
        Ok(first)
    }

    fn required(&self, key: &'static str) -> Result<u64, LoadError> {
        self.count(key)?.ok_or_else(|| LoadError::MissingKey { key: self.key(key) })
    }

    fn float(&self, key: &'static str) -> Result<Option<f64>, LoadError> {
        self.metadata.float(&self.key(key)).map_err(LoadError::Metadata)
    }

    fn bool(&self, key: &'static str) -> Result<Option<bool>, LoadError> {
        self.metadata.bool(&self.key(key)).map_err(LoadError::Metadata)
    }

    fn text(&self, key: &'static str) -> Result<Option<&str>, LoadError> {
        text(self.metadata, &self.key(key))
    }

    /// Dimensions of the trunk.
    fn decoder(
        &self,
        checkpoint: &Checkpoint,
        config: &mut Map<String, Value>,
    ) -> Result<(), LoadError> {
        let embedding = checkpoint.tensors.get("token_embd.weight");
        let embedding = embedding
            .ok_or_else(|| LoadError::MissingTensor { tensor: "token_embd.weight".to_owned() })?;
        let heads = self.required("attention.head_count")?;
        let hidden = self.required("embedding_length")?;
        let head_dim = self.head_dim()?.unwrap_or(hidden / heads.max(1));
        let eps = self.float("attention.layer_norm_rms_epsilon")?;
        let missing = |key| move || LoadError::MissingKey { key: self.key(key) };
        let eps = eps.ok_or_else(missing("attention.layer_norm_rms_epsilon"))?;
        // Layers that predict further tokens are counted, too, and stand at the end.
        let extra = self.count("nextn_predict_layers")?.unwrap_or(0);
        let entries = [
            ("hidden_size", json!(hidden)),
            ("vocab_size", json!(embedding.shape.first())),
            ("num_hidden_layers", json!(self.required("block_count")?.saturating_sub(extra))),
            ("num_attention_heads", json!(heads)),
            ("num_key_value_heads", json!(self.count("attention.head_count_kv")?.unwrap_or(heads))),
            ("head_dim", json!(head_dim)),
            ("rms_norm_eps", json!(eps)),
            ("max_position_embeddings", json!(self.required("context_length")?)),
            ("tie_word_embeddings", json!(!checkpoint.tensors.contains_key("output.weight"))),
        ];
        config.extend(entries.map(|(key, value)| (key.to_owned(), value)));
        Ok(())
    }

    /// Values of a head; keys and values have as many.
    fn head_dim(&self) -> Result<Option<u64>, LoadError> {
        let (k, v) = (self.count("attention.key_length")?, self.count("attention.value_length")?);
        match (k, v) {
            (Some(k), Some(v)) if k != v => {
                let key = self.key("attention.value_length");
                Err(LoadError::KeyValue { key, found: v, expected: k })
            }
            _ => Ok(k),
        }
    }

    fn rope(&self, config: &mut Map<String, Value>) -> Result<(), LoadError> {
        if let Some(theta) = self.float("rope.freq_base")? {
            config.insert("rope_theta".to_owned(), json!(theta));
        }
        let head_dim = config.get("head_dim").and_then(Value::as_f64).unwrap_or(0.0);
        if let Some(rotated) = self.count("rope.dimension_count")? {
            let factor = rotated as f64 / head_dim;
            config.insert("partial_rotary_factor".to_owned(), json!(factor));
        }
        let kind = self.text("rope.scaling.type")?;
        if let Some(kind) = kind.filter(|kind| *kind != "none") {
            config.insert("rope_scaling".to_owned(), json!({ "rope_type": kind }));
        }
        Ok(())
    }

    fn experts(&self, config: &mut Map<String, Value>) -> Result<(), LoadError> {
        let ffn = self.count("feed_forward_length")?;
        let expert_ffn = self.count("expert_feed_forward_length")?.or(ffn);
        let entries = [
            ("intermediate_size", ffn),
            ("moe_intermediate_size", expert_ffn),
            ("num_experts", Some(self.required("expert_count")?)),
            ("num_experts_per_tok", Some(self.required("expert_used_count")?)),
            ("shared_expert_intermediate_size", self.count("expert_shared_feed_forward_length")?),
        ];
        let present = entries.into_iter().filter_map(|(key, value)| Some((key, value?)));
        config.extend(present.map(|(key, value)| (key.to_owned(), json!(value))));
        if let Some(normalised) = self.bool("expert_weights_norm")? {
            config.insert("norm_topk_prob".to_owned(), json!(normalised));
        }
        Ok(())
    }

    /// The router takes the softmax over all experts: what the format has 1 for.
    fn softmax_router(&self) -> Result<(), LoadError> {
        match self.count("expert_gating_func")? {
            None | Some(1) => Ok(()),
            Some(found) => {
                let key = self.key("expert_gating_func");
                Err(LoadError::KeyValue { key, found, expected: 1 })
            }
        }
    }

    /// Every key of the architecture has been asked for, or changes nothing.
    fn refuse_others(&self) -> Result<(), LoadError> {
        let used = self.used.borrow();
        let own = |key: &&str| {
            let inner = key.strip_prefix(self.architecture).and_then(|key| key.strip_prefix('.'));
            inner.is_some_and(|inner| !used.contains(inner) && !SILENT.contains(&inner))
        };
        match self.metadata.keys().find(own) {
            Some(key) => Err(LoadError::UnknownKey { key: key.to_owned() }),
            None => Ok(()),
        }
    }
}

/// The linear-attention layers of the Qwen hybrids.
fn hybrid(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    keys.softmax_router()?;
    let value_heads = keys.required("ssm.time_step_rank")?;
    let inner = keys.required("ssm.inner_size")?;
    let entries = [
        ("linear_num_key_heads", json!(keys.required("ssm.group_count")?)),
        ("linear_num_value_heads", json!(value_heads)),
        ("linear_key_head_dim", json!(keys.required("ssm.state_size")?)),
        ("linear_value_head_dim", json!(inner / value_heads.max(1))),
        ("linear_conv_kernel_dim", json!(keys.required("ssm.conv_kernel")?)),
    ];
    config.extend(entries.map(|(key, value)| (key.to_owned(), value)));
    if let Some(interval) = keys.count("full_attention_interval")? {
        config.insert("full_attention_interval".to_owned(), json!(interval));
    }
    let recurrent = keys.key("attention.recurrent_layers");
    if let Some(recurrent) = keys.metadata.bool_array(&recurrent).map_err(LoadError::Metadata)? {
        let kinds = recurrent
            .into_iter()
            .map(|recurrent| if recurrent { "linear_attention" } else { "full_attention" });
        // Layers behind the decoder are in the list, too.
        let layers = config.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
        let kinds: Vec<_> = kinds.take(layers as usize).collect();
        config.insert("layer_types".to_owned(), json!(kinds));
    }
    Ok(())
}
