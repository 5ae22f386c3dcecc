//! What an engine allocates: nothing in a step, and no more in all than was planned.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod grammar_peak;
mod many_grammars;
mod spill;
mod steady_decode;

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use fm_engine::{Engine, Load, Places, options::EngineOptions};
use fm_testkit::counting_alloc::CountingAlloc;

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

/// One test at a time: they share the allocator.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A model with a small plan, on two threads where `options` say nothing, and nothing written anywhere.
fn open(dir: &Path, options: &EngineOptions, load: Load) -> Engine {
    let options = EngineOptions {
        memory: options.memory.or(Some(300_000_000)),
        threads: options.threads.or(Some(2)),
        ..options.clone()
    };
    Engine::open(dir, &options, load, &Places { root: "/".into(), cache_dir: None }).unwrap()
}
