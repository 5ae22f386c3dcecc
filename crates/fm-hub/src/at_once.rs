//! Work on several things at once, up to the first failure.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use fm_format::together::together;

use crate::error::HubError;

/// Does `work` for every item, `threads` of them at a time, in their order. Returns the sum of what
/// it says, or the first error; `stop` is set then, so that whoever looks at it can end early.
pub(crate) fn at_once<T: Sync>(
    items: &[T],
    threads: usize,
    stop: &AtomicBool,
    work: impl Fn(&T) -> Result<u64, HubError> + Sync,
) -> Result<u64, HubError> {
    let (next, sum, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(None));
    let worker = || {
        while !stop.load(Ordering::Relaxed)
            && let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
        {
            match work(item) {
                Ok(part) => sum.fetch_add(part, Ordering::Relaxed),
                Err(error) => {
                    failed.lock().expect("nothing panics with it").get_or_insert(error);
                    return stop.store(true, Ordering::Relaxed);
                }
            };
        }
    };
    together(threads.min(items.len()), worker);
    let failed = failed.into_inner().expect("nothing panics with it");
    failed.map_or_else(|| Ok(sum.into_inner()), Err)
}
