//! Protocols between threads under a model checker: `cargo xtask loom`, a part of `cargo xtask ci`.
//!
//! `unsafe` is what loom's cells ask for; they panic where two threads could meet in one.
#![cfg(all(loom, test))]

#[path = "../../crates/fm-kernels/src/cpu/pool/fork_join.rs"]
mod fork_join;
#[path = "../../crates/fm-store/src/slots/word.rs"]
mod word;

mod pool;
mod slots;

/// Preemptions per run: every mistake we planted shows with two.
const PREEMPTIONS_MAX: usize = 2;

fn explore(test: impl Fn() + Sync + Send + 'static) {
    explore_with(PREEMPTIONS_MAX, test);
}

fn explore_with(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}
