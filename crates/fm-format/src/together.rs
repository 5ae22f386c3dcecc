//! Work that several threads share, the calling one among them.

use std::{
    panic::resume_unwind,
    thread::{self, Builder},
};

/// What `work` gives in this thread, and then in the others: `threads` in all, or as many as the system starts.
///
/// # Panics
/// As `work` does.
pub fn together<T: Send>(threads: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let start = |_| Builder::new().spawn_scoped(scope, &work).ok();
        let others: Vec<_> = (1..threads).map_while(start).collect();
        let own = work();
        let others =
            others.into_iter().map(|other| other.join().unwrap_or_else(|p| resume_unwind(p)));
        std::iter::once(own).chain(others).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_thread_says_what_it_has_done() {
        let (left, threads) = (AtomicUsize::new(1000), 3);
        let work = || {
            let mut done = 0;
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
            {
                done += 1;
            }
            done
        };
        let done = together(threads, work);
        assert_eq!((done.len(), done.iter().sum::<usize>()), (threads, 1000));
        assert_eq!(together(0, || 7), [7], "this one at least");
    }
}
