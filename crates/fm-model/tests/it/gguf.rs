//! What a GGUF file's metadata may say, key by key, on copies of the recorded files.

use std::{fs, path::Path};

use fm_format::source::{Checkpoint, gguf};
use fm_model::{arch::describe, spec::ModelSpec};
use fm_testkit::golden::golden_dir;

const ALIGNMENT: usize = 32;
/// Where the pairs begin: behind magic, version and two counts.
const PAIRS: usize = 24;

/// A recorded file, and its description after `edit` has changed its header.
fn described(family: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Result<ModelSpec, String> {
    let recorded = golden_dir(family).join("q8_0.gguf");
    let mut header = gguf::header_bytes(&recorded).unwrap();
    let data = fs::read(&recorded).unwrap().split_off(header.len().next_multiple_of(ALIGNMENT));
    edit(&mut header);
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, [header, data].concat()).unwrap();
    of(&path)
}

fn of(path: &Path) -> Result<ModelSpec, String> {
    let checkpoint = Checkpoint::open(path).map_err(|error| error.to_string())?;
    describe(&checkpoint).map_err(|error| error.to_string())
}

/// Adds an unsigned value.
fn add(header: &mut Vec<u8>, key: &str, value: u32) {
    let count = u64::from_le_bytes(header[16..PAIRS].try_into().unwrap()) + 1;
    header[16..PAIRS].copy_from_slice(&count.to_le_bytes());
    let mut pair = (key.len() as u64).to_le_bytes().to_vec();
    pair.extend(key.as_bytes());
    pair.extend(4_u32.to_le_bytes());
    pair.extend(value.to_le_bytes());
    header.splice(PAIRS..PAIRS, pair);
}

/// Adds a list of unsigned values.
fn add_array(header: &mut Vec<u8>, key: &str, values: &[u32]) {
    add(header, key, 9);
    let behind = PAIRS + 8 + key.len();
    // An array of u32, in place of one of them.
    let mut value = 9_u32.to_le_bytes().to_vec();
    value.extend(4_u32.to_le_bytes());
    value.extend((values.len() as u64).to_le_bytes());
    value.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    header.splice(behind..behind + 8, value);
}

/// Gives a tensor another name.
fn rename(header: &mut Vec<u8>, name: &str, other: &str) {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let (name, other) = (text(name), text(other));
    let at = header.windows(name.len()).position(|window| window == name).unwrap();
    header.splice(at..at + name.len(), other);
}

/// Gives a key a name that no architecture has, so that it is somebody else's.
fn hide(header: &mut [u8], key: &str) {
    let at = header.windows(key.len()).position(|window| window == key.as_bytes());
    header[at.unwrap()] = b'_';
}

#[test]
fn a_file_without_the_gating_key_scores_by_sigmoid() {
    let key = "deepseek2.expert_gating_func";
    for family in ["glm4_moe_lite", "deepseek_v3"] {
        let with = described(family, |_| ()).unwrap();
        let without = described(family, |header| hide(header, key)).unwrap();
        let routers = |spec: &ModelSpec| {
            let ffns = spec.layers.iter().map(|layer| format!("{:?}", layer.ffn));
            ffns.collect::<Vec<_>>().join("\n").replace("offset: ", "")
        };
        assert!(routers(&with).contains("Sigmoid") && routers(&without).contains("Sigmoid"));
        let softmax = described(family, |header| {
            hide(header, key);
            add(header, key, 1);
        });
        let refusal = softmax.unwrap_err();
        assert!(refusal.contains("`deepseek2.expert_gating_func` = 1, expected 2"), "{refusal}");
    }
}

#[test]
fn groups_of_experts_are_what_the_file_says() {
    let of_file = |key: &str| {
        let spec = described("deepseek_v3", |header| hide(header, key)).unwrap();
        format!("{:?}", spec.layers)
    };
    assert!(of_file("deepseek2.expert_weights_norm").contains("groups: Some"));
    let silent = described("deepseek_v3", |header| {
        hide(header, "deepseek2.expert_group_count");
        hide(header, "deepseek2.expert_group_used_count");
    });
    let silent = silent.unwrap();
    assert!(!format!("{:?}", silent.layers).contains("groups: Some"));
    assert!(silent.assumed.is_empty(), "a few experts are one group");
}

#[test]
fn an_unknown_key_of_the_architecture_is_refused_and_one_of_others_is_not() {
    let refusal = described("qwen3_moe", |header| add(header, "qwen3moe.attention.magic", 1));
    assert!(refusal.unwrap_err().contains("the unknown key `qwen3moe.attention.magic`"));
    described("qwen3_moe", |header| add(header, "general.magic", 1)).unwrap();
    described("qwen3_moe", |header| add(header, "qwen3moe.vocab_size", 304)).unwrap();
}

#[test]
fn layers_behind_the_decoder_are_passed_over() {
    let key = "qwen3moe.nextn_predict_layers";
    let ahead = |header: &mut Vec<u8>| {
        rename(header, "blk.3.attn_q_norm.weight", "blk.3.nextn.eh_proj.weight");
        add(header, key, 1);
    };
    let spec = described("qwen3_moe", ahead).unwrap();
    assert_eq!((spec.layers.len(), spec.catalog.layers.len()), (3, 3));
    assert!(spec.trunk_tensors.iter().all(|name| !name.starts_with("blk.3.")));
    let refusal = described("qwen3_moe", |header| add(header, key, 5)).unwrap_err();
    assert!(refusal.contains("`qwen3moe.block_count` = 4, 5 of them behind"), "{refusal}");
}

