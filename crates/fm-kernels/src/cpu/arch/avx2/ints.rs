//! Integer lanes of AVX2.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::arch::x86_64::*;

use crate::cpu::{
    codebook::Codebook,
    ints::{Four, HalfLine, Ints, Line, TURNS_MAX},
    lanes::LANES,
};

use super::{
    Avx2, Halves,
    dots::{self, Dots, is_wide},
};

/// Two registers of eight words.
pub(super) type Words = (__m256i, __m256i);

impl<const VNNI: bool> Ints for Avx2<VNNI> {
    type F = Halves;
    type I = Words;
    type Dots = Dots;

    const TURNS: usize = if VNNI { TURNS_MAX } else { 1 };

    #[inline(always)]
    fn words(self, line: &Line) -> Words {
        let (low, high) = line.split_at(32);
        // SAFETY: `self` proves avx; 32 readable bytes of any alignment.
        let low = unsafe { _mm256_loadu_si256(low.as_ptr().cast()) };
        // SAFETY: as above.
        (low, unsafe { _mm256_loadu_si256(high.as_ptr().cast()) })
    }
    #[inline(always)]
    fn store_words(self, words: Words, line: &mut Line) {
        let (low, high) = line.split_at_mut(32);
        // SAFETY: `self` proves avx; 32 writable bytes of any alignment.
        unsafe { _mm256_storeu_si256(low.as_mut_ptr().cast(), words.0) };
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(high.as_mut_ptr().cast(), words.1) };
    }
    #[inline(always)]
    fn turn(self, rows: &[&Line; LANES], lines: &mut [Line]) {
        // SAFETY: `self` proves avx2.
        unsafe { turn(rows, lines) }
    }
    #[inline(always)]
    fn half_words(self, line: &HalfLine) -> Words {
        // SAFETY: `self` proves the features of `half_words`.
        unsafe { half_words(line) }
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Words {
        // SAFETY: `self` proves avx.
        let x = unsafe { _mm256_set1_epi32(x) };
        (x, x)
    }
    #[inline(always)]
    fn field(self, words: Words, count: u32, mask: u8) -> Words {
        // SAFETY: `self` proves the features of `field`.
        unsafe { field(words, count, mask) }
    }
    #[inline(always)]
    fn shifted(self, words: Words, count: i32, mask: u32) -> Words {
        // SAFETY: `self` proves the features of `shifted`.
        let low = unsafe { shifted(words.0, count, mask) };
        // SAFETY: as above.
        (low, unsafe { shifted(words.1, count, mask) })
    }
    #[inline(always)]
    fn moved(self, words: Words, from: u32, to: u32, mask: u8) -> Words {
        // SAFETY: `self` proves the features of `moved`.
        unsafe { moved(words, from, to, mask) }
    }
    #[inline(always)]
    fn mapped(self, table: &[u8; 16], codes: Words) -> Words {
        // SAFETY: `self` proves the features of `mapped`.
        unsafe { mapped(table, codes) }
    }
    #[inline(always)]
    fn four<const ENTRIES: usize, const WORDS: usize>(
        self,
        book: &Codebook<ENTRIES, WORDS>,
        [lower, upper]: [Words; 2],
        signs: Words,
        four: Four,
    ) -> Words {
        // SAFETY: `self` proves the features of `fours`; bytes of `upper` count by 256 entries.
        let low = unsafe { fours(book, [lower.0, upper.0], signs.0, four) };
        // SAFETY: as above.
        (low, unsafe { fours(book, [lower.1, upper.1], signs.1, four) })
    }
    #[inline(always)]
    fn union(self, a: Words, b: Words) -> Words {
        // SAFETY: `self` proves the features of `union`.
        unsafe { union(a, b) }
    }
    #[inline(always)]
    fn reread(self, lines: &[Line]) -> &[Line] {
        if VNNI { lines } else { dots::reread(lines) }
    }
    #[inline(always)]
    fn dots(self, start: Words) -> Dots {
        Dots::new(start, self.splat_int(0))
    }
    #[inline(always)]
    fn taken_from(self, max: u8) -> i32 {
        if !VNNI && is_wide(max) { dots::TAKEN } else { 0 }
    }
    #[inline(always)]
    fn dot(self, max: u8, codes: Words, x: [i8; 4], dots: Dots) -> Dots {
        if VNNI {
            // SAFETY: `self` proves the features of `Dots::with_vnni`.
            unsafe { dots.with_vnni(codes, x) }
        } else if is_wide(max) {
            // SAFETY: `self` proves the features of `Dots::with_wide`.
            unsafe { dots.with_wide(codes, x) }
        } else {
            // SAFETY: `self` proves the features of `Dots::with`.
            unsafe { dots.with(codes, x) }
        }
    }
    #[inline(always)]
    fn settles_after(self, max: u8) -> usize {
        if VNNI { usize::MAX } else { dots::settles_after(max) }
    }
    #[inline(always)]
    fn settled(self, dots: Dots) -> Dots {
        // SAFETY: `self` proves the features of `Dots::settled`.
        unsafe { dots.settled() }
    }
    #[inline(always)]
    fn in_step(self, max: u8, dots: &mut [Dots]) {
        // SAFETY: `self` proves the features of `in_step`.
        unsafe { dots::in_step(VNNI || is_wide(max), dots) }
    }
    #[inline(always)]
    fn dots_words(self, dots: Dots) -> Words {
        self.settled(dots).words
    }
    #[inline(always)]
    fn join_dots(self, high: Dots, low: Dots) -> Words {
        // SAFETY: `self` proves the features of `Dots::joined`.
        unsafe { high.joined(low) }
    }
    #[inline(always)]
    fn sum_words(self, a: Words, b: Words) -> Words {
        // SAFETY: `self` proves avx2.
        unsafe { add(a, b) }
    }
    #[inline(always)]
    fn join(self, high: Words, low: Words) -> Words {
        // SAFETY: `self` proves the features of `join`.
        unsafe { join(high, low) }
    }
    #[inline(always)]
    fn to_float(self, x: Words) -> Halves {
        // SAFETY: `self` proves the features of `floats`.
        unsafe { floats(x) }
    }
    #[inline(always)]
    fn byte(self, words: Words, at: u32) -> Halves {
        // SAFETY: `self` proves the features of `byte`.
        unsafe { byte(words, at) }
    }
    #[inline(always)]
    fn signed_byte(self, words: Words, at: u32) -> Halves {
        // SAFETY: `self` proves the features of `signed_byte`.
        unsafe { signed_byte(words, at) }
    }
    #[inline(always)]
    fn half_power(self, words: Words, at: u32) -> Halves {
        // SAFETY: `self` proves the features of `half_power`.
        unsafe { half_power(words, at) }
    }
    #[inline(always)]
    fn f16_halves(self, words: Words) -> (Halves, Halves) {
        // SAFETY: `self` proves the features of `f16_halves`.
        unsafe { f16_halves(words) }
    }
    #[inline(always)]
    fn bf16_halves(self, words: Words) -> (Halves, Halves) {
        // SAFETY: `self` proves the features of `bf16_halves`.
        unsafe { bf16_halves(words) }
    }
}

