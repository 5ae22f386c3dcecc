//! The oracle against the official implementations.
//!
//! The goldens are f32 runs, so the distances are what f32 loses there. Two official
//! implementations are up to 1e-5 apart in attention layers and 2e-4 in hybrids.

use super::{Oracle, OracleOutput, Rows};
use crate::{
    compare::{argmax, max_abs_diff, max_abs_diff_rows},
    golden::{Golden, golden_dir},
};

/// An f32 run of attention layers against f64.
const ATTENTION: f64 = 1e-4;
/// Delta-nets amplify rounding: their gated norm divides by numbers of the size of its eps.
const HYBRID: f64 = 5e-4;
/// The residuals of gpt-oss are ten times as large, and so is what f32 loses of them.
const LARGE: f64 = 3e-4;
/// Nothing amplifies rounding before the memory of the first layer.
const FIRST_MEMORY: f64 = 1e-5;

/// transformers norms the latents of this family with another epsilon than its configuration says.
const OTHER_EPS: f64 = 3e-4;

const FAMILIES: [(&str, f64); 8] = [
    ("deepseek_v3", ATTENTION),
    ("glm4_moe_lite", OTHER_EPS),
    ("mixtral", ATTENTION),
    ("minimax_m2", ATTENTION),
    ("gpt_oss", LARGE),
    ("qwen3_moe", ATTENTION),
    ("qwen3_next", HYBRID),
    ("qwen3_5_moe", HYBRID),
];

fn assert_close(what: &str, diff: f64, tolerance: f64) {
    report(&format!("{what}: {diff:.1e}"));
    assert!(diff <= tolerance, "{what}: {diff:.3e} > {tolerance:.0e}");
}

#[allow(clippy::print_stdout)] // shown by `--no-capture`: reports quote the distances reached
fn report(line: &str) {
    println!("{line}");
}

/// The first rows of `rows`, as many as the golden has.
fn assert_rows(family: &str, golden: &Golden, name: &str, rows: &Rows, tolerance: f64) {
    let expected = golden.rows(name);
    let diff = max_abs_diff_rows(&rows[..expected.len()], &expected);
    assert_close(&format!("{family} {name}"), diff, tolerance);
}

#[test]
fn answers_like_the_official_code_in_every_layer() {
    for (family, tolerance) in FAMILIES {
        let dir = golden_dir(family);
        let golden = Golden::open(&dir.join("golden.safetensors"));
        let output = Oracle::load(&dir.join("hf")).run(&golden.tokens("tokens"));
        assert_rows(family, &golden, "hf_f32.embed", &output.embed, 0.0);
        assert_rows(family, &golden, "hf_f32.final_norm", &output.final_norm, tolerance);
        assert_rows(family, &golden, "hf_f32.logits", &output.logits, tolerance);
        for (layer, trace) in output.layers.iter().enumerate() {
            let name = |what: &str| format!("hf_f32.layers.{layer}.{what}");
            assert_rows(family, &golden, &name("out"), &trace.out, tolerance);
            if golden.has_f32(&name("mixer_out")) {
                assert_rows(family, &golden, &name("mixer_out"), &trace.mixer_out, tolerance);
                assert_rows(family, &golden, &name("mlp_out"), &trace.ffn_out, tolerance);
            }
            assert_routes(family, &golden, layer, &output, tolerance);
        }
    }
}

fn assert_routes(
    family: &str,
    golden: &Golden,
    layer: usize,
    output: &OracleOutput,
    tolerance: f64,
) {
    if output.layers[layer].routes.is_empty() {
        return; // a dense layer
    }
    let (chosen, shape) = golden.i32(&format!("hf_f32.layers.{layer}.router_idx"));
    let weights = golden.rows(&format!("hf_f32.layers.{layer}.router_w"));
    let routes = &output.layers[layer].routes;
    for (token, (chosen, weights)) in chosen.chunks(shape[1]).zip(weights).enumerate() {
        // The golden lists them by falling weight.
        let mut pairs: Vec<(usize, f32)> =
            chosen.iter().map(|&expert| expert as usize).zip(weights).collect();
        pairs.sort_by_key(|&(expert, _)| expert);
        let (experts, weights): (Vec<usize>, Vec<f32>) = pairs.into_iter().unzip();
        assert_eq!(routes[token].experts, experts, "{family} layer {layer} token {token}");
        assert!(max_abs_diff(&routes[token].weights, &weights) < tolerance);
    }
}

#[test]
fn remembers_what_the_official_code_remembers_after_the_prompt() {
    for family in ["qwen3_next", "qwen3_5_moe"] {
        let dir = golden_dir(family);
        let golden = Golden::open(&dir.join("golden.safetensors"));
        let prompt = &golden.tokens("tokens")[..24];
        let output = Oracle::load(&dir.join("hf")).run(prompt);
        let memory = output.layers[0].memory.as_ref().expect("layer 0 is a delta-net");
        assert_rows(family, &golden, "hf_f32.layers.0.conv_state", &memory.conv, FIRST_MEMORY);
        let state = memory.state.concat();
        assert_rows(family, &golden, "hf_f32.layers.0.recurrent_state", &state, FIRST_MEMORY);
    }
}

#[test]
fn answers_like_the_official_code_after_150_tokens() {
    for (family, tolerance) in FAMILIES {
        let dir = golden_dir(family);
        let golden = Golden::open(&dir.join("golden.safetensors"));
        let output = Oracle::load(&dir.join("hf")).run(&golden.tokens("long.tokens"));
        let (positions, _) = golden.i32("long.pos");
        let at: Rows = positions.iter().map(|&at| output.logits[at as usize].clone()).collect();
        assert_rows(family, &golden, "hf_f32.long.logits_at_pos", &at, tolerance);
        assert_argmax(family, &golden, "hf_f32.long.argmax", &output.logits);
    }
}

#[test]
fn answers_like_mlx_on_quantised_checkpoints() {
    let sets = [
        ("mlx-4bit", "golden.safetensors", "mlx_4bit_f32"),
        ("mlx-mixed", "golden-mixed.safetensors", "mlx_mixed_f32"),
    ];
    for (family, tolerance) in FAMILIES {
        for (checkpoint, file, set) in sets {
            let dir = golden_dir(family);
            let golden = Golden::open(&dir.join(file));
            let output =
                Oracle::load(&dir.join(checkpoint)).run(&golden.tokens(&format!("{set}.tokens")));
            let from = golden.i32(&format!("{set}.logits_from_pos")).0[0] as usize;
            let tail = output.logits[from..].to_vec();
            assert_rows(family, &golden, &format!("{set}.logits"), &tail, tolerance);
            assert_argmax(family, &golden, &format!("{set}.argmax"), &output.logits);
        }
    }
}

fn assert_argmax(family: &str, golden: &Golden, name: &str, logits: &Rows) {
    let (expected, _) = golden.i32(name);
    let found: Vec<i32> = logits.iter().map(|row| argmax(row) as i32).collect();
    assert_eq!(found, expected, "{family} {name}");
}
