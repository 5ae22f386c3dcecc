//! Recorded outputs of transformers and mlx-lm, for every set and every device.

use std::path::Path;

use fm_format::key::LayerIndex;
use fm_kernels::{Backend, cpu::Cpu, reference::Reference};
use fm_model::Runner;
use fm_testkit::{
    compare::max_abs_diff,
    golden::{Golden, golden_dir},
};

use crate::harness::{argmax, feed, open};

/// How far logits of standard deviation 3 may lie apart: `tools/golden/README.md`. The delta nets
/// amplify rounding.
fn tolerance(family: &str) -> f64 {
    if family == "qwen3_moe" { 1e-3 } else { 2e-3 }
}

const FAMILIES: [&str; 3] = ["qwen3_moe", "qwen3_next", "qwen3_5_moe"];

/// Teacher-forced layer outputs, relative to the largest value.
const LAYER_TOLERANCE: f64 = 1e-4;

fn for_each_family(check: impl Fn(&str, &Path)) {
    FAMILIES.iter().for_each(|family| check(family, &golden_dir(family)));
}

fn logits_of_all_tokens<B: Backend<Bytes = [u8]>>(device: fn() -> B) {
    for_each_family(|family, dir| {
        let golden = Golden::open(&dir.join("golden.safetensors"));
        let tokens = golden.tokens("tokens");
        let mut runner = open(&dir.join("hf"), device());
        let session = runner.open(64).unwrap();
        let logits = feed(&mut runner, session, &tokens, 24);
        let worst = max_abs_diff(&logits.concat(), golden.f32("hf_f32.logits").0);
        println!("{family} hf: {worst:.1e}");
        assert!(worst <= tolerance(family), "{family}: {worst:e}");
        for at in 23..31 {
            assert_eq!(argmax(&logits[at]), tokens[at + 1], "{family}: greedy token {}", at + 1);
        }
    });
}

fn logits_of_a_long_prompt<B: Backend<Bytes = [u8]>>(device: fn() -> B) {
    for_each_family(|family, dir| {
        let golden = Golden::open(&dir.join("golden.safetensors"));
        let tokens = golden.tokens("long.tokens");
        let mut runner = open(&dir.join("hf"), device());
        let session = runner.open(256).unwrap();
        let logits = feed(&mut runner, session, &tokens, 150);
        let positions = golden.tokens("long.pos");
        let picked: Vec<f32> =
            positions.iter().flat_map(|at| logits[*at as usize].clone()).collect();
        let worst = max_abs_diff(&picked, golden.f32("hf_f32.long.logits_at_pos").0);
        println!("{family} long: {worst:.1e}");
        assert!(worst <= tolerance(family), "{family}: {worst:e}");
        for (row, want) in logits.iter().zip(golden.tokens("hf_f32.long.argmax")) {
            assert_eq!(argmax(row), want, "{family}");
        }
    });
}

fn logits_of_quantised_checkpoints<B: Backend<Bytes = [u8]>>(device: fn() -> B) {
    let sets = [
        ("mlx-4bit", "golden.safetensors", "mlx_4bit_f32"),
        ("mlx-mixed", "golden-mixed.safetensors", "mlx_mixed_f32"),
    ];
    for_each_family(|family, dir| {
        for (checkpoint, file, set) in sets {
            let golden = Golden::open(&dir.join(file));
            let tokens = golden.tokens(&format!("{set}.tokens"));
            let from = golden.tokens(&format!("{set}.logits_from_pos"))[0] as usize;
            let mut runner = open(&dir.join(checkpoint), device());
            let session = runner.open(64).unwrap();
            let logits = feed(&mut runner, session, &tokens, 32);
            let want = golden.f32(&format!("{set}.logits")).0;
            let worst = max_abs_diff(&logits[from..].concat(), want);
            println!("{family} {checkpoint}: {worst:.1e}");
            assert!(worst <= tolerance(family), "{family} {checkpoint}: {worst:e}");
            for (row, want) in logits.iter().zip(golden.tokens(&format!("{set}.argmax"))) {
                assert_eq!(argmax(row), want, "{family} {checkpoint}");
            }
        }
    });
}

fn layers_alone_and_their_routes<B: Backend<Bytes = [u8]>>(device: fn() -> B) {
    for_each_family(|family, dir| {
        let golden = Golden::open(&dir.join("golden.safetensors"));
        let mut runner = open(&dir.join("hf"), device());
        let mut input = golden.f32("hf_f32.embed").0.to_vec();
        for layer in 0..4_u16 {
            let session = runner.open(64).unwrap();
            let out = runner.layer_alone(session, LayerIndex(layer), &input).unwrap();
            let want = golden.f32(&format!("hf_f32.layers.{layer}.out")).0;
            let largest = want.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            let worst = max_abs_diff(&out, want) / f64::from(largest);
            assert!(worst <= LAYER_TOLERANCE, "{family} layer {layer}: {worst:e}");
            check_routes(&golden, runner.routes(), &format!("hf_f32.layers.{layer}"));
            runner.close(session);
            input = want.to_vec();
        }
    });
}

/// The same experts, and the same weight for each.
fn check_routes<B: Backend>(golden: &Golden, routes: &fm_kernels::backend::Routes<B>, layer: &str) {
    let (ids, shape) = golden.i32(&format!("{layer}.router_idx"));
    let weights = golden.f32(&format!("{layer}.router_w")).0;
    assert_eq!(routes.top_k, shape[1]);
    for (row, (ids, weights)) in ids.chunks(shape[1]).zip(weights.chunks(shape[1])).enumerate() {
        let mut want: Vec<(i32, f32)> = ids.iter().copied().zip(weights.iter().copied()).collect();
        want.sort_by_key(|(id, _)| *id);
        for (j, (id, weight)) in want.into_iter().enumerate() {
            let at = row * routes.top_k + j;
            assert_eq!(i32::from(routes.ids[at].0), id, "{layer} row {row}");
            assert!((routes.weights[at] - weight).abs() < 1e-4, "{layer} row {row}");
        }
    }
}

macro_rules! on_device {
    ($name:ident, $device:expr) => {
        mod $name {
            #[test]
            fn logits_of_all_tokens() {
                super::logits_of_all_tokens($device);
            }
            #[test]
            fn logits_of_a_long_prompt() {
                super::logits_of_a_long_prompt($device);
            }
            #[test]
            fn logits_of_quantised_checkpoints() {
                super::logits_of_quantised_checkpoints($device);
            }
            #[test]
            fn layers_alone_and_their_routes() {
                super::layers_alone_and_their_routes($device);
            }
        }
    };
}

on_device!(reference, super::Reference::open);
on_device!(cpu, || super::Cpu::open(2));