/// See [`Ints::turn`]: eight words of eight rows at a time.
#[inline]
#[target_feature(enable = "avx2")]
fn turn(rows: &[&Line; LANES], lines: &mut [Line]) {
    for (words, lines) in lines.chunks_mut(8).enumerate() {
        for (part, rows) in rows.as_chunks::<8>().0.iter().enumerate() {
            let mut eight = [_mm256_setzero_si256(); 8];
            for (eight, row) in eight.iter_mut().zip(rows) {
                let row = &row[words * 32..][..32];
                // SAFETY: 32 readable bytes of any alignment.
                *eight = unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
            }
            for (line, column) in lines.iter_mut().zip(turn_eight(eight)) {
                let place = &mut line[part * 32..][..32];
                // SAFETY: 32 writable bytes of any alignment.
                unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), column) };
            }
        }
    }
}

/// Register `i` gets word `i` of each: pairs of rows, then of pairs, then the halves of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn turn_eight(rows: [__m256i; 8]) -> [__m256i; 8] {
    let mut twos = rows;
    for i in (0..8).step_by(2) {
        twos[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
        twos[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    let mut fours = twos;
    for i in [0, 4] {
        for j in 0..2 {
            fours[i + 2 * j] = _mm256_unpacklo_epi64(twos[i + j], twos[i + 2 + j]);
            fours[i + 2 * j + 1] = _mm256_unpackhi_epi64(twos[i + j], twos[i + 2 + j]);
        }
    }
    let mut columns = fours;
    for k in 0..4 {
        columns[k] = _mm256_permute2x128_si256::<0x20>(fours[k], fours[4 + k]);
        columns[4 + k] = _mm256_permute2x128_si256::<0x31>(fours[k], fours[4 + k]);
    }
    columns
}

#[inline]
#[target_feature(enable = "avx2")]
fn half_words(line: &HalfLine) -> Words {
    let (low, high) = line.split_at(16);
    // SAFETY: sixteen readable bytes of any alignment.
    let low = unsafe { _mm_loadu_si128(low.as_ptr().cast()) };
    // SAFETY: as above.
    let high = unsafe { _mm_loadu_si128(high.as_ptr().cast()) };
    (_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high))
}

#[inline]
#[target_feature(enable = "avx2")]
fn field(words: Words, count: u32, mask: u8) -> Words {
    let (count, mask) = (_mm_cvtsi32_si128(count as i32), _mm256_set1_epi8(mask as i8));
    let low = _mm256_and_si256(_mm256_srl_epi32(words.0, count), mask);
    (low, _mm256_and_si256(_mm256_srl_epi32(words.1, count), mask))
}

#[inline]
#[target_feature(enable = "avx2")]
fn shifted(words: __m256i, count: i32, mask: u32) -> __m256i {
    let words = _mm256_srl_epi32(words, _mm_cvtsi32_si128(count.max(0)));
    let words = _mm256_sll_epi32(words, _mm_cvtsi32_si128((-count).max(0)));
    _mm256_and_si256(words, _mm256_set1_epi32(mask as i32))
}

#[inline]
#[target_feature(enable = "avx2")]
fn moved(words: Words, from: u32, to: u32, mask: u8) -> Words {
    let words = field(words, from.saturating_sub(to), 255);
    let count = _mm_cvtsi32_si128(to.saturating_sub(from) as i32);
    let mask = _mm256_set1_epi8(mask as i8);
    let low = _mm256_and_si256(_mm256_sll_epi32(words.0, count), mask);
    (low, _mm256_and_si256(_mm256_sll_epi32(words.1, count), mask))
}

#[inline]
#[target_feature(enable = "avx2")]
fn mapped(table: &[u8; 16], codes: Words) -> Words {
    // SAFETY: sixteen readable bytes of any alignment.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    let table = _mm256_broadcastsi128_si256(table);
    (_mm256_shuffle_epi8(table, codes.0), _mm256_shuffle_epi8(table, codes.1))
}

#[inline]
#[target_feature(enable = "avx2")]
fn fours<const ENTRIES: usize, const WORDS: usize>(
    book: &Codebook<ENTRIES, WORDS>,
    [lower, upper]: [__m256i; 2],
    signs: __m256i,
    Four { entry, word, sign }: Four,
) -> __m256i {
    let place = 8 * entry as i32;
    let mut entries = shifted(lower, place, 0xff);
    if ENTRIES > 256 {
        let mask = (ENTRIES / 256 - 1) as u32;
        entries = _mm256_or_si256(entries, shifted(upper, place - 8, mask << 8));
    }
    let first = book.words.as_flattened()[word..].as_ptr().cast::<i32>();
    let numbers = if WORDS == 2 {
        // SAFETY: the same word of entries that there are: of as many bits as their number has.
        unsafe { _mm256_i32gather_epi32::<8>(first, entries) }
    } else {
        // SAFETY: as above.
        unsafe { _mm256_i32gather_epi32::<4>(first, entries) }
    };
    // The byte with the signs everywhere, and a bit of it for each.
    let byte = sign / 8;
    let words = _mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
    let spread = _mm_add_epi8(words, _mm_set1_epi8(byte as i8));
    let signs = _mm256_shuffle_epi8(signs, _mm256_broadcastsi128_si256(spread));
    let bits = _mm256_set1_epi32(0x0804_0201 << (sign % 8));
    let negative = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bits), bits);
    let negative = _mm256_and_si256(numbers, negative);
    let all = _mm256_add_epi8(numbers, _mm256_set1_epi8(book.offset as i8));
    _mm256_sub_epi8(all, _mm256_add_epi8(negative, negative))
}

