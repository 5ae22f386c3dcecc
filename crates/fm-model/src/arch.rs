//! Families this build can run. One file each, named after `model_type` in `config.json`; adding a
//! family means adding a file under `arch/` and its name here.

use std::borrow::Cow;

use fm_format::source::Checkpoint;
use serde_json::Value;

use crate::{error::LoadError, spec::ModelSpec};

pub(crate) use self::relatives::nearest;

mod attention;
mod config;
mod decoder_frame;
mod deepseek;
mod experts;
mod ffn;
pub(crate) mod gguf;
mod mla;
mod packed;
mod qwen;
mod relatives;

/// Turns a list of module names into the two things the rest of the engine asks for.
macro_rules! architectures {
    ($($model_type:ident),+ $(,)?) => {
        $(mod $model_type;)+

        /// Every `model_type` this build runs.
        pub const MODEL_TYPES: &[&str] = &[$(stringify!($model_type)),+];

        /// Describes the model in a checkpoint; reads no weights.
        ///
        /// # Errors
        /// If the family is unknown, or configuration and tensors do not match it exactly.
        pub fn describe(checkpoint: &Checkpoint) -> Result<ModelSpec, LoadError> {
            let config = config(checkpoint)?;
            config::check_foreign(&config)?;
            let model_type = model_type(&config);
            $(if model_type == stringify!($model_type) {
                return $model_type::describe(checkpoint, &config);
            })+
            Err(LoadError::UnknownModel { model_type: model_type.to_owned() })
        }
    };
}

architectures! {
    deepseek_v3, glm4_moe_lite, gpt_oss, minimax_m2, mixtral, qwen3_5_moe, qwen3_moe, qwen3_next
}

/// The words of `config.json`, whoever said it in others.
///
/// # Errors
/// If metadata have no translation, or what packed files say is not enough.
pub fn config(checkpoint: &Checkpoint) -> Result<Cow<'_, Value>, LoadError> {
    if let Some(metadata) = &checkpoint.metadata {
        return gguf::config(checkpoint, metadata).map(Cow::Owned);
    }
    let completed = packed::config(checkpoint)?;
    Ok(completed.map_or(Cow::Borrowed(&checkpoint.config), Cow::Owned))
}

fn model_type(config: &Value) -> &str {
    let named = config.get("model_type").and_then(|value| value.as_str()).unwrap_or_default();
    // The language half of a model that also sees, saved by itself.
    named.strip_suffix("_text").unwrap_or(named)
}
