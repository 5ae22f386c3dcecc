//! MLX affine blocks in panels, see `fm_format::quant::affine`.

use fm_format::quant::affine;

use super::{NO_HALF, Panels, Word, copy_words, moved};
use crate::cpu::{
    ints::{HalfLine, Line},
    lanes::Lanes,
};

/// Codes that are arranged together: of so many, the first words hold the lowest bits of all.
const CODES: usize = 64;

/// Words of four codes among them.
const WORDS: usize = CODES / 4;

/// Codes of `BITS` bits with a scale and a bias for every `GROUP`, in bf16 or in f32.
///
/// ```text
/// scale | bias of every block    one line, two in f32
/// for every 64 codes             lines of 2, 4 or 8 bits of each, then lines of what is above
/// ```
///
/// Byte `b` of a line of `n` bits has, from the lowest on, bits of codes that lie as many words of
/// four codes apart as there are such lines.
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Affine<const BITS: usize, const GROUP: usize, const F32: bool>;

impl<const BITS: usize, const GROUP: usize, const F32: bool> Affine<BITS, GROUP, F32> {
    /// Whole blocks, and whole blocks of activations.
    const BLOCKS: usize = if GROUP < CODES { CODES / GROUP } else { 1 };
    const HEAD_BYTES: usize = affine::head_bytes(F32);
    const HEAD_LINES: usize = Self::HEAD_BYTES / 4;
    const CODE_BYTES: usize = GROUP * BITS / 8;
    /// Bits of a code in the first lines, and above them.
    const LOW: usize = match BITS {
        2 | 3 => 2,
        8 => 8,
        _ => 4,
    };
    const HIGH: usize = BITS - Self::LOW;
    /// Lines of the first kind, and of the second.
    const LOW_LINES: usize = CODES / 32 * Self::LOW;
    const HIGH_LINES: usize = CODES / 32 * Self::HIGH;
}

/// Codes `4 · i ..` of streams of codes of `BITS` bits, one to a byte.
#[inline(always)]
fn stored<L: Lanes, const BITS: usize>(lanes: L, stream: &[Line], i: usize) -> L::I {
    let (word, start) = (4 * i * BITS / 32, 4 * i * BITS % 32);
    let mut bits = lanes.words(&stream[word]);
    let mut from = start;
    if start + 4 * BITS > 32 {
        let rest = lanes.words(&stream[word + 1]);
        let below = u32::MAX >> start;
        bits = lanes.shifted(bits, start as i32, below);
        bits = lanes.union(bits, lanes.shifted(rest, start as i32 - 32, !below));
        from = 0;
    }
    lanes.picked(bits, [0, 1, 2, 3].map(|byte| from + byte * BITS), u8::MAX >> (8 - BITS))
}

/// Bits `from ..` of all codes of `BITS` bits in lines of `bits` bits.
#[inline(always)]
fn fill<L: Lanes, const BITS: usize>(
    lanes: L,
    lines: &mut [Line],
    codes: &[L::I; WORDS],
    (from, bits): (usize, usize),
) {
    let count = lines.len();
    for (i, line) in lines.iter_mut().enumerate() {
        let mut words = lanes.splat_int(0);
        for plane in 0..8 / bits {
            let (codes, to) = (codes[plane * count + i], plane * bits);
            let part = if bits == BITS {
                lanes.shifted(codes, -(to as i32), u32::MAX << to)
            } else {
                moved(lanes, codes, (from, to), bits)
            };
            words = lanes.union(words, part);
        }
        lanes.store_words(words, line);
    }
}

impl<const BITS: usize, const GROUP: usize, const F32: bool> Panels for Affine<BITS, GROUP, F32> {
    const WEIGHTS: usize = Self::BLOCKS * GROUP;
    const LINES: usize = Self::BLOCKS * Self::HEAD_LINES + Self::WEIGHTS * BITS / 32;
    const RUN: usize = if GROUP < CODES { GROUP } else { CODES };
    const BIASED: bool = true;
    const CODE_MAX: u8 = u8::MAX >> (8 - BITS);
    const IN_ORDER: bool = Self::BLOCKS == 1;
    type Head<L: Lanes> = ();

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        let (heads, codes) = words.split_at_mut(Self::BLOCKS * Self::HEAD_LINES);
        let blocks = unit.chunks_exact(Self::HEAD_BYTES + Self::CODE_BYTES);
        for (block, head) in blocks.zip(heads.chunks_exact_mut(Self::HEAD_LINES)) {
            copy_words(block, 0, head);
        }
        let blocks = unit.chunks_exact(Self::HEAD_BYTES + Self::CODE_BYTES);
        for (block, codes) in blocks.zip(codes.chunks_exact_mut(Self::CODE_BYTES / 4)) {
            copy_words(block, Self::HEAD_BYTES, codes);
        }
        NO_HALF
    }
    #[inline(always)]
    fn reorder<L: Lanes>(self, lanes: L, lines: &mut [Line]) {
        if BITS == 8 {
            return;
        }
        let lines = &mut lines[Self::BLOCKS * Self::HEAD_LINES..];
        for lines in lines.chunks_exact_mut(Self::LOW_LINES + Self::HIGH_LINES) {
            // Written out, so that places and shifts are constants in what is compiled.
            macro_rules! stored {
                ($($i:literal)*) => { [$(stored::<L, BITS>(lanes, lines, $i)),*] };
            }
            let codes: [L::I; WORDS] = stored!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            let (low, high) = lines.split_at_mut(Self::LOW_LINES);
            fill::<L, BITS>(lanes, low, &codes, (0, Self::LOW));
            if Self::HIGH > 0 {
                fill::<L, BITS>(lanes, high, &codes, (Self::LOW, Self::HIGH));
            }
        }
    }
    #[inline(always)]
    fn head<L: Lanes>(self, _: L, _: &[Line], _: &HalfLine) {}
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], (): &(), run: usize) -> (L::F, L::F) {
        let line = run * Self::RUN / GROUP * Self::HEAD_LINES;
        if F32 {
            (lanes.f32(&unit[line]), lanes.f32(&unit[line + 1]))
        } else {
            lanes.bf16_halves(lanes.words(&unit[line]))
        }
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        let at = run * (Self::RUN / 4) + word;
        let first = Self::BLOCKS * Self::HEAD_LINES + at / WORDS * (CODES * BITS / 32);
        let (line, plane) = (at % WORDS % Self::LOW_LINES, at % WORDS / Self::LOW_LINES);
        let low = lanes.words(&unit[first + line]);
        if BITS == 8 {
            return low;
        }
        let low = moved(lanes, low, (plane * Self::LOW, 0), Self::LOW);
        if Self::HIGH == 0 {
            return low;
        }
        let (line, plane) = (at % WORDS % Self::HIGH_LINES, at % WORDS / Self::HIGH_LINES);
        let high = lanes.words(&unit[first + Self::LOW_LINES + line]);
        lanes.union(low, moved(lanes, high, (plane * Self::HIGH, Self::LOW), Self::HIGH))
    }
}
