//! ggml's K-quants, and a ternary format that lies alike.
//!
//! A group here is 64 weights, four runs: two planes of 32 bytes, each in two halves. Scales, and
//! what is taken off, are kept as one number per run or per plane, so that a weight is
//! `code · scale + offset`.

use super::{bytes_of_words, half, layout, sixteen, stored, word};
use crate::cpu::{
    decode::{Decoder, Run},
    ints::Ints,
    lanes::{Lanes, Sixteen},
};

/// Scales and offsets of sixteen runs.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct RunHeads {
    scales: Sixteen,
    offsets: Sixteen,
}

impl RunHeads {
    #[inline(always)]
    fn new<L: Lanes>(lanes: L, scales: L::F, offsets: L::F) -> Self {
        Self { scales: stored(lanes, scales), offsets: stored(lanes, offsets) }
    }
}

/// What the runs of a group have in common where every run has a scale.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Shared<L: Lanes> {
    scales: [f32; 4],
    offsets: [f32; 4],
    /// Bits of the codes of both planes, by half: those of the first plane lowest.
    low: [L::Bytes; 2],
    /// What they have above, if it lies elsewhere.
    upper: [L::Bytes; 2],
}

impl<L: Lanes> Shared<L> {
    #[inline(always)]
    fn new(heads: &RunHeads, group: usize, low: [L::Bytes; 2], upper: [L::Bytes; 2]) -> Self {
        let scales = heads.scales.as_chunks().0[group];
        let offsets = heads.offsets.as_chunks().0[group];
        Self { scales, offsets, low, upper }
    }

    #[inline(always)]
    fn line(&self, lanes: L, codes: L::Bytes, run: usize) -> L::F {
        let (scale, offset) = (lanes.splat(self.scales[run]), lanes.splat(self.offsets[run]));
        lanes.fma(lanes.unsigned(codes), scale, offset)
    }
}

/// Both halves of the 32 bytes from `at` on, shifted and masked.
#[inline(always)]
fn halves<L: Lanes>(lanes: L, block: &[u8], at: usize, count: usize, mask: u8) -> [L::Bytes; 2] {
    [
        lanes.right(sixteen(lanes, block, at), count, mask),
        lanes.right(sixteen(lanes, block, at + 16), count, mask),
    ]
}

/// Two bits with a minimum.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Q2K;

impl Decoder for Q2K {
    type Head<L: Lanes> = RunHeads;
    type Group<L: Lanes> = Shared<L>;

    layout!(84, 4, 4);

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> RunHeads {
        let codes = sixteen(lanes, block, 0);
        let scales = lanes.unsigned(lanes.right(codes, 0, 15));
        let mins = lanes.unsigned(lanes.right(codes, 4, 15));
        let minus_dmin = lanes.sub(lanes.splat(0.0), half(lanes, block, 82));
        let scales = lanes.mul(scales, half(lanes, block, 80));
        RunHeads::new(lanes, scales, lanes.mul(mins, minus_dmin))
    }
    #[inline(always)]
    fn group<L: Lanes>(self, lanes: L, head: &RunHeads, block: &[u8], group: usize) -> Shared<L> {
        let low = halves(lanes, block, 16 + group / 2 * 32, group % 2 * 4, 15);
        Shared::new(head, group, low, low)
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, shared: &Shared<L>, _: &[u8], at: Run) -> L::F {
        let (plane, part) = (at.run / 2, at.run % 2);
        shared.line(lanes, lanes.right(shared.low[part], 2 * plane, 3), at.run)
    }
}

/// What the runs of a [`Tq2_0`] group have in common: the scale, the offset, and codes by half.
type Ternary<L> = (<L as Ints>::F, <L as Ints>::F, [<L as Lanes>::Bytes; 2]);

/// Two bits around 1, with one scale.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Tq2_0;

impl Decoder for Tq2_0 {
    type Head<L: Lanes> = L::F;
    type Group<L: Lanes> = Ternary<L>;

