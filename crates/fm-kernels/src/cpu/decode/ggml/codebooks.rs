//! ggml's IQ1, IQ2 and IQ3 formats: eight weights are one word of bytes from a table.
//!
//! Tables hold what entries stand for, a byte per weight, so a run is two words. Values of `iq1` are
//! counted in eighths of the scale from -9 on: eight per step of the code, and 0 or 2 for the eighth.

use fm_format::quant::ggml::{
    grids,
    iq::{THREE_BIT_VALUES, TWO_BIT_VALUES},
};

use super::{bytes_of_pairs, half, layout, word};
use crate::cpu::{
    decode::{Decoder, Run},
    lanes::Lanes,
};

const ONES: u64 = 0x0101_0101_0101_0101;

static IQ1: [u64; 2048] = words(&grids::IQ1, [0, 8, 16, 0]);
static IQ2_XXS: [u64; 256] = words(&grids::IQ2_XXS, TWO_BIT_VALUES);
static IQ2_XS: [u64; 512] = words(&grids::IQ2_XS, TWO_BIT_VALUES);
static IQ2_S: [u64; 1024] = words(&grids::IQ2_S, TWO_BIT_VALUES);
static IQ3_XXS: [u32; 256] = half_words(&grids::IQ3_XXS, THREE_BIT_VALUES);
static IQ3_S: [u32; 512] = half_words(&grids::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

/// Eight signs of which an even number is negative, by the first seven.
static EVEN_SIGNS: [u8; 128] = {
    let mut signs = [0; 128];
    let mut at = 0;
    while at < 128 {
        signs[at] = at as u8 | (at.count_ones() as u8 % 2) << 7;
        at += 1;
    }
    signs
};

/// What a scale's code stands for: `(2 · code + 1) / over`.
const fn factors(over: f32) -> [f32; 16] {
    let mut factors = [0.0; 16];
    let mut code = 0;
    while code < 16 {
        factors[code] = (2 * code + 1) as f32 / over;
        code += 1;
    }
    factors
}

static ODD: [f32; 16] = factors(1.0);
static QUARTERS: [f32; 16] = factors(4.0);
static EIGHTHS: [f32; 16] = factors(8.0);

/// Entries of eight two-bit codes as bytes.
const fn words<const N: usize>(book: &[u16; N], values: [u8; 4]) -> [u64; N] {
    let mut words = [0; N];
    let mut at = 0;
    while at < N * 8 {
        let value = values[(book[at / 8] >> (at % 8 * 2) & 3) as usize];
        words[at / 8] |= (value as u64) << (at % 8 * 8);
        at += 1;
    }
    words
}

/// Entries of four three-bit codes as bytes.
const fn half_words<const N: usize>(book: &[u16; N], values: [u8; 8]) -> [u32; N] {
    let mut words = [0; N];
    let mut at = 0;
    while at < N * 4 {
        let value = values[(book[at / 4] >> (at % 4 * 3) & 7) as usize];
        words[at / 4] |= (value as u32) << (at % 4 * 8);
        at += 1;
    }
    words
}

/// The little-endian u16 at `at`.
#[inline(always)]
fn short(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*block[at..].first_chunk().expect("two bytes of the block"))
}

/// Nibble `i` from byte `at` on.
#[inline(always)]
fn nibble(block: &[u8], at: usize, i: usize) -> usize {
    usize::from(block[at + i / 2] >> (i % 2 * 4) & 15)
}

/// Sixteen signs from twice seven bits.
#[inline(always)]
fn even_signs(bits: u32) -> u16 {
    let eight = |bits: u32| u16::from(EVEN_SIGNS[(bits & 127) as usize]);
    eight(bits) | eight(bits >> 7) << 8
}

