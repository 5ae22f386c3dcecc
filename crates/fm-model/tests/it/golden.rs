//! Recorded outputs of transformers and mlx-lm, for every set, family and device.

use std::ops::ControlFlow;

use fm_format::key::LayerIndex;
use fm_kernels::{Backend, backend::Numerics};
use fm_model::{Runner, runner::Wants};
use fm_testkit::{
    compare::max_abs_diff,
    golden::{Golden, golden_dir},
};

use crate::harness::{argmax, batch_of, feed, is_hybrid, open};

/// How far logits of standard deviation 3 may lie apart: the f32 implementations of
/// `tools/golden/README.md` lie up to 4e-5 apart, and where delta nets amplify rounding 2e-4.
fn tolerance(family: &str, numerics: Numerics) -> f64 {
    match (family, numerics) {
        // Twice what was measured. Noise has no outliers, but rows of 64 values average little, and
        // delta nets and the residuals of gpt_oss amplify here as well.
        (_, Numerics::Int15) => 3e-2,
        (_, Numerics::Int8) => 2.5,
        (family, _) => f32_tolerance(family),
    }
}

/// See [`tolerance`].
fn f32_tolerance(family: &str) -> f64 {
    match family {
        // In glm4_moe_lite transformers norms latents with an epsilon of 1e-6, whatever
        // `rms_norm_eps` says. The residuals of gpt_oss are ten times as large, and so is what f32
        // loses of them.
        "glm4_moe_lite" | "gpt_oss" => 3e-4,
        family if is_hybrid(family) => 5e-4,
        _ => 1e-4,
    }
}

/// Teacher-forced layer outputs, relative to the largest value.
const LAYER_TOLERANCE: f64 = 1e-4;

fn logits_of_all_tokens<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let dir = golden_dir(family);
    let golden = Golden::open(&dir.join("golden.safetensors"));
    let tokens = golden.tokens("tokens");
    let mut runner = open(&dir.join("hf"), device());
    let session = runner.open(64).unwrap();
    let logits = feed(&mut runner, session, &tokens, 24);
    let worst = max_abs_diff(&logits.concat(), golden.f32("hf_f32.logits").0);
    println!("{family} hf: {worst:.1e}");
    assert!(worst <= f32_tolerance(family), "{family}: {worst:e}");
    for at in 23..31 {
        assert_eq!(argmax(&logits[at]), tokens[at + 1], "{family}: greedy token {}", at + 1);
    }
}

fn logits_of_a_long_prompt<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let dir = golden_dir(family);
    let golden = Golden::open(&dir.join("golden.safetensors"));
    let tokens = golden.tokens("long.tokens");
    let mut runner = open(&dir.join("hf"), device());
    let session = runner.open(256).unwrap();
    let logits = feed(&mut runner, session, &tokens, 150);
    let positions = golden.tokens("long.pos");
    let picked: Vec<f32> = positions.iter().flat_map(|at| logits[*at as usize].clone()).collect();
    let worst = max_abs_diff(&picked, golden.f32("hf_f32.long.logits_at_pos").0);
    println!("{family} long: {worst:.1e}");
    assert!(worst <= f32_tolerance(family), "{family}: {worst:e}");
    for (row, want) in logits.iter().zip(golden.tokens("hf_f32.long.argmax")) {
        assert_eq!(argmax(row), want, "{family}");
    }
}

fn logits_of_quantised_checkpoints<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let numerics = device().numerics();
    let tolerance = tolerance(family, numerics);
    let sets = [
        ("mlx-4bit", "golden.safetensors", "mlx_4bit_f32"),
        ("mlx-mixed", "golden-mixed.safetensors", "mlx_mixed_f32"),
    ];
    let dir = golden_dir(family);
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
        assert!(worst <= tolerance, "{family} {checkpoint}: {worst:e}");
        for (row, want) in logits.iter().zip(golden.tokens(&format!("{set}.argmax"))) {
            assert!(is_greedy(row, want, numerics), "{family} {checkpoint}: {}", argmax(row));
        }
    }
}

