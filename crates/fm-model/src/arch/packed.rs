//! The configuration that packed files carry themselves, where no `config.json` lies beside them:
//! that one's numbers without its name.

use fm_format::source::Checkpoint;
use serde_json::{Value, json};

use crate::error::LoadError;

/// The end of a name that only one family has, and the family.
const FAMILIES: [(&str, &str); 2] = [
    (".linear_attn.in_proj_qkv.weight", "qwen3_5_moe"),
    (".linear_attn.in_proj_qkvz.weight", "qwen3_next"),
];

/// Numbers of the arithmetic that a family takes for granted when `config.json` is silent, and that
/// no shape tells.
const NEEDED: [&str; 2] = ["rope_theta", "partial_rotary_factor"];

/// The context of every published model of these families. Packed files never say it, and it is
/// only a limit: no number depends on it.
const CONTEXT: u32 = 262_144;

/// What `config.json` would say; nothing if there is one.
///
/// # Errors
/// If the family cannot be told, or a number is missing that would be guessed otherwise.
pub(super) fn config(checkpoint: &Checkpoint) -> Result<Option<Value>, LoadError> {
    let Some(own) = checkpoint.config.as_object() else { return Ok(None) };
    let packed = checkpoint.records.is_some() && checkpoint.container.is_none();
    if !packed || own.contains_key("model_type") {
        return Ok(None);
    }
    let has = |end: &str| checkpoint.tensors.keys().any(|name| name.ends_with(end));
    let Some((_, family)) = FAMILIES.iter().find(|(end, _)| has(end)) else {
        return Err(LoadError::UnknownModel { model_type: String::new() });
    };
    if let Some(field) = NEEDED.into_iter().find(|key| !own.contains_key(*key)) {
        let expected = "put the model's config.json beside the packed files";
        return Err(LoadError::Field { field, found: "missing".into(), expected });
    }
    let mut config = own.clone();
    let known = [
        ("model_type", json!(family)),
        ("max_position_embeddings", json!(CONTEXT)),
        ("tie_word_embeddings", json!(!has("lm_head.weight"))),
    ];
    for (key, value) in known {
        config.entry(key).or_insert(value);
    }
    Ok(Some(Value::Object(config)))
}
