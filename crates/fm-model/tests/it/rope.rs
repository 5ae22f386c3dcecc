//! Every number of rotary positions is read from wherever it is, and said but once or alike.

use std::path::Path;

use fm_format::source::Checkpoint;
use fm_model::{
    arch::describe,
    spec::{MixerSpec, Rotary},
};
use fm_testkit::tiny_checkpoint::{Family, Layout, TinyModel};
use serde_json::{Value, json};

use crate::harness::edit_config;

/// A tiny checkpoint whose configuration has these fields, and none of `rope_theta` and
/// `partial_rotary_factor` unless they are among them.
fn with(family: Family, fields: &Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    TinyModel::new(family).write(dir.path(), &Layout::Hf, 1);
    edit_config(dir.path(), |config| {
        let config = config.as_object_mut().unwrap();
        for key in ["rope_theta", "partial_rotary_factor", "rope_scaling", "rope_parameters"] {
            config.remove(key);
        }
        config.extend(fields.as_object().unwrap().clone());
    });
    dir
}

fn rotary(dir: &Path) -> Rotary {
    let spec = describe(&Checkpoint::open(dir).unwrap()).unwrap_or_else(|error| panic!("{error}"));
    let attends = spec.layers.iter().find_map(|layer| match &layer.mixer {
        MixerSpec::Attention(attention) => Some(attention.rotary),
        _ => None,
    });
    attends.expect("a layer attends")
}

fn refusal(family: Family, fields: &Value) -> String {
    let dir = with(family, fields);
    let described = describe(&Checkpoint::open(dir.path()).unwrap());
    described.expect_err("it should be refused").to_string()
}

#[test]
fn base_and_part_are_read_from_every_home() {
    let said = json!({"rope_theta": 5e5, "partial_rotary_factor": 0.5});
    let plain = rotary(with(Family::Qwen3Next, &said).path());
    assert_eq!(plain.theta, 5e5);
    for home in ["rope_scaling", "rope_parameters"] {
        assert_eq!(rotary(with(Family::Qwen3Next, &json!({home: said})).path()), plain, "{home}");
        let mut thrice = json!({"rope_scaling": said, "rope_parameters": said});
        thrice.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
        assert_eq!(rotary(with(Family::Qwen3Next, &thrice).path()), plain);
    }
}

#[test]
fn numbers_that_differ_are_named_both() {
    let homes = |key: &str| {
        [key.to_owned(), format!("rope_scaling.{key}"), format!("rope_parameters.{key}")]
    };
    let put = |fields: &mut Value, home: &str, value: f64| match home.split_once('.') {
        Some((dictionary, key)) => fields[dictionary][key] = json!(value),
        None => fields[home] = json!(value),
    };
    for (key, one, other) in
        [("rope_theta", 10000.0, 12000.0), ("partial_rotary_factor", 0.25, 0.5)]
    {
        for (first, second) in [(0, 1), (0, 2), (1, 2)] {
            let homes = homes(key);
            let mut fields = json!({"rope_scaling": {}, "rope_parameters": {}});
            if key != "rope_theta" {
                put(&mut fields, "rope_theta", 10000.0);
            }
            put(&mut fields, &homes[first], one);
            put(&mut fields, &homes[second], other);
            let message = refusal(Family::Qwen3Next, &fields);
            let expected = format!(
                "`{}` in the configuration is {one} and `{}` is {other}",
                homes[first], homes[second]
            );
            assert!(message.contains(&expected), "{message}");
        }
    }
}

/// transformers would not look into the other dictionary, and take its family's default.
#[test]
fn a_dictionary_that_takes_the_others_place_has_to_have_its_numbers() {
    let yarn = json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 64});
    let mut older = yarn.clone();
    older["rope_theta"] = json!(1e6);
    let both = json!({"rope_scaling": yarn, "rope_parameters": older});
    let message = refusal(Family::Qwen3Moe, &both);
    assert!(message.contains("`rope_theta` in the configuration is `missing`"), "{message}");
    assert!(message.contains("takes the place of `rope_parameters`"), "{message}");
    let empty = json!({"rope_scaling": {}, "rope_parameters": older});
    let alone = json!({"rope_parameters": older});
    let read = |fields| rotary(with(Family::Qwen3Moe, fields).path());
    assert_eq!(read(&empty), read(&alone));
}

