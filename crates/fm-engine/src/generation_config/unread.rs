//! What `generation_config.json` may ask for and nobody here does.

use serde_json::{Map, Value};

/// What is read.
const READ: [&str; 9] = [
    "do_sample",
    "eos_token_id",
    "frequency_penalty",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
];

/// What changes no token: which tokens mean what, what else is returned, how fast it is computed, where the file is
/// from, and what matters only beside keys that are named.
const HARMLESS: [&str; 29] = [
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bos_token_id",
    "compile_config",
    "decoder_start_token_id",
    "disable_compile",
    "dtype",
    "early_stopping",
    "is_assistant",
    "length_penalty",
    "low_memory",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "renormalize_logits",
    "return_dict_in_generate",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
];

/// Numbers with which a key changes nothing.
const NEUTRAL: [(&str, f64); 14] = [
    ("diversity_penalty", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("guidance_scale", 1.0),
    // What transformers took where nobody said anything, and wrote down.
    ("max_length", 20.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beam_groups", 1.0),
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("typical_p", 1.0),
];

/// Keys that nobody here reads and whose value may change which tokens come, in the order of the alphabet.
pub(super) fn with_effect(fields: &Map<String, Value>) -> Vec<String> {
    let known = |key: &str| READ.contains(&key) || HARMLESS.contains(&key);
    let asked = fields.iter().filter(|(key, value)| !known(key) && !is_neutral(key, value));
    let mut keys: Vec<String> = asked.map(|(key, _)| key.clone()).collect();
    keys.sort();
    keys
}

fn is_neutral(key: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Number(number) => {
            NEUTRAL.iter().any(|(name, idle)| *name == key && number.as_f64() == Some(*idle))
        }
        Value::Bool(true) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(value: &Value) -> Vec<String> {
        with_effect(value.as_object().unwrap())
    }

    #[test]
    fn keys_that_may_change_tokens_and_are_not_read_are_named() {
        let asked = json!({
            "suppress_tokens": [1], "no_repeat_ngram_size": 3, "num_beams": 4, "stop_strings": "x",
            "typical_p": 0.2, "bad_words_ids": [[7]], "epsilon_cutoff": 1e-4, "eta_cutoff": 2e-3,
            "top_h": 0.4, "min_length": 8, "max_new_tokens": 100, "penalty_alpha": 0.6,
            "exponential_decay_length_penalty": [5, 1.1], "guidance_scale": 1.5,
            "encoder_repetition_penalty": 1.2, "watermarking_config": {"bias": 2.0},
            "dola_layers": "high", "token_healing": true, "invented_tomorrow": 1,
        });
        let mut expected: Vec<&String> = asked.as_object().unwrap().keys().collect();
        expected.sort();
        assert!(named(&asked).iter().eq(expected), "{:?}", named(&asked));
    }

    #[test]
    fn values_without_effect_are_not_named() {
        for (key, value) in NEUTRAL {
            assert!(named(&json!({key: value})).is_empty(), "{key}");
            assert_eq!(named(&json!({key: value + 1.0})), [key]);
        }
        let neutral = json!({
            "suppress_tokens": null, "bad_words_ids": [], "num_beams": 1, "watermarking_config": {},
            "token_healing": false, "invented_tomorrow": null,
        });
        assert!(named(&neutral).is_empty(), "{:?}", named(&neutral));
    }

    /// What publishers of the families write.
    #[test]
    fn published_files_are_silent() {
        let published = json!({
            "_from_model_config": true, "bos_token_id": 151_643, "do_sample": true,
            "eos_token_id": [151_645, 151_643], "pad_token_id": 151_643, "temperature": 0.6, "top_k": 20,
            "top_p": 0.95, "transformers_version": "4.51.0", "use_cache": false,
        });
        assert!(named(&published).is_empty(), "{:?}", named(&published));
    }
}
