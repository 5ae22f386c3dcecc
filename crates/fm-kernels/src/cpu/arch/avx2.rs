//! AVX2 with FMA and F16C: two registers hold the sixteen lanes.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::{arch::x86_64::*, convert::Infallible};

use crate::cpu::lanes::{
    ASKED_AHEAD, AskedAhead, Cache, Lanes, Sixteen, WINDOW_STARTS, Work, code_window,
};

use super::x86;

mod dots;
mod ints;
mod sums;

use self::sums::{halving_sum, halving_sums};

/// Proof that this CPU has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`. The only way to obtain one is
/// [`Avx2::detect`].
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// Asks the CPU.
    pub(in crate::cpu) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && (!VNNI || is_x86_feature_detected!("avxvnni"));
        all.then_some(Self(()))
    }
}

/// For what multiplies no bytes, and would only be compiled once more.
impl From<Avx2<true>> for Avx2<false> {
    fn from(_: Avx2<true>) -> Self {
        Self(())
    }
}

/// Lanes 0 to 7 and lanes 8 to 15.
type Halves = (__m256, __m256);

/// As in `avx512.rs`, for half of the lanes: the two bytes in which a lane's code lies, and zeros.
const fn byte_picks(bits: usize, first_lane: usize, start: usize) -> [u8; 32] {
    let mut picks = [0x80; 32];
    let mut lane = 0;
    while lane < 8 {
        let byte = start + (first_lane + lane) * bits / 8;
        if byte < 16 {
            picks[lane * 4] = byte as u8;
        }
        if byte < 15 {
            picks[lane * 4 + 1] = byte as u8 + 1;
        }
        lane += 1;
    }
    picks
}

/// How far the code of every lane lies from the start of its first byte.
const fn bit_shifts(bits: usize, first_lane: usize) -> [u32; 8] {
    let mut shifts = [0; 8];
    let mut lane = 0;
    while lane < 8 {
        shifts[lane] = ((first_lane + lane) * bits % 8) as u32;
        lane += 1;
    }
    shifts
}

/// Constants of one code width.
struct Codes<const BITS: usize>;

impl<const BITS: usize> Codes<BITS> {
    /// By the byte of the window at which the codes begin, and by half.
    const PICKS: [[[u8; 32]; 2]; WINDOW_STARTS] = {
        let mut picks = [[[0; 32]; 2]; WINDOW_STARTS];
        let mut start = 0;
        while start < WINDOW_STARTS {
            picks[start] = [byte_picks(BITS, 0, start), byte_picks(BITS, 8, start)];
            start += 1;
        }
        picks
    };
    const SHIFTS: [[u32; 8]; 2] = [bit_shifts(BITS, 0), bit_shifts(BITS, 8)];
}

/// Where the nibbles of a dword lie.
const NIBBLE_SHIFTS: [u32; 8] = [0, 4, 8, 12, 16, 20, 24, 28];
/// Where the two-bit codes of a dword lie.
const PAIR_SHIFTS: [[u32; 8]; 2] = [[0, 2, 4, 6, 8, 10, 12, 14], [16, 18, 20, 22, 24, 26, 28, 30]];

/// `op` on both halves.
#[inline(always)]
fn pairs(a: Halves, b: Halves, op: impl Fn(__m256, __m256) -> __m256) -> Halves {
    (op(a.0, b.0), op(a.1, b.1))
}

impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type Tiles = Infallible;
    type Part = __m256;
    type Palette = (__m256, __m256);
    type Bytes = __m128i;

    const PARTS: usize = 2;
    const CHAINS: usize = 12;
    const ASKS_FIRST: bool = VNNI;

    #[inline(always)]
    fn asks_ahead(self) -> AskedAhead {
        // Without AVX-512 it is Intel's cores that have VNNI.
        if VNNI { AskedAhead::twice(ASKED_AHEAD) } else { AskedAhead::ONCE }
    }
    fn tiles(self) -> Option<Infallible> {
        None
    }

    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Out {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<W: Work>(lanes: Avx2<false>, work: W) -> W::Out {
            work.on(lanes)
        }
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn with_vnni<W: Work>(lanes: Avx2<true>, work: W) -> W::Out {
            work.on(lanes)
        }
        if VNNI {
            // SAFETY: `self` proves that the CPU has these features.
            unsafe { with_vnni(Avx2(()), work) }
        } else {
            // SAFETY: as above.
            unsafe { compiled(Avx2(()), work) }
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Halves {
        // SAFETY: `self` proves avx.
        let x = unsafe { _mm256_set1_ps(x) };
        (x, x)
    }
    #[inline(always)]
    fn load(self, x: &Sixteen) -> Halves {
        let (low, high) = x.split_at(8);
        // SAFETY: `self` proves avx; eight readable floats, loadu needs no alignment.
        let low = unsafe { _mm256_loadu_ps(low.as_ptr()) };
        // SAFETY: as above.
        (low, unsafe { _mm256_loadu_ps(high.as_ptr()) })
    }
    #[inline(always)]
    fn store(self, x: Halves, out: &mut Sixteen) {
        let (low, high) = out.split_at_mut(8);
        // SAFETY: `self` proves avx; eight writable floats, storeu needs no alignment.
        unsafe { _mm256_storeu_ps(low.as_mut_ptr(), x.0) };
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(high.as_mut_ptr(), x.1) }
    }

    #[inline(always)]
    fn add(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: `self` proves avx.
        pairs(a, b, |a, b| unsafe { _mm256_add_ps(a, b) })
    }
    #[inline(always)]
    fn sub(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: `self` proves avx.
        pairs(a, b, |a, b| unsafe { _mm256_sub_ps(a, b) })
    }
    #[inline(always)]
    fn mul(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: `self` proves avx.
        pairs(a, b, |a, b| unsafe { _mm256_mul_ps(a, b) })
    }
    #[inline(always)]
    fn div(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: `self` proves avx.
        pairs(a, b, |a, b| unsafe { _mm256_div_ps(a, b) })
    }
    #[inline(always)]
    fn fma(self, a: Halves, b: Halves, c: Halves) -> Halves {
        // SAFETY: `self` proves fma.
        let low = unsafe { _mm256_fmadd_ps(a.0, b.0, c.0) };
        // SAFETY: as above.
        (low, unsafe { _mm256_fmadd_ps(a.1, b.1, c.1) })
    }
    #[inline(always)]
    fn min(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: `self` proves avx.
        pairs(a, b, |a, b| unsafe { _mm256_min_ps(a, b) })
    }
    #[inline(always)]
    fn max(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: `self` proves avx.
        pairs(a, b, |a, b| unsafe { _mm256_max_ps(a, b) })
    }
    #[inline(always)]
    fn round(self, x: Halves) -> Halves {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: `self` proves avx.
        let low = unsafe { _mm256_round_ps::<NEAREST>(x.0) };
        // SAFETY: as above.
        (low, unsafe { _mm256_round_ps::<NEAREST>(x.1) })
    }
    #[inline(always)]
    fn power_of_two(self, n: Halves) -> Halves {
        // SAFETY: `self` proves the features of `exponent`.
        let low = unsafe { exponent(n.0) };
        // SAFETY: as above.
        (low, unsafe { exponent(n.1) })
    }
    #[inline(always)]
    fn sum(self, x: Halves) -> f32 {
        // SAFETY: `self` proves avx.
        let eight = unsafe { _mm256_add_ps(x.0, x.1) };
        // SAFETY: `self` proves the features of `halving_sum`.
        unsafe { halving_sum(eight) }
    }
    #[inline(always)]
    fn sums(self, x: [Halves; 4]) -> [f32; 4] {
        // SAFETY: `self` proves the features of `halving_sums`.
        unsafe { halving_sums(x) }
    }

    #[inline(always)]
    fn load_part(self, x: &Sixteen, part: usize) -> __m256 {
        let half = &x.as_chunks::<8>().0[part];
        // SAFETY: `self` proves avx; eight readable floats, loadu needs no alignment.
        unsafe { _mm256_loadu_ps(half.as_ptr()) }
    }
    #[inline(always)]
    fn store_part(self, x: __m256, out: &mut Sixteen, part: usize) {
        let half = &mut out.as_chunks_mut::<8>().0[part];
        // SAFETY: `self` proves avx; eight writable floats, storeu needs no alignment.
        unsafe { _mm256_storeu_ps(half.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn fma_part(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` proves fma.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn f32(self, bytes: &[u8; 64]) -> Halves {
        let (low, high) = bytes.split_at(32);
        // SAFETY: `self` proves avx; eight readable floats of any alignment.
        let low = unsafe { _mm256_loadu_ps(low.as_ptr().cast()) };
        // SAFETY: as above.
        (low, unsafe { _mm256_loadu_ps(high.as_ptr().cast()) })
    }
    #[inline(always)]
    fn f16(self, bytes: &[u8; 32]) -> Halves {
        let (low, high) = bytes.split_at(16);
        // SAFETY: `self` proves the features of `widen_f16`.
        let low = unsafe { widen_f16(low) };
        // SAFETY: as above.
        (low, unsafe { widen_f16(high) })
    }
    #[inline(always)]
    fn bf16(self, bytes: &[u8; 32]) -> Halves {
        let (low, high) = bytes.split_at(16);
        // SAFETY: `self` proves the features of `widen_bf16`.
        let low = unsafe { widen_bf16(low) };
        // SAFETY: as above.
        (low, unsafe { widen_bf16(high) })
    }

    #[inline(always)]
    fn bf16_pair(self, bytes: [u8; 4]) -> (Halves, Halves) {
        // SAFETY: `self` proves the features of `splat_bf16_pair`.
        let (first, second) = unsafe { splat_bf16_pair(bytes) };
        ((first, first), (second, second))
    }
    #[inline(always)]
    fn f16_splat(self, bytes: [u8; 2]) -> Halves {
        // SAFETY: `self` proves the features of `splat_f16`.
        let x = unsafe { splat_f16(bytes) };
        (x, x)
    }
    #[inline(always)]
    fn palette<const BITS: usize, const EXACT: bool>(
        self,
        scale: Halves,
        bias: Halves,
    ) -> (__m256, __m256) {
        (scale.0, bias.0)
    }

    #[inline(always)]
    fn affine<const BITS: usize, const EXACT: bool>(
        self,
        (scale, bias): (__m256, __m256),
        block: &[u8],
        at: usize,
    ) -> Halves {
        // SAFETY: `self` proves the features of `spread`.
        let (low, high) = unsafe { spread::<BITS>(block, at) };
        // SAFETY: `self` proves avx2.
        let codes = (unsafe { _mm256_cvtepi32_ps(low) }, unsafe { _mm256_cvtepi32_ps(high) });
        self.line::<EXACT>(codes, (scale, scale), (bias, bias))
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; 16]) -> __m128i {
        // SAFETY: `self` proves sse2; sixteen readable bytes of any alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }
    #[inline(always)]
    fn right(self, bytes: __m128i, count: usize, mask: u8) -> __m128i {
        // SAFETY: `self` proves the features of `bytes_right`.
        unsafe { bytes_right(bytes, count, mask) }
    }
    #[inline(always)]
    fn left(self, bytes: __m128i, count: usize, mask: u8) -> __m128i {
        // SAFETY: `self` proves the features of `bytes_left`.
        unsafe { bytes_left(bytes, count, mask) }
    }
    #[inline(always)]
    fn or(self, a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: `self` proves sse2.
        unsafe { _mm_or_si128(a, b) }
    }
    #[inline(always)]
    fn look_up(self, table: &[i8; 16], codes: __m128i) -> __m128i {
        // SAFETY: `self` proves sse2; sixteen readable bytes of any alignment.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        // SAFETY: `self` proves ssse3.
        unsafe { _mm_shuffle_epi8(table, codes) }
    }
    #[inline(always)]
    fn negated(self, bytes: __m128i, signs: u16) -> __m128i {
        // SAFETY: `self` proves the features of `negate_marked`.
        unsafe { negate_marked(bytes, signs) }
    }
    #[inline(always)]
    fn in_turns(self, a: __m128i, b: __m128i, half: usize) -> __m128i {
        if half == 0 {
            // SAFETY: `self` proves sse2.
            unsafe { _mm_unpacklo_epi8(a, b) }
        } else {
            // SAFETY: `self` proves sse2.
            unsafe { _mm_unpackhi_epi8(a, b) }
        }
    }
    #[inline(always)]
    fn unsigned(self, bytes: __m128i) -> Halves {
        // SAFETY: `self` proves the features of `widen_u8`.
        unsafe { widen_u8(bytes) }
    }
    #[inline(always)]
    fn signed(self, bytes: __m128i) -> Halves {
        // SAFETY: `self` proves the features of `widen_i8`.
        unsafe { widen_i8(bytes) }
    }

    #[inline(always)]
    fn nibbles(self, (scale, bias): (__m256, __m256), codes: __m128i) -> Halves {
        self.fma(self.unsigned(self.right(codes, 0, 15)), (scale, scale), (bias, bias))
    }

    #[inline(always)]
    fn ask_for(self, at: *const u8, into: Cache) {
        x86::ask_for(at, into);
    }
    #[inline(always)]
    fn ask_for_here(self, at: *const u8, into: Cache) {
        x86::ask_for_here(at, into);
    }
}

/// Lane `i` gets code `i`.
#[target_feature(enable = "avx2")]
#[inline]
fn spread<const BITS: usize>(block: &[u8], at: usize) -> (__m256i, __m256i) {
    let dword = |at: usize| {
        let bytes = block[at..].first_chunk().expect("a dword of codes");
        _mm256_set1_epi32(i32::from_le_bytes(*bytes))
    };
    let (low, high) = match BITS {
        2 => {
            let both = dword(at);
            (shifted(both, &PAIR_SHIFTS[0]), shifted(both, &PAIR_SHIFTS[1]))
        }
        4 => (shifted(dword(at), &NIBBLE_SHIFTS), shifted(dword(at + 4), &NIBBLE_SHIFTS)),
        _ => {
            let (window, start) = code_window(block, at);
            // SAFETY: sixteen readable bytes.
            let window = unsafe { _mm_loadu_si128(window.as_ptr().cast()) };
            let window = _mm256_broadcastsi128_si256(window);
            (pick::<BITS>(window, start, 0), pick::<BITS>(window, start, 1))
        }
    };
    let mask = _mm256_set1_epi32((1 << BITS) - 1);
    (_mm256_and_si256(low, mask), _mm256_and_si256(high, mask))
}

#[target_feature(enable = "avx2")]
#[inline]
fn shifted(x: __m256i, shifts: &[u32; 8]) -> __m256i {
    // SAFETY: 32 readable bytes.
    _mm256_srlv_epi32(x, unsafe { _mm256_loadu_si256(shifts.as_ptr().cast()) })
}

/// Half of the codes of a window, with neighbours above them.
#[target_feature(enable = "avx2")]
#[inline]
fn pick<const BITS: usize>(window: __m256i, start: usize, half: usize) -> __m256i {
    // SAFETY: 32 readable bytes.
    let picks = unsafe { _mm256_loadu_si256(Codes::<BITS>::PICKS[start][half].as_ptr().cast()) };
    shifted(_mm256_shuffle_epi8(window, picks), &Codes::<BITS>::SHIFTS[half])
}

/// A bf16 is the upper half of an f32.
#[target_feature(enable = "avx2")]
#[inline]
fn splat_bf16_pair(bytes: [u8; 4]) -> (__m256, __m256) {
    let both = _mm256_set1_epi32(i32::from_le_bytes(bytes));
    let upper = _mm256_and_si256(both, _mm256_set1_epi32(!0xffff));
    (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(upper))
}

/// Whole words are shifted: the mask takes away what came from the neighbour.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn bytes_right(bytes: __m128i, count: usize, mask: u8) -> __m128i {
    let words = _mm_srl_epi16(bytes, _mm_cvtsi64_si128(count as i64));
    if mask == u8::MAX { words } else { _mm_and_si128(words, _mm_set1_epi8(mask.cast_signed())) }
}

/// See [`bytes_right`].
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn bytes_left(bytes: __m128i, count: usize, mask: u8) -> __m128i {
    let words = _mm_sll_epi16(bytes, _mm_cvtsi64_si128(count as i64));
    if mask == u8::MAX { words } else { _mm_and_si128(words, _mm_set1_epi8(mask.cast_signed())) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn negate_marked(bytes: __m128i, signs: u16) -> __m128i {
    let halves = _mm_set_epi64x(0x0101_0101_0101_0101, 0);
    let each = _mm_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let own = _mm_shuffle_epi8(_mm_set1_epi16(signs.cast_signed()), halves);
    let flip = _mm_cmpeq_epi8(_mm_and_si128(own, each), each);
    _mm_sub_epi8(_mm_xor_si128(bytes, flip), flip)
}

#[target_feature(enable = "avx2")]
#[inline]
fn widen_u8(bytes: __m128i) -> Halves {
    let high = _mm_srli_si128::<8>(bytes);
    let numbers = |bytes| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    (numbers(bytes), numbers(high))
}

#[target_feature(enable = "avx2")]
#[inline]
fn widen_i8(bytes: __m128i) -> Halves {
    let high = _mm_srli_si128::<8>(bytes);
    let numbers = |bytes| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    (numbers(bytes), numbers(high))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn splat_f16(bytes: [u8; 2]) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(bytes)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn exponent(n: __m256) -> __m256 {
    let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
}

/// # Panics
/// If `bytes` is shorter than 16.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn widen_f16(bytes: &[u8]) -> __m256 {
    let bytes: &[u8; 16] = bytes.first_chunk().expect("eight halves");
    // SAFETY: sixteen readable bytes.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// # Panics
/// If `bytes` is shorter than 16.
#[target_feature(enable = "avx2")]
#[inline]
fn widen_bf16(bytes: &[u8]) -> __m256 {
    let bytes: &[u8; 16] = bytes.first_chunk().expect("eight bf16");
    // SAFETY: sixteen readable bytes.
    let upper = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(upper)))
}
