//! What an engine allocates: nothing in a step, and no more in all than was planned.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod grammar_peak;
mod many_grammars;
mod spill;
mod steady_decode;

use std::sync::{Mutex, MutexGuard, PoisonError};

use fm_testkit::counting_alloc::CountingAlloc;

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

/// One test at a time: they share the allocator.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
