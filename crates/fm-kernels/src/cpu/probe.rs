//! What this machine can do at most: ceilings to compare kernels with.

use std::time::{Duration, Instant};

use super::{
    dispatch::Level,
    lanes::{LANES, Lanes, Work},
    pool::Pool,
};
use crate::host::Parallel;

/// Chains of multiply-adds: more than two units of four cycles latency can have in flight.
const CHAINS: usize = 12;

/// Additions and multiplications of one round of [`multiply_add`].
pub const MULTIPLY_ADD_OPERATIONS: usize = CHAINS * LANES * 2;

/// How far ahead [`read`] asks for memory: from 4 KB on an Intel reads a tenth less (`docs/experiments/0073`).
const PREFETCH_BYTES: usize = 2 << 10;

/// Bytes of one step of [`read`].
const STEP_BYTES: usize = 256;

/// `rounds` rounds of independent multiply-adds in registers. Gives a number that depends on all.
pub fn multiply_add(level: Level, rounds: usize) -> f32 {
    level.run(MultiplyAdd { rounds })
}

/// Reads `bytes`, apart from a short rest. Gives a number that depends on all of them.
pub fn read(level: Level, bytes: &[u8]) -> f32 {
    level.run(Read { bytes })
}

/// How long `operations` of `threads` tasks take that do nothing, one behind the other.
pub fn fork_join(threads: usize, operations: usize) -> Duration {
    let (pool, mut tasks) = (Pool::new(threads), vec![0_u8; threads]);
    let started = Instant::now();
    for _ in 0..operations {
        pool.for_each_chunk(&mut tasks, 1, |_, task| {
            std::hint::black_box(task);
        });
    }
    started.elapsed()
}

struct MultiplyAdd {
    rounds: usize,
}

impl Work for MultiplyAdd {
    type Out = f32;

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) -> f32 {
        let factor = lanes.splat(std::hint::black_box(0.5));
        let mut sums = [factor; CHAINS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = lanes.fma(*sum, factor, factor);
            }
        }
        let mut all = sums[0];
        for sum in &sums[1..] {
            all = lanes.add(all, *sum);
        }
        lanes.sum(all)
    }
}

struct Read<'a> {
    bytes: &'a [u8],
}

impl Work for Read<'_> {
    type Out = f32;

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) -> f32 {
        let mut sums = [lanes.splat(0.0); STEP_BYTES / 64];
        for step in self.bytes.as_chunks::<STEP_BYTES>().0 {
            for (sum, line) in sums.iter_mut().zip(step.as_chunks::<64>().0) {
                lanes.prefetch(line, PREFETCH_BYTES);
                *sum = lanes.max(lanes.f32(line), *sum);
            }
        }
        lanes.sum(lanes.max(lanes.max(sums[0], sums[1]), lanes.max(sums[2], sums[3])))
    }
}
