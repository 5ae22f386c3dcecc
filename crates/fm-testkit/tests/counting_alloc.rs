//! The counting allocator, in a program of its own because it counts for the whole program.

use std::thread;

use fm_testkit::counting_alloc::{
    Allocations, CountingAlloc, count_allocations, global_allocations, live_bytes, peak_bytes,
    reset_peak,
};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

/// One test, because the shared numbers see every thread.
#[test]
fn counts_what_is_allocated_and_by_whom() {
    let (_, none) = count_allocations(|| [0_u8; 64].iter().sum::<u8>());
    assert_eq!(none, Allocations::default());

    let (buffer, one) = count_allocations(|| Vec::<u8>::with_capacity(1000));
    assert_eq!(one, Allocations { count: 1, bytes: 1000 });
    drop(buffer);

    let before = global_allocations();
    let work = || count_allocations(|| Vec::<u8>::with_capacity(1 << 20).capacity()).1;
    let (other, mine) = count_allocations(|| thread::spawn(work).join().unwrap());
    assert_eq!(other, Allocations { count: 1, bytes: 1 << 20 });
    assert!(mine.bytes < 1 << 20, "another thread's allocations are not mine");
    assert!(global_allocations().bytes - before.bytes >= 1 << 20);

    reset_peak();
    let live = live_bytes();
    drop(vec![0_u8; 1 << 20]);
    assert!(peak_bytes() >= live + (1 << 20));
    assert!(live_bytes() < live + (1 << 20), "what is freed is not live");
}
