//! Integer sums of a run of weights with a run of activations, and the floats that they become.

use super::{PART_WORDS, Part, for_words, formats::Panels, words};
use crate::{
    cpu::{
        ints::{Ints, TURNS_MAX},
        lanes::Lanes,
    },
    reference::quantise::Block,
};

/// A block of activations, and which of its runs.
pub(super) type RunOf<'a, const CODES: usize> = (&'a Block<CODES>, usize);

/// Integer sums of some rows of activations and some panels.
pub(super) type Dots<L, const CODES: usize, const N: usize, const ROWS: usize> =
    [[[[<L as Ints>::Dots; CODES]; N]; ROWS]; TURNS_MAX];

/// Sums that the words of a run go to in turns, where so many sums are added up anyway. Fewer than four words are not
/// worth a sum of their own, which has to be added to the others.
const fn turns<L: Lanes, P: Panels>(sums: usize) -> usize {
    let turns = L::SUMS / (sums * L::PARTS);
    let max = if P::RUN / 16 < L::TURNS { P::RUN / 16 } else { L::TURNS };
    if turns == 0 {
        1
    } else if turns < max {
        turns
    } else {
        max
    }
}

/// The sums before any product.
#[inline(always)]
pub(super) fn start<L: Lanes, P: Panels, const CODES: usize, const N: usize, const ROWS: usize>(
    lanes: L,
    x: [RunOf<'_, CODES>; ROWS],
) -> Dots<L, CODES, N, ROWS> {
    let too_much = P::OFFSET - lanes.taken_from(P::CODE_MAX);
    let mut dots = [[[[lanes.dots(lanes.splat_int(0)); CODES]; N]; ROWS]; TURNS_MAX];
    if too_much == 0 {
        return dots;
    }
    for (dots, (block, within)) in dots[0].iter_mut().zip(x) {
        let start = -too_much * block.sum(P::RUN, within);
        // The last are the low ones: only they count once.
        for dots in dots {
            dots[CODES - 1] = lanes.dots(lanes.splat_int(start));
        }
    }
    dots
}

/// The sums one by one.
#[inline(always)]
fn all_sums<T, const CODES: usize, const N: usize, const ROWS: usize>(
    dots: &mut [[[[T; CODES]; N]; ROWS]],
) -> &mut [T] {
    dots.as_flattened_mut().as_flattened_mut().as_flattened_mut()
}

/// Settles sums before a part that is not the first. In the loop over words it would be too much for the compiler to
/// write out.
#[inline(always)]
fn make_room<L: Lanes>(lanes: L, part: usize, dots: &mut [L::Dots]) {
    if part > 0 {
        for sum in dots {
            *sum = lanes.settled(*sum);
        }
    }
}

/// `dots` and the products of a part of a run with one row of activations.
#[inline(always)]
pub(super) fn multiply<L: Lanes, P: Panels, const CODES: usize, const N: usize>(
    lanes: L,
    codes: [&Part<L>; N],
    ([(block, within)], part): ([RunOf<'_, CODES>; 1], usize),
    mut dots: Dots<L, CODES, N, 1>,
) -> Dots<L, CODES, N, 1> {
    let turns = turns::<L, P>(N * CODES);
    make_room(lanes, part, all_sums(&mut dots[..turns]));
    #[allow(clippy::needless_range_loop)] // the words of every panel, not those of one
    for word in 0..words::<P>() {
        let (turn, [sums]) = (word / turns, &mut dots[word % turns]);
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
        if turns == 1 {
            lanes.in_step(P::CODE_MAX, sums.as_flattened_mut());
        }
    }
    dots
}

/// [`multiply`] for two rows of activations, which share loads of codes.
#[inline(always)]
pub(super) fn multiply_two<L: Lanes, P: Panels, const CODES: usize, const N: usize>(
    lanes: L,
    codes: [&Part<L>; N],
    (x, part): ([RunOf<'_, CODES>; 2], usize),
    mut dots: Dots<L, CODES, N, 2>,
) -> Dots<L, CODES, N, 2> {
    let turns = turns::<L, P>(2 * N * CODES);
    make_room(lanes, part, all_sums(&mut dots[..turns]));
    let x = x.map(|(block, within)| {
        let first = within * (P::RUN / 4) + part * PART_WORDS;
        block
            .codes
            .each_ref()
            .map(|line| lanes.at_hand(&line.0.as_chunks().0[first..][..words::<P>()]))
    });
    for_words!(P, word => {
        let (turn, sums) = (word / turns, &mut dots[word % turns]);
        let settles = turn > 0 && turn.is_multiple_of(lanes.settles_after(P::CODE_MAX));
        for (sums, x) in sums.iter_mut().zip(&x) {
            for n in 0..N {
                for (sum, x) in sums[n].iter_mut().zip(x) {
                    if settles {
                        *sum = lanes.settled(*sum);
                    }
                    *sum = lanes.dot(P::CODE_MAX, codes[n][word], x[word], *sum);
                }
            }
        }
        if (word + 1) % turns == 0 {
            lanes.in_step(P::CODE_MAX, all_sums(&mut dots[..turns]));
        }
    });
    dots
}

/// `sums` and the products of a run, scaled.
#[inline(always)]
pub(super) fn finish<L: Lanes, P: Panels, const CODES: usize, const N: usize, const ROWS: usize>(
    lanes: L,
    factors: [(L::F, L::F); N],
    (x, dots): ([RunOf<'_, CODES>; ROWS], Dots<L, CODES, N, ROWS>),
    mut sums: [[L::F; N]; ROWS],
) -> [[L::F; N]; ROWS] {
    let dots = in_one::<L, P, CODES, N, ROWS>(lanes, dots);
    for (row, (block, within)) in x.into_iter().enumerate() {
        for n in 0..N {
            let [first, last] = [dots[row][n][0], dots[row][n][CODES - 1]];
            let dot =
                if CODES == 2 { lanes.join_dots(first, last) } else { lanes.dots_words(first) };
            let biased = if P::BIASED { Some(block.scaled_sum(P::RUN, within)) } else { None };
            let dot = (lanes.to_float(dot), block.scale);
            sums[row][n] = scaled(lanes, dot, factors[n], biased, sums[row][n]);
        }
    }
    sums
}

/// `sum` and a product, times its scales; where weights have a bias, that times the sum of the activations.
#[inline(always)]
pub(super) fn scaled<L: Lanes>(
    lanes: L,
    (dot, block_scale): (L::F, f32),
    (scale, bias): (L::F, L::F),
    biased: Option<f32>,
    sum: L::F,
) -> L::F {
    let scale = lanes.mul(scale, lanes.splat(block_scale));
    let sum = lanes.fma(dot, scale, sum);
    // Not a closure: it would be compiled without the instructions at hand.
    if let Some(biased) = biased { lanes.fma(bias, lanes.splat(biased), sum) } else { sum }
}

/// The sums of all turns.
#[inline(always)]
fn in_one<L: Lanes, P: Panels, const CODES: usize, const N: usize, const ROWS: usize>(
    lanes: L,
    mut dots: Dots<L, CODES, N, ROWS>,
) -> [[[L::Dots; CODES]; N]; ROWS] {
    let mut turns = turns::<L, P>(ROWS * N * CODES);
    while turns > 1 {
        turns /= 2;
        let (sums, others) = dots.split_at_mut(turns);
        for (sum, other) in all_sums(sums).iter_mut().zip(all_sums(others)) {
            let words = lanes.sum_words(lanes.dots_words(*sum), lanes.dots_words(*other));
            *sum = lanes.dots(words);
        }
    }
    dots[0]
}
