//! What it takes to choose one token of 248 thousand, by what is asked for.
//!
//! ```text
//! cargo bench -p fm-engine --bench sampler
//! ```

#![allow(missing_docs)] // the macros of criterion write functions without

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use fm_engine::sampler::{Sampler, Sampling};

/// Tokens of Qwen3.5.
const VOCAB: u64 = 248_320;

/// Twelve uniform numbers are nearly a normal one; logits of a model spread like three of it.
fn logits() -> Vec<f32> {
    let mut state = 7_u64;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..VOCAB).map(|_| 3.0 * ((0..12).map(|_| uniform()).sum::<f32>() - 6.0)).collect()
}

fn sample(criterion: &mut Criterion) {
    let logits = logits();
    let mut group = criterion.benchmark_group("sample");
    let warm = Sampling { temperature: 1.0, ..Sampling::default() };
    for (name, sampling) in [
        ("greedy", Sampling::default()),
        ("temperature", warm),
        ("top_k 20, top_p 0.95", Sampling { temperature: 0.6, top_k: 20, top_p: 0.95, ..warm }),
        ("top_p 0.95", Sampling { top_p: 0.95, ..warm }),
        ("min_p 0.05", Sampling { min_p: 0.05, ..warm }),
    ] {
        let mut sampler = Sampler::new(sampling, logits.len(), &[]);
        group.bench_function(name, |bencher| bencher.iter(|| sampler.sample(black_box(&logits))));
    }
    group.finish();
}

criterion_group!(benches, sample);
criterion_main!(benches);
