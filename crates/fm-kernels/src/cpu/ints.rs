//! Sixteen words at a time: what integer products of packed codes need.
//!
//! Integer arithmetic is exact, so every instruction set gives the same sums.

use super::lanes::LANES;

/// Sixteen words in memory: one cache line.
pub(super) type Line = [u8; 4 * LANES];

/// Sixteen halves of words in memory.
pub(super) type HalfLine = [u8; 2 * LANES];

/// The integer operations of one instruction set, see [`super::lanes::Lanes`].
pub(super) trait Ints: Copy + Send + Sync + 'static {
    /// Sixteen floats in registers.
    type F: Copy;
    /// Sixteen words in registers.
    type I: Copy;

    /// Sixteen little-endian words.
    fn words(self, line: &Line) -> Self::I;
    /// The counterpart of [`Ints::words`].
    fn store_words(self, words: Self::I, line: &mut Line);
    /// `lines[i]` is word `i` of every row; there are up to sixteen lines.
    #[inline(always)]
    fn turn(self, rows: &[&[u32; LANES]; LANES], lines: &mut [Line]) {
        for (i, line) in lines.iter_mut().enumerate() {
            for (row, word) in rows.iter().zip(line.as_chunks_mut().0) {
                *word = row[i].to_le_bytes();
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
    /// `a | b`
    fn union(self, a: Self::I, b: Self::I) -> Self::I;
    /// `sum + Σ codes[i] · x[i]` over the four bytes of every word. Codes have no sign; if they are
    /// not `WIDE` they are below 128.
    fn dot<const WIDE: bool>(self, codes: Self::I, x: [i8; 4], sum: Self::I) -> Self::I;
    /// [`Ints::dot`] for a width that an associated constant says.
    #[inline(always)]
    fn dot_of(self, wide: bool, codes: Self::I, x: [i8; 4], sum: Self::I) -> Self::I {
        if wide { self.dot::<true>(codes, x, sum) } else { self.dot::<false>(codes, x, sum) }
    }
    /// `a + b`, modulo 2^32.
    fn sum_words(self, a: Self::I, b: Self::I) -> Self::I;
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
