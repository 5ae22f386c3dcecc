//! Placement decides speed, never bits.

use fm_engine::{Engine, local::read_stats, look_ahead::LookAhead, options::EngineOptions};
use fm_kernels::backend::Numerics;
use fm_store::{PolicyKind, reader::IoMode};

use crate::harness::{bits, open, prompt};

fn run(options: &EngineOptions, chunk: usize) -> Vec<u32> {
    let mut engine = open(options);
    let session = engine.runner.open(256).unwrap();
    let mut all = bits(engine.runner.as_mut(), session, &prompt(), chunk);
    // Decoding goes by arrival, prefill in ascending order: both must add up alike.
    all.extend(bits(engine.runner.as_mut(), session, &prompt()[..12], 1));
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
