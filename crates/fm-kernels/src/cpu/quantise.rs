//! Activations as integers, see [`crate::reference::quantise`].

use crate::reference::quantise::{BLOCK, Block, RUN, nearest};

use super::lanes::{LANES, Lanes, Work};

/// The blocks of a row.
pub(super) struct Quantise<'a, const LINES: usize> {
    pub(super) row: &'a [f32],
    pub(super) blocks: &'a mut [Block<LINES>],
}

impl<const LINES: usize> Work for Quantise<'_, LINES> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { row, blocks } = self;
        assert_eq!(blocks.len(), row.len().div_ceil(BLOCK), "room for a row");
        let (whole, tail) = row.as_chunks();
        for (values, block) in whole.iter().zip(&mut *blocks) {
            *block = of(lanes, values);
        }
        if !tail.is_empty() {
            let mut values = [0.0; BLOCK];
            values[..tail.len()].copy_from_slice(tail);
            blocks[whole.len()] = of(lanes, &values);
        }
    }
}

/// See [`Block::of`].
#[inline(always)]
fn of<L: Lanes, const LINES: usize>(lanes: L, values: &[f32; BLOCK]) -> Block<LINES> {
    const { assert!(RUN == LANES, "the lanes of a vector are a run") };
    let (mut codes, mut sums) = ([0; BLOCK], [0; BLOCK / RUN]);
    let (scale, inverse) = Block::<LINES>::scale_of(values);
    if let Some(inverse) = inverse {
        let inverse = lanes.splat(inverse);
        let (mut runs, mut rounded) = ([inverse; BLOCK / RUN], [[0.0; RUN]; BLOCK / RUN]);
        for (at, x) in values.as_chunks().0.iter().enumerate() {
            runs[at] = lanes.round(lanes.mul(lanes.load(x), inverse));
            lanes.store(runs[at], &mut rounded[at]);
        }
        // Whole numbers this small have exact sums.
        for (sum, exact) in sums.iter_mut().zip(lanes.sums(runs)) {
            *sum = nearest(exact);
        }
        for (code, rounded) in codes.iter_mut().zip(rounded.as_flattened()) {
            *code = nearest(*rounded);
        }
    }
    Block::of_codes(scale, &codes, sums)
}
