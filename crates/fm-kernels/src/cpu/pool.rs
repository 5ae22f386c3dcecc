//! A fork-join pool for tasks of ten microseconds.
//!
//! The calling thread takes part and would finish everything by itself; workers that wake up in
//! time help. Only workers that *joined* are waited for, so that a busy machine costs the help of
//! a worker and never the time slice of whoever stands in its way. Idle workers spin for
//! [`SPIN`], because the next operation usually follows at once, and then park.
//!
//! Every thread owns one contiguous range of the tasks, since a thread that streams neighbouring
//! weights keeps its prefetches; whoever is done early steals from the ranges of others.
//!
//! Who joins, sleeps, wakes and leaves is `pool/fork_join.rs`, which a model checker goes through.

mod fork_join;

use std::{
    any::Any,
    cell::UnsafeCell,
    fmt, io,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use self::fork_join::{ForkJoin, Found};
use crate::host::Parallel;

/// How long an idle worker burns its core before it parks: longer than the serial stretches
/// between the matrix products of a layer, far shorter than a read from the disk.
const SPIN: Duration = Duration::from_micros(40);

/// Spins between two looks at the clock; the clock costs about as much as this many spins.
const SPINS_PER_LOOK: u32 = 64;

/// A payload that a panicking task left.
type Payload = Box<dyn Any + Send>;

/// The task of the current operation, without its lifetime.
type Task = *const (dyn Fn(usize) + Sync);

/// Threads that share the tasks of one operation at a time.
///
/// One operation runs at a time. A call from inside a task, or from a second thread while an
/// operation runs, is legal and executes its tasks one after the other on the calling thread.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One operation at a time: whoever finds this set works alone.
    busy: AtomicBool,
}

struct Shared {
    protocol: ForkJoin,
    /// Written by the caller while the pool is closed and nobody is joined; read by joined workers.
    job: UnsafeCell<Job>,
    /// The first panic of the current operation.
    panic: Mutex<Option<Payload>>,
}

#[derive(Clone, Copy)]
struct Job {
    task: Task,
    tasks: usize,
}

// SAFETY: `job` is the only field that is not Sync by itself. The caller writes it while the pool
// is closed and empty, and publishes it by opening; a worker reads it after it joined, and the
// caller does not write again before that worker has left. The task behind the pointer is Sync.
unsafe impl Sync for Shared {}

// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, the caller included, or of as many as the system gives.
    ///
    /// # Panics
    /// If `threads` is zero.
    pub(super) fn new(threads: usize) -> Self {
        Self::start(threads, |shared, thread| {
            let named = thread::Builder::new().name(format!("flash-moe cpu {thread}"));
            named.spawn(move || work(&shared, thread))
        })
    }

    fn start(
        threads: usize,
        spawn: impl Fn(Arc<Shared>, usize) -> io::Result<JoinHandle<()>>,
    ) -> Self {
        assert!(threads > 0, "the caller itself is a thread");
        let shared = Arc::new(Shared {
            protocol: ForkJoin::new(threads),
            job: UnsafeCell::new(Job { task: &|_| {}, tasks: 0 }),
            panic: Mutex::new(None),
        });
        // A worker that is missing looks like one that is always late: others run its tasks, and it
        // never sleeps, so that nobody wakes it.
        let spawned = (1..threads).map_while(|thread| spawn(Arc::clone(&shared), thread).ok());
        let workers = spawned.collect();
        Self { shared, workers, busy: AtomicBool::new(false) }
    }

    /// Runs `task(i)` for every `i` below `tasks`, each exactly once, and returns when all are done.
    ///
    /// # Panics
    /// If a task panics, with its payload, after every task that had begun has ended.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let alone = tasks <= 1 || self.workers.is_empty() || self.busy.swap(true, Acquire);
        if alone {
            return (0..tasks).for_each(task);
        }
        self.fork(tasks, task);
        self.shared.drain(0, task, tasks);
        self.shared.protocol.close();
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.busy.store(false, Release);
        if let Some(payload) = panic {
            panic::resume_unwind(payload);
        }
    }

    /// Publishes the tasks and wakes the workers that sleep.
    fn fork(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime is erased. `run` does not return before `close` has seen every
        // worker leave, and a worker that has not joined does not touch the job.
        let task: Task = unsafe { std::mem::transmute(task) };
        // SAFETY: the pool is closed and empty: `busy` is ours, and the last `close` waited.
        unsafe { *self.shared.job.get() = Job { task, tasks } };
        let wake = |thread: usize| Thread::unpark(self.workers[thread - 1].thread());
        self.shared.protocol.open(tasks, wake);
    }
}

