//! What a replay says is what the store does; nothing beats Belady; a damaged trace is no trace.

use std::{fs, sync::Arc};

use fm_format::key::{ExpertIndex, LayerIndex};
use fm_store::{
    CHUNK_BYTES, Order, PolicyKind, Stats, Store, StoreError, StoreOptions,
    reader::{Access, Reader, memory::Memory},
    replay::{Judge, Outcome, Replay, Scenario, Sharing},
    trace::{Trace, TraceError, TraceHeader, TraceWriter},
};

use crate::{
    sim_disk::SimDisk,
    world::{Noise, Style, World},
};

const LAYERS: usize = 4;
const EXPERTS: usize = 24;
const TOP_K: usize = 2;
/// Rows from which on experts are taken in ascending order.
const FEW: usize = 3;

/// Steps of `rows` rows that like some experts better than others; which ones, is the `topic`.
fn trace(world: &World, seed: u64, steps: usize, rows: impl Fn(usize) -> usize) -> Trace {
    trace_of(world, seed, steps, rows, |step| step / 20 * 5)
}

fn trace_of(
    world: &World,
    seed: u64,
    steps: usize,
    rows: impl Fn(usize) -> usize,
    topic: impl Fn(usize) -> usize,
) -> Trace {
    let mut noise = Noise::new(seed);
    let mut trace = Trace::new(TraceHeader::new(&world.catalog, TOP_K));
    for step in 0..steps {
        let topic = topic(step);
        let rows = rows(step);
        for layer in [0, 2, 3, 4] {
            let experts = (0..rows).flat_map(|_| {
                let most = 1 + noise.below(EXPERTS);
                let first = (topic + noise.below(most)) % EXPERTS;
                let second = (first + 1 + noise.below(EXPERTS - 1)) % EXPERTS;
                [first.min(second), first.max(second)].map(|at| ExpertIndex(at as u16))
            });
            let experts: Vec<_> = experts.collect();
            trace.push(layer, rows, &experts, &[]);
        }
    }
    trace
}

fn world() -> World {
    World::new(&[Style::Container], LAYERS, EXPERTS)
}

/// The trace through a real store.
fn play(world: &World, trace: &Trace, policy: PolicyKind, slot_bytes: u64) -> Stats {
    let (disk, _) = SimDisk::new(world, Access::Direct);
    let reader = Memory::open(&world.catalog, disk, |_| 0).unwrap();
    let budget_bytes = slot_bytes + reader.staging_bytes();
    let options = StoreOptions { budget_bytes, policy, top_k: TOP_K, chunk_bytes: CHUNK_BYTES };
    let mut store = Store::open(&world.catalog, options, Box::new(reader)).unwrap();
    for frame in &trace.frames {
        let chosen: Vec<_> = trace.experts(frame).iter().copied().map(ExpertIndex).collect();
        let (layer, mut union) = (LayerIndex(frame.layer), chosen.clone());
        union.sort_unstable();
        union.dedup();
        let many = frame.rows > FEW;
        let order = if many { Order::Ascending } else { Order::Arrival };
        let ticket = if many {
            store.request_rows(layer, &union, (&chosen, TOP_K))
        } else {
            store.request(layer, &union)
        };
        let mut ticket = ticket.unwrap();
        while let Some(arrived) = store.next(&mut ticket, order).unwrap() {
            arrived.record.unwrap();
        }
    }
    store.stats()
}

fn replay(trace: &Trace, judge: Judge, sharing: Sharing, slot_bytes: u64) -> Outcome {
    let scenario = Scenario { judge, sharing, slot_bytes, arrival_rows_max: FEW, warm_up: 0 };
    Replay::new(trace).run(scenario).unwrap()
}

fn policies() -> impl Iterator<Item = PolicyKind> {
    PolicyKind::names().filter_map(PolicyKind::by_name)
}

#[test]
fn a_replay_reads_what_the_store_reads() {
    let world = world();
    let slot = world.catalog.layer(LayerIndex(0)).layout.bytes() as u64;
    // The smaller class of the two has room for a union: nothing depends on when reads arrive.
    for rows in [1, FEW] {
        let trace = trace(&world, 3, 300, |_| rows);
        for (slots, policy) in
            [28, 44, 80].into_iter().flat_map(|n| policies().map(move |p| (n, p)))
        {
            let store = play(&world, &trace, policy, slots * slot);
            let replayed = replay(&trace, Judge::Policy(policy), Sharing::Global, slots * slot);
            let counted = (replayed.hits, replayed.cold_misses, replayed.capacity_misses);
            let name = policy.name();
            assert_eq!(
                counted,
                (store.hits, store.cold_misses, store.capacity_misses),
                "{name} {slots} {rows}"
            );
            assert_eq!(replayed.read_bytes, store.read_bytes, "{name} {slots} {rows}");
            assert_eq!(replayed.tokens, 300 * rows);
        }
    }
}