#[inline]
#[target_feature(enable = "avx2")]
fn union(a: Words, b: Words) -> Words {
    (_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add(a: Words, b: Words) -> Words {
    (_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn join(high: Words, low: Words) -> Words {
    add((_mm256_slli_epi32::<7>(high.0), _mm256_slli_epi32::<7>(high.1)), low)
}

#[inline]
#[target_feature(enable = "avx2")]
fn floats(x: Words) -> Halves {
    (_mm256_cvtepi32_ps(x.0), _mm256_cvtepi32_ps(x.1))
}

/// Byte `at` of every word at its upper end.
#[inline]
#[target_feature(enable = "avx2")]
fn top(words: Words, at: u32) -> Words {
    let count = _mm_cvtsi32_si128(24 - 8 * at as i32);
    (_mm256_sll_epi32(words.0, count), _mm256_sll_epi32(words.1, count))
}

#[inline]
#[target_feature(enable = "avx2")]
fn byte(words: Words, at: u32) -> Halves {
    let top = top(words, at);
    floats((_mm256_srli_epi32::<24>(top.0), _mm256_srli_epi32::<24>(top.1)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn signed_byte(words: Words, at: u32) -> Halves {
    let top = top(words, at);
    floats((_mm256_srai_epi32::<24>(top.0), _mm256_srai_epi32::<24>(top.1)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn half_power(words: Words, at: u32) -> Halves {
    let top = top(words, at);
    (half_power_of(top.0), half_power_of(top.1))
}

/// For the upper byte of every word.
#[inline]
#[target_feature(enable = "avx2")]
fn half_power_of(top: __m256i) -> __m256 {
    let (byte, one) = (_mm256_srli_epi32::<24>(top), _mm256_set1_epi32(1));
    // An exponent from 2 on, and below that the bits of a fraction, which are fewer.
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(byte, one));
    let denormal = _mm256_slli_epi32::<21>(_mm256_add_epi32(_mm256_min_epi32(byte, one), one));
    _mm256_castsi256_ps(_mm256_max_epi32(normal, denormal))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn f16_halves(words: Words) -> (Halves, Halves) {
    let upper = (_mm256_srli_epi32::<16>(words.0), _mm256_srli_epi32::<16>(words.1));
    ((narrow(words.0), narrow(words.1)), (narrow(upper.0), narrow(upper.1)))
}

/// The lower half of every word, as f16.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow(words: __m256i) -> __m256 {
    let low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    // Packs within each half of the register, so the middle quarters change places.
    let packed = _mm256_permute4x64_epi64::<0b1101_1000>(_mm256_packus_epi32(low, low));
    _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
}

#[inline]
#[target_feature(enable = "avx2")]
fn bf16_halves(words: Words) -> (Halves, Halves) {
    let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    let float = |x: __m256i| _mm256_castsi256_ps(x);
    let low = (_mm256_slli_epi32::<16>(words.0), _mm256_slli_epi32::<16>(words.1));
    let upper = (_mm256_and_si256(words.0, mask), _mm256_and_si256(words.1, mask));
    ((float(low.0), float(low.1)), (float(upper.0), float(upper.1)))
}
