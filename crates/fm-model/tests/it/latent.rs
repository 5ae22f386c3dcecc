//! What the families with latent attention read from a configuration, and what they refuse.

use std::path::Path;

use fm_format::source::Checkpoint;
use fm_kernels::backend::{KV_BLOCK_TOKENS, KvFormat, RopeLayout, RouterGroups};
use fm_model::{
    LoadError,
    arch::describe,
    footprint::Footprint,
    spec::{FfnSpec, MixerSpec, ModelSpec},
};
use fm_testkit::golden::{copy_files, golden_dir};
use serde_json::{Value, json};

use crate::harness::edit_config;

/// A golden checkpoint with some fields of its configuration changed.
fn edited(checkpoint: &str, fields: &[(&str, Value)]) -> Result<ModelSpec, LoadError> {
    let dir = tempfile::tempdir().unwrap();
    copy_files(&golden_dir(checkpoint), dir.path());
    edit_config(dir.path(), |config| {
        for (field, value) in fields {
            config[field] = value.clone();
        }
    });
    described(dir.path())
}

fn described(dir: &Path) -> Result<ModelSpec, LoadError> {
    describe(&Checkpoint::open(dir).unwrap())
}

#[test]
fn fields_without_meaning_are_refused_by_name() {
    let edits: [(&str, Value); 19] = [
        ("kv_lora_rank", json!(0)),
        ("q_lora_rank", json!(0)),
        ("v_head_dim", json!(0)),
        ("partial_rotary_factor", json!(0.5)),
        ("scoring_func", json!("softmax")),
        ("topk_method", json!("greedy")),
        ("moe_layer_freq", json!(2)),
        ("n_group", json!(4)),
        ("n_group", json!(6)), // groups of one have no two best
        ("topk_group", json!(0)),
        ("topk_group", json!(4)),
        ("num_experts_per_tok", json!(5)), // two groups of two are open
        ("topk_group", Value::Null),
        ("num_nextn_predict_layers", json!(1_u64 << 60)),
        ("routed_scaling_factor", json!(0.0)),
        ("routed_scaling_factor", json!(-1.0)),
        ("routed_scaling_factor", json!(1e300)),
        ("mlp_layer_types", json!(["dense", "sparse"])),
        ("mlp_layer_types", json!(["dense", "sparse", "moe", "sparse"])),
    ];
    for (field, value) in edits {
        let error = edited("deepseek_v3/hf", &[(field, value.clone())]).expect_err("refused");
        assert!(error.to_string().contains(&format!("`{field}`")), "{field} {value}: {error}");
    }
    let contradiction = [("mlp_layer_types", json!(["sparse", "dense", "sparse", "sparse"]))];
    let error = edited("deepseek_v3/hf", &contradiction).expect_err("refused");
    assert!(error.to_string().contains("expected what mlp_layer_types says"), "{error}");
}

#[test]
fn dense_layers_are_counted_or_listed() {
    let kinds = json!(["dense", "sparse", "sparse", "sparse"]);
    for family in ["deepseek_v3", "glm4_moe_lite"] {
        let fields = [("mlp_layer_types", kinds.clone()), ("first_k_dense_replace", Value::Null)];
        let spec = edited(&format!("{family}/hf"), &fields).unwrap();
        let dense = spec.layers.iter().map(|layer| matches!(layer.ffn, FfnSpec::Mlp(_)));
        assert_eq!(dense.collect::<Vec<_>>(), [true, false, false, false], "{family}");
    }
    // Where nothing is said, families differ.
    let silent = [("first_k_dense_replace", Value::Null)];
    assert!(edited("glm4_moe_lite/hf", &silent).is_ok());
    let error = edited("deepseek_v3/hf", &silent).expect_err("layers 1 and 2 would be dense");
    assert!(error.to_string().contains("model.layers.1.mlp.gate_proj.weight"), "{error}");
}

#[test]
fn only_layers_that_predict_ahead_are_skipped() {
    for count in [json!(1), json!(2), Value::Null] {
        assert!(edited("deepseek_v3/hf", &[("num_nextn_predict_layers", count)]).is_ok());
    }
    let none = [("num_nextn_predict_layers", json!(0))];
    let error = edited("deepseek_v3/hf", &none).expect_err("layer 4 is one too many");
    assert!(error.to_string().contains("model.layers.4."), "{error}");
    // Layers of the decoder are none of them, whatever is said.
    for (layers, ahead) in [(3, json!(1)), (3, Value::Null), (2, json!(3))] {
        let fewer = [("num_hidden_layers", json!(layers)), ("num_nextn_predict_layers", ahead)];
        let error = edited("deepseek_v3/hf", &fewer).expect_err("one layer is too many");
        assert!(error.to_string().contains(&format!("model.layers.{layers}.")), "{error}");
    }
}

#[test]
fn groups_that_are_all_open_are_none() {
    let routing = |fields: &[(&str, Value)]| {
        let spec = edited("deepseek_v3/hf", fields).unwrap();
        let FfnSpec::Moe(moe) = &spec.layers[1].ffn else { panic!("layer 1 is routed") };
        moe.routing.groups
    };
    assert_eq!(routing(&[]), Some(RouterGroups { count: 3, chosen: 2 }));
    assert_eq!(routing(&[("topk_group", json!(3))]), None);
    assert_eq!(routing(&[("n_group", Value::Null), ("topk_group", Value::Null)]), None);
}

#[test]
fn pairs_are_neighbours_unless_the_configuration_says_halves() {
    let layout = |fields: &[(&str, Value)]| {
        let spec = edited("glm4_moe_lite/hf", fields).unwrap();
        let MixerSpec::Mla(mla) = &spec.layers[0].mixer else { panic!("latent attention") };
        mla.rotary.layout
    };
    assert_eq!(layout(&[]), RopeLayout::Interleaved);
    assert_eq!(layout(&[("rope_interleave", json!(true))]), RopeLayout::Interleaved);
    assert_eq!(layout(&[("rope_interleave", json!(false))]), RopeLayout::HalfSplit);
}

/// Four layers of a latent of 32 and 16 rotated values, once for four heads.
#[test]
fn a_token_is_kept_as_one_short_key_per_layer() {
    let spec = edited("deepseek_v3/hf", &[]).unwrap();
    let footprint = Footprint::of(&spec, None, KvFormat::F32);
    assert_eq!(footprint.kv_block, (KV_BLOCK_TOKENS * 4 * (32 + 16) * 4) as u64);
}