    layout!(66, 4, 4);

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> L::F {
        half(lanes, block, 64)
    }
    #[inline(always)]
    fn group<L: Lanes>(self, lanes: L, d: &L::F, block: &[u8], group: usize) -> Ternary<L> {
        let codes = halves(lanes, block, group / 2 * 32, group % 2 * 4, 15);
        (*d, lanes.sub(lanes.splat(0.0), *d), codes)
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, shared: &Ternary<L>, _: &[u8], at: Run) -> L::F {
        let (scale, offset, codes) = shared;
        let codes = lanes.right(codes[at.run % 2], at.run / 2 * 2, 3);
        lanes.fma(lanes.unsigned(codes), *scale, *offset)
    }
}

/// Three bits around 4.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Q3K;

impl Decoder for Q3K {
    type Head<L: Lanes> = RunHeads;
    type Group<L: Lanes> = Shared<L>;

    layout!(110, 4, 4);

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> RunHeads {
        let [a, b, upper] = [word(block, 96), word(block, 100), word(block, 104)];
        let words = [
            a & 0x0f0f_0f0f | (upper & 0x0303_0303) << 4,
            b & 0x0f0f_0f0f | (upper >> 2 & 0x0303_0303) << 4,
            a >> 4 & 0x0f0f_0f0f | (upper >> 4 & 0x0303_0303) << 4,
            b >> 4 & 0x0f0f_0f0f | (upper >> 6 & 0x0303_0303) << 4,
        ];
        let codes = lanes.unsigned(bytes_of_words(lanes, words));
        let scales = lanes.mul(lanes.sub(codes, lanes.splat(32.0)), half(lanes, block, 108));
        RunHeads::new(lanes, scales, lanes.mul(scales, lanes.splat(-4.0)))
    }
    #[inline(always)]
    fn group<L: Lanes>(self, lanes: L, head: &RunHeads, block: &[u8], group: usize) -> Shared<L> {
        let low = halves(lanes, block, 32 + group / 2 * 32, group % 2 * 4, 15);
        Shared::new(head, group, low, halves(lanes, block, 0, 2 * group, 3))
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, shared: &Shared<L>, _: &[u8], at: Run) -> L::F {
        let (plane, part) = (at.run / 2, at.run % 2);
        let low = lanes.right(shared.low[part], 2 * plane, 3);
        let high = lanes.left(shared.upper[part], 2 - plane, 4);
        shared.line(lanes, lanes.or(low, high), at.run)
    }
}

/// Scales, and offsets from lane 8 on, of the eight planes of a `q4_k` or `q5_k` block.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct PlaneHeads {
    scales: Sixteen,
    offsets: Sixteen,
}

impl PlaneHeads {
    #[inline(always)]
    fn new<L: Lanes>(lanes: L, block: &[u8]) -> Self {
        let [a, b, c] = [word(block, 4), word(block, 8), word(block, 12)];
        let words = [
            a & 0x3f3f_3f3f,
            c & 0x0f0f_0f0f | a >> 2 & 0x3030_3030,
            b & 0x3f3f_3f3f,
            c >> 4 & 0x0f0f_0f0f | b >> 2 & 0x3030_3030,
        ];
        let codes = lanes.unsigned(bytes_of_words(lanes, words));
        let minus_dmin = lanes.sub(lanes.splat(0.0), half(lanes, block, 2));
        Self {
            scales: stored(lanes, lanes.mul(codes, half(lanes, block, 0))),
            offsets: stored(lanes, lanes.mul(codes, minus_dmin)),
        }
    }

    #[inline(always)]
    fn line<L: Lanes>(&self, lanes: L, plane: usize) -> (L::F, L::F) {
        (lanes.splat(self.scales[plane]), lanes.splat(self.offsets[8 + plane]))
    }

