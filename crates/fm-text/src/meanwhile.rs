//! Work beside other work.

use std::{
    panic::resume_unwind,
    thread::{Builder, Scope},
};

/// Works in another thread until the result is asked for, or in this one then, where the system has no thread to give.
///
/// # Panics
/// As `work` does.
pub(crate) fn meanwhile<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl Fn() -> T + Send + Copy + 'scope,
) -> impl FnOnce() -> T {
    let thread = Builder::new().spawn_scoped(scope, work);
    move || match thread {
        Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Err(_) => work(),
    }
}
