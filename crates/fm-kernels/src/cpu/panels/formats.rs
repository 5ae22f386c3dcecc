//! How the blocks of a format lie in a panel.

use fm_format::quant::affine;

use crate::{
    cpu::{ints::Line, lanes::Lanes},
    host::PANEL_ROWS,
};

/// A format in panels. A unit is a run of whole blocks that is a whole number of words and of
/// activation blocks.
///
/// `weight = (code - OFFSET) · scale + bias`
pub(super) trait Panels: Copy + Sync {
    /// Weights of a unit, a multiple of 64.
    const WEIGHTS: usize;
    /// Words of a unit in a row, and lines of it in a panel.
    const LINES: usize;
    /// Neighbours that share a scale, or 32 of them: 16 or 32.
    const RUN: usize;
    /// What codes have too much.
    const OFFSET: i32 = 0;
    /// Whether weights have a bias.
    const BIASED: bool = false;
    /// Whether codes may be above 127.
    const WIDE: bool = false;
    /// What a unit's header says.
    type Head<L: Lanes>: Copy;

    /// A unit of a row as words, in the order of its lines.
    fn words(self, unit: &[u8], words: &mut [u32]);
    /// Reads the header of a unit.
    fn head<L: Lanes>(self, lanes: L, unit: &[Line]) -> Self::Head<L>;
    /// Scale and bias of a run.
    fn scale<L: Lanes>(
        self,
        lanes: L,
        unit: &[Line],
        head: &Self::Head<L>,
        run: usize,
    ) -> (L::F, L::F);
    /// Codes `4 · word ..` of a run.
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I;
}

/// Little-endian words from byte `at` of a unit on.
#[inline(always)]
fn copy_words(unit: &[u8], at: usize, words: &mut [u32]) {
    for (word, bytes) in words.iter_mut().zip(unit[at..].as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
}

/// The low nibbles of words, or the high ones.
#[inline(always)]
fn nibbles<L: Lanes>(lanes: L, words: L::I, half: usize) -> L::I {
    lanes.field(words, 4 * half as u32, 15)
}

/// `ggml` `Q4_K`: 256 weights in runs of 32, `d · scale · code - dmin · min`, scales of six bits.
///
/// ```text
/// line 0  d | dmin     lines 1-3  scales and mins     lines 4-35  codes: low nibbles 32, high nibbles 32, ×4
/// ```
#[derive(Clone, Copy)]
pub(super) struct Q4K;

/// What the header of a [`Q4K`] unit says: `d`, `-dmin`, scales and mins of six bits.
#[derive(Clone, Copy)]
pub(super) struct Q4KHead<L: Lanes> {
    d: L::F,
    minus_dmin: L::F,
    scales: [L::I; 2],
    mins: [L::I; 2],
}

impl Panels for Q4K {
    const WEIGHTS: usize = 256;
    const LINES: usize = 36;
    const RUN: usize = 32;
    const BIASED: bool = true;
    type Head<L: Lanes> = Q4KHead<L>;

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [u32]) {
        copy_words(unit, 0, words);
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line]) -> Q4KHead<L> {
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

/// `ggml` `Q6_K`: two blocks of 256 weights in runs of 16, `d · scale · (code - 32)`.
///
/// ```text
/// line 0  d | d     then for each block   32 lines of low nibbles   16 lines of upper bits   4 of scales
/// ```
#[derive(Clone, Copy)]
pub(super) struct Q6K;

impl Q6K {
    const BLOCK_BYTES: usize = 210;
    const BLOCK_LINES: usize = 52;

    /// The line where a block begins, and which of the 128s of the block a run is in.
    #[inline(always)]
    fn place(run: usize) -> (usize, usize, usize) {
        let (block, run) = (run / 16, run % 16);
        (1 + block * Self::BLOCK_LINES, run / 8, run % 8)
    }
}

impl Panels for Q6K {
    const WEIGHTS: usize = 512;
    const LINES: usize = 105;
    const RUN: usize = 16;
    const OFFSET: i32 = 32;
    type Head<L: Lanes> = (L::F, L::F);

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [u32]) {
        let (first, second) = unit.split_at(Self::BLOCK_BYTES);
        words[0] = u32::from_le_bytes([first[208], first[209], second[208], second[209]]);
        let (a, b) = words[1..].split_at_mut(Self::BLOCK_LINES);
        copy_words(first, 0, a);
        copy_words(second, 0, b);
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line]) -> (L::F, L::F) {
        lanes.f16_halves(lanes.words(&unit[0]))
    }
    #[inline(always)]
    fn scale<L: Lanes>(
        self,
        lanes: L,
        unit: &[Line],
        head: &(L::F, L::F),
        run: usize,
    ) -> (L::F, L::F) {
        let d = if run < 16 { head.0 } else { head.1 };
        let (first, half, within) = Self::place(run);
        let scales = lanes.words(&unit[first + 48 + half * 2 + within / 4]);
        let scale = lanes.signed_byte(scales, within as u32 % 4);
        (lanes.mul(d, scale), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let (first, half, within) = Self::place(run);
        // 128 weights: low nibbles of 64 bytes, then their high ones; two bits each of 32 bytes.
        let (plane, at) = (within / 2, within % 2 * 4 + word);
        let low = lanes.words(&unit[first + half * 16 + plane % 2 * 8 + at]);
        let upper = lanes.words(&unit[first + 32 + half * 8 + at]);
        let upper = lanes.field_left(lanes.field(upper, 2 * plane as u32, 3), 4, 0x30);
        lanes.union(nibbles(lanes, low, plane / 2), upper)
    }
}