    /// What the nibbles of a plane stand for.
    #[inline(always)]
    fn palette<L: Lanes>(&self, lanes: L, plane: usize) -> L::Palette {
        let (scale, offset) = self.line(lanes, plane);
        lanes.palette::<4, true>(scale, offset)
    }
}

/// Four bits with a minimum.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Q4K;

impl Decoder for Q4K {
    type Head<L: Lanes> = PlaneHeads;
    type Group<L: Lanes> = [L::Palette; 2];

    layout!(144, 4, 4);

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> PlaneHeads {
        PlaneHeads::new(lanes, block)
    }
    #[inline(always)]
    fn group<L: Lanes>(
        self,
        lanes: L,
        head: &PlaneHeads,
        _: &[u8],
        group: usize,
    ) -> [L::Palette; 2] {
        [head.palette(lanes, 2 * group), head.palette(lanes, 2 * group + 1)]
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, palettes: &[L::Palette; 2], block: &[u8], at: Run) -> L::F {
        let (plane, part) = (at.run / 2, at.run % 2);
        let bytes = sixteen(lanes, block, 16 + 32 * at.group + 16 * part);
        lanes.nibbles(palettes[plane], lanes.right(bytes, 4 * plane, u8::MAX))
    }
}

/// Five bits with a minimum.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Q5K;

/// What the runs of a [`Q5K`] group have in common.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct FiveBits<L: Lanes> {
    /// Scale and offset by plane.
    lines: [(L::F, L::F); 2],
    /// Fifth bits of both planes, by half.
    upper: [L::Bytes; 2],
}

impl Decoder for Q5K {
    type Head<L: Lanes> = PlaneHeads;
    type Group<L: Lanes> = FiveBits<L>;

    layout!(176, 4, 4);

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> PlaneHeads {
        PlaneHeads::new(lanes, block)
    }
    #[inline(always)]
    fn group<L: Lanes>(
        self,
        lanes: L,
        head: &PlaneHeads,
        block: &[u8],
        group: usize,
    ) -> FiveBits<L> {
        FiveBits {
            lines: [head.line(lanes, 2 * group), head.line(lanes, 2 * group + 1)],
            upper: halves(lanes, block, 16, 2 * group, 3),
        }
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, shared: &FiveBits<L>, block: &[u8], at: Run) -> L::F {
        let (plane, part) = (at.run / 2, at.run % 2);
        let low = sixteen(lanes, block, 48 + 32 * at.group + 16 * part);
        let low = lanes.right(low, 4 * plane, 15);
        let high = lanes.left(shared.upper[part], 4 - plane, 0x10);
        let (scale, offset) = shared.lines[plane];
        lanes.fma(lanes.unsigned(lanes.or(low, high)), scale, offset)
    }
}

/// Six bits around 32.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Q6K;

impl Decoder for Q6K {
    type Head<L: Lanes> = RunHeads;
    type Group<L: Lanes> = Shared<L>;

    layout!(210, 4, 4);

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> RunHeads {
        let codes = lanes.signed(sixteen(lanes, block, 192));
        let scales = lanes.mul(codes, half(lanes, block, 208));
        RunHeads::new(lanes, scales, lanes.mul(scales, lanes.splat(-32.0)))
    }
    #[inline(always)]
    fn group<L: Lanes>(self, lanes: L, head: &RunHeads, block: &[u8], group: usize) -> Shared<L> {
        let upper = halves(lanes, block, 128 + group / 2 * 32, group % 2 * 4, 15);
        Shared::new(head, group, upper, upper)
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, shared: &Shared<L>, block: &[u8], at: Run) -> L::F {
        let (plane, part) = (at.run / 2, at.run % 2);
        let low = sixteen(lanes, block, 64 * (at.group / 2) + 32 * plane + 16 * part);
        let low = lanes.right(low, at.group % 2 * 4, 15);
        let high = lanes.left(shared.upper[part], 4 - 2 * plane, 0x30);
        shared.line(lanes, lanes.or(low, high), at.run)
    }
}