#[test]
fn dictionaries_of_types_of_layers_are_refused() {
    let one = json!({"rope_type": "default", "rope_theta": 1e6});
    let each = json!({"full_attention": one, "sliding_attention": one});
    for fields in
        [json!({"rope_parameters": each}), json!({"rope_theta": 1e6, "rope_parameters": each})]
    {
        let message = refusal(Family::GptOss, &fields);
        assert!(message.contains("`rope_parameters.full_attention`"), "{message}");
        assert!(message.contains("one level further up"), "{message}");
    }
}

#[test]
fn unknown_numbers_of_positions_are_refused_by_name() {
    let yarn = json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 64});
    let keys = ["short_factor", "long_factor", "low_freq_factor", "attn_factor", "alpha"];
    let plain = json!({"rope_type": "default"});
    for (home, kind) in
        [("rope_scaling", &yarn), ("rope_parameters", &plain), ("rope_scaling", &json!({}))]
    {
        for key in keys {
            let mut fields = json!({"rope_theta": 1e6, home: kind});
            fields[home][key] = Value::Null;
            rotary(with(Family::Qwen3Moe, &fields).path());
            fields[home][key] = json!([1.0, 2.0]);
            // Numbers of other kinds have no effect where positions are said to be plain.
            if *kind == plain && key != "alpha" {
                rotary(with(Family::Qwen3Moe, &fields).path());
                continue;
            }
            let message = refusal(Family::Qwen3Moe, &fields);
            assert!(message.contains(&format!("unknown `{home}.{key}`")), "{message}");
        }
    }
}

/// What publishers of the families write, and what their model cards say to write for long texts.
#[test]
fn published_dictionaries_are_read() {
    let sections = json!({"mrope_interleaved": true, "mrope_section": [1, 1, 0]});
    let merged = |mut one: Value, other: &Value| {
        one.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        one
    };
    let partial = json!({"rope_theta": 1e7, "partial_rotary_factor": 0.25});
    let long = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let paired = json!({
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    });
    let whole = json!({
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "truncate": false,
        "original_max_position_embeddings": 64, "rope_type": "yarn",
    });
    let hybrid = merged(partial.clone(), &sections);
    let saved = merged(json!({"rope_type": "yarn", "type": "yarn", "rope_theta": 1e4}), &paired);
    for (family, fields) in [
        (Family::Qwen3Moe, json!({"rope_theta": 1e6, "rope_scaling": long})),
        (Family::Qwen3Next, merged(partial.clone(), &json!({"rope_scaling": long}))),
        (
            Family::Qwen3Next,
            json!({"rope_parameters": merged(partial, &json!({"rope_type": "default"}))}),
        ),
        (
            Family::Qwen3Next,
            json!({"rope_parameters": merged(hybrid.clone(), &json!({"type": "mrope"}))}),
        ),
        (Family::Qwen3Next, json!({"rope_parameters": merged(hybrid, &long)})),
        (Family::DeepseekV3, json!({"rope_theta": 10000, "rope_scaling": paired})),
        (Family::DeepseekV3, json!({"rope_parameters": saved})),
        (Family::GptOss, json!({"rope_theta": 150_000, "rope_scaling": whole})),
        (Family::Mixtral, json!({"rope_theta": 1e6, "rope_scaling": null})),
    ] {
        let dir = with(family, &fields);
        describe(&Checkpoint::open(dir.path()).unwrap())
            .unwrap_or_else(|error| panic!("{fields}: {error}"));
    }
}

/// Adds a tensor of two floats to a checkpoint of one file.
fn add_tensor(dir: &Path, name: &str) {
    let path = dir.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    let end = data.len();
    header[name] = json!({"dtype": "F32", "shape": [2], "data_offsets": [end, end + 8]});
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(&path, [&length[..], &header, data, &[0; 8]].concat()).unwrap();
}

/// Moonlight has them, and every reader computes them.
#[test]
fn kept_frequencies_are_passed_over() {
    let described = |name: &str| {
        let dir = tempfile::tempdir().unwrap();
        TinyModel::new(Family::DeepseekV3).write(dir.path(), &Layout::Hf, 1);
        add_tensor(dir.path(), name);
        describe(&Checkpoint::open(dir.path()).unwrap()).map_err(|error| error.to_string())
    };
    described("model.layers.0.self_attn.rotary_emb.inv_freq").unwrap();
    let error = described("model.layers.0.self_attn.other.inv_freq").unwrap_err();
    assert!(error.contains("`model.layers.0.self_attn.other.inv_freq` has no place"), "{error}");
}
