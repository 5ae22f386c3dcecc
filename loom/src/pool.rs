//! The pool: every task runs once in every operation, and is over when the operation is.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::{
    cell::UnsafeCell,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use crate::{
    explore, explore_with,
    fork_join::{ForkJoin, Found},
};

/// What the pool holds beside the protocol. Loom's cells fail where two threads meet.
struct Shared {
    protocol: ForkJoin,
    /// What a task adds to its result: written between operations, read inside.
    job: UnsafeCell<usize>,
    tasks: usize,
    /// Written inside by whoever runs the task, read between operations.
    results: Vec<UnsafeCell<usize>>,
    /// The task that panics.
    bad: Option<usize>,
    panic: Mutex<Option<usize>>,
}

impl Shared {
    fn drain(&self, thread: usize) {
        let job = self.job.with(|job| unsafe { *job });
        let work = || {
            self.protocol.drain(thread, self.tasks, |task| {
                if self.bad == Some(task) {
                    // No hook, no message: as a panic that the pool has caught.
                    resume_unwind(Box::new(task));
                }
                self.results[task].with_mut(|result| unsafe { *result += job });
            });
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            let task = *payload.downcast::<usize>().expect("the panic of the task");
            *self.panic.lock().unwrap() = Some(task);
        }
    }

    /// The life of a worker; never spins, so that every look is followed by sleep.
    fn work(&self, thread: usize) {
        let mut seen = 0;
        loop {
            match self.protocol.look(thread, seen) {
                Found::Operation(epoch) => {
                    seen = epoch;
                    self.drain(thread);
                    self.protocol.leave(thread, epoch);
                }
                Found::Nothing => self.protocol.sleep(thread, seen, thread::park),
                Found::Stop => break,
            }
        }
    }
}

struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    fn new(threads: usize, tasks: usize, bad: Option<usize>) -> Self {
        let shared = Arc::new(Shared {
            protocol: ForkJoin::new(threads),
            job: UnsafeCell::new(0),
            tasks,
            results: (0..tasks).map(|_| UnsafeCell::new(0)).collect(),
            bad,
            panic: Mutex::new(None),
        });
        let workers = (1..threads).map(|thread| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.work(thread))
        });
        let workers = workers.collect();
        Self { shared, workers }
    }

    /// One operation.
    fn run(&self, job: usize) {
        let shared = &*self.shared;
        shared.job.with_mut(|cell| unsafe { *cell = job });
        shared.protocol.open(shared.tasks, |thread| self.workers[thread - 1].thread().unpark());
        shared.drain(0);
        shared.protocol.close();
    }

    fn results(&self) -> Vec<usize> {
        let read = |result: &UnsafeCell<usize>| result.with(|result| unsafe { *result });
        self.shared.results.iter().map(read).collect()
    }

    /// Ends the workers: loom calls it a deadlock if one sleeps for ever.
    fn stop(self) {
        self.shared.protocol.stop();
        for worker in self.workers {
            worker.thread().unpark();
            worker.join().unwrap();
        }
    }
}

#[test]
fn every_task_runs_once_in_every_operation_and_is_over_when_it_is() {
    explore(|| {
        let pool = Pool::new(2, 2, None);
        pool.run(1);
        assert_eq!(pool.results(), [1, 1]);
        pool.run(10);
        assert_eq!(pool.results(), [11, 11]);
        pool.stop();
    });
}

/// With one preemption: three threads have a hundred times as many orders with two.
#[test]
fn two_workers_do_not_meet() {
    explore_with(1, || {
        let pool = Pool::new(3, 3, None);
        pool.run(1);
        assert_eq!(pool.results(), [1, 1, 1]);
        pool.stop();
    });
}

/// The caller sleeps until the worker has done all: a worker that overslept would be a deadlock.
#[test]
fn a_worker_that_is_needed_comes() {
    explore(|| {
        let protocol = Arc::new(ForkJoin::new(2));
        let (own, caller) = (Arc::clone(&protocol), thread::current());
        let worker = thread::spawn(move || {
            let mut seen = 0;
            loop {
                match own.look(1, seen) {
                    Found::Operation(epoch) => {
                        seen = epoch;
                        own.drain(1, 2, |_| ());
                        own.leave(1, epoch);
                        caller.unpark();
                    }
                    Found::Nothing => own.sleep(1, seen, thread::park),
                    Found::Stop => break,
                }
            }
        });
        for _ in 0..2 {
            protocol.open(2, |_| worker.thread().unpark());
            thread::park();
            protocol.close();
        }
        protocol.stop();
        worker.thread().unpark();
        worker.join().unwrap();
    });
}

#[test]
fn a_panic_ends_its_thread_s_part_and_is_known_afterwards() {
    explore(|| {
        let pool = Pool::new(2, 2, Some(1));
        pool.run(1);
        assert_eq!(*pool.shared.panic.lock().unwrap(), Some(1));
        assert_eq!(pool.results(), [1, 0]);
        pool.stop();
    });
}
