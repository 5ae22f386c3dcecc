//! Sums of products of bytes.
//!
//! `vpmaddubsw` adds two products up in 16 bits. Where codes are small, more of its results fit into as many bits,
//! and only their sum is widened; measured in `docs/experiments/0079`.

use std::arch::{
    asm,
    x86_64::{
        __m256i, _mm256_abs_epi8, _mm256_add_epi16, _mm256_dpbusd_avx_epi32, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
        _mm256_setzero_si256, _mm256_sign_epi8, _mm256_xor_si256,
    },
};

use crate::cpu::ints::Line;

use super::ints::{Words, add, join};

/// What is taken from codes of eight bits.
pub(super) const TAKEN: i32 = 128;

/// The largest activation.
const X_MAX: u16 = 127;

/// Whether two products of such codes do not fit 16 bits.
pub(super) const fn is_wide(code_max: u8) -> bool {
    code_max > 127
}

/// Of how many words sums fit 16 bits.
pub(super) const fn settles_after(code_max: u8) -> usize {
    if is_wide(code_max) {
        return usize::MAX; // they are words
    }
    (i16::MAX as u16 / (2 * X_MAX * code_max as u16)) as usize
}

/// Sums of sixteen words.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Dots {
    pub(super) words: Words,
    /// Both halves of every word are still to be added to it.
    halves: Words,
}

impl Dots {
    /// Sums that are `words`.
    #[inline(always)]
    pub(super) fn new(words: Words, zero: Words) -> Self {
        Self { words, halves: zero }
    }

    /// With the products of codes that are not wide, of no more words than [`settles_after`] says.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn with(self, codes: Words, x: [i8; 4]) -> Self {
        let x = all(x);
        let low = _mm256_add_epi16(self.halves.0, _mm256_maddubs_epi16(codes.0, x));
        let high = _mm256_add_epi16(self.halves.1, _mm256_maddubs_epi16(codes.1, x));
        Self { halves: (low, high), ..self }
    }

    /// With the products of codes of eight bits less [`TAKEN`]: two products of their sizes, which are 128 at most,
    /// fit 16 bits, and activations take their signs.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn with_wide(self, codes: Words, x: [i8; 4]) -> Self {
        let (x, upper) = (all(x), _mm256_set1_epi8(i8::MIN));
        let signed = (_mm256_xor_si256(codes.0, upper), _mm256_xor_si256(codes.1, upper));
        let low = _mm256_maddubs_epi16(_mm256_abs_epi8(signed.0), _mm256_sign_epi8(x, signed.0));
        let high = _mm256_maddubs_epi16(_mm256_abs_epi8(signed.1), _mm256_sign_epi8(x, signed.1));
        Self { words: add(self.words, widened((low, high), 1)), ..self }
    }

    /// With the products of any codes.
    #[inline]
    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) fn with_vnni(self, codes: Words, x: [i8; 4]) -> Self {
        let x = all(x);
        let low = _mm256_dpbusd_avx_epi32(self.words.0, codes.0, x);
        Self { words: (low, _mm256_dpbusd_avx_epi32(self.words.1, codes.1, x)), ..self }
    }

    /// The same sums, with nothing in halves.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn settled(self) -> Self {
        let zero = _mm256_setzero_si256();
        Self::new(add(self.words, widened(self.halves, 1)), (zero, zero))
    }

    /// `128 · self + low`: what widens halves multiplies them, too.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn joined(self, low: Self) -> Words {
        let words = join(self.words, low.words);
        add(words, add(widened(self.halves, 128), widened(low.halves, 1)))
    }
}

/// Four activations in every word.
#[inline]
#[target_feature(enable = "avx2")]
fn all(x: [i8; 4]) -> __m256i {
    _mm256_set1_epi32(i32::from_le_bytes(x.map(|x| x as u8)))
}

/// `factor` times the sum of both halves of every word.
#[inline]
#[target_feature(enable = "avx2")]
fn widened(halves: Words, factor: i16) -> Words {
    let factor = _mm256_set1_epi16(factor);
    (_mm256_madd_epi16(halves.0, factor), _mm256_madd_epi16(halves.1, factor))
}

/// See [`crate::cpu::ints::Ints::in_step`]. The compiler does not look into what is no instruction at all.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn in_step(wide: bool, dots: &mut [Dots]) {
    /// Registers are the operands of one piece of assembly.
    macro_rules! tie {
        ($text:literal, $($sum:expr),*) => {
            // SAFETY: there is no instruction.
            unsafe { asm!($text, $(inout(ymm_reg) $sum.0, inout(ymm_reg) $sum.1,)*
                options(pure, nomem, nostack, preserves_flags)) }
        };
    }
    match dots {
        [a] if wide => tie!("/* {} {} */", a.words),
        [a] => tie!("/* {} {} */", a.halves),
        [a, b] if wide => tie!("/* {} {} {} {} */", a.words, b.words),
        [a, b] => tie!("/* {} {} {} {} */", a.halves, b.halves),
        [a, b, c, d] if wide => {
            tie!("/* {} {} {} {} {} {} {} {} */", a.words, b.words, c.words, d.words);
        }
        [a, b, c, d] => {
            tie!("/* {} {} {} {} {} {} {} {} */", a.halves, b.halves, c.halves, d.halves);
        }
        _ => unreachable!("one or two panels of one or two integers"),
    }
}

/// See [`crate::cpu::ints::Ints::reread`].
#[inline(always)]
pub(super) fn reread(lines: &[Line]) -> &[Line] {
    let mut first = lines.as_ptr();
    // SAFETY: there is no instruction.
    unsafe { asm!("/* {} */", inout(reg) first, options(readonly, nostack, preserves_flags)) };
    // SAFETY: `first` is what it was.
    unsafe { std::slice::from_raw_parts(first, lines.len()) }
}