/// `ggml` `Q8_0`: two blocks of 32 weights, `d · code`. Codes get 128 more, so that they have no sign.
///
/// ```text
/// line 0  d | d     lines 1-16  codes
/// ```
#[derive(Clone, Copy)]
pub(super) struct Q8_0;

impl Panels for Q8_0 {
    const WEIGHTS: usize = 64;
    const LINES: usize = 17;
    const RUN: usize = 32;
    const OFFSET: i32 = 128;
    const WIDE: bool = true;
    type Head<L: Lanes> = (L::F, L::F);

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [u32]) {
        let (first, second) = unit.split_at(34);
        words[0] = u32::from_le_bytes([first[0], first[1], second[0], second[1]]);
        let (a, b) = words[1..].split_at_mut(8);
        copy_words(first, 2, a);
        copy_words(second, 2, b);
        words[1..].iter_mut().for_each(|word| *word ^= 0x8080_8080);
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line]) -> (L::F, L::F) {
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

/// The weights of a unit of blocks of `group`: whole blocks, and whole blocks of activations.
const fn affine_weights(group: usize) -> usize {
    if group < 64 { 64 } else { group }
}

/// MLX affine blocks of four bits, see `fm_format::quant::affine`. Of every 64 codes the first 32 move
/// to the low nibbles and the others to the high ones.
///
/// ```text
/// one line of scale | bias for every block     then 8 lines of codes for every 64 weights
/// ```
#[derive(Clone, Copy)]
pub(super) struct Affine4<const GROUP: usize>;

/// Every byte of a word of two bytes apart: four nibbles to the low halves of four bytes.
#[inline(always)]
fn spread_nibbles(nibbles: u32) -> u32 {
    let pairs = (nibbles | nibbles << 8) & 0x00ff_00ff;
    (pairs | pairs << 4) & 0x0f0f_0f0f
}

impl<const GROUP: usize> Affine4<GROUP> {
    const BLOCKS: usize = affine_weights(GROUP) / GROUP;
    const BLOCK_BYTES: usize = affine::head_bytes(false) + GROUP / 2;
}

impl<const GROUP: usize> Panels for Affine4<GROUP> {
    const WEIGHTS: usize = affine_weights(GROUP);
    const LINES: usize = Self::BLOCKS + Self::WEIGHTS / 8;
    const RUN: usize = 32;
    const BIASED: bool = true;
    type Head<L: Lanes> = ();

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [u32]) {
        let mut stored = [0; 16];
        let (heads, codes) = words.split_at_mut(Self::BLOCKS);
        for (block, head) in unit.chunks_exact(Self::BLOCK_BYTES).zip(heads) {
            *head = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        }
        // Eight words hold 64 codes, of one block or of two.
        for (at, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            for (word, stored) in stored[..8].iter_mut().enumerate() {
                let code = at * 64 + word * 8;
                let byte = code / GROUP * Self::BLOCK_BYTES + 4 + code % GROUP / 2;
                copy_words(unit, byte, std::slice::from_mut(stored));
            }
            for (i, codes) in codes.iter_mut().enumerate() {
                let four = |word: u32| spread_nibbles(word >> (i % 2 * 16) & 0xffff);
                *codes = four(stored[i / 2]) | four(stored[4 + i / 2]) << 4;
            }
        }
    }
    #[inline(always)]
    fn head<L: Lanes>(self, _: L, _: &[Line]) {}
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], (): &(), run: usize) -> (L::F, L::F) {
        lanes.bf16_halves(lanes.words(&unit[run * Self::RUN / GROUP]))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let at = run * (Self::RUN / 4) + word;
        let (block, within) = (at / 16, at % 16);
        let line = Self::BLOCKS + block * 8 + within % 8;
        nibbles(lanes, lanes.words(&unit[line]), within / 8)
    }
}

/// MLX affine blocks of eight bits.
///
/// ```text
/// line 0  scale | bias     then the codes
/// ```
#[derive(Clone, Copy)]
pub(super) struct Affine8<const GROUP: usize>;

impl<const GROUP: usize> Panels for Affine8<GROUP> {
    const WEIGHTS: usize = GROUP;
    const LINES: usize = 1 + GROUP / 4;
    const RUN: usize = 32;
    const BIASED: bool = true;
    const WIDE: bool = true;
    type Head<L: Lanes> = (L::F, L::F);

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [u32]) {
        copy_words(unit, 0, words);
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line]) -> (L::F, L::F) {
        lanes.bf16_halves(lanes.words(&unit[0]))
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, _: L, _: &[Line], head: &(L::F, L::F), _: usize) -> (L::F, L::F) {
        *head
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        lanes.words(&unit[1 + run * 8 + word])
    }
}

/// Most words of a unit.
pub(super) const UNIT_WORDS_MAX: usize = 105;

const _: () = assert!(PANEL_ROWS == 16, "a line is a word of every row");