/// A layer of the decoder is not dropped because a key says so.
#[test]
fn layers_behind_the_decoder_have_what_only_they_have() {
    let key = "qwen3moe.nextn_predict_layers";
    let refusal = described("qwen3_moe", |header| add(header, key, 1)).unwrap_err();
    assert!(refusal.contains(&format!("`{key}`")) && refusal.contains("blk.3."), "{refusal}");
}

#[test]
fn values_per_layer_are_one_for_every_layer_and_none_is_missing() {
    let key = "qwen3moe.attention.head_count_kv";
    let plain = described("qwen3_moe", |_| ()).unwrap();
    let heads = plain.attention_layers().next().unwrap().shape.kv_heads as u32;
    let with = |values: &[u32]| {
        described("qwen3_moe", |header| {
            hide(header, key);
            add_array(header, key, values);
        })
    };
    assert_eq!(format!("{:?}", with(&[heads; 4]).unwrap().layers[3].mixer).len(), {
        format!("{:?}", plain.layers[3].mixer).len()
    });
    for wrong in [&[heads; 3][..], &[heads; 5], &[]] {
        let refusal = with(wrong).unwrap_err();
        let expected = format!("`{key}` for {} layers", wrong.len());
        assert!(refusal.contains(&expected) && refusal.contains('4'), "{refusal}");
    }
    let refusal = with(&[heads, heads, 0, heads]).unwrap_err();
    assert!(refusal.contains(&format!("different values per layer for `{key}`")), "{refusal}");
    assert!(with(&[heads, heads, 2 * heads, heads]).is_err());
}

#[test]
fn numbers_that_are_none_are_refused() {
    let key = "qwen3moe.rope.freq_base";
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let refusal = described("qwen3_moe", |header| {
            let at = header.windows(key.len()).position(|window| window == key.as_bytes());
            // Behind the key and its type.
            let at = at.unwrap() + key.len() + 4;
            header[at..at + 4].copy_from_slice(&value.to_le_bytes());
        });
        let expected = format!("the GGUF metadata has `{key}` = {value}, expected a finite number");
        assert_eq!(refusal.unwrap_err(), expected);
    }
}

/// It is 1 in files that have it; another one would change what scaled positions are multiplied with.
#[test]
fn a_factor_for_scaled_positions_is_neutral_or_refused() {
    let key = "gpt-oss.rope.scaling.attn_factor";
    let with = |factor: f32| {
        described("gpt_oss", |header| {
            add(header, key, factor.to_bits());
            header[PAIRS + 8 + key.len()] = 6; // f32
        })
    };
    let plain = described("gpt_oss", |_| ()).unwrap();
    let factor = |spec: &ModelSpec| {
        let layer = format!("{:?}", spec.layers[0].mixer);
        layer.split("attention_factor: ").nth(1).unwrap().split(',').next().unwrap().to_owned()
    };
    assert_eq!(factor(&with(1.0).unwrap()), factor(&plain));
    assert!(with(2.0).unwrap_err().contains("rope.scaling.attn_factor"));
}

/// Its ramp is not where the default has it.
#[test]
fn a_kimi_k2_that_does_not_say_where_its_ramp_is_is_refused() {
    let file = |pre: &str, hidden: &str| {
        described("deepseek_v3", |header| {
            rename(header, "qwen35", pre);
            hide(header, hidden);
        })
    };
    let key = "deepseek2.rope.scaling.yarn_beta_fast";
    let refusal = file("kimi-k2", key).unwrap_err();
    assert!(refusal.contains(&format!("the GGUF metadata lacks `{key}`")), "{refusal}");
    // What says it, what has another default, and what scales nothing.
    file("kimi-k2", "deepseek2.expert_weights_norm").unwrap();
    file("deepseek-v3", key).unwrap();
    described("glm4_moe_lite", |header| rename(header, "qwen35", "kimi-k2")).unwrap();
}

#[test]
fn a_bias_that_one_projection_has_all_have() {
    let renamed = |family: &str, name: &str, other: &str| {
        described(family, |header| rename(header, name, other))
    };
    for module in ["attn_q", "attn_output", "ffn_gate_inp"] {
        let [bias, gone] = ["bias", "gone"].map(|end| format!("blk.1.{module}.{end}"));
        let refusal = renamed("gpt_oss", &bias, &gone).unwrap_err();
        assert!(refusal.contains(".bias` is missing"), "{refusal}");
    }
    let refusal = renamed("qwen3_moe", "blk.1.attn_q_norm.weight", "blk.1.attn_v.bias");
    let refusal = refusal.unwrap_err();
    assert!(refusal.contains("`blk.0.attn_q.bias` is missing"), "{refusal}");
}

#[test]
fn what_is_no_model_of_experts_is_called_what_it_is() {
    let dense = described("mixtral", |header| hide(header, "llama.expert_count"));
    let refusal = dense.unwrap_err();
    assert!(refusal.starts_with("this is a dense model (`llama.expert_count`"), "{refusal}");
    let file = described("mixtral", |header| rename(header, "model", "adapter"));
    let refusal = file.unwrap_err();
    assert!(refusal.contains("`general.type` is `adapter`"), "{refusal}");
}

#[test]
fn a_missing_key_and_a_wrong_one_are_named() {
    let hidden = |key: &str| described("qwen3_5_moe", |header| hide(header, key)).unwrap_err();
    for key in ["embedding_length", "block_count", "expert_used_count", "ssm.inner_size"] {
        let key = format!("qwen35moe.{key}");
        assert_eq!(hidden(&key), format!("the GGUF metadata lacks `{key}`"));
    }
    let wrong = described("mixtral", |header| {
        hide(header, "llama.rope.dimension_count");
        add(header, "llama.attention.value_length", 8);
    });
    let refusal = wrong.unwrap_err();
    assert!(refusal.contains("`llama.attention.value_length` = 8, expected 16"), "{refusal}");
}
