//! A global allocator that counts, for tests that promise to allocate nothing or little.
//!
//! ```
//! use fm_testkit::counting_alloc::{CountingAlloc, count_allocations};
//!
//! #[global_allocator]
//! static ALLOC: CountingAlloc = CountingAlloc;
//!
//! let (sum, allocations) = count_allocations(|| 1 + 1);
//! assert_eq!((sum, allocations.count), (2, 0));
//! ```

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
};

/// The system's allocator, counted. Counting costs two thread-local and three shared additions.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAlloc;

/// How often, and how much. Growing in place counts as an allocation of the new size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    /// Calls.
    pub count: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

thread_local! {
    // `const` and without a destructor: reading them never allocates.
    static THREAD_COUNT: Cell<u64> = const { Cell::new(0) };
    static THREAD_BYTES: Cell<u64> = const { Cell::new(0) };
}

// Relaxed everywhere: the numbers order nothing.
static GLOBAL_COUNT: AtomicU64 = AtomicU64::new(0);
static GLOBAL_BYTES: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);
static PEAK_BYTES: AtomicU64 = AtomicU64::new(0);

/// Runs `work` and counts what this thread allocated in it.
///
/// Counts nothing unless [`CountingAlloc`] is the `#[global_allocator]`.
pub fn count_allocations<T>(work: impl FnOnce() -> T) -> (T, Allocations) {
    let before = thread_allocations();
    let result = work();
    let after = thread_allocations();
    let count = after.count - before.count;
    (result, Allocations { count, bytes: after.bytes - before.bytes })
}

/// What this thread has allocated since it began.
pub fn thread_allocations() -> Allocations {
    Allocations { count: THREAD_COUNT.get(), bytes: THREAD_BYTES.get() }
}

/// What all threads have allocated since the program began.
pub fn global_allocations() -> Allocations {
    Allocations {
        count: GLOBAL_COUNT.load(Ordering::Relaxed),
        bytes: GLOBAL_BYTES.load(Ordering::Relaxed),
    }
}

/// Bytes allocated and not freed, in all threads.
pub fn live_bytes() -> u64 {
    LIVE_BYTES.load(Ordering::Relaxed)
}

/// The most that [`live_bytes`] has been since [`reset_peak`].
pub fn peak_bytes() -> u64 {
    PEAK_BYTES.load(Ordering::Relaxed)
}

/// Makes [`peak_bytes`] begin again at what is live now.
pub fn reset_peak() {
    PEAK_BYTES.store(live_bytes(), Ordering::Relaxed);
}

fn record_alloc(bytes: usize) {
    let bytes = bytes as u64;
    // A thread that is ending has no locals any more; its last allocations count globally only.
    let _ = THREAD_COUNT.try_with(|count| count.set(count.get() + 1));
    let _ = THREAD_BYTES.try_with(|total| total.set(total.get() + bytes));
    GLOBAL_COUNT.fetch_add(1, Ordering::Relaxed);
    GLOBAL_BYTES.fetch_add(bytes, Ordering::Relaxed);
    let live = LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
}

fn record_free(bytes: usize) {
    LIVE_BYTES.fetch_sub(bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call is passed on to `System` unchanged and its result is returned unchanged;
// what is recorded beside it neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record_alloc(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        record_alloc(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        record_free(layout.size());
        record_alloc(new_size);
        // SAFETY: `pointer` came from `System`, as all of this allocator's do, and the caller
        // keeps the rest of the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        record_free(layout.size());
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
