//! Blocks of 32 weights of ggml in panels, see `fm_format::quant::ggml::legacy`.

use super::{NO_HALF, Panels, Word, copy_words, moved, nibble_planes};
use crate::cpu::{
    ints::{HalfLine, Line},
    lanes::Lanes,
};

/// `ggml` `Q8_0`: two blocks of 32 weights, `d · code`. Codes get 128 more, so that they have no sign.
///
/// ```text
/// line 0  d | d     lines 1-16  codes
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Q8_0;

impl Panels for Q8_0 {
    const WEIGHTS: usize = 64;
    const LINES: usize = 17;
    const RUN: usize = 32;
    const OFFSET: i32 = 128;
    const CODE_MAX: u8 = u8::MAX;
    type Head<L: Lanes> = (L::F, L::F);

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        two_scales(unit, words);
        NO_HALF
    }
    #[inline(always)]
    fn reorder<L: Lanes>(self, _: L, lines: &mut [Line]) {
        lines[1..].as_flattened_mut().iter_mut().for_each(|code| *code ^= 0x80);
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line], _: &HalfLine) -> (L::F, L::F) {
        lanes.f16_halves(lanes.words(&unit[0]))
    }
    #[inline(always)]
    fn scale<L: Lanes>(
        self,
        lanes: L,
        _: &[Line],
        head: &(L::F, L::F),
        run: usize,
    ) -> (L::F, L::F) {
        (if run == 0 { head.0 } else { head.1 }, lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        lanes.words(&unit[1 + run * 8 + word])
    }
}

/// Two blocks of an f16 and whole words: a word of both scales, then the words.
#[inline(always)]
pub(super) fn two_scales(unit: &[u8], words: &mut [Word]) {
    let (first, second) = unit.split_at(unit.len() / 2);
    words[0] = [first[0], first[1], second[0], second[1]];
    let (a, b) = words[1..].split_at_mut((first.len() - 2) / 4);
    copy_words(first, 2, a);
    copy_words(second, 2, b);
}

/// `ggml` `Q4_0`, `Q4_1`, `Q5_0` and `Q5_1`: two blocks of 32 weights, `d · (code - OFFSET)` or, with a
/// `MINIMUM`, `d · code + m`. Bits of the `FIFTH` words move so that those of four codes lie in four bytes.
///
/// ```text
/// line 0  d | d     with a minimum two lines d | m     then for each block   fifth bits   4 lines of nibbles
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Legacy<const FIFTH: bool, const MINIMUM: bool>;

impl<const FIFTH: bool, const MINIMUM: bool> Legacy<FIFTH, MINIMUM> {
    const HEAD_LINES: usize = if MINIMUM { 2 } else { 1 };
    const FIFTH_LINES: usize = if FIFTH { 1 } else { 0 };
    const BLOCK_LINES: usize = Self::FIFTH_LINES + 4;
}

/// Bit `4 · i + b` becomes bit `i` of byte `b`.
#[inline(always)]
fn spread_bits<L: Lanes>(lanes: L, words: L::I) -> L::I {
    let mut spread = lanes.splat_int(0);
    for byte in 0..4 {
        let mut bits = lanes.shifted(words, byte, 0x1111_1111);
        // Of two numbers of one, two and four bits the upper one moves to the lower one.
        for (count, low) in [(3, 0x0101_0101), (6, 0x0003_0003), (12, 0x0000_000f)] {
            let upper = lanes.shifted(bits, count, low << (count / 3));
            bits = lanes.union(lanes.shifted(bits, 0, low), upper);
        }
        spread = lanes.union(spread, lanes.shifted(bits, -8 * byte, 0xff << (8 * byte)));
    }
    spread
}

impl<const FIFTH: bool, const MINIMUM: bool> Panels for Legacy<FIFTH, MINIMUM> {
    const WEIGHTS: usize = 64;
    const LINES: usize = Self::HEAD_LINES + 2 * Self::BLOCK_LINES;
    const RUN: usize = 32;
    const OFFSET: i32 = match (MINIMUM, FIFTH) {
        (true, _) => 0,
        (false, false) => 8,
        (false, true) => 16,
    };
    const CODE_MAX: u8 = if FIFTH { 31 } else { 15 };
    const BIASED: bool = MINIMUM;
    type Head<L: Lanes> = ();

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        if MINIMUM {
            let (first, second) = unit.split_at(unit.len() / 2);
            copy_words(first, 0, &mut words[..1]);
            copy_words(second, 0, &mut words[1..2]);
            let (a, b) = words[2..].split_at_mut(Self::BLOCK_LINES);
            copy_words(first, 4, a);
            copy_words(second, 4, b);
        } else {
            two_scales(unit, words);
        }
        NO_HALF
    }
    #[inline(always)]
    fn reorder<L: Lanes>(self, lanes: L, lines: &mut [Line]) {
        if !FIFTH {
            return;
        }
        for block in lines[Self::HEAD_LINES..].chunks_exact_mut(Self::BLOCK_LINES) {
            lanes.store_words(spread_bits(lanes, lanes.words(&block[0])), &mut block[0]);
        }
    }
    #[inline(always)]
    fn head<L: Lanes>(self, _: L, _: &[Line], _: &HalfLine) {}
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], (): &(), run: usize) -> (L::F, L::F) {
        if MINIMUM {
            return lanes.f16_halves(lanes.words(&unit[run]));
        }
        let (first, second) = lanes.f16_halves(lanes.words(&unit[0]));
        (if run == 0 { first } else { second }, lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let block = &unit[Self::HEAD_LINES + run * Self::BLOCK_LINES..][..Self::BLOCK_LINES];
        let low = nibble_planes(lanes, &block[Self::FIFTH_LINES..], word);
        if !FIFTH {
            return low;
        }
        lanes.union(low, moved(lanes, lanes.words(&block[0]), (word, 4), 1))
    }
}
