//! Sixteen words at a time: what integer products of packed codes need.
//!
//! Integer arithmetic is exact, so every instruction set gives the same sums.

use super::{codebook::Codebook, lanes::LANES};

/// Sixteen words in memory: one cache line.
pub(super) type Line = [u8; 4 * LANES];

/// Sixteen halves of words in memory.
pub(super) type HalfLine = [u8; 2 * LANES];

/// A byte of ones for every bit that is 1.
const ALL_BITS: [u32; 16] = {
    let mut all = [0; 16];
    let mut at = 0;
    while at < 16 * 4 {
        let (bits, bit) = (at / 4, at % 4);
        all[bits] |= (bits as u32 >> bit & 1) * (0xff << (8 * bit));
        at += 1;
    }
    all
};

/// Four numbers of a codebook, and their signs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Four {
    /// The byte of a word that says which entry.
    pub(super) entry: usize,
    /// The word of the entry.
    pub(super) word: usize,
    /// The bit of a word that is the first one's sign.
    pub(super) sign: usize,
}

/// See [`Ints::TURNS`].
pub(super) const TURNS_MAX: usize = 4;

/// The integer operations of one instruction set, see [`super::lanes::Lanes`].
pub(super) trait Ints: Copy + Send + Sync + 'static {
    /// Sixteen floats in registers.
    type F: Copy;
    /// Sixteen words in registers.
    type I: Copy;
    /// Sums of products of sixteen words, see [`Ints::dot`].
    type Dots: Copy;

    /// Registers of sums that are added up at a time. With fewer a core waits for the latency of products, and with
    /// more they are kept in memory. Measured in `docs/experiments/0087`.
    const SUMS: usize = 8;
    /// Sums that the words of a run may go to in turns.
    const TURNS: usize = TURNS_MAX;

    /// Sixteen little-endian words.
    fn words(self, line: &Line) -> Self::I;
    /// The counterpart of [`Ints::words`].
    fn store_words(self, words: Self::I, line: &mut Line);
    /// `lines[i]` is word `i` of every row; there are up to sixteen lines.
    #[inline(always)]
    fn turn(self, rows: &[&Line; LANES], lines: &mut [Line]) {
        for (i, line) in lines.iter_mut().enumerate() {
            for (row, word) in rows.iter().zip(line.as_chunks_mut::<4>().0) {
                *word = row.as_chunks().0[i];
            }
        }
    }
    /// Sixteen little-endian halves of words; the upper halves are zero.
    fn half_words(self, line: &HalfLine) -> Self::I;
    /// `x` in every lane.
    fn splat_int(self, x: i32) -> Self::I;
    /// `byte >> count & mask` of every byte. Bits that a byte does not have are any: the mask takes
    /// them away.
    fn field(self, words: Self::I, count: u32, mask: u8) -> Self::I;
    /// `word >> count & mask` of every word; a negative count moves to the left. It is below 32 in size.
    fn shifted(self, words: Self::I, count: i32, mask: u32) -> Self::I;
    /// Bit `from` of every byte to bit `to`, `& mask`, as in [`Ints::field`].
    fn moved(self, words: Self::I, from: u32, to: u32, mask: u8) -> Self::I;
    /// `table[code]` of every byte; codes are below 16.
    fn mapped(self, table: &[u8; 16], codes: Self::I) -> Self::I;
    /// Byte `i` is `word >> from[i] & mask`: bits that the word has.
    #[inline(always)]
    fn picked(self, words: Self::I, from: [usize; 4], mask: u8) -> Self::I {
        let mut picked = self.splat_int(0);
        for (byte, from) in from.into_iter().enumerate() {
            let place = 8 * byte as i32;
            let moved = self.shifted(words, from as i32 - place, u32::from(mask) << place);
            picked = self.union(picked, moved);
        }
        picked
    }
    /// The upper bit of every byte set where an odd number of those below it are; it was zero.
    #[inline(always)]
    fn with_parity(self, words: Self::I) -> Self::I {
        const ODD: [u8; 16] = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0];
        let low = self.mapped(&ODD, self.field(words, 0, 15));
        let high = self.mapped(&ODD, self.field(words, 4, 15));
        self.union(words, self.moved(self.sum_words(low, high), 0, 7, 0x80))
    }
    /// Four numbers of an entry and [`Codebook::offset`], those negative whose sign is 1. What `entries` are:
    /// lower bytes and, of more than 256, what is above.
    #[inline(always)]
    fn four<const ENTRIES: usize, const WORDS: usize>(
        self,
        book: &Codebook<ENTRIES, WORDS>,
        entries: [Self::I; 2],
        signs: Self::I,
        four: Four,
    ) -> Self::I {
        let mut lines = [[0; size_of::<Line>()]; 3];
        for (line, words) in lines.iter_mut().zip([entries[0], entries[1], signs]) {
            self.store_words(words, line);
        }
        let mut out = [0; size_of::<Line>()];
        for (lane, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let at = |line: &Line| usize::from(line[4 * lane + four.entry]);
            let numbers = book.words[at(&lines[0]) | at(&lines[1]) << 8][four.word];
            let signs = u32::from_le_bytes(lines[2].as_chunks().0[lane]) >> four.sign & 15;
            let negative = numbers & ALL_BITS[signs as usize];
            let all = u32::from_ne_bytes([book.offset; 4]) + numbers;
            *out = (all - 2 * negative).to_le_bytes();
        }
        self.words(&out)
    }
    /// The same lines, which are read once more: without it a compiler keeps in memory of its own what two runs
    /// read, where registers are few.
    #[inline(always)]
    fn reread(self, lines: &[Line]) -> &[Line] {
        lines
    }
    /// The same activations, with their address in a register: without it a compiler may add the one of a row to a
    /// place in it wherever one is loaded, which takes a core one step more.
    #[inline(always)]
    fn at_hand(self, x: &[[i8; 4]]) -> &[[i8; 4]] {
        x
    }
    /// `a | b`
    fn union(self, a: Self::I, b: Self::I) -> Self::I;
    /// Sums that are `start` before any product.
    fn dots(self, start: Self::I) -> Self::Dots;
    /// What [`Ints::dot`] takes from codes of which none is above `max`: an instruction may want them with a sign.
    #[inline(always)]
    fn taken_from(self, max: u8) -> i32 {
        let _ = max;
        0
    }
    /// `dots + Σ (codes[i] - taken) · x[i]` over the four bytes of every word, see [`Ints::taken_from`]. Codes have
    /// no sign and none is above `max`; no activation is -128.
    fn dot(self, max: u8, codes: Self::I, x: [i8; 4], dots: Self::Dots) -> Self::Dots;
    /// Of how many words of such codes sums are added up before they have to be [`Ints::settled`].
    #[inline(always)]
    fn settles_after(self, max: u8) -> usize {
        let _ = max;
        usize::MAX
    }
    /// The same sums, with room for as many words again.
    #[inline(always)]
    fn settled(self, dots: Self::Dots) -> Self::Dots {
        dots
    }
    /// Makes that none of these sums is known before all are: without it a compiler adds up one after the other,
    /// and keeps in memory what they share.
    #[inline(always)]
    fn in_step(self, max: u8, dots: &mut [Self::Dots]) {
        let _ = (max, dots);
    }
    /// What the sums are.
    fn dots_words(self, dots: Self::Dots) -> Self::I;
    /// `a + b`, modulo 2^32.
    fn sum_words(self, a: Self::I, b: Self::I) -> Self::I;
    /// [`Ints::join`] of what sums are.
    #[inline(always)]
    fn join_dots(self, high: Self::Dots, low: Self::Dots) -> Self::I {
        self.join(self.dots_words(high), self.dots_words(low))
    }
    /// `128 · high + low`
    fn join(self, high: Self::I, low: Self::I) -> Self::I;
    /// The nearest floats.
    fn to_float(self, x: Self::I) -> Self::F;
    /// Byte `at` of every word, without a sign.
    fn byte(self, words: Self::I, at: u32) -> Self::F;
    /// Byte `at` of every word, with a sign.
    fn signed_byte(self, words: Self::I, at: u32) -> Self::F;
    /// `2^(byte - 128)` for byte `at` of every word, denormals for 0 and 1: half of the scale that it is as
    /// an e8m0.
    fn half_power(self, words: Self::I, at: u32) -> Self::F;
    /// The lower and the upper half of every word, as f16.
    fn f16_halves(self, words: Self::I) -> (Self::F, Self::F);
    /// The lower and the upper half of every word, as bf16.
    fn bf16_halves(self, words: Self::I) -> (Self::F, Self::F);
}
