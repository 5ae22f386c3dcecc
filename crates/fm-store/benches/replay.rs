//! Replaying a trace of 500 steps of 40 layers that use 8 of 256 experts each, with slots for a quarter
//! of them: what policies cost. A token of such a model makes 320 uses.
//!
//! ```text
//! cargo bench -p fm-store --bench replay
//! ```

#![allow(missing_docs)] // the macros of criterion write functions without

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fm_format::key::ExpertIndex;
use fm_store::{
    PolicyKind,
    replay::{Judge, Replay, Scenario, Sharing},
    trace::{Trace, TraceHeader, TracedLayer},
};
use fm_testkit::noise::Noise;

const LAYERS: usize = 40;
const EXPERTS: usize = 256;
const TOP_K: usize = 8;
const STEPS: usize = 500;
const SLOT_BYTES: u64 = 1 << 20;

/// Some experts are popular, and two of every step are used again in the next one.
fn trace() -> Trace {
    let layer = TracedLayer { experts: EXPERTS, slot_bytes: SLOT_BYTES, read_bytes: SLOT_BYTES };
    let mut trace = Trace::new(TraceHeader::of_layers(vec![Some(layer); LAYERS], TOP_K));
    let mut noise = Noise::new(1);
    let mut latest = vec![Vec::new(); LAYERS];
    for _ in 0..STEPS {
        for (layer, latest) in (0..).zip(&mut latest) {
            let mut chosen: Vec<ExpertIndex> = latest.iter().copied().step_by(4).collect();
            while chosen.len() < TOP_K {
                let expert = noise.below(EXPERTS) * noise.below(EXPERTS) / EXPERTS;
                let expert = ExpertIndex(expert as u16);
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            chosen.sort_unstable();
            trace.push(layer, 1, &chosen, &[]);
            *latest = chosen;
        }
    }
    trace
}

fn replay(criterion: &mut Criterion) {
    let trace = trace();
    let replay = Replay::new(&trace);
    let mut group = criterion.benchmark_group("replay");
    group.throughput(Throughput::Elements((STEPS * LAYERS * TOP_K) as u64)).sample_size(10);
    let policies = PolicyKind::names().filter_map(PolicyKind::by_name);
    let judges = policies
        .filter(|policy| *policy != PolicyKind::Auto)
        .map(|policy| (policy.name(), Judge::Policy(policy)));
    for (name, judge) in judges.chain([("belady", Judge::Belady)]) {
        let scenario = Scenario {
            judge,
            sharing: Sharing::Global,
            slot_bytes: (LAYERS * EXPERTS / 4) as u64 * SLOT_BYTES,
            arrival_rows_max: 16,
            warm_up: 0,
        };
        group.bench_function(name, |bencher| {
            bencher.iter(|| replay.run(black_box(scenario)).expect("the slots are enough"));
        });
    }
    group.finish();
}

criterion_group!(benches, replay);
criterion_main!(benches);
