//! ggml's IQ1, IQ2 and IQ3 formats: eight weights are one word of bytes from a table.
//!
//! A table has what entries stand for, a byte per weight, so a run is two words of it. Values of `iq1` are
//! counted in eighths of the scale from -9 on: eight per step of the code, and 0 or 2 for the eighth.

use super::{bytes_of_pairs, half, layout, word};
use crate::cpu::{
    codebook::{EVEN_SIGNS, IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS},
    decode::{Decoder, Run},
    lanes::Lanes,
};

const ONES: u64 = 0x0101_0101_0101_0101;

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
        IQ1.eight([entry; 2]) + if head >> 15 == 0 { 2 * ONES } else { 0 }
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
        IQ1.eight([entry; 2]) + if upper & 8 == 0 { 2 * ONES } else { 0 }
    },
    |_block, _run| 0, zero 9.0
);

codebook!(
    /// Groups of 32 with even signs.
    Iq2Xxs, [66, 8, 2],
    |lanes, block| half(lanes, block, 0),
    |block, group| EIGHTHS[(word(block, 6 + 8 * group) >> 28) as usize],
    |block, i| IQ2_XXS.eight([usize::from(block[2 + i / 4 * 8 + i % 4]); 2]),
    |block, run| even_signs(word(block, 6 + run / 2 * 8) >> (run % 2 * 14)), zero 0.0
);

codebook!(
    /// Groups of 16 with even signs.
    Iq2Xs, [74, 16, 1],
    |lanes, block| half(lanes, block, 0),
    |block, group| EIGHTHS[nibble(block, 66, group)],
    |block, i| IQ2_XS.eight([usize::from(short(block, 2 + 2 * i) & 511); 2]),
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
        IQ2_S.eight([usize::from(block[2 + i]) | upper << 8; 2])
    },
    |block, run| short(block, 34 + 2 * run), zero 0.0
);

codebook!(
    /// Groups of 32 with even signs.
    Iq3Xxs, [98, 8, 2],
    |lanes, block| half(lanes, block, 0),
    |block, group| QUARTERS[(word(block, 66 + 4 * group) >> 28) as usize],
    |block, i| {
        IQ3_XXS.eight([usize::from(block[2 + 2 * i]), usize::from(block[3 + 2 * i])])
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
        IQ3_S.eight([low, high])
    },
    |block, run| short(block, 74 + 2 * run), zero 0.0
);
