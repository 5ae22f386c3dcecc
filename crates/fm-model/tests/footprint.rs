//! A model takes what its footprint says: the memory plan counts with nothing else.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::ops::ControlFlow;

use fm_format::{
    key::LayerIndex,
    source::{Checkpoint, Files},
};
use fm_kernels::{
    Backend,
    backend::{KvFormat, Numerics, Routes},
    cpu::Cpu,
};
use fm_model::{
    Runner,
    arch::describe,
    decoder::{Decoder, DecoderOptions},
    experts::{ExpertBatch, ExpertsFailed, RoutedExperts},
    footprint::Footprint,
    load::Loader,
    model_runner::{ModelRunner, RunnerOptions},
    runner::{Batch, Row, RowInput, Wants},
};
use fm_testkit::{
    counting_alloc::{CountingAlloc, live_bytes, peak_bytes, reset_peak},
    tiny_checkpoint::{Family, LatentShape, Layout, TinyModel},
};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

/// Experts that take no memory and add nothing.
struct Nobody;

impl<B: Backend> RoutedExperts<B> for Nobody {
    type Ticket = ();

    fn begin(&mut self, _: LayerIndex, _: &Routes<B>) -> Result<(), ExpertsFailed> {
        Ok(())
    }

    fn finish(&mut self, _: &B, (): (), _: ExpertBatch<'_, B>) -> Result<(), ExpertsFailed> {
        Ok(())
    }
}

/// A trunk begins with a huge page: addresses before it are counted and never touched.
const BEFORE_A_HUGE_PAGE: u64 = (2 << 20) - 1;

/// Bytes that a prompt of `rows` rows takes beside the weights, and what the footprint says.
fn taken_and_planned(model: &TinyModel, rows: usize) -> (u64, u64) {
    let dir = tempfile::tempdir().unwrap();
    model.write(dir.path(), &Layout::Hf, 1);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let spec = describe(&checkpoint).unwrap();
    // The numerics that need most: activations are there as floats and as integers.
    let device = Cpu::open(2).in_numerics(Numerics::Int15);
    let files = Files::new(checkpoint.files.clone());
    let decoder =
        DecoderOptions { rows_max: rows, logits_rows_max: 1, short_rows_max: 512, top_k: None };
    let before = live_bytes();
    let loaded = Decoder::load(&Loader::new(&device, &files, 2), &spec, decoder).unwrap();
    let footprint = Footprint::of(&spec, None, KvFormat::F32);
    let trunk = live_bytes() - before - BEFORE_A_HUGE_PAGE;
    let slack = footprint.trunk / 50 + (64 << 10);
    assert!(trunk <= footprint.trunk + slack, "{trunk} bytes of weights, {footprint:?}");
    assert!(trunk + slack >= footprint.trunk, "{trunk} bytes of weights, {footprint:?}");

    let kv_blocks = footprint.kv_blocks(rows as u32) as usize;
    let options = RunnerOptions {
        decoder,
        sessions_max: 1,
        kv_blocks,
        kv_format: KvFormat::F32,
        marks_max: 0,
        fingerprint: 7,
    };
    reset_peak();
    let before = live_bytes();
    let mut runner = ModelRunner::new(device, loaded, Nobody, &spec, options).unwrap();
    let session = runner.open(rows as u32).unwrap();
    let row = |position| Row {
        session,
        input: RowInput::Token(position % 7),
        position,
        wants: Wants { logits: position + 1 == rows as u32, ..Wants::default() },
    };
    let batch = Batch { rows: (0..rows as u32).map(row).collect(), hidden_layer: None };
    runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
    let kept = footprint.kv_block * kv_blocks as u64 + footprint.recurrent;
    (peak_bytes() - before, kept + footprint.scratch(decoder, spec.vocab))
}

#[test]
fn a_step_takes_no_more_than_the_footprint_says_and_not_much_less() {
    let wide = |family| TinyModel {
        hidden: 512,
        vocab: 101,
        layers: 2,
        full_attention_interval: 2,
        heads: 24,
        kv_heads: 4,
        head_dim: 64,
        dense_ffn: 640,
        moe_ffn: 256,
        latent: LatentShape {
            q_rank: Some(96),
            rank: 160,
            nope: 48,
            rope: 32,
            value: 80,
            rope_interleave: None,
        },
        ..TinyModel::new(family)
    };
    let latent = wide(Family::DeepseekV3);
    let direct =
        TinyModel { latent: LatentShape { q_rank: None, ..latent.latent }, ..latent.clone() };
    let models = [
        ("grouped heads", wide(Family::Qwen3Moe)),
        ("delta nets", wide(Family::Qwen3Next)),
        ("latent, queries compressed", latent),
        ("latent, queries at once", direct),
        ("latent, of another family", wide(Family::Glm4MoeLite)),
        ("biases, sinks and windows", wide(Family::GptOss)),
        ("norms of all heads together", wide(Family::MinimaxM2)),
        ("windows", wide(Family::Mixtral)),
        ("delta nets and a gate", wide(Family::Qwen3_5Moe)),
    ];
    for (name, model) in models {
        for rows in [16, 300] {
            let (taken, planned) = taken_and_planned(&model, rows);
            // The batch itself is the caller's.
            let bound = planned + (16 << 10);
            assert!(taken <= bound, "{name}, {rows} rows: {taken} bytes, planned {planned}");
            assert!(10 * taken >= 6 * planned, "{name}, {rows} rows: {taken} of {planned} bytes");
        }
    }
}
