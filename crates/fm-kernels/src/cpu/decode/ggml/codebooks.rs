//! ggml's IQ1, IQ2 and IQ3 formats: eight weights are one word of bytes from a table.
//!
//! Tables hold what entries stand for, a byte per weight, so a run is two words. Signs are applied
//! to whole words: no value is zero, so no byte overflows into the next when it is negated. Values
//! of `iq1` are counted in eighths of the scale from -9 on, which leaves bytes without a sign.

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

/// By eight signs, and by the first seven of which an even number is negative: bytes of ones where
/// a weight is negative.
static FLIPS: [u64; 256] = flips(false);
static EVEN_FLIPS: [u64; 128] = *flips::<256>(true).first_chunk().expect("half of the table");

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

const fn flips<const N: usize>(even: bool) -> [u64; N] {
    let mut flips = [0; N];
    let mut signs = 0;
    while signs < N {
        let odd = even && signs.count_ones() % 2 == 1;
        let signs_all = if odd { signs | 0x80 } else { signs };
        let mut at = 0;
        while at < 8 {
            flips[signs] |= if signs_all >> at & 1 == 1 { 0xff << (at * 8) } else { 0 };
            at += 1;
        }
        signs += 1;
    }
    flips
}

/// Negates the bytes that `flip` marks.
#[inline(always)]
fn negated(values: u64, flip: u64) -> u64 {
    (values ^ flip) + (flip & ONES)
}

/// The little-endian u16 at `at`.
#[inline(always)]
fn short(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*block[at..].first_chunk().expect("two bytes of the block"))
}

/// Nibble `i` from byte `at` on.
#[inline(always)]
fn nibble(block: &[u8], at: usize, i: usize) -> f32 {
    f32::from(block[at + i / 2] >> (i % 2 * 4) & 15)
}

/// A format: its bytes, groups and runs; the scale of its block; the factor of a group; eight weights
/// `i` as bytes. Weights are `scale · factor · (byte - zero)`.
macro_rules! codebook {
    (
        $(#[$what:meta])* $name:ident, [$bytes:literal, $groups:literal, $runs:literal],
        |$lanes:ident, $head:ident| $scale:expr, |$block:ident, $group:ident| $factor:expr,
        |$from:ident, $i:ident| $eight:expr, zero $zero:literal
    ) => {
        $(#[$what])*
        #[derive(Clone, Copy)]
        pub(in crate::cpu) struct $name;

        impl $name {
            #[inline(always)]
            fn eight($from: &[u8], $i: usize) -> u64 {
                $eight
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
                let i = (at.group * $runs + at.run) * 2;
                let words = [Self::eight(block, i), Self::eight(block, i + 1)];
                let numbers = lanes.signed(bytes_of_pairs(lanes, words));
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
    |block, group| f32::from(2 * (short(block, 34 + 2 * group) >> 12 & 7) + 1) / 8.0,
    |block, i| {
        let head = usize::from(short(block, 34 + i / 4 * 2));
        let entry = usize::from(block[2 + i]) | (head >> (i % 4 * 3) & 7) << 8;
        IQ1[entry] + if head >> 15 == 0 { 2 * ONES } else { 0 }
    },
    zero 9.0
);

codebook!(
    /// Groups of 16, a sign of the eighth for eight weights.
    Iq1M, [56, 16, 1],
    |lanes, block| {
        let head = |at: usize| short(block, 48 + 2 * at) >> 12 << (4 * at);
        lanes.f16_splat((head(0) | head(1) | head(2) | head(3)).to_le_bytes())
    },
    |block, group| {
        let code = short(block, 48 + group / 4 * 2) >> (group % 4 * 3) & 7;
        f32::from(2 * code + 1) / 8.0
    },
    |block, i| {
        let upper = usize::from(block[32 + i / 2] >> (i % 2 * 4));
        let entry = usize::from(block[i]) | (upper & 7) << 8;
        IQ1[entry] + if upper & 8 == 0 { 2 * ONES } else { 0 }
    },
    zero 9.0
);

codebook!(
    /// Groups of 32 with even signs.
    Iq2Xxs, [66, 8, 2],
    |lanes, block| half(lanes, block, 0),
    |block, group| (0.5 + (word(block, 6 + 8 * group) >> 28) as f32) * 0.25,
    |block, i| {
        let signs = word(block, 6 + i / 4 * 8) >> (i % 4 * 7) & 127;
        let entry = usize::from(block[2 + i / 4 * 8 + i % 4]);
        negated(IQ2_XXS[entry], EVEN_FLIPS[signs as usize])
    },
    zero 0.0
);

codebook!(
    /// Groups of 16 with even signs.
    Iq2Xs, [74, 16, 1],
    |lanes, block| half(lanes, block, 0),
    |block, group| (0.5 + nibble(block, 66, group)) * 0.25,
    |block, i| {
        let packed = usize::from(short(block, 2 + 2 * i));
        negated(IQ2_XS[packed & 511], EVEN_FLIPS[packed >> 9])
    },
    zero 0.0
);

codebook!(
    /// Groups of 16.
    Iq2S, [82, 16, 1],
    |lanes, block| half(lanes, block, 0),
    |block, group| (0.5 + nibble(block, 74, group)) * 0.25,
    |block, i| {
        let upper = usize::from(block[66 + i / 4] >> (i % 4 * 2) & 3);
        let entry = usize::from(block[2 + i]) | upper << 8;
        negated(IQ2_S[entry], FLIPS[usize::from(block[34 + i])])
    },
    zero 0.0
);

codebook!(
    /// Groups of 32 with even signs.
    Iq3Xxs, [98, 8, 2],
    |lanes, block| half(lanes, block, 0),
    |block, group| (0.5 + (word(block, 66 + 4 * group) >> 28) as f32) * 0.5,
    |block, i| {
        let signs = word(block, 66 + i / 4 * 4) >> (i % 4 * 7) & 127;
        let four = |at: usize| u64::from(IQ3_XXS[usize::from(block[2 + 2 * i + at])]);
        negated(four(0) | four(1) << 32, EVEN_FLIPS[signs as usize])
    },
    zero 0.0
);

codebook!(
    /// Groups of 32.
    Iq3S, [110, 8, 2],
    |lanes, block| half(lanes, block, 0),
    |block, group| 1.0 + 2.0 * nibble(block, 106, group),
    |block, i| {
        let upper = usize::from(block[66 + i / 4] >> (i % 4 * 2));
        let low = usize::from(block[2 + 2 * i]) | (upper & 1) << 8;
        let high = usize::from(block[3 + 2 * i]) | (upper >> 1 & 1) << 8;
        let values = u64::from(IQ3_S[low]) | u64::from(IQ3_S[high]) << 32;
        negated(values, FLIPS[usize::from(block[74 + i])])
    },
    zero 0.0
);
