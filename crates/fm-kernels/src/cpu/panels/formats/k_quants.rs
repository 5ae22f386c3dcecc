//! K-quants of ggml in panels, see `fm_format::quant::ggml::k_quants`.
//!
//! Lines lie in the order in which runs read them, headers first: what is read before its turn was not asked
//! for early enough (`docs/experiments/0049`).

use super::{NO_HALF, Panels, Word, copy_words, moved, nibbles};
use crate::cpu::{
    ints::{HalfLine, Line},
    lanes::Lanes,
};

/// `ggml` `Q4_K`: 256 weights in runs of 32, `d · scale · code - dmin · min`, scales of six bits.
///
/// ```text
/// line 0  d | dmin     lines 1-3  scales and mins     lines 4-35  codes: low nibbles 32, high nibbles 32, ×4
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Q4K;

/// What the header of a [`Q4K`] unit says: `d`, `-dmin`, scales and mins of six bits.
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Q4KHead<L: Lanes> {
    d: L::F,
    minus_dmin: L::F,
    scales: [L::I; 2],
    mins: [L::I; 2],
}

impl Panels for Q4K {
    const WEIGHTS: usize = 256;
    const LINES: usize = 36;
    const RUN: usize = 32;
    const CODE_MAX: u8 = 15;
    const BIASED: bool = true;
    const IN_ORDER: bool = true;
    type Head<L: Lanes> = Q4KHead<L>;

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line], _: &HalfLine) -> Q4KHead<L> {
        let (d, dmin) = lanes.f16_halves(lanes.words(&unit[0]));
        let (a, b, c) = (lanes.words(&unit[1]), lanes.words(&unit[2]), lanes.words(&unit[3]));
        let scales = lanes.union(lanes.field(c, 0, 15), lanes.field(a, 2, 0x30));
        let mins = lanes.union(lanes.field(c, 4, 15), lanes.field(b, 2, 0x30));
        Q4KHead {
            d,
            minus_dmin: lanes.sub(lanes.splat(0.0), dmin),
            scales: [lanes.field(a, 0, 63), scales],
            mins: [lanes.field(b, 0, 63), mins],
        }
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, _: &[Line], head: &Q4KHead<L>, run: usize) -> (L::F, L::F) {
        let scale = lanes.byte(head.scales[run / 4], run as u32 % 4);
        let min = lanes.byte(head.mins[run / 4], run as u32 % 4);
        (lanes.mul(head.d, scale), lanes.mul(head.minus_dmin, min))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        nibbles(lanes, lanes.words(&unit[4 + run / 2 * 8 + word]), run % 2)
    }
}

/// `ggml` `Q5_K`: as [`Q4K`], with fifth bits: bit `run` of 32 bytes.
///
/// ```text
/// line 0  d | dmin     lines 1-3  scales and mins     lines 4-11  fifth bits     lines 12-43  nibbles as in `Q4_K`
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Q5K;

impl Panels for Q5K {
    const WEIGHTS: usize = 256;
    const LINES: usize = 44;
    const RUN: usize = 32;
    const CODE_MAX: u8 = 31;
    const BIASED: bool = true;
    const IN_ORDER: bool = true;
    type Head<L: Lanes> = Q4KHead<L>;

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line], half: &HalfLine) -> Q4KHead<L> {
        Q4K.head(lanes, unit, half)
    }
    #[inline(always)]
    fn scale<L: Lanes>(
        self,
        lanes: L,
        unit: &[Line],
        head: &Q4KHead<L>,
        run: usize,
    ) -> (L::F, L::F) {
        Q4K.scale(lanes, unit, head, run)
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let low = nibbles(lanes, lanes.words(&unit[12 + run / 2 * 8 + word]), run % 2);
        lanes.union(low, moved(lanes, lanes.words(&unit[4 + word]), (run, 4), 1))
    }
}

/// `ggml` `Q2_K`: 256 weights in runs of 16, `d · scale · code - dmin · min`.
///
/// ```text
/// line 0  d | dmin     lines 1-4  mins and scales, nibbles     lines 5-20  codes: 8 lines for 128, in four planes
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Q2K;