/// A format: its bytes, groups and runs; the scale of its block; the factor of a group; weights `8 · i`
/// to `8 · i + 7` as bytes; the signs of a run. Weights are `± scale · factor · (byte - zero)`.
macro_rules! codebook {
    (
        $(#[$what:meta])* $name:ident, [$bytes:literal, $groups:literal, $runs:literal],
        |$lanes:ident, $head:ident| $scale:expr, |$block:ident, $group:ident| $factor:expr,
        |$from:ident, $i:ident| $eight:expr,
        |$marked:ident, $run:ident| $signs:expr, zero $zero:literal
    ) => {
        $(#[$what])*
        #[derive(Clone, Copy)]
        pub(in crate::cpu) struct $name;

        impl $name {
            #[inline(always)]
            fn eight($from: &[u8], $i: usize) -> u64 {
                $eight
            }
            #[inline(always)]
            fn signs($marked: &[u8], $run: usize) -> u16 {
                $signs
            }
        }

        impl Decoder for $name {
            type Head<L: Lanes> = L::F;
            type Group<L: Lanes> = (L::F, L::F);

            layout!($bytes, $groups, $runs);

            #[inline(always)]
            fn head<L: Lanes>(self, $lanes: L, $head: &[u8]) -> L::F {
                $scale
            }
            #[inline(always)]
            fn group<L: Lanes>(
                self,
                lanes: L,
                d: &L::F,
                $block: &[u8],
                $group: usize,
            ) -> (L::F, L::F) {
                let scale = lanes.mul(*d, lanes.splat($factor));
                (scale, lanes.mul(scale, lanes.splat(-$zero)))
            }
            #[inline(always)]
            fn decode<L: Lanes>(
                self,
                lanes: L,
                (scale, offset): &(L::F, L::F),
                block: &[u8],
                at: Run,
            ) -> L::F {
                let run = at.group * $runs + at.run;
                let words = [Self::eight(block, 2 * run), Self::eight(block, 2 * run + 1)];
                let bytes = bytes_of_pairs(lanes, words);
                let numbers = lanes.signed(lanes.negated(bytes, Self::signs(block, run)));
                if $zero == 0.0 {
                    lanes.mul(numbers, *scale)
                } else {
                    lanes.fma(numbers, *scale, *offset)
                }
            }
        }
    };
}

codebook!(
    /// Groups of 32, one sign of the eighth for all.
    Iq1S, [50, 8, 2],
    |lanes, block| half(lanes, block, 0),
    |block, group| EIGHTHS[usize::from(short(block, 34 + 2 * group) >> 12 & 7)],
    |block, i| {
        let head = usize::from(short(block, 34 + i / 4 * 2));
        let entry = usize::from(block[2 + i]) | (head >> (i % 4 * 3) & 7) << 8;
        IQ1[entry] + if head >> 15 == 0 { 2 * ONES } else { 0 }
    },
    |_block, _run| 0, zero 9.0
);

codebook!(
    /// Groups of 16, a sign of the eighth for eight weights.
    Iq1M, [56, 16, 1],
    |lanes, block| {
        let head = |at: usize| short(block, 48 + 2 * at) >> 12 << (4 * at);
        lanes.f16_splat((head(0) | head(1) | head(2) | head(3)).to_le_bytes())
    },
    |block, group| {
        EIGHTHS[usize::from(short(block, 48 + group / 4 * 2) >> (group % 4 * 3) & 7)]
    },
    |block, i| {
        let upper = usize::from(block[32 + i / 2] >> (i % 2 * 4));
        let entry = usize::from(block[i]) | (upper & 7) << 8;
        IQ1[entry] + if upper & 8 == 0 { 2 * ONES } else { 0 }
    },
    |_block, _run| 0, zero 9.0
);

codebook!(
    /// Groups of 32 with even signs.
    Iq2Xxs, [66, 8, 2],
    |lanes, block| half(lanes, block, 0),
    |block, group| EIGHTHS[(word(block, 6 + 8 * group) >> 28) as usize],
    |block, i| IQ2_XXS[usize::from(block[2 + i / 4 * 8 + i % 4])],
    |block, run| even_signs(word(block, 6 + run / 2 * 8) >> (run % 2 * 14)), zero 0.0
);

codebook!(
    /// Groups of 16 with even signs.
    Iq2Xs, [74, 16, 1],
    |lanes, block| half(lanes, block, 0),
    |block, group| EIGHTHS[nibble(block, 66, group)],
    |block, i| IQ2_XS[usize::from(short(block, 2 + 2 * i) & 511)],
    |block, run| {
        let pair = word(block, 2 + 4 * run);
        even_signs(pair >> 9 & 127 | pair >> 25 << 7)
    }, zero 0.0
);

codebook!(
    /// Groups of 16.
    Iq2S, [82, 16, 1],
    |lanes, block| half(lanes, block, 0),
    |block, group| EIGHTHS[nibble(block, 74, group)],
    |block, i| {
        let upper = usize::from(block[66 + i / 4] >> (i % 4 * 2) & 3);
        IQ2_S[usize::from(block[2 + i]) | upper << 8]
    },
    |block, run| short(block, 34 + 2 * run), zero 0.0
);

codebook!(
    /// Groups of 32 with even signs.
    Iq3Xxs, [98, 8, 2],
    |lanes, block| half(lanes, block, 0),
    |block, group| QUARTERS[(word(block, 66 + 4 * group) >> 28) as usize],
    |block, i| {
        let four = |at: usize| u64::from(IQ3_XXS[usize::from(block[2 + 2 * i + at])]);
        four(0) | four(1) << 32
    },
    |block, run| even_signs(word(block, 66 + run / 2 * 4) >> (run % 2 * 14)), zero 0.0
);

codebook!(
    /// Groups of 32.
    Iq3S, [110, 8, 2],
    |lanes, block| half(lanes, block, 0),
    |block, group| ODD[nibble(block, 106, group)],
    |block, i| {
        let upper = usize::from(block[66 + i / 4]) << 8 >> (i % 4 * 2);
        let low = usize::from(block[2 + 2 * i]) | upper & 256;
        let high = usize::from(block[3 + 2 * i]) | upper >> 1 & 256;
        u64::from(IQ3_S[low]) | u64::from(IQ3_S[high]) << 32
    },
    |block, run| short(block, 74 + 2 * run), zero 0.0
);
