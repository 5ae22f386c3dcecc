//! Blocks of ggml, see `fm_format::quant::ggml`.
//!
//! Products of scales and codes are exact there, so a fused multiply-add gives the same weight as a
//! product and a sum: rounded once, if at all. A zero may have another sign, which no sum shows.

use fm_format::quant::ggml::{fp4, iq4};

use super::{Decoder, Run};
use crate::cpu::lanes::{Lanes, Sixteen};

pub(in crate::cpu) mod codebooks;
pub(in crate::cpu) mod k_quants;

/// Sixteen bytes of a block.
#[inline(always)]
fn sixteen<L: Lanes>(lanes: L, block: &[u8], at: usize) -> L::Bytes {
    lanes.bytes(block[at..].first_chunk().expect("sixteen bytes of the block"))
}

/// The f16 at `at` in every lane.
#[inline(always)]
fn half<L: Lanes>(lanes: L, block: &[u8], at: usize) -> L::F {
    lanes.f16_splat(*block[at..].first_chunk().expect("a scale in the block"))
}

/// The little-endian u32 at `at`.
#[inline(always)]
fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*block[at..].first_chunk().expect("a word of the block"))
}

/// Sixteen bytes, four from each word.
#[inline(always)]
fn bytes_of_words<L: Lanes>(lanes: L, words: [u32; 4]) -> L::Bytes {
    let mut bytes = [0; 16];
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    lanes.bytes(&bytes)
}

/// Scales of a block's groups in memory, where each is cheap to get at.
#[inline(always)]
fn stored<L: Lanes>(lanes: L, x: L::F) -> Sixteen {
    let mut all = [0.0; 16];
    lanes.store(x, &mut all);
    all
}

/// Bytes of a block, its groups, and runs of a group.
macro_rules! layout {
    ($block_bytes:literal, $groups:literal, $runs:literal) => {
        #[inline(always)]
        fn block_bytes(self) -> usize {
            $block_bytes
        }
        #[inline(always)]
        fn groups(self) -> usize {
            $groups
        }
        #[inline(always)]
        fn runs(self) -> usize {
            $runs
        }
    };
}
use layout;

