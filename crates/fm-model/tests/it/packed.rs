//! Packed files: the same bits as the MLX checkpoint they were made of, and no bits at all where
//! they are damaged.

use std::{
    error::Error,
    fs::{self, OpenOptions},
    path::Path,
};

use fm_format::source::Checkpoint;
use fm_kernels::cpu::Cpu;
use fm_model::{Runner, arch::describe};
use fm_testkit::{
    tiny_checkpoint::{Family, Layout, MlxLayout, TinyModel},
    ugly::ugly_packed_models,
};
use serde_json::{Value, json};

use crate::harness::{bits, feed, open};

fn logits(dir: &Path) -> Vec<Vec<u32>> {
    let mut runner = open(dir, Cpu::open(2));
    let session = runner.open(64).unwrap();
    bits(&feed(&mut runner, session, &[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 4))
}

#[test]
fn packed_files_give_the_bits_of_the_checkpoint_they_were_made_of() {
    for (name, model, layout, experts) in ugly_packed_models() {
        let [mlx, packed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        model.write(mlx.path(), &Layout::Mlx(layout.clone()), 2);
        model.write_packed(packed.path(), &layout, experts);
        let expected = logits(mlx.path());
        assert!(logits(packed.path()) == expected, "{name}");
        fs::remove_file(packed.path().join(experts).join("layout.json")).unwrap();
        if model.mlp_only_layers.is_empty() {
            // What packed files say themselves is enough, but for layers without experts.
            fs::remove_file(packed.path().join("config.json")).unwrap();
        }
        assert!(logits(packed.path()) == expected, "{name}: with its own configuration");
    }
}

#[test]
fn four_bits_are_taken_where_two_are_there_as_well() {
    let (_, model, layout, experts) = ugly_packed_models().remove(0);
    let dir = tempfile::tempdir().unwrap();
    model.write_packed(dir.path(), &layout, experts);
    let expected = logits(dir.path());
    fs::create_dir(dir.path().join("packed_experts_2bit")).unwrap();
    fs::create_dir(dir.path().join("packed_experts_lz4")).unwrap();
    assert!(logits(dir.path()) == expected);
}

/// The whole chain of reasons why packed files in `dir` are refused.
fn refusal(dir: &Path) -> String {
    let described = Checkpoint::open(dir).map_err(Box::<dyn Error>::from);
    let described = described.and_then(|checkpoint| Ok(describe(&checkpoint)?));
    let Err(error) = described else { panic!("the files in {} are taken", dir.display()) };
    let mut reasons = vec![error.to_string()];
    let mut source = error.source();
    while let Some(reason) = source {
        reasons.push(reason.to_string());
        source = reason.source();
    }
    reasons.join(": ")
}

/// Packed files with one thing changed, and what is said about them.
fn damaged(damage: impl FnOnce(&Path)) -> String {
    let model = TinyModel { layers: 2, ..model() };
    let dir = tempfile::tempdir().unwrap();
    model.write_packed(dir.path(), &MlxLayout::uniform(4, 64), "packed_experts");
    damage(dir.path());
    refusal(dir.path())
}

fn model() -> TinyModel {
    TinyModel {
        hidden: 192,
        moe_ffn: 64,
        shared_ffn: 64,
        experts: 5,
        seed: 120,
        ..TinyModel::new(Family::Qwen3_5Moe)
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn assert_said(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
}

#[test]
fn layer_files_that_are_missing_short_long_or_too_many_are_named() {
    let truncated = damaged(|dir| {
        let file = OpenOptions::new().write(true).open(dir.join("packed_experts/layer_01.bin"));
        file.unwrap().set_len(100_000).unwrap();
    });
    // 5 · 3 · 192 · 64 weights of 4.5 bits.
    assert_said(&truncated, &["layer_01.bin", "layer 1 has 100000 bytes", "affine4_g64", "103680"]);
    let missing = damaged(|dir| fs::remove_file(dir.join("packed_experts/layer_01.bin")).unwrap());
    assert_said(&missing, &["layer_01.bin"]);
    let extra = damaged(|dir| fs::write(dir.join("packed_experts/layer_02.bin"), []).unwrap());
    assert_said(&extra, &["layer_02.bin", "no experts in a layer 2"]);
}

#[test]
fn experts_cut_out_of_the_wrong_places_are_recognised() {
    for (shift, model) in [47_245, 8 + 47_236, 1, 2000].into_iter().zip([(); 4].map(|()| model())) {
        let dir = tempfile::tempdir().unwrap();
        let layout = MlxLayout::uniform(4, 64);
        model.write_packed_shifted(dir.path(), &layout, "packed_experts", shift);
        assert_said(&refusal(dir.path()), &["layer 0", "expert 0", "cut out of the wrong places"]);
    }
}

#[test]
fn experts_that_were_never_written_are_recognised() {
    // Packing makes a file of zeros first and fills it matrix by matrix.
    let text = damaged(|dir| {
        let path = dir.join("packed_experts/layer_01.bin");
        let mut bytes = fs::read(&path).unwrap();
        let from = bytes.len() - 384; // the biases of the last expert's down_proj
        bytes[from..].fill(0);
        fs::write(path, bytes).unwrap();
    });
    assert_said(&text, &["layer 1", "expert 4", "down_proj", "never written"]);
}

#[test]
fn a_trunk_that_contradicts_its_index_is_refused() {
    let name = "model.layers.1.mlp.gate.weight";
    let with = |key: &'static str, value: Value| {
        damaged(move |dir| {
            edit(&dir.join("model_weights.json"), |index| index["tensors"][name][key] = value);
        })
    };
    assert_said(&with("offset", json!(1_u64 << 40)), &["model_weights.bin", name, "ends at byte"]);
    assert_said(&with("offset", json!(u64::MAX)), &["model_weights.bin", name, "ends at byte"]);
    assert_said(&with("offset", json!(0)), &["overlap"]);
    assert_said(&with("size", json!(7)), &[name, "shape and dtype need"]);
    assert_said(&with("shape", json!([1_u64 << 62, 1_u64 << 62])), &[name, "shape and dtype need"]);
    assert_said(&with("dtype", json!("Q9")), &[name, "unknown dtype `Q9`"]);
    // Half as many words would be four bits, of which the scales know nothing.
    let halved = damaged(|dir| {
        edit(&dir.join("model_weights.json"), |index| {
            let entry = &mut index["tensors"][name];
            (entry["shape"], entry["size"]) = (json!([5, 24]), json!(5 * 24 * 4));
        });
    });
    assert_said(&halved, &["mlp.gate", "4"]);
    let lost = damaged(|dir| fs::remove_file(dir.join("model_weights.json")).unwrap());
    assert_said(&lost, &["model_weights.json"]);
}

#[test]
fn a_layout_that_is_not_that_of_the_files_is_refused() {
    let with = |pointer: &'static str, value: Value| {
        damaged(move |dir| {
            edit(&dir.join("packed_experts/layout.json"), |layout| {
                *layout.pointer_mut(pointer).unwrap() = value;
            });
        })
    };
    assert_said(&with("/expert_size", json!(5)), &["layout.json", "`expert_size` is 5"]);
    assert_said(&with("/num_experts", json!(6)), &["`num_experts` is 6", "5"]);
    assert_said(&with("/num_layers", json!(3)), &["`num_layers` is 3"]);
    assert_said(&with("/components/4/offset", json!(1)), &["`up_proj.scales offset` is 1"]);
    assert_said(&with("/components/8/size", json!(1)), &["`down_proj.biases size` is 1"]);
    assert_said(&with("/components/3/name", json!("down_proj.weight")), &["up_proj.weight"]);
    assert_said(&with("/components", json!([])), &["`components` is 0"]);
}

#[test]
fn a_configuration_that_does_not_say_enough_is_refused() {
    let without = |key: &'static str| {
        damaged(move |dir| {
            fs::remove_file(dir.join("config.json")).unwrap();
            edit(&dir.join("model_weights.json"), |index| {
                index["config"].as_object_mut().unwrap().remove(key).unwrap();
            });
        })
    };
    let needed = [
        "hidden_size",
        "num_hidden_layers",
        "num_experts",
        "moe_intermediate_size",
        "num_experts_per_tok",
        "rms_norm_eps",
        "rope_theta",
        "partial_rotary_factor",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "linear_num_key_heads",
        "linear_key_head_dim",
    ];
    for key in needed {
        assert_said(&without(key), &[key]);
    }
    let absurd = damaged(|dir| {
        edit(&dir.join("config.json"), |config| {
            config["text_config"]["num_experts"] = json!(1_u64 << 60);
        });
    });
    assert_said(&absurd, &["num_experts", "1152921504606846976"]);
}

#[test]
fn compressed_experts_and_a_trunk_alone_are_refused() {
    let lz4 = damaged(|dir| {
        fs::rename(dir.join("packed_experts"), dir.join("packed_experts_lz4")).unwrap();
    });
    assert_said(&lz4, &["packed_experts_lz4 is compressed"]);
    let alone = damaged(|dir| fs::remove_dir_all(dir.join("packed_experts")).unwrap());
    assert_said(&alone, &["neither packed_experts nor packed_experts_2bit"]);
}