#[test]
fn prompts_in_between_change_that_by_less_than_three_percent() {
    let world = world();
    let slot = world.catalog.layer(LayerIndex(0)).layout.bytes() as u64;
    let trace = trace(&world, 4, 300, |step| if step % 50 == 0 { 12 } else { 1 });
    for policy in policies() {
        let store = play(&world, &trace, policy, 30 * slot).read_bytes as f64;
        let replayed = replay(&trace, Judge::Policy(policy), Sharing::Global, 30 * slot).read_bytes;
        assert!(
            (replayed as f64 / store - 1.0).abs() < 0.03,
            "{}: {replayed} {store}",
            policy.name()
        );
    }
}

#[test]
fn nothing_beats_belady_and_odds_beat_recency_where_some_are_popular() {
    let world = world();
    let slot = world.catalog.layer(LayerIndex(0)).layout.bytes() as u64;
    let trace = trace_of(&world, 5, 1500, |_| 1, |_| 7);
    for sharing in [Sharing::Global, Sharing::PerLayer] {
        let run = |judge| replay(&trace, judge, sharing, 40 * slot);
        let bound = run(Judge::Belady);
        for policy in policies() {
            assert!(run(Judge::Policy(policy)).hits < bound.hits, "{}", policy.name());
        }
        let (odds, lru) = (PolicyKind::Odds, PolicyKind::Lru);
        let gain = run(Judge::Policy(odds)).hit_rate() - run(Judge::Policy(lru)).hit_rate();
        assert!(gain > 0.02, "{sharing:?}: {gain}");
    }
}

#[test]
fn belady_keeps_what_is_needed_first() {
    let world = World::new(&[Style::Container], 1, 4);
    let mut trace = Trace::new(TraceHeader::new(&world.catalog, 1));
    for expert in [0, 1, 2, 0, 3, 0, 1] {
        trace.push(0, 1, &[ExpertIndex(expert)], &[]);
    }
    let slot = world.catalog.layer(LayerIndex(0)).layout.bytes() as u64;
    // 2 takes the place of 1, 3 that of 2: only 0 is there when it is needed.
    let outcome = replay(&trace, Judge::Belady, Sharing::Global, 2 * slot);
    assert_eq!((outcome.hits, outcome.cold_misses, outcome.capacity_misses), (2, 4, 1));
    let recent = replay(&trace, Judge::Policy(PolicyKind::Lru), Sharing::Global, 2 * slot);
    assert_eq!((recent.hits, recent.cold_misses, recent.capacity_misses), (1, 4, 2));
}

/// One layer whose routers choose the two highest of all scores, which wander.
fn scored(world: &World, seed: u64, steps: usize) -> Trace {
    let mut noise = Noise::new(seed);
    let mut header = TraceHeader::new(&world.catalog, TOP_K);
    header.scores = true;
    let mut trace = Trace::new(header);
    let mut scores = [0.0; EXPERTS];
    for _ in 0..steps {
        scores.iter_mut().for_each(|score| *score = 0.8 * *score + noise.below(1000) as f32);
        let mut order: Vec<u16> = (0..EXPERTS as u16).collect();
        order.sort_by(|a, b| scores[usize::from(*b)].total_cmp(&scores[usize::from(*a)]));
        let mut chosen = [order[0], order[1]].map(ExpertIndex);
        chosen.sort_unstable();
        trace.push(0, 1, &chosen, &scores);
    }
    trace
}

