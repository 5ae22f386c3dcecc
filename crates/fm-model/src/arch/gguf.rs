//! GGUF as one more publisher: its metadata told in the words of `config.json`, so that a family
//! reads one kind of configuration and asks for tensors by one kind of name.
//!
//! What a key of the file's own architecture says is used, or known to change nothing for us; any
//! other is an error, because it may change the arithmetic. Source of the keys: files of
//! llama.cpp's converter, checked against the checkpoints they were made from.

use std::ops::Range;

use fm_format::source::{Checkpoint, gguf::Metadata};
use serde_json::{Map, Value, json};

use crate::error::LoadError;

mod keys;
pub(crate) mod names;
mod parts;

use keys::Keys;

/// An architecture of GGUF that is one of our families.
struct Architecture {
    /// `general.architecture`.
    name: &'static str,
    model_type: &'static str,
    /// What it calls the norm before the feed-forward half.
    ffn_norm: &'static str,
    /// What its keys say, part by part.
    parts: &'static [Part],
}

/// Tells some keys in the words of `config.json`.
type Part = fn(&Keys<'_>, &mut Map<String, Value>) -> Result<(), LoadError>;

const FFN_NORM: &str = "ffn_norm";
const POST_ATTENTION_NORM: &str = "post_attention_norm";

const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        // GLM-4.7-Flash, too: the same network, and nothing in the file tells them apart.
        name: "deepseek2",
        model_type: "deepseek_v3",
        ffn_norm: FFN_NORM,
        parts: &[parts::latent_heads, parts::grouped_experts],
    },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        ffn_norm: POST_ATTENTION_NORM,
        parts: &[parts::heads, parts::local_experts, parts::windows_by_turns],
    },
    Architecture {
        name: "llama",
        model_type: "mixtral",
        ffn_norm: FFN_NORM,
        parts: &[parts::heads, parts::local_experts, parts::softmax_router],
    },
    Architecture {
        name: "minimax-m2",
        model_type: "minimax_m2",
        ffn_norm: FFN_NORM,
        parts: &[parts::heads, parts::local_experts, parts::sigmoid_router],
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        ffn_norm: FFN_NORM,
        parts: &[parts::heads, parts::normalised_experts, parts::softmax_router],
    },
    Architecture {
        name: "qwen3next",
        model_type: "qwen3_next",
        ffn_norm: POST_ATTENTION_NORM,
        parts: &[parts::heads, parts::delta_net, parts::normalised_experts, parts::softmax_router],
    },
    Architecture {
        name: "qwen35moe",
        model_type: "qwen3_5_moe",
        ffn_norm: POST_ATTENTION_NORM,
        parts: &[parts::heads, parts::delta_net, parts::normalised_experts, parts::softmax_router],
    },
];

/// What the file calls the norm before the feed-forward half of a layer.
///
/// # Errors
/// If the architecture is none of ours.
pub(crate) fn ffn_norm(metadata: &Metadata) -> Result<&'static str, LoadError> {
    architecture(metadata).map(|architecture| architecture.ffn_norm)
}

/// Layers behind the decoder, which predict tokens further ahead.
///
/// # Errors
/// If the metadata does not say how many layers there are.
pub(crate) fn layers_ahead(metadata: &Metadata) -> Result<Range<u64>, LoadError> {
    Keys::new(metadata, architecture(metadata)?.name).layers()
}

/// Refuses to pass over a layer that has tensors, but none of those that only layers behind the decoder have.
///
/// # Errors
/// If it is such a layer.
pub(crate) fn check_layer_ahead(
    checkpoint: &Checkpoint,
    metadata: &Metadata,
    layer: u64,
) -> Result<(), LoadError> {
    let has = |prefix: &str| checkpoint.tensors_of(prefix).next().is_some();
    if has(&format!("blk.{layer}.")) && !has(&format!("blk.{layer}.nextn.")) {
        let key = Keys::new(metadata, architecture(metadata)?.name).key(keys::LAYERS_AHEAD);
        return Err(LoadError::LayerAhead { key, layer });
    }
    Ok(())
}

fn architecture(metadata: &Metadata) -> Result<&'static Architecture, LoadError> {
    let kind = metadata.text("general.type").map_err(LoadError::Metadata)?;
    if let Some(kind) = kind.filter(|kind| *kind != "model") {
        return Err(LoadError::NoModel { kind: kind.to_owned() });
    }
    let name = metadata.text("general.architecture").map_err(LoadError::Metadata)?;
    let name = name.unwrap_or_default();
    ARCHITECTURES.iter().find(|known| known.name == name).ok_or_else(|| {
        LoadError::UnknownArchitecture {
            architecture: name.to_owned(),
            known: ARCHITECTURES.iter().map(|known| known.name).collect(),
        }
    })
}

/// What `config.json` would say.
///
/// # Errors
/// If the architecture is none of ours, a key is missing or has the wrong type, or there is one
/// that we do not know.
pub(crate) fn config(checkpoint: &Checkpoint, metadata: &Metadata) -> Result<Value, LoadError> {
    let architecture = architecture(metadata)?;
    let embedding = checkpoint.tensors.get("token_embd.weight");
    let embedding = embedding
        .ok_or_else(|| LoadError::MissingTensor { tensor: "token_embd.weight".to_owned() })?;
    let keys = Keys::new(metadata, architecture.name);
    let mut config = Map::new();
    let entries = [
        ("model_type", json!(architecture.model_type)),
        ("vocab_size", json!(embedding.shape.first())),
        ("tie_word_embeddings", json!(!checkpoint.tensors.contains_key("output.weight"))),
    ];
    // The format has no key for it: a model in which one projection has a bias has them all.
    let is_bias =
        |name: &&String| name.strip_suffix(".bias").is_some_and(|module| module.contains(".attn_"));
    let biased = checkpoint.tensors.keys().find(is_bias).map(|_| ("attention_bias", json!(true)));
    let entries = entries.into_iter().chain(biased);
    config.extend(entries.map(|(key, value)| (key.to_owned(), value)));
    parts::decoder(&keys, &mut config)?;
    parts::rope(&keys, &mut config)?;
    architecture.parts.iter().try_for_each(|part| part(&keys, &mut config))?;
    keys.refuse_others()?;
    Ok(Value::Object(config))
}