impl Shared {
    /// Runs tasks until none is left.
    fn drain(&self, thread: usize, task: &(dyn Fn(usize) + Sync), tasks: usize) {
        let all = || self.protocol.drain(thread, tasks, task);
        // The closure's borrows outlive the panic only to be dropped with the operation.
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(all)) {
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(payload);
        }
    }

    /// Waits until there is an operation to join, and joins it. `None` when the pool is dropped.
    fn wait(&self, thread: usize, seen: u64) -> Option<u64> {
        let (mut spins, mut since) = (0_u32, None);
        loop {
            match self.protocol.look(thread, seen) {
                Found::Operation(epoch) => return Some(epoch),
                Found::Stop => return None,
                Found::Nothing => std::hint::spin_loop(),
            }
            spins = spins.wrapping_add(1);
            if !spins.is_multiple_of(SPINS_PER_LOOK) {
                continue;
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= SPIN {
                self.protocol.sleep(thread, seen, thread::park);
                since = None;
            }
        }
    }
}

/// The life of a worker.
fn work(shared: &Shared, thread: usize) {
    let mut seen = 0;
    while let Some(epoch) = shared.wait(thread, seen) {
        seen = epoch;
        // SAFETY: this worker has joined, so the caller does not write the job.
        let Job { task, tasks } = unsafe { *shared.job.get() };
        // SAFETY: the caller is inside `run` until this worker leaves, and borrows the task there.
        let task = unsafe { &*task };
        shared.drain(thread, task, tasks);
        shared.protocol.leave(thread, epoch);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.protocol.stop();
        for worker in self.workers.drain(..) {
            Thread::unpark(worker.thread());
            // Panics of tasks are caught, so a worker cannot fail; and a drop must not panic.
            drop(worker.join());
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

/// A slice that several threads take disjoint chunks of.
struct Chunks<T> {
    start: *mut T,
    len: usize,
    chunk: usize,
}

// SAFETY: it gives out each chunk to one thread at a time, see `get`; that moves `T`s only.
unsafe impl<T: Send> Sync for Chunks<T> {}

impl<T> Chunks<T> {
    /// # Panics
    /// If `chunk` is zero.
    fn new(data: &mut [T], chunk: usize) -> Self {
        assert!(chunk > 0, "a chunk is not empty");
        Self { start: data.as_mut_ptr(), len: data.len(), chunk }
    }

    fn count(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    /// Chunk `i`, as `chunks_mut` would give it.
    ///
    /// # Safety
    /// `i < count()`; no chunk may be taken twice while the slice is borrowed.
    #[expect(clippy::mut_from_ref, reason = "disjoint by the contract")]
    unsafe fn get(&self, i: usize) -> &mut [T] {
        let first = i * self.chunk;
        let len = self.chunk.min(self.len - first);
        // SAFETY: `first` is inside the slice because `i < count()`.
        let start = unsafe { self.start.add(first) };
        // SAFETY: `len` stays inside the slice, and nobody else holds this chunk.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

impl Parallel for Pool {
    fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    fn for_each_chunk<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let chunks = Chunks::new(data, chunk);
        self.run(chunks.count(), &|i| {
            // SAFETY: `run` calls every index below the count exactly once.
            task(i, unsafe { chunks.get(i) });
        });
    }

    fn for_each_pair<A: Send, B: Send>(
        &self,
        (a, a_chunk): (&mut [A], usize),
        (b, b_chunk): (&mut [B], usize),
        task: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        let (a, b) = (Chunks::new(a, a_chunk), Chunks::new(b, b_chunk));
        self.run(a.count().min(b.count()), &|i| {
            // SAFETY: `run` calls every index below both counts exactly once.
            let a = unsafe { a.get(i) };
            // SAFETY: as above.
            task(i, a, unsafe { b.get(i) });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// Long enough for workers to be late, to park in between, and to meet every range length.
    const ROUNDS: usize = 20_000;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 4, 8] {
            let pool = Pool::new(threads);
            let mut counts = vec![0_u32; 64];
            for round in 0..ROUNDS / threads {
                let tasks = round % 64 + 1;
                counts.fill(0);
                pool.for_each_chunk(&mut counts[..tasks], 1, |_, count| {
                    count[0] += 1;
                    if round % 97 == 0 {
                        thread::yield_now();
                    }
                });
                if round % 1_000 == 0 {
                    thread::park_timeout(2 * SPIN); // let the workers park
                }
                assert!(counts[..tasks].iter().all(|count| *count == 1), "{threads}: {counts:?}");
                assert!(counts[tasks..].iter().all(|count| *count == 0), "{threads}: {counts:?}");
            }
        }
    }

    #[test]
    fn chunks_are_those_of_chunks_mut() {
        let pool = Pool::new(3);
        for (len, chunk) in [(0, 4), (1, 4), (7, 3), (8, 4), (100, 7)] {
            let mut data = vec![0; len];
            let mut want = vec![0; len];
            want.chunks_mut(chunk).enumerate().for_each(|(i, chunk)| chunk.fill(i + 1));
            pool.for_each_chunk(&mut data, chunk, |i, chunk| chunk.fill(i + 1));
            assert_eq!(data, want);

            let (mut a, mut b) = (vec![0; len], vec![0; 2 * len]);
            pool.for_each_pair((&mut a, chunk), (&mut b, 2 * chunk), |i, a, b| {
                a.fill(i + 1);
                b.fill(i + 1);
            });
            assert_eq!(a, want);
            assert!(b.chunks(2).zip(&want).all(|(pair, want)| pair == [*want; 2]));
        }
    }

    #[test]
    fn workers_do_help() {
        // Two tasks that wait for each other cannot finish on one thread.
        let pool = Pool::new(2);
        let arrived = AtomicU32::new(0);
        let mut data = [(); 2];
        pool.for_each_chunk(&mut data, 1, |_, _| {
            arrived.fetch_add(1, SeqCst);
            while arrived.load(SeqCst) < 2 {
                thread::yield_now();
            }
        });
    }

    #[test]
    fn a_pool_works_with_the_threads_it_got() {
        for given in 0..3 {
            let pool = Pool::start(8, |shared, thread| {
                let refused = || Err(io::ErrorKind::WouldBlock.into());
                let started = || Ok(thread::spawn(move || work(&shared, thread)));
                if thread > given { refused() } else { started() }
            });
            assert_eq!(pool.threads(), given + 1);
            for round in 0..ROUNDS / 20 {
                let mut counts = vec![0_u32; round % 64 + 1];
                pool.for_each_chunk(&mut counts, 1, |_, count| count[0] += 1);
                assert!(counts.iter().all(|count| *count == 1), "{given}: {counts:?}");
            }
            let shared = Arc::clone(&pool.shared);
            drop(pool);
            assert_eq!(Arc::strong_count(&shared), 1, "no worker is left");
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(4);
        for bad in 0..32 {
            let mut data = [0_u8; 32];
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                pool.for_each_chunk(&mut data, 1, |i, _| assert_ne!(i, bad, "task {bad}"));
            }));
            let payload = outcome.expect_err("the panic comes through");
            let message = payload.downcast_ref::<String>().expect("its payload is kept");
            assert!(message.contains(&format!("task {bad}")), "{message}");
            pool.for_each_chunk(&mut data, 1, |_, byte| byte[0] = 1);
            assert_eq!(data, [1; 32]);
        }
    }

    #[test]
    fn a_nested_operation_runs_alone() {
        let pool = Pool::new(2);
        let mut outer = vec![0_usize; 8];
        pool.for_each_chunk(&mut outer, 1, |i, out| {
            let mut inner = vec![0; 5];
            pool.for_each_chunk(&mut inner, 1, |j, value| value[0] = i * j);
            out[0] = inner.iter().sum();
        });
        assert_eq!(outer, (0..8).map(|i| i * 10).collect::<Vec<_>>());
    }

    #[test]
    fn operations_of_two_threads_do_not_mix() {
        let pool = Pool::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut data = [0_u8; 8];
                        pool.for_each_chunk(&mut data, 1, |i, byte| byte[0] += i as u8);
                        assert_eq!(data, [0, 1, 2, 3, 4, 5, 6, 7]);
                    }
                });
            }
        });
    }

    #[test]
    fn dropping_joins_workers_that_spin_and_workers_that_sleep() {
        for pause in [Duration::ZERO, 4 * SPIN] {
            let pool = Pool::new(4);
            let shared = Arc::clone(&pool.shared);
            thread::park_timeout(pause);
            drop(pool);
            assert_eq!(Arc::strong_count(&shared), 1, "no worker is left");
        }
    }
}
