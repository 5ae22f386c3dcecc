//! Codes of ggml that are entries of a codebook, in panels; see `fm_format::quant::ggml::iq`.
//!
//! Weights come in 32s: a line has the lower bytes of four entries of eight weights, or two lines have those of
//! four entries of four weights each. Signs lie in the order of weights; where an even number of eight is
//! negative, seven of them do.

use super::{Panels, Word, copy_words};
use crate::cpu::{
    codebook::{self, Codebook},
    ints::{Four, HalfLine, Line},
    lanes::Lanes,
};

/// Words from byte 2 on, and the scale before them.
#[inline(always)]
fn behind_scale(unit: &[u8], words: &mut [Word]) -> [u8; 2] {
    copy_words(unit, 2, words);
    [unit[0], unit[1]]
}

/// `2 · code + 1` times `d`, for a code of four bits from bit `at` of words on.
#[inline(always)]
fn odd_scale<L: Lanes>(lanes: L, d: L::F, line: &Line, at: usize) -> L::F {
    let code = lanes.shifted(lanes.words(line), at as i32, 15);
    lanes.mul(d, lanes.fma(lanes.to_float(code), lanes.splat(2.0), lanes.splat(1.0)))
}

/// From bit `first` on, each `step` further than the one before.
#[inline(always)]
fn steps(first: usize, step: usize) -> [usize; 4] {
    [first, first + step, first + 2 * step, first + 3 * step]
}

/// Signs of four times eight weights, the seven of each from bit `from` on: an even number is negative.
#[inline(always)]
fn even_signs<L: Lanes>(lanes: L, words: L::I, from: [usize; 4]) -> L::I {
    lanes.with_parity(lanes.picked(words, from, 127))
}

/// Codes `4 · word ..` of 32 by their signs and entries, of which a line has four.
#[inline(always)]
fn codes_of<L: Lanes, const ENTRIES: usize, const WORDS: usize>(
    lanes: L,
    book: &Codebook<ENTRIES, WORDS>,
    entries: [L::I; 2],
    signs: L::I,
    word: usize,
) -> L::I {
    let four = Four { entry: word / WORDS % 4, word: word % WORDS, sign: 4 * word };
    lanes.four(book, entries, signs, four)
}

/// `ggml` `IQ2_XXS`: 256 weights in runs of 32, `d · (scale + 1/2) / 4 · ± number`.
///
/// ```text
/// of every 32   entries | even signs and scale     half  d
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Iq2Xxs;

impl Panels for Iq2Xxs {
    const WEIGHTS: usize = 256;
    const LINES: usize = 16;
    const HALF: bool = true;
    const RUN: usize = 32;
    const OFFSET: i32 = codebook::TWO_BITS_MAX;
    const CODE_MAX: u8 = 2 * codebook::TWO_BITS_MAX as u8;
    const WORDS_SHARE: bool = true;
    type Head<L: Lanes> = L::F;

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        behind_scale(unit, words)
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, _: &[Line], half: &HalfLine) -> L::F {
        lanes.mul(lanes.f16(half), lanes.splat(0.125))
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], d: &L::F, run: usize) -> (L::F, L::F) {
        (odd_scale(lanes, *d, &unit[2 * run + 1], 28), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let entries = [lanes.words(&unit[2 * run]), lanes.splat_int(0)];
        let signs = even_signs(lanes, lanes.words(&unit[2 * run + 1]), steps(0, 7));
        codes_of(lanes, &codebook::IQ2_XXS, entries, signs, word)
    }
}

/// `ggml` `IQ2_XS`: 256 weights in runs of 16, `d · (scale + 1/2) / 4 · ± number`.
///
/// ```text
/// of every 32   lower bytes of entries | their ninth bits and even signs     lines 16-17  scales     half  d
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Iq2Xs;

impl Panels for Iq2Xs {
    const WEIGHTS: usize = 256;
    const LINES: usize = 18;
    const HALF: bool = true;
    const RUN: usize = 16;
    const OFFSET: i32 = codebook::TWO_BITS_MAX;
    const CODE_MAX: u8 = 2 * codebook::TWO_BITS_MAX as u8;
    const WORDS_SHARE: bool = true;
    type Head<L: Lanes> = L::F;

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        let (pairs, scales) = words.split_at_mut(16);
        for (pair, entries) in pairs.as_chunks_mut().0.iter_mut().zip(unit[2..].as_chunks().0) {
            let [a, b, c, d, e, f, g, h]: [u8; 8] = *entries;
            *pair = [[a, c, e, g], [b, d, f, h]];
        }
        copy_words(unit, 66, scales);
        [unit[0], unit[1]]
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, _: &[Line], half: &HalfLine) -> L::F {
        lanes.mul(lanes.f16(half), lanes.splat(0.125))
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], d: &L::F, run: usize) -> (L::F, L::F) {
        (odd_scale(lanes, *d, &unit[16 + run / 8], 4 * (run % 8)), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let (of, word) = (run / 2, run % 2 * 4 + word);
        let upper = lanes.words(&unit[2 * of + 1]);
        let entries = [lanes.words(&unit[2 * of]), lanes.field(upper, 0, 1)];
        let signs = even_signs(lanes, upper, steps(1, 8));
        codes_of(lanes, &codebook::IQ2_XS, entries, signs, word)
    }
}

