//! Four-bit floats with a power of two for every 32, in panels; see `fm_format::quant::fp4` and `ggml::fp4`.

use fm_format::quant::ggml::fp4::DOUBLED;

use super::{Panels, Word, copy_words, nibble_planes};
use crate::cpu::{
    ints::{HalfLine, Line},
    lanes::Lanes,
};

/// What the smallest of twice the values lacks to zero.
const OFFSET: i32 = 12;

/// Twice the values, without a sign.
const TABLE: [u8; 16] = {
    let mut table = [0; 16];
    let mut at = 0;
    while at < 16 {
        table[at] = (DOUBLED[at] as i32 + OFFSET) as u8;
        at += 1;
    }
    table
};

/// Two blocks of 32 weights, `2^(scale - 127) · value`. Nibbles lie in two planes of every 16 bytes; where
/// they are published as `SEQUENTIAL` they move there.
///
/// ```text
/// for each block 4 lines of nibbles     half  scale | scale
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Mxfp4<const SEQUENTIAL: bool>;

impl<const SEQUENTIAL: bool> Panels for Mxfp4<SEQUENTIAL> {
    const WEIGHTS: usize = 64;
    const LINES: usize = 8;
    const HALF: bool = true;
    const RUN: usize = 32;
    const OFFSET: i32 = OFFSET;
    const CODE_MAX: u8 = 2 * OFFSET as u8;
    type Head<L: Lanes> = L::I;

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        let (first, second) = unit.split_at(17);
        for (block, words) in [first, second].into_iter().zip(words.as_chunks_mut::<4>().0) {
            copy_words(block, 1, words);
        }
        [first[0], second[0]]
    }
    #[inline(always)]
    fn reorder<L: Lanes>(self, lanes: L, lines: &mut [Line]) {
        if !SEQUENTIAL {
            return;
        }
        for block in lines.as_chunks_mut::<4>().0 {
            let mut stored = [lanes.splat_int(0); 4];
            for (stored, line) in stored.iter_mut().zip(&*block) {
                *stored = lanes.words(line);
            }
            for (i, line) in block.iter_mut().enumerate() {
                let mut words = lanes.splat_int(0);
                for at in 0..8 {
                    // Four nibbles of the first half go to the lower halves of bytes, four of the second above.
                    let (plane, byte) = (at / 4, at % 4);
                    let (from, to) = (16 * (i % 2) + 4 * byte, 8 * byte + 4 * plane);
                    let part = stored[2 * plane + i / 2];
                    let part = lanes.shifted(part, from as i32 - to as i32, 15 << to);
                    words = lanes.union(words, part);
                }
                lanes.store_words(words, line);
            }
        }
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, _: &[Line], half: &HalfLine) -> L::I {
        lanes.half_words(half)
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, _: &[Line], scales: &L::I, run: usize) -> (L::F, L::F) {
        (lanes.half_power(*scales, run as u32), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        lanes.mapped(&TABLE, nibble_planes(lanes, &unit[run * 4..], word))
    }
}