/// Hits of whoever keeps the experts with the highest scores: the latest, and of all steps.
fn hits_by_scores(trace: &Trace, slots: usize) -> u64 {
    let (mut residents, mut hits) = (Vec::new(), 0);
    for (step, frame) in trace.frames.iter().enumerate() {
        let rank = |expert: u16| {
            let of = |frame| f64::from(trace.scores(frame).unwrap()[usize::from(expert)]);
            let so_far = &trace.frames[..=step];
            let fading: f64 = so_far
                .iter()
                .rev()
                .zip(1..)
                .map(|(frame, age)| of(frame) * 0.5_f64.powi(age))
                .sum();
            fading + so_far.iter().map(of).sum::<f64>() / so_far.len() as f64
        };
        let chosen = trace.experts(frame);
        let missing: Vec<u16> =
            chosen.iter().copied().filter(|expert| !residents.contains(expert)).collect();
        hits += (chosen.len() - missing.len()) as u64;
        for expert in missing {
            if residents.len() == slots {
                let may_go = residents.iter().filter(|resident| !chosen.contains(resident));
                let lowest = *may_go.min_by(|a, b| rank(**a).total_cmp(&rank(**b))).unwrap();
                residents.retain(|resident| *resident != lowest);
            }
            residents.push(expert);
        }
    }
    hits
}

#[test]
fn who_observes_keeps_the_highest_scores() {
    let world = World::new(&[Style::Container], 1, EXPERTS);
    let slot = world.catalog.layer(LayerIndex(0)).layout.bytes() as u64;
    let mut trace = scored(&world, 8, 200);
    for slots in [4, 6, 12] {
        let outcome = replay(&trace, Judge::Observe, Sharing::Global, slots * slot);
        assert_eq!(outcome.hits, hits_by_scores(&trace, slots as usize), "{slots}");
        let recent = replay(&trace, Judge::Policy(PolicyKind::Lru), Sharing::Global, slots * slot);
        assert!(outcome.hits > recent.hits, "{slots}");
    }
    trace.header.scores = false;
    let (judge, sharing, slot_bytes) = (Judge::Observe, Sharing::Global, 6 * slot);
    let scenario = Scenario { judge, sharing, slot_bytes, arrival_rows_max: FEW, warm_up: 0 };
    assert!(matches!(Replay::new(&trace).run(scenario), Err(StoreError::NoScores)));
}

#[test]
fn sessions_together_need_the_union() {
    let world = world();
    let [a, b] = [6, 7].map(|seed| trace(&world, seed, 50, |_| 1));
    let both = Trace::together(&[a.clone(), b.clone()]).unwrap();
    assert_eq!((both.steps(), both.frames.len(), both.frames[0].rows), (50, 200, 2));
    for (frame, (of_a, of_b)) in both.frames.iter().zip(a.frames.iter().zip(&b.frames)) {
        assert_eq!(both.experts(frame), [a.experts(of_a), b.experts(of_b)].concat());
    }
    let other = World::new(&[Style::Container], LAYERS, EXPERTS + 1);
    let other = trace(&other, 6, 50, |_| 1);
    assert!(matches!(Trace::together(&[a, other]), Err(TraceError::Different { .. })));
}

#[test]
fn a_trace_comes_back_and_a_damaged_one_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let world = world();
    let mut header = TraceHeader::new(&world.catalog, TOP_K);
    (header.model, header.scores) = ("noise".to_owned(), true);
    let mut expected = Trace::new(header.clone());
    let mut writer = TraceWriter::create(&path, &header).unwrap();
    for (step, layer) in (0..3).flat_map(|step| [0, 2, 3, 4].map(|layer| (step, layer))) {
        let experts = [step, step + 4].map(ExpertIndex);
        let scores = vec![0.25 * f32::from(step); EXPERTS];
        writer.layer(layer, 1, &experts, &scores).unwrap();
        expected.push(layer, 1, &experts, &scores);
    }
    writer.finish().unwrap();
    let trace = Trace::read(&path).unwrap();
    assert!(trace == expected);
    assert_eq!(trace.scores(&trace.frames[11]).unwrap(), [0.5; EXPERTS]);

    let bytes = Arc::new(fs::read(&path).unwrap());
    for cut in 0..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        assert!(Trace::read(&path).is_err(), "cut at {cut}");
    }
    for at in 0..bytes.len() {
        let mut bytes = (*bytes).clone();
        bytes[at] ^= 4;
        fs::write(&path, &bytes).unwrap();
        assert!(Trace::read(&path).is_err(), "flipped at {at}");
    }
}

#[test]
fn experts_that_nobody_can_add_up_are_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    for (slot_bytes, is_one) in [(1 << 40, true), (1 << 60, false)] {
        let mut header = TraceHeader::new(&world().catalog, TOP_K);
        header.layers.iter_mut().flatten().for_each(|layer| layer.slot_bytes = slot_bytes);
        TraceWriter::create(&path, &header).unwrap().finish().unwrap();
        assert_eq!(Trace::read(&path).is_ok(), is_one, "{slot_bytes}");
    }
}