/// `ggml` `IQ2_S`: 256 weights in runs of 16, `d · (scale + 1/2) / 4 · ± number`.
///
/// ```text
/// lines 0-7  entries     lines 8-15  signs     lines 16-17  upper bits of entries     lines 18-19  scales     half  d
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Iq2S;

impl Panels for Iq2S {
    const WEIGHTS: usize = 256;
    const LINES: usize = 20;
    const HALF: bool = true;
    const RUN: usize = 16;
    const OFFSET: i32 = codebook::TWO_BITS_MAX;
    const CODE_MAX: u8 = 2 * codebook::TWO_BITS_MAX as u8;
    const WORDS_SHARE: bool = true;
    type Head<L: Lanes> = L::F;

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        behind_scale(unit, words)
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, _: &[Line], half: &HalfLine) -> L::F {
        lanes.mul(lanes.f16(half), lanes.splat(0.125))
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], d: &L::F, run: usize) -> (L::F, L::F) {
        (odd_scale(lanes, *d, &unit[18 + run / 8], 4 * (run % 8)), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let (of, word) = (run / 2, run % 2 * 4 + word);
        let upper = lanes.picked(lanes.words(&unit[16 + of / 4]), steps(8 * (of % 4), 2), 3);
        let entries = [lanes.words(&unit[of]), upper];
        codes_of(lanes, &codebook::IQ2_S, entries, lanes.words(&unit[8 + of]), word)
    }
}

/// `ggml` `IQ3_XXS`: 256 weights in runs of 32, `d · (scale + 1/2) / 2 · ± number`.
///
/// ```text
/// of every 32   entries, two lines     lines 16-23  even signs and scale     half  d
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Iq3Xxs;

impl Panels for Iq3Xxs {
    const WEIGHTS: usize = 256;
    const LINES: usize = 24;
    const HALF: bool = true;
    const RUN: usize = 32;
    const OFFSET: i32 = codebook::THREE_BITS_MAX;
    const CODE_MAX: u8 = 2 * codebook::THREE_BITS_MAX as u8;
    const WORDS_SHARE: bool = true;
    type Head<L: Lanes> = L::F;

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        behind_scale(unit, words)
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, _: &[Line], half: &HalfLine) -> L::F {
        lanes.mul(lanes.f16(half), lanes.splat(0.25))
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], d: &L::F, run: usize) -> (L::F, L::F) {
        (odd_scale(lanes, *d, &unit[16 + run], 28), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let entries = [lanes.words(&unit[2 * run + word / 4]), lanes.splat_int(0)];
        let signs = even_signs(lanes, lanes.words(&unit[16 + run]), steps(0, 7));
        codes_of(lanes, &codebook::IQ3_XXS, entries, signs, word)
    }
}

/// `ggml` `IQ3_S`: 256 weights in runs of 32, `d · (2 · scale + 1) · ± number`.
///
/// ```text
/// of every 32   entries, two lines     lines 16-17  ninth bits of entries     lines 18-25  signs     line 26  scales
///     half  d
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Iq3S;

impl Panels for Iq3S {
    const WEIGHTS: usize = 256;
    const LINES: usize = 27;
    const HALF: bool = true;
    const RUN: usize = 32;
    const OFFSET: i32 = codebook::ODD_MAX;
    const CODE_MAX: u8 = 2 * codebook::ODD_MAX as u8;
    const WORDS_SHARE: bool = true;
    type Head<L: Lanes> = L::F;

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        behind_scale(unit, words)
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, _: &[Line], half: &HalfLine) -> L::F {
        lanes.f16(half)
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], d: &L::F, run: usize) -> (L::F, L::F) {
        (odd_scale(lanes, *d, &unit[26], 4 * run), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let from = steps(8 * (run % 4) + word / 4 * 4, 1);
        let upper = lanes.picked(lanes.words(&unit[16 + run / 4]), from, 1);
        let entries = [lanes.words(&unit[2 * run + word / 4]), upper];
        codes_of(lanes, &codebook::IQ3_S, entries, lanes.words(&unit[18 + run]), word)
    }
}
