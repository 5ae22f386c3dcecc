//! Codebooks of ggml: an entry stands for eight numbers below 64, or for four.

use fm_format::quant::ggml::{
    grids,
    iq::{THREE_BIT_VALUES, TWO_BIT_VALUES},
};

/// `ENTRIES` of `WORDS` words, a byte for each number.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Codebook<const ENTRIES: usize, const WORDS: usize> {
    /// Which numbers: those of word `w` are `codes[w][entry]`, two bits each, or, if there is one word, in
    /// nibbles those of its lower half and those of its upper half. A machine that looks up many bytes at a time
    /// has few of these to look up.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "AVX-512 reads it"))]
    pub(super) codes: [[u8; ENTRIES]; 2],
    /// What [`Codebook::codes`] stand for, and behind them what they stand for if the sign is negative, all of
    /// it [`Codebook::offset`] more; again and again.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "AVX-512 reads it"))]
    pub(super) signed: [u8; 64],
    /// The numbers.
    pub(super) words: [[u32; WORDS]; ENTRIES],
    /// The largest number, as a constant of this module says it.
    pub(super) offset: u8,
}

/// The largest of two-bit and of three-bit codes, of the odd numbers of three bits, and of those of `iq1`, which
/// are eight per step.
pub(super) const TWO_BITS_MAX: i32 = TWO_BIT_VALUES[2] as i32;
pub(super) const THREE_BITS_MAX: i32 = THREE_BIT_VALUES[7] as i32;
pub(super) const ODD_MAX: i32 = ODD[7] as i32;
pub(super) const EIGHTHS_MAX: i32 = EIGHTHS[2] as i32;

const ODD: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
const EIGHTHS: [u8; 4] = [0, 8, 16, 0];

pub(super) static IQ1: Codebook<2048, 2> = Codebook::new(&grids::IQ1, &EIGHTHS, EIGHTHS_MAX);
pub(super) static IQ2_XXS: Codebook<256, 2> =
    Codebook::new(&grids::IQ2_XXS, &TWO_BIT_VALUES, TWO_BITS_MAX);
pub(super) static IQ2_XS: Codebook<512, 2> =
    Codebook::new(&grids::IQ2_XS, &TWO_BIT_VALUES, TWO_BITS_MAX);
pub(super) static IQ2_S: Codebook<1024, 2> =
    Codebook::new(&grids::IQ2_S, &TWO_BIT_VALUES, TWO_BITS_MAX);
pub(super) static IQ3_XXS: Codebook<256, 1> =
    Codebook::new(&grids::IQ3_XXS, &THREE_BIT_VALUES, THREE_BITS_MAX);
pub(super) static IQ3_S: Codebook<512, 1> = Codebook::new(&grids::IQ3_S, &ODD, ODD_MAX);

/// Eight signs of which an even number is negative, by the first seven.
pub(super) static EVEN_SIGNS: [u8; 128] = {
    let mut signs = [0; 128];
    let mut at = 0;
    while at < 128 {
        signs[at] = at as u8 | (at.count_ones() as u8 % 2) << 7;
        at += 1;
    }
    signs
};

impl<const ENTRIES: usize, const WORDS: usize> Codebook<ENTRIES, WORDS> {
    /// Numbers of an entry.
    const NUMBERS: usize = 4 * WORDS;
    /// Bits of a code.
    const BITS: usize = if WORDS == 2 { 2 } else { 3 };
    /// Bits that a code has room for in [`Codebook::codes`].
    const ROOM: usize = if WORDS == 2 { 2 } else { 4 };

    /// From entries of packed codes and what these stand for.
    const fn new(grid: &[u16; ENTRIES], values: &[u8], offset: i32) -> Self {
        assert!(WORDS == 1 || WORDS == 2);
        let mut words = [[0; WORDS]; ENTRIES];
        let mut codes = [[0; ENTRIES]; 2];
        let mut at = 0;
        while at < ENTRIES * Self::NUMBERS {
            let (entry, number) = (at / Self::NUMBERS, at % Self::NUMBERS);
            let code = grid[entry] >> (number * Self::BITS) & ((1 << Self::BITS) - 1);
            words[entry][number / 4] |= (values[code as usize] as u32) << (number % 4 * 8);
            let per_list = Self::NUMBERS / 2;
            let room = number % per_list * Self::ROOM;
            codes[number / per_list][entry] |= (code as u8) << room;
            at += 1;
        }
        let offset = offset as u8;
        let mut signed = [0; 64];
        let mut at = 0;
        while at < 64 {
            let value = values[at % (1 << Self::BITS)];
            let negative = at >> Self::BITS & 1 == 1;
            signed[at] = if negative { offset - value } else { offset + value };
            at += 1;
        }
        Self { codes, signed, words, offset }
    }

    /// Eight numbers, of one entry or of two.
    #[inline]
    pub(super) fn eight(&self, entries: [usize; 2]) -> u64 {
        let [low, high] = match WORDS {
            1 => entries.map(|entry| self.words[entry][0]),
            _ => [self.words[entries[0]][0], self.words[entries[0]][WORDS - 1]],
        };
        u64::from(low) | u64::from(high) << 32
    }
}
