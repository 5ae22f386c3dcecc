//! Integer sums of a run of weights with a run of activations, and the floats that they become.

use super::{PART_WORDS, Part, formats::Panels, words};
use crate::{
    cpu::{
        ints::{Ints, TURNS_MAX},
        lanes::Lanes,
    },
    reference::quantise::Block,
};

/// A block of activations, and which of its runs.
pub(super) type RunOf<'a, const CODES: usize> = (&'a Block<CODES>, usize);

/// Integer sums of some panels.
pub(super) type Dots<L, const CODES: usize, const N: usize> =
    [[[<L as Ints>::Dots; CODES]; N]; TURNS_MAX];

/// The sums before any product.
#[inline(always)]
pub(super) fn start<L: Lanes, P: Panels, const CODES: usize, const N: usize>(
    lanes: L,
    (block, within): RunOf<'_, CODES>,
) -> Dots<L, CODES, N> {
    let too_much = P::OFFSET - lanes.taken_from(P::CODE_MAX);
    let start = if too_much == 0 { 0 } else { -too_much * block.sum(P::RUN, within) };
    let mut dots = [[[lanes.dots(lanes.splat_int(0)); CODES]; N]; TURNS_MAX];
    // The last are the low ones: only they count once.
    for dots in &mut dots[0] {
        dots[CODES - 1] = lanes.dots(lanes.splat_int(start));
    }
    dots
}

/// `dots` and the products of a part of a run.
#[inline(always)]
pub(super) fn multiply<L: Lanes, P: Panels, const CODES: usize, const N: usize>(
    lanes: L,
    codes: [&Part<L>; N],
    ((block, within), part): (RunOf<'_, CODES>, usize),
    mut dots: Dots<L, CODES, N>,
) -> Dots<L, CODES, N> {
    // Not in the loop, which would be too much for the compiler to write out.
    if part > 0 {
        for sum in dots[..L::TURNS].as_flattened_mut().as_flattened_mut() {
            *sum = lanes.settled(*sum);
        }
    }
    #[allow(clippy::needless_range_loop)] // the words of every panel, not those of one
    for word in 0..words::<P>() {
        let (turn, sums) = (word / L::TURNS, &mut dots[word % L::TURNS]);
        let settles = turn > 0 && turn.is_multiple_of(lanes.settles_after(P::CODE_MAX));
        for (line, x) in block.codes.iter().enumerate() {
            let x = x.0.as_chunks().0[within * (P::RUN / 4) + part * PART_WORDS + word];
            for n in 0..N {
                let sum = &mut sums[n][line];
                if settles {
                    *sum = lanes.settled(*sum);
                }
                *sum = lanes.dot(P::CODE_MAX, codes[n][word], x, *sum);
            }
        }
        lanes.in_step(P::CODE_MAX, sums.as_flattened_mut());
    }
    dots
}

/// `sums` and the products of a run, scaled.
#[inline(always)]
pub(super) fn finish<L: Lanes, P: Panels, const CODES: usize, const N: usize>(
    lanes: L,
    factors: [(L::F, L::F); N],
    ((block, within), dots): (RunOf<'_, CODES>, Dots<L, CODES, N>),
    mut sums: [L::F; N],
) -> [L::F; N] {
    let block_scale = lanes.splat(block.scale);
    for n in 0..N {
        let mut lines = [lanes.splat_int(0); CODES];
        for line in 0..CODES {
            lines[line] = lanes.dots_words(dots[0][n][line]);
            for turn in &dots[1..L::TURNS] {
                lines[line] = lanes.sum_words(lines[line], lanes.dots_words(turn[n][line]));
            }
        }
        let [first, last] = [lines[0], lines[CODES - 1]];
        let dot = if CODES == 2 { lanes.join(first, last) } else { first };
        let (scale, bias) = factors[n];
        sums[n] = lanes.fma(lanes.to_float(dot), lanes.mul(scale, block_scale), sums[n]);
        if P::BIASED {
            let sum = lanes.splat(block.scaled_sum(P::RUN, within));
            sums[n] = lanes.fma(bias, sum, sums[n]);
        }
    }
    sums
}
