//! Packed files of the first flash-moe as their owner meets them.

use std::{fs, path::Path};

use fm_testkit::{
    golden::demo_dir,
    tiny_checkpoint::{Affine, Family, Layout, MlxLayout, TinyModel, tokenizer_bin},
};
use serde_json::Value;

use crate::{flash_moe, stderr, stdout};

const PROMPT: [&str; 8] = [
    "--prompt",
    "Tell me about Peru.",
    "--raw",
    "--max-tokens",
    "9",
    "--greedy",
    "--json",
    "--memory",
];

/// The report of a run.
fn report(dir: &Path, more: &[&str]) -> Value {
    let args = [&["run", dir.to_str().unwrap()][..], &PROMPT, &["300MB", "--context", "256"], more];
    let output = flash_moe(&args.concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn hash(dir: &Path, more: &[&str]) -> String {
    report(dir, more)["report"]["logits_hash"].as_str().unwrap().to_owned()
}

fn tiny(seed: u64) -> TinyModel {
    TinyModel {
        vocab: 2048,
        layers: 2,
        moe_ffn: 64,
        shared_ffn: 64,
        experts: 5,
        heads: 6,
        kv_heads: 3,
        seed,
        ..TinyModel::new(Family::Qwen3_5Moe)
    }
}

#[test]
fn packed_files_run_and_convert_with_the_bits_of_their_checkpoint() {
    let two_bits = Some(Affine { bits: 2, group: 64 });
    let experts = ["switch_mlp.gate_proj", "switch_mlp.up_proj", "switch_mlp.down_proj"];
    let two = MlxLayout {
        overrides: experts.map(|matrix| (matrix, two_bits)).to_vec(),
        ..MlxLayout::uniform(4, 64)
    };
    let sets = [
        (MlxLayout::uniform(4, 64), "packed_experts", "affine4_g64"),
        (two, "packed_experts_2bit", "affine2_g64"),
    ];
    for (layout, experts, format) in sets {
        let dir = tempfile::tempdir().unwrap();
        let [mlx, packed, out] = ["mlx", "packed", "out"].map(|name| dir.path().join(name));
        tiny(140).write(&mlx, &Layout::Mlx(layout.clone()), 1);
        tiny(140).write_packed(&packed, &layout, experts);
        let json = fs::read(demo_dir().join("tokenizer.json")).unwrap();
        fs::write(mlx.join("tokenizer.json"), &json).unwrap();
        let json = serde_json::from_slice(&json).unwrap();
        fs::write(packed.join("tokenizer.bin"), tokenizer_bin(&json)).unwrap();
        let want = hash(&mlx, &[]);
        assert_eq!(hash(&packed, &[]), want, "{experts}");
        for io in ["direct", "buffered"] {
            let few = ["--slots", "2", "--prefill-chunk", "3", "--io", io];
            assert_eq!(hash(&packed, &few), want, "{experts}: {io}");
        }
        fs::remove_file(packed.join("config.json")).unwrap();
        assert_eq!(hash(&packed, &[]), want, "{experts} alone");
        let shown = flash_moe(&["inspect", packed.to_str().unwrap()]);
        assert!(stdout(&shown).contains(format), "{}", stdout(&shown));
        let [source, container] = [&packed, &out].map(|path| path.to_str().unwrap());
        let converted = flash_moe(&["convert", source, container]);
        assert!(converted.status.success(), "{}", stderr(&converted));
        assert_eq!(hash(&out, &["--slots", "2"]), want, "{experts}: the container");
        assert!(flash_moe(&["verify", container]).status.success());
        assert!(flash_moe(&["verify", "--record", source]).status.success());
    }
}

#[test]
fn packed_files_that_cannot_be_right_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let said = |model: &Path| {
        let model = model.to_str().unwrap();
        let output = flash_moe(&["run", model, "--prompt-tokens", "1,2", "--memory", "300MB"]);
        assert_eq!(output.status.code(), Some(1));
        stderr(&output).replace(dir.path().to_str().unwrap(), "TMP")
    };
    let [shifted, lz4] = ["shifted", "lz4"].map(|name| dir.path().join(name));
    let layout = MlxLayout::uniform(4, 64);
    tiny(141).write_packed_shifted(&shifted, &layout, "packed_experts", 47_245);
    tiny(141).write_packed(&lz4, &layout, "packed_experts_lz4");
    insta::assert_snapshot!("packed_files_in_words", [said(&shifted), said(&lz4)].join("\n"));
}
