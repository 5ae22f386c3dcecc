//! Placement decides speed, never bits.

use std::path::Path;

use fm_engine::{Engine, local::read_stats, look_ahead::LookAhead, options::EngineOptions};
use fm_kernels::backend::Numerics;
use fm_store::{PolicyKind, reader::IoMode};
use fm_testkit::{
    golden::demo_dir,
    oracle::Family,
    tiny_checkpoint::{GgufLayout, Layout, TinyModel},
};

use crate::harness::{bits, open, open_at, prompt};

fn run(options: &EngineOptions, chunk: usize) -> Vec<u32> {
    run_at(&demo_dir(), options, &prompt(), chunk)
}

fn run_at(dir: &Path, options: &EngineOptions, prompt: &[u32], chunk: usize) -> Vec<u32> {
    let mut engine = open_at(dir, options);
    let session = engine.runner.open(256).unwrap();
    let mut all = bits(engine.runner.as_mut(), session, prompt, chunk);
    // Decoding goes by arrival, prefill in ascending order: both must add up alike.
    all.extend(bits(engine.runner.as_mut(), session, &prompt[..12], 1));
    let plan = &engine.plan.store;
    assert_eq!(plan.holds_everything(), options.slots.is_none());
    all
}

#[test]
fn one_working_set_or_the_whole_model() {
    for numerics in Numerics::ALL {
        let whole = EngineOptions { numerics: Some(*numerics), ..EngineOptions::default() };
        let want = run(&whole, 64);
        for policy in [PolicyKind::Lru, PolicyKind::Lfru, PolicyKind::Odds] {
            // Four slots are what one token needs in one layer.
            let tight = EngineOptions { slots: Some(4), policy, ..whole.clone() };
            assert!(run(&tight, 64) == want, "{numerics} {}", policy.name());
            assert!(run(&tight, 7) == want, "{numerics} {} in chunks", policy.name());
        }
    }
}

#[test]
fn with_and_without_look_ahead() {
    let with = |look_ahead, slots| EngineOptions { look_ahead, slots, ..EngineOptions::default() };
    let want = run(&with(LookAhead::Off, None), 64);
    for look_ahead in LookAhead::names().filter_map(LookAhead::by_name) {
        for slots in [4, 9] {
            for chunk in [64, 7, 1] {
                let got = run(&with(look_ahead, Some(slots)), chunk);
                assert!(got == want, "{} {slots} slots, chunks of {chunk}", look_ahead.name());
            }
        }
    }
}

/// Nobody chooses in a layer without experts, and nothing is read for it.
#[test]
fn look_ahead_passes_layers_without_experts() {
    let dir = tempfile::tempdir().unwrap();
    let model =
        TinyModel { layers: 4, mlp_only_layers: vec![1], ..TinyModel::new(Family::Qwen3Moe) };
    model.write(dir.path(), &Layout::Hf, 1);
    let prompt: Vec<u32> = prompt().into_iter().map(|token| token % 300).collect();
    let run_with = |look_ahead, slots| {
        let options = EngineOptions { look_ahead, slots, ..EngineOptions::default() };
        run_at(dir.path(), &options, &prompt, 64)
    };
    let want = run_with(LookAhead::Off, None);
    for look_ahead in LookAhead::names().filter_map(LookAhead::by_name) {
        assert!(run_with(look_ahead, Some(3)) == want, "{}", look_ahead.name());
    }
}

#[test]
fn a_sweep_reads_the_next_layer_ahead_and_a_token_does_not() {
    let mut engine = open(&EngineOptions {
        slots: Some(9),
        look_ahead: LookAhead::Off,
        ..EngineOptions::default()
    });
    let foreseen = |engine: &Engine| read_stats(&engine.stats_handle()).foreseen_records;
    let session = engine.runner.open(256).unwrap();
    bits(engine.runner.as_mut(), session, &prompt()[..12], 1);
    assert_eq!(foreseen(&engine), 0);
    bits(engine.runner.as_mut(), session, &prompt(), 64);
    assert!(foreseen(&engine) > 0);
}

#[test]
fn experts_that_are_forgotten_are_read_again() {
    let mut engine = open(&EngineOptions::default());
    let session = engine.runner.open(256).unwrap();
    let read = |engine: &mut Engine| {
        let before = read_stats(&engine.stats_handle()).records_read;
        bits(engine.runner.as_mut(), session, &prompt()[..1], 1);
        read_stats(&engine.stats_handle()).records_read - before
    };
    let cold = read(&mut engine);
    assert!(cold > 0);
    assert!(read(&mut engine) < cold);
    engine.forget_experts();
    assert_eq!(read(&mut engine), cold);
}

#[test]
fn direct_or_buffered_reads() {
    let with = |io, slots| EngineOptions { io, slots, ..EngineOptions::default() };
    let want = run(&with(IoMode::Buffered, None), 64);
    assert!(run(&with(IoMode::Buffered, Some(9)), 64) == want);
    assert!(run(&with(IoMode::Direct, Some(9)), 64) == want);
    assert!(run(&with(IoMode::Direct, None), 64) == want);
}

/// Experts of a GGUF file begin anywhere, and long ones are read in whole blocks: what the device arranges in
/// one way of packing, and what it takes as it is in another.
#[test]
fn experts_that_begin_inside_a_block() {
    let model =
        TinyModel { hidden: 512, moe_ffn: 512, layers: 2, ..TinyModel::new(Family::Qwen3Moe) };
    let prompt: Vec<u32> = prompt().into_iter().map(|token| token % 300).collect();
    for (format, numerics) in
        [("q8_0", Numerics::Int15), ("q8_0", Numerics::F32), ("f16", Numerics::Int15)]
    {
        // Not every file system for temporary files reads directly.
        let dir = tempfile::tempdir_in(".").unwrap();
        model.write_gguf(dir.path(), &GgufLayout::uniform(format));
        let file = dir.path().join("model.gguf");
        let with = |io, slots| EngineOptions {
            io,
            slots,
            numerics: Some(numerics),
            ..EngineOptions::default()
        };
        let plan = open_at(&file, &with(IoMode::Direct, None)).plan;
        let class = plan.store.classes[0];
        assert!(class.slot_bytes > class.record_bytes && plan.store.staging_bytes == 0);
        let want = run_at(&file, &with(IoMode::Buffered, None), &prompt, 64);
        for slots in [None, Some(3)] {
            let got = run_at(&file, &with(IoMode::Direct, slots), &prompt, 64);
            assert!(got == want, "{format}, {numerics}, {slots:?} slots");
        }
    }
}

#[test]
fn two_engines_in_one_process_do_not_know_of_each_other() {
    let want = run(&EngineOptions::default(), 16);
    let options = EngineOptions { slots: Some(5), ..EngineOptions::default() };
    let (mut a, mut b) = (open(&options), open(&EngineOptions::default()));
    let (in_a, in_b) = (a.runner.open(256).unwrap(), b.runner.open(256).unwrap());
    let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
    for tokens in prompt().chunks(16).chain(prompt()[..12].chunks(1)) {
        let chunk = tokens.len();
        from_a.extend(bits(a.runner.as_mut(), in_a, tokens, chunk));
        from_b.extend(bits(b.runner.as_mut(), in_b, tokens, chunk));
    }
    assert!(from_a == want);
    assert!(from_b == want);
}