impl Panels for Q2K {
    const WEIGHTS: usize = 256;
    const LINES: usize = 21;
    const RUN: usize = 16;
    const CODE_MAX: u8 = 3;
    const BIASED: bool = true;
    type Head<L: Lanes> = (L::F, L::F);

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        let (head, rest) = words.split_at_mut(1);
        copy_words(unit, 80, head);
        copy_words(unit, 0, rest);
        NO_HALF
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line], _: &HalfLine) -> (L::F, L::F) {
        let (d, dmin) = lanes.f16_halves(lanes.words(&unit[0]));
        (d, lanes.sub(lanes.splat(0.0), dmin))
    }
    #[inline(always)]
    fn scale<L: Lanes>(
        self,
        lanes: L,
        unit: &[Line],
        (d, minus_dmin): &(L::F, L::F),
        run: usize,
    ) -> (L::F, L::F) {
        let heads = lanes.words(&unit[1 + run / 4]);
        let scale = lanes.byte(nibbles(lanes, heads, 0), run as u32 % 4);
        let min = lanes.byte(nibbles(lanes, heads, 1), run as u32 % 4);
        (lanes.mul(*d, scale), lanes.mul(*minus_dmin, min))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        two_bits(lanes, &unit[5..], run, word)
    }
}

/// Two bits of codes `4 · word ..` of a run of 16, from lines of 256: four planes of every 32 bytes.
#[inline(always)]
fn two_bits<L: Lanes>(lanes: L, lines: &[Line], run: usize, word: usize) -> L::I {
    let (half, plane, at) = (run / 8, run % 8 / 2, run % 2 * 4 + word);
    moved(lanes, lanes.words(&lines[half * 8 + at]), (2 * plane, 0), 2)
}

/// `ggml` `Q3_K`: 256 weights in runs of 16, `d · (scale - 32) · (code - 4)`, scales of six bits.
///
/// ```text
/// lines 0-2  scales     lines 3-10  third bits: bit of every 32 weights     lines 11-26  codes as in `Q2_K`     half  d
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Q3K;

impl Panels for Q3K {
    const WEIGHTS: usize = 256;
    const LINES: usize = 27;
    const HALF: bool = true;
    const RUN: usize = 16;
    const CODE_MAX: u8 = 7;
    const OFFSET: i32 = 4;
    type Head<L: Lanes> = L::F;

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        let (scales, codes) = words.split_at_mut(3);
        copy_words(unit, 96, scales);
        copy_words(unit, 0, codes);
        [unit[108], unit[109]]
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, _: &[Line], half: &HalfLine) -> L::F {
        lanes.f16(half)
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], d: &L::F, run: usize) -> (L::F, L::F) {
        let low = nibbles(lanes, lanes.words(&unit[run / 4 % 2]), run / 8);
        let upper = moved(lanes, lanes.words(&unit[2]), (run / 4 * 2, 4), 2);
        let scale = lanes.byte(lanes.union(low, upper), run as u32 % 4);
        (lanes.mul(*d, lanes.sub(scale, lanes.splat(32.0))), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let third = lanes.words(&unit[3 + run % 2 * 4 + word]);
        lanes.union(two_bits(lanes, &unit[11..], run, word), moved(lanes, third, (run / 2, 2), 1))
    }
}

/// `ggml` `Q6_K`: 256 weights in runs of 16, `d · scale · (code - 32)`.
///
/// ```text
/// lines 0-3  scales     of either 128: 8 lines of upper bits, 16 of low nibbles     half  d
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Q6K;

impl Panels for Q6K {
    const WEIGHTS: usize = 256;
    const LINES: usize = 52;
    const HALF: bool = true;
    const RUN: usize = 16;
    const CODE_MAX: u8 = 63;
    const OFFSET: i32 = 32;
    type Head<L: Lanes> = L::F;

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        let (scales, codes) = words.split_at_mut(4);
        copy_words(unit, 192, scales);
        for (half, lines) in codes.chunks_exact_mut(24).enumerate() {
            let (upper, low) = lines.split_at_mut(8);
            copy_words(unit, 128 + 32 * half, upper);
            copy_words(unit, 64 * half, low);
        }
        [unit[208], unit[209]]
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, _: &[Line], half: &HalfLine) -> L::F {
        lanes.f16(half)
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], d: &L::F, run: usize) -> (L::F, L::F) {
        let scale = lanes.signed_byte(lanes.words(&unit[run / 4]), run as u32 % 4);
        (lanes.mul(*d, scale), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        // 128 weights: low nibbles of 64 bytes, then their high ones; two bits each of 32 bytes.
        let (half, plane, at) = (run / 8, run % 8 / 2, run % 2 * 4 + word);
        let lines = &unit[4 + 24 * half..];
        let (upper, low) = (lanes.words(&lines[at]), lanes.words(&lines[8 + plane % 2 * 8 + at]));
        lanes.union(nibbles(lanes, low, plane / 2), moved(lanes, upper, (2 * plane, 4), 2))
    }
}
