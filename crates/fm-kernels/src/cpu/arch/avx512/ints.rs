//! Integer lanes of AVX-512 with VNNI.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::arch::{asm, x86_64::*};

use crate::cpu::{
    codebook::{Codebook, EVEN_SIGNS},
    ints::{Four, HalfLine, Ints, Line},
    lanes::LANES,
};

use super::Avx512;

impl Ints for Avx512 {
    type F = __m512;
    type I = __m512i;
    type Dots = __m512i;

    #[inline(always)]
    fn words(self, line: &Line) -> __m512i {
        // SAFETY: `self` proves avx512f; 64 readable bytes of any alignment.
        unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store_words(self, words: __m512i, line: &mut Line) {
        // SAFETY: `self` proves avx512f; 64 writable bytes of any alignment.
        unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), words) }
    }
    #[inline(always)]
    fn turn(self, rows: &[&Line; LANES], lines: &mut [Line]) {
        // SAFETY: `self` proves avx512f.
        unsafe { turn(rows, lines) }
    }
    #[inline(always)]
    fn half_words(self, line: &HalfLine) -> __m512i {
        // SAFETY: `self` proves avx; 32 readable bytes of any alignment.
        let halves = unsafe { _mm256_loadu_si256(line.as_ptr().cast()) };
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_cvtepu16_epi32(halves) }
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> __m512i {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn field(self, words: __m512i, count: u32, mask: u8) -> __m512i {
        // SAFETY: `self` proves the features of `field`.
        unsafe { field(words, count, mask) }
    }
    #[inline(always)]
    fn shifted(self, words: __m512i, count: i32, mask: u32) -> __m512i {
        // SAFETY: `self` proves the features of `shifted`.
        unsafe { shifted(words, count, mask) }
    }
    #[inline(always)]
    fn moved(self, words: __m512i, from: u32, to: u32, mask: u8) -> __m512i {
        // SAFETY: `self` proves the features of `moved`.
        unsafe { moved(words, from, to, mask) }
    }
    #[inline(always)]
    fn mapped(self, table: &[u8; 16], codes: __m512i) -> __m512i {
        // SAFETY: `self` proves the features of `mapped`.
        unsafe { mapped(table, codes) }
    }
    #[inline(always)]
    fn picked(self, words: __m512i, from: [usize; 4], mask: u8) -> __m512i {
        self.field(self.picked_of(words, from), 0, mask)
    }
    #[inline(always)]
    fn with_parity(self, words: __m512i) -> __m512i {
        self.looked_up(&EVEN_SIGNS, [words, words])
    }
    #[inline(always)]
    fn four<const ENTRIES: usize, const WORDS: usize>(
        self,
        book: &Codebook<ENTRIES, WORDS>,
        entries: [__m512i; 2],
        signs: __m512i,
        four: Four,
    ) -> __m512i {
        let at = 8 * four.entry;
        if WORDS == 2 {
            let codes = self.looked_up(&book.codes[four.word], entries);
            let codes = self.picked_of(codes, [at, at + 2, at + 4, at + 6]);
            self.signed::<2>(&book.signed, codes, (signs, four.sign))
        } else {
            let lower = self.looked_up(&book.codes[0], entries);
            let upper = self.looked_up(&book.codes[1], entries);
            let codes = self.picked_of_two(lower, upper, [at, at + 4]);
            self.signed::<3>(&book.signed, codes, (signs, four.sign))
        }
    }
    #[inline(always)]
    fn union(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn dots(self, start: __m512i) -> __m512i {
        start
    }
    #[inline(always)]
    fn dot(self, _: u8, codes: __m512i, x: [i8; 4], sum: __m512i) -> __m512i {
        let x = self.splat_int(i32::from_le_bytes(x.map(|x| x as u8)));
        // SAFETY: `self` proves avx512vnni.
        unsafe { _mm512_dpbusd_epi32(sum, codes, x) }
    }
    #[inline(always)]
    fn at_hand(self, x: &[[i8; 4]]) -> &[[i8; 4]] {
        let mut first = x.as_ptr();
        // SAFETY: there is no instruction.
        unsafe {
            asm!("/* {} */", inout(reg) first, options(pure, readonly, nostack, preserves_flags));
        }
        // SAFETY: `first` is what it was.
        unsafe { std::slice::from_raw_parts(first, x.len()) }
    }
    #[inline(always)]
    fn in_step(self, _: u8, dots: &mut [__m512i]) {
        match dots {
            // SAFETY: `self` proves avx512f.
            [a] => unsafe { tie_1([a]) },
            // SAFETY: as above.
            [a, b] => unsafe { tie_2([a, b]) },
            // SAFETY: as above.
            [a, b, c, d] => unsafe { tie_4([a, b, c, d]) },
            // SAFETY: as above.
            [a, b, c, d, e, f, g, h] => unsafe { tie_8([a, b, c, d, e, f, g, h]) },
            _ => unreachable!("some rows, panels, integers and turns"),
        }
    }
    #[inline(always)]
    fn dots_words(self, dots: __m512i) -> __m512i {
        dots
    }
    #[inline(always)]
    fn sum_words(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn join(self, high: __m512i, low: __m512i) -> __m512i {
        // SAFETY: `self` proves the features of `join`.
        unsafe { join(high, low) }
    }
    #[inline(always)]
    fn to_float(self, x: __m512i) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    fn byte(self, words: __m512i, at: u32) -> __m512 {
        // SAFETY: `self` proves the features of `byte`.
        unsafe { byte(words, at) }
    }
    #[inline(always)]
    fn signed_byte(self, words: __m512i, at: u32) -> __m512 {
        // SAFETY: `self` proves the features of `signed_byte`.
        unsafe { signed_byte(words, at) }
    }
    #[inline(always)]
    fn half_power(self, words: __m512i, at: u32) -> __m512 {
        // SAFETY: `self` proves the features of `half_power`.
        unsafe { half_power(words, at) }
    }
    #[inline(always)]
    fn f16_halves(self, words: __m512i) -> (__m512, __m512) {
        // SAFETY: `self` proves the features of `f16_halves`.
        unsafe { f16_halves(words) }
    }
    #[inline(always)]
    fn bf16_halves(self, words: __m512i) -> (__m512, __m512) {
        // SAFETY: `self` proves the features of `bf16_halves`.
        unsafe { bf16_halves(words) }
    }
}

// A count that is known becomes part of the instruction.

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn field(words: __m512i, count: u32, mask: u8) -> __m512i {
    let moved = _mm512_srl_epi32(words, _mm_cvtsi32_si128(count as i32));
    _mm512_and_si512(moved, _mm512_set1_epi8(mask as i8))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn shifted(words: __m512i, count: i32, mask: u32) -> __m512i {
    let words = _mm512_srl_epi32(words, _mm_cvtsi32_si128(count.max(0)));
    let words = _mm512_sll_epi32(words, _mm_cvtsi32_si128((-count).max(0)));
    _mm512_and_si512(words, _mm512_set1_epi32(mask as i32))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn moved(words: __m512i, from: u32, to: u32, mask: u8) -> __m512i {
    let count = _mm512_set1_epi32(from as i32 - to as i32);
    _mm512_and_si512(_mm512_rorv_epi32(words, count), _mm512_set1_epi8(mask as i8))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn mapped(table: &[u8; 16], codes: __m512i) -> __m512i {
    // SAFETY: sixteen readable bytes of any alignment.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)
}

impl Avx512 {
    /// `table[lower byte | upper byte << 8]` for every byte; an index has no more bits than the table has.
    /// Nothing of it may be left to the compiler's choice: calls would not be shared by words that need the same.
    #[inline(always)]
    fn looked_up<const LEN: usize>(
        self,
        table: &[u8; LEN],
        [lower, upper]: [__m512i; 2],
    ) -> __m512i {
        const { assert!(LEN.is_power_of_two() && LEN >= 128 && LEN <= 1024) };
        let mut found = [lower; 8];
        for (found, table) in found.iter_mut().zip(table.as_chunks::<128>().0) {
            let (first, last) = table.split_at(64);
            let first = self.words(first.as_array().expect("half of it"));
            let last = self.words(last.as_array().expect("half of it"));
            // SAFETY: `self` proves avx512vbmi.
            *found = unsafe { _mm512_permutex2var_epi8(first, lower, last) };
        }
        // Written out, so that everything stays in registers.
        macro_rules! halve {
            ($tables:expr, $bit:expr, $of:expr) => {
                for i in 0..$tables {
                    // SAFETY: `self` proves the features of `either`.
                    found[i] = unsafe { either($of, $bit, found[2 * i], found[2 * i + 1]) };
                }
            };
        }
        halve!(LEN / 256, 128, lower);
        halve!(LEN / 512, 1, upper);
        halve!(LEN / 1024, 2, upper);
        found[0]
    }

    /// Eight bits of every word from bit `from[i]` on to byte `i`. What is beyond the word is any.
    #[allow(clippy::unused_self)] // it is the proof
    #[inline(always)]
    fn picked_of(self, words: __m512i, from: [usize; 4]) -> __m512i {
        // Two words are one that turns, and no place is so far that a byte carries. No loop: hundreds of it in one
        // kernel take the compiler longest of all.
        let first =
            u32::from_le_bytes([from[0] as u8, from[1] as u8, from[2] as u8, from[3] as u8]);
        let picks = u64::from(first) | u64::from(first + 0x2020_2020) << 32;
        // SAFETY: `self` proves avx512f.
        let picks = unsafe { _mm512_set1_epi64(picks as i64) };
        // SAFETY: `self` proves avx512vbmi.
        unsafe { _mm512_multishift_epi64_epi8(picks, words) }
    }

    /// Nibbles of two words, of each from bits `from` on: to the lower half of a word and to the upper one.
    #[inline(always)]
    fn picked_of_two(self, lower: __m512i, upper: __m512i, [a, b]: [usize; 2]) -> __m512i {
        let (lower, upper) =
            (self.picked_of(lower, [a, b, a, b]), self.picked_of(upper, [a, b, a, b]));
        // SAFETY: `self` proves avx512bw.
        unsafe { _mm512_mask_blend_epi16(0xaaaa_aaaa, lower, upper) }
    }

    /// What codes of `BITS` and signs from bit `at` on stand for.
    #[inline(always)]
    fn signed<const BITS: usize>(
        self,
        table: &Line,
        codes: __m512i,
        (signs, at): (__m512i, usize),
    ) -> __m512i {
        // A sign goes above its code; above that the table repeats itself. Two words turn in 64 bits.
        let from = 64 + at - BITS;
        let signs = self.picked_of(signs, [from, from + 1, from + 2, from + 3]);
        let below = self.splat_int(i32::from_ne_bytes([(1 << BITS) - 1; 4]));
        // `below ? codes : signs`
        // SAFETY: `self` proves avx512f.
        let codes = unsafe { _mm512_ternarylogic_epi32::<0b1100_1010>(below, codes, signs) };
        // SAFETY: `self` proves avx512vbmi.
        unsafe { _mm512_permutexvar_epi8(codes, self.words(table)) }
    }
}

/// Bytes of `a`, or of `b` where `of` has a bit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn either(of: __m512i, bit: u8, a: __m512i, b: __m512i) -> __m512i {
    _mm512_mask_blend_epi8(_mm512_test_epi8_mask(of, _mm512_set1_epi8(bit as i8)), a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn join(high: __m512i, low: __m512i) -> __m512i {
    _mm512_add_epi32(_mm512_slli_epi32::<7>(high), low)
}

/// Byte `at` of every word at its upper end.
#[inline]
#[target_feature(enable = "avx512f")]
fn top(words: __m512i, at: u32) -> __m512i {
    _mm512_sll_epi32(words, _mm_cvtsi32_si128(24 - 8 * at as i32))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn byte(words: __m512i, at: u32) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_srli_epi32::<24>(top(words, at)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn signed_byte(words: __m512i, at: u32) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top(words, at)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn half_power(words: __m512i, at: u32) -> __m512 {
    let byte = _mm512_srli_epi32::<24>(top(words, at));
    let one = _mm512_set1_epi32(1);
    // An exponent from 2 on, and below that the bits of a fraction, which are fewer.
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(byte, one));
    let denormal = _mm512_slli_epi32::<21>(_mm512_add_epi32(_mm512_min_epi32(byte, one), one));
    _mm512_castsi512_ps(_mm512_max_epi32(normal, denormal))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn f16_halves(words: __m512i) -> (__m512, __m512) {
    let upper = _mm512_srli_epi32::<16>(words);
    (_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)), _mm512_cvtph_ps(_mm512_cvtepi32_epi16(upper)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bf16_halves(words: __m512i) -> (__m512, __m512) {
    let upper = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(upper))
}

/// Sixteen rows of words become sixteen columns: words of two rows side by side, then of four, then
/// the quarters of registers.
#[target_feature(enable = "avx512f")]
#[inline]
fn turn(rows: &[&Line; LANES], lines: &mut [Line]) {
    const LOW: i32 = 0b01_00_01_00;
    const HIGH: i32 = 0b11_10_11_10;
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let mut words = [_mm512_setzero_si512(); LANES];
    for (words, row) in words.iter_mut().zip(rows) {
        // SAFETY: sixteen readable words of any alignment.
        *words = unsafe { _mm512_loadu_si512(row.as_ptr().cast()) };
    }
    let mut twos = words;
    for i in (0..LANES).step_by(2) {
        twos[i] = _mm512_unpacklo_epi32(words[i], words[i + 1]);
        twos[i + 1] = _mm512_unpackhi_epi32(words[i], words[i + 1]);
    }
    let mut fours = twos;
    for i in (0..LANES).step_by(4) {
        for j in 0..2 {
            fours[i + 2 * j] = _mm512_unpacklo_epi64(twos[i + j], twos[i + 2 + j]);
            fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(twos[i + j], twos[i + 2 + j]);
        }
    }
    let mut columns = fours;
    for k in 0..4 {
        let [a, b, c, d] = [fours[k], fours[4 + k], fours[8 + k], fours[12 + k]];
        let low = [_mm512_shuffle_i32x4::<LOW>(a, b), _mm512_shuffle_i32x4::<LOW>(c, d)];
        let high = [_mm512_shuffle_i32x4::<HIGH>(a, b), _mm512_shuffle_i32x4::<HIGH>(c, d)];
        columns[k] = _mm512_shuffle_i32x4::<EVEN>(low[0], low[1]);
        columns[4 + k] = _mm512_shuffle_i32x4::<ODD>(low[0], low[1]);
        columns[8 + k] = _mm512_shuffle_i32x4::<EVEN>(high[0], high[1]);
        columns[12 + k] = _mm512_shuffle_i32x4::<ODD>(high[0], high[1]);
    }
    for (line, column) in lines.iter_mut().zip(columns) {
        // SAFETY: a line is sixteen writable words of any alignment.
        unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), column) };
    }
}

/// Ties so many sums together: registers are the operands of one piece of assembly, which is no instruction at all and
/// which the compiler does not look into. One function for each number, as small as can be, because it has to be
/// inlined; see [`Ints::in_step`].
macro_rules! tie {
    ($name:ident, $count:literal, $text:literal, $($sum:ident)*) => {
        #[inline]
        #[target_feature(enable = "avx512f")]
        fn $name([$($sum),*]: [&mut __m512i; $count]) {
            // SAFETY: there is no instruction.
            unsafe { asm!($text, $(inout(zmm_reg) *$sum,)* options(pure, nomem, nostack, preserves_flags)) }
        }
    };
}
tie!(tie_1, 1, "/* {} */", a);
tie!(tie_2, 2, "/* {} {} */", a b);
tie!(tie_4, 4, "/* {} {} {} {} */", a b c d);
tie!(tie_8, 8, "/* {} {} {} {} {} {} {} {} */", a b c d e f g h);