/// A block of 32 weights that have one scale: what it is, its bytes, what its runs share and how
/// that is read, and how a run is decoded.
macro_rules! block_of_32 {
    (
        $(#[$what:meta])* $name:ident, $bytes:literal, $shared:ty,
        |$lanes:ident, $head:ident| $read:expr,
        |$common:ident, $block:ident, $run:ident| $decode:expr
    ) => {
        $(#[$what])*
        #[derive(Clone, Copy)]
        pub(in crate::cpu) struct $name;

        impl Decoder for $name {
            type Head<L: Lanes> = $shared;
            type Group<L: Lanes> = $shared;

            layout!($bytes, 1, 2);

            #[inline(always)]
            fn head<L: Lanes>(self, $lanes: L, $head: &[u8]) -> $shared {
                $read
            }
            #[inline(always)]
            fn group<L: Lanes>(self, _: L, head: &$shared, _: &[u8], _: usize) -> $shared {
                *head
            }
            #[inline(always)]
            fn decode<L: Lanes>(
                self,
                $lanes: L,
                $common: &$shared,
                $block: &[u8],
                Run { run: $run, .. }: Run,
            ) -> L::F {
                $decode
            }
        }
    };
}

block_of_32!(
    /// Four bits around 8.
    Q4_0, 18, L::Palette,
    |lanes, block| {
        let d = half(lanes, block, 0);
        lanes.palette::<4, true>(d, lanes.mul(d, lanes.splat(-8.0)))
    },
    |palette, block, run| nibbles(lanes, *palette, block, 2, run)
);

block_of_32!(
    /// Four bits from a minimum on.
    Q4_1, 20, L::Palette,
    |lanes, block| lanes.palette::<4, true>(half(lanes, block, 0), half(lanes, block, 2)),
    |palette, block, run| nibbles(lanes, *palette, block, 4, run)
);

block_of_32!(
    /// Five bits around 16.
    Q5_0, 22, (L::F, L::F),
    |lanes, block| {
        let d = half(lanes, block, 0);
        (d, lanes.mul(d, lanes.splat(-16.0)))
    },
    |line, block, run| lanes.fma(five_bits(lanes, block, 2, run), line.0, line.1)
);

block_of_32!(
    /// Five bits from a minimum on.
    Q5_1, 24, (L::F, L::F),
    |lanes, block| (half(lanes, block, 0), half(lanes, block, 2)),
    |line, block, run| lanes.fma(five_bits(lanes, block, 4, run), line.0, line.1)
);

block_of_32!(
    /// Signed bytes.
    Q8_0, 34, L::F,
    |lanes, block| half(lanes, block, 0),
    |d, block, run| lanes.mul(lanes.signed(sixteen(lanes, block, 2 + 16 * run)), *d)
);

block_of_32!(
    /// Four-bit floats.
    Mxfp4, 17, L::F,
    |lanes, block| lanes.splat(fp4::half_of_e8m0(block[0])),
    |scale, block, run| looked_up(lanes, &fp4::DOUBLED, *scale, (block, 1, run))
);

block_of_32!(
    /// Four-bit codes of sixteen values.
    Iq4Nl, 18, L::F,
    |lanes, block| half(lanes, block, 0),
    |d, block, run| looked_up(lanes, &iq4::VALUES, *d, (block, 2, run))
);

/// As [`Mxfp4`] in groups of 16 with eight-bit floats as scales.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Nvfp4;

impl Decoder for Nvfp4 {
    type Head<L: Lanes> = ();
    type Group<L: Lanes> = L::F;

    layout!(36, 4, 1);

    #[inline(always)]
    fn head<L: Lanes>(self, _: L, _: &[u8]) {}
    #[inline(always)]
    fn group<L: Lanes>(self, lanes: L, (): &(), block: &[u8], group: usize) -> L::F {
        lanes.splat(fp4::half_of_ue4m3(block[group]))
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, scale: &L::F, block: &[u8], at: Run) -> L::F {
        const LOWER: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        let bytes = block[4 + 8 * at.group..].first_chunk().expect("eight bytes of the block");
        let pairs = u64::from_le_bytes(*bytes);
        let codes = bytes_of_pairs(lanes, [pairs & LOWER, pairs >> 4 & LOWER]);
        lanes.mul(lanes.signed(lanes.look_up(&fp4::DOUBLED, codes)), *scale)
    }
}

/// As [`Iq4Nl`] in groups of 32 with six-bit scales.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Iq4Xs;

impl Decoder for Iq4Xs {
    type Head<L: Lanes> = Sixteen;
    type Group<L: Lanes> = L::F;

    layout!(136, 8, 2);

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> Sixteen {
        let (upper, lower) = (word(block, 0) >> 16, word(block, 4));
        let mut codes = [0; 16];
        for (group, code) in codes[..8].iter_mut().enumerate() {
            *code = (lower >> (4 * group) & 15 | (upper >> (2 * group) & 3) << 4) as u8;
        }
        let codes = lanes.sub(lanes.unsigned(lanes.bytes(&codes)), lanes.splat(32.0));
        stored(lanes, lanes.mul(codes, half(lanes, block, 0)))
    }
    #[inline(always)]
    fn group<L: Lanes>(self, lanes: L, scales: &Sixteen, _: &[u8], group: usize) -> L::F {
        lanes.splat(scales[group])
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, scale: &L::F, block: &[u8], at: Run) -> L::F {
        looked_up(lanes, &iq4::VALUES, *scale, (block, 8 + 16 * at.group, at.run))
    }
}

/// Plane `run` of the nibbles from byte `at` on.
#[inline(always)]
fn nibbles<L: Lanes>(lanes: L, palette: L::Palette, block: &[u8], at: usize, run: usize) -> L::F {
    lanes.nibbles(palette, lanes.right(sixteen(lanes, block, at), 4 * run, u8::MAX))
}

/// Plane `run` of the nibbles from byte `at` on, as values of a table times `scale`.
#[inline(always)]
fn looked_up<L: Lanes>(
    lanes: L,
    table: &[i8; 16],
    scale: L::F,
    (block, at, run): (&[u8], usize, usize),
) -> L::F {
    let codes = lanes.right(sixteen(lanes, block, at), 4 * run, 15);
    lanes.mul(lanes.signed(lanes.look_up(table, codes)), scale)
}

/// Codes of sixteen weights: from byte `at` on, a u32 of fifth bits and two planes of nibbles.
#[inline(always)]
fn five_bits<L: Lanes>(lanes: L, block: &[u8], at: usize, run: usize) -> L::F {
    let fifth = [spread_bits(block[at + 2 * run]), spread_bits(block[at + 2 * run + 1])];
    let fifth = lanes.right(bytes_of_pairs(lanes, fifth), 3, 0x10);
    let low = lanes.right(sixteen(lanes, block, at + 4), 4 * run, 15);
    lanes.unsigned(lanes.or(low, fifth))
}

/// The upper bit of byte `i` is bit `i`; the other bits of a byte are alike.
#[inline(always)]
fn spread_bits(bits: u8) -> u64 {
    let each = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    each + 0x7f7f_7f7f_7f7f_7f7f
}

/// Sixteen bytes, eight from each.
#[inline(always)]
fn bytes_of_pairs<L: Lanes>(lanes: L, pairs: [u64; 2]) -> L::Bytes {
    let mut bytes = [0; 16];
    for (bytes, pair) in bytes.as_chunks_mut().0.iter_mut().zip(pairs) {
        *bytes = pair.to_le_bytes();
    }
    lanes.bytes(&bytes)
}
