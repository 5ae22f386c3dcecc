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

/// `dots` and the products of a part of a run.
#[inline(always)]
pub(super) fn multiply<L: Lanes, P: Panels, const CODES: usize, const N: usize>(
    lanes: L,
    codes: [&Part<L>; N],
    ((block, within), part): (RunOf<'_, CODES>, usize),
    mut dots: Dots<L, CODES, N>,
) -> Dots<L, CODES, N> {
    make_room(lanes, part, dots[..L::TURNS].as_flattened_mut().as_flattened_mut());
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

/// [`multiply`] for two rows of activations, which share loads of codes: sums do not go in turns.
#[inline(always)]
pub(super) fn multiply_two<L: Lanes, P: Panels, const CODES: usize, const N: usize>(
    lanes: L,
    codes: [&Part<L>; N],
    (x, part): ([RunOf<'_, CODES>; 2], usize),
    mut dots: [[[L::Dots; CODES]; N]; 2],
) -> [[[L::Dots; CODES]; N]; 2] {
    make_room(lanes, part, dots.as_flattened_mut().as_flattened_mut());
    let x = x.map(|(block, within)| {
        let first = within * (P::RUN / 4) + part * PART_WORDS;
        block.codes.each_ref().map(|line| &line.0.as_chunks().0[first..][..words::<P>()])
    });
    // A loop would be too much for the compiler to write out.
    macro_rules! words {
        ($($word:literal)*) => {$(
            if $word < words::<P>() {
                let settles = $word > 0 && $word % lanes.settles_after(P::CODE_MAX) == 0;
                for (sums, x) in dots.iter_mut().zip(&x) {
                    for n in 0..N {
                        for (sum, x) in sums[n].iter_mut().zip(x) {
                            if settles {
                                *sum = lanes.settled(*sum);
                            }
                            *sum = lanes.dot(P::CODE_MAX, codes[n][$word], x[$word], *sum);
                        }
                    }
                }
                lanes.in_step(P::CODE_MAX, dots.as_flattened_mut().as_flattened_mut());
            }
        )*};
    }
    const { assert!(PART_WORDS == 8, "all words are written out") };
    words!(0 1 2 3 4 5 6 7);
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
    for n in 0..N {
        let dot = lanes.to_float(whole::<L, CODES>(lanes, dots.each_ref().map(|turn| turn[n])));
        let biased = if P::BIASED { Some(block.scaled_sum(P::RUN, within)) } else { None };
        sums[n] = scaled(lanes, (dot, block.scale), factors[n], biased, sums[n]);
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

/// The integer that sums of one panel are.
#[inline(always)]
fn whole<L: Lanes, const CODES: usize>(lanes: L, dots: [[L::Dots; CODES]; TURNS_MAX]) -> L::I {
    let mut lines = dots[0];
    for line in 0..CODES {
        for turn in &dots[1..L::TURNS] {
            let words = (lanes.dots_words(lines[line]), lanes.dots_words(turn[line]));
            lines[line] = lanes.dots(lanes.sum_words(words.0, words.1));
        }
    }
    let [first, last] = [lines[0], lines[CODES - 1]];
    if CODES == 2 { lanes.join_dots(first, last) } else { lanes.dots_words(first) }
}
