//! MLX affine blocks in panels, see `fm_format::quant::affine`.

use fm_format::quant::affine;

use super::{Panels, copy_words, nibbles};
use crate::cpu::{ints::Line, lanes::Lanes};

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
pub(in crate::cpu::panels) struct Affine4<const GROUP: usize>;

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
pub(in crate::cpu::panels) struct Affine8<const GROUP: usize>;

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
