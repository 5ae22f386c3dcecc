//! What a trace of a running model predicts is what its store reads.

use fm_engine::{
    Engine, PolicyKind,
    local::read_stats,
    look_ahead::LookAhead,
    options::EngineOptions,
    replay::{Judge, Outcome, Replay, Scenario, Sharing},
    trace::{Trace, TraceWriter},
};
use fm_model::{
    experts::ARRIVAL_ROWS_MAX,
    runner::{Batch, SessionId},
};
use fm_store::{Stats, reader::IoMode};
use fm_testkit::noise::Noise;

use crate::{
    harness::{open, open_at, row},
    packed::packed,
};

/// Text of one session: noise that repeats itself, as texts do.
fn text(seed: u64) -> Vec<u32> {
    let noise = Noise::new(seed).tokens(100, 2000);
    noise
        .iter()
        .zip(0..)
        .map(|(token, at)| if at % 3 == 0 { noise[at / 9] } else { *token })
        .collect()
}

/// Decodes a text per session, all together, and records.
fn decode(engine: &mut Engine, texts: &[Vec<u32>], scores: bool) -> (Trace, Stats) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut header = engine.trace_header().clone();
    header.scores = scores;
    engine.record(Some(TraceWriter::create(&path, &header).unwrap())).unwrap();
    let sessions: Vec<SessionId> = texts.iter().map(|_| engine.runner.open(128).unwrap()).collect();
    for at in 0..texts[0].len() {
        let rows =
            sessions.iter().zip(texts).map(|(session, text)| row(*session, text[at], at as u32));
        let batch = Batch { rows: rows.collect(), hidden_layer: None };
        let output =
            engine.runner.step(&batch, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        assert!(output.spoiled.is_empty());
    }
    engine.record(None).unwrap();
    sessions.into_iter().for_each(|session| engine.runner.close(session));
    (Trace::read(&path).unwrap(), read_stats(&engine.stats_handle()))
}

fn replay(trace: &Trace, policy: PolicyKind, slot_bytes: u64) -> Outcome {
    let (judge, sharing) = (Judge::Policy(policy), Sharing::Global);
    let arrival_rows_max = ARRIVAL_ROWS_MAX;
    let scenario = Scenario { judge, sharing, slot_bytes, arrival_rows_max, warm_up: 0 };
    Replay::new(trace).run(scenario).unwrap()
}

#[test]
fn a_replay_predicts_what_one_session_reads_and_what_three_read() {
    for policy in PolicyKind::names().filter_map(PolicyKind::by_name) {
        for sessions in [1, 3] {
            let options = EngineOptions {
                slots: Some(70),
                policy,
                look_ahead: LookAhead::Off,
                ..EngineOptions::default()
            };
            let mut engine = open(&options);
            let texts: Vec<_> = (0..sessions).map(text).collect();
            let (trace, stats) = decode(&mut engine, &texts, false);
            let replayed = replay(&trace, policy, engine.plan.store.slot_bytes());
            assert_eq!(replayed.slots, 70);
            let misses = replayed.cold_misses + replayed.capacity_misses;
            let name = policy.name();
            let requests = stats.hits + stats.misses();
            assert_eq!(replayed.hits + misses, requests, "{name} {sessions}");
            // Beyond eight reads under way these spare who is worth more than a newcomer, and wait: how
            // long, depends on the disk, and a replay has none.
            let (arc, s3_fifo) = (PolicyKind::Arc, PolicyKind::S3Fifo);
            let waits = [PolicyKind::Lfu, arc, s3_fifo, PolicyKind::LeastStale].contains(&policy);
            let off = if waits && sessions > 1 { requests / 100 } else { 0 };
            assert!(replayed.hits.abs_diff(stats.hits) <= off, "{name} {sessions}: {replayed:?}");
            assert!(stats.capacity_misses > 100 && stats.hits > 100, "{name} {sessions}");
            // The replay knows of no alignment.
            let ratio = stats.read_bytes as f64 / replayed.read_bytes as f64;
            assert!((1.0..1.25).contains(&ratio), "{name} {sessions}: {ratio}");
        }
    }
}

#[test]
fn a_reader_that_needs_no_staging_gets_no_more_slots() {
    // Records of packed files go straight into their slots when they are read through the page cache.
    let dir = packed();
    let options = EngineOptions {
        slots: Some(6),
        io: IoMode::Buffered,
        look_ahead: LookAhead::Off,
        ..EngineOptions::default()
    };
    let mut engine = open_at(dir.path(), &options);
    assert!(engine.plan.store.staging_bytes > engine.plan.store.slot_bytes() / 6);
    let (trace, stats) = decode(&mut engine, &[text(1)], false);
    let replayed = replay(&trace, options.policy, engine.plan.store.slot_bytes());
    assert_eq!(replayed.slots, 6);
    assert!(replayed.hits > 50 && replayed.capacity_misses > 50);
    assert_eq!(replayed.hits, stats.hits);
}

#[test]
fn sessions_apart_foretell_the_sessions_together() {
    let options = EngineOptions { slots: Some(70), ..EngineOptions::default() };
    let texts: Vec<_> = (0..3).map(text).collect();
    let apart: Vec<Trace> = texts
        .iter()
        .map(|text| decode(&mut open(&options), std::slice::from_ref(text), false).0)
        .collect();
    let (together, _) = decode(&mut open(&options), &texts, false);
    assert!(Trace::together(&apart).unwrap() == together);
}

#[test]
fn scores_choose_the_experts() {
    let (trace, _) = decode(&mut open(&EngineOptions::default()), &[text(1)], true);
    for frame in &trace.frames {
        let (scores, chosen) = (trace.scores(frame).unwrap(), trace.experts(frame));
        let least = chosen.iter().map(|at| scores[usize::from(*at)]).fold(f32::INFINITY, f32::min);
        let better = scores.iter().filter(|score| **score > least).count();
        assert!(better < chosen.len(), "{better} scores beat the last chosen");
    }
    assert_eq!(trace.steps(), 100);
}