/// Whether a token is the one that `f32` would take. With 8 bits that cannot be asked of noise, where
/// many tokens are nearly as likely; it has to be one of those.
fn is_greedy(logits: &[f32], token: u32, numerics: Numerics) -> bool {
    let best = argmax(logits);
    let behind = logits[best as usize] - logits[token as usize];
    best == token || numerics == Numerics::Int8 && behind < 1.0
}

/// `bf16.gguf` is the Hugging Face model, `q8_0.gguf` has a golden of its own.
fn logits_of_gguf_files<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let numerics = device().numerics();
    let tolerance = tolerance(family, numerics);
    let dir = golden_dir(family);
    let logits_of = |file: &str, tokens: &[u32]| {
        let mut runner = open(&dir.join(file), device());
        let session = runner.open(64).unwrap();
        feed(&mut runner, session, tokens, 24)
    };
    let golden = Golden::open(&dir.join("golden.safetensors"));
    let logits = logits_of("bf16.gguf", &golden.tokens("tokens"));
    let worst = max_abs_diff(&logits.concat(), golden.f32("hf_f32.logits").0);
    println!("{family} gguf bf16: {worst:.1e}");
    assert!(worst <= tolerance, "{family}: {worst:e}");

    let golden = Golden::open(&dir.join("golden-q8_0.safetensors"));
    let logits = logits_of("q8_0.gguf", &golden.tokens("tokens"));
    let (want, shape) = golden.f32("logits");
    let worst = max_abs_diff(&logits[logits.len() - shape[0]..].concat(), want);
    println!("{family} gguf q8_0: {worst:.1e}");
    assert!(worst <= tolerance, "{family}: {worst:e}");
    for (row, want) in logits.iter().zip(golden.tokens("argmax")) {
        assert!(is_greedy(row, want, numerics), "{family} q8_0: {}", argmax(row));
    }
}

fn layers_alone_and_their_routes<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let dir = golden_dir(family);
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
        let name = format!("hf_f32.layers.{layer}");
        if golden.has_f32(&format!("{name}.router_w")) {
            check_routes(&golden, runner.routes(), &name);
        }
        runner.close(session);
        input = want.to_vec();
    }
}

/// The residual stream after a layer, and logits, each of other rows of one batch.
fn hidden_values_and_logits_side_by_side<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let dir = golden_dir(family);
    let golden = Golden::open(&dir.join("golden.safetensors"));
    let tokens = golden.tokens("tokens");
    let mut runner = open(&dir.join("hf"), device());
    for layer in 0..4_u16 {
        let session = runner.open(64).unwrap();
        let mut batch = batch_of(session, &tokens, 0..24);
        batch.hidden_layer = Some(LayerIndex(layer));
        for (at, row) in batch.rows.iter_mut().enumerate() {
            row.wants = Wants { logits: at % 2 == 0, hidden: at % 3 == 0, ..Wants::default() };
        }
        let output = runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
        let every = |rows: Vec<Vec<f32>>, step| rows.into_iter().take(24).step_by(step).flatten();
        let want: Vec<f32> = every(golden.rows(&format!("hf_f32.layers.{layer}.out")), 3).collect();
        let largest = want.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let worst = max_abs_diff(output.hidden, &want) / f64::from(largest);
        assert!(worst <= f32_tolerance(family), "{family} layer {layer}: {worst:e}");
        let want: Vec<f32> = every(golden.rows("hf_f32.logits"), 2).collect();
        let worst = max_abs_diff(output.logits, &want);
        assert!(worst <= f32_tolerance(family), "{family} layer {layer}: {worst:e}");
        runner.close(session);
    }
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

for_each_device_and_family! {
    logits_of_all_tokens
    logits_of_a_long_prompt
    logits_of_quantised_checkpoints
    logits_of_gguf_files
    layers_alone_and_their_routes
    hidden_values_and_logits_side_by_side
}

// The checkpoints that integer numerics multiply: greedy tokens are those of f32.
for_each_integer_numerics_and_family! {
    logits_of_quantised_checkpoints
    logits_of_gguf_files
}
