//! AVX-512 F, BW, DQ and VL: one register holds the sixteen lanes.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::arch::x86_64::*;

use crate::cpu::lanes::{Lanes, Sixteen, Work, code_stream};

/// Proof that this CPU has AVX-512 F, BW, DQ and VL, and AVX2, FMA and F16C as all of those have.
/// The only way to obtain one is [`Avx512::detect`].
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Avx512(());

impl Avx512 {
    /// Asks the CPU.
    pub(in crate::cpu) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        all.then_some(Self(()))
    }
}

/// For every lane the byte of a 16-byte code stream in which its code begins, spread to a dword:
/// the two bytes from there on, and zeros. `vpshufb` reads within each quarter, so every quarter
/// holds the whole stream.
const fn byte_picks(bits: usize) -> [u8; 64] {
    let mut picks = [0x80; 64];
    let mut lane = 0;
    while lane < 16 {
        let byte = lane * bits / 8;
        picks[lane * 4] = byte as u8;
        if byte < 15 {
            picks[lane * 4 + 1] = byte as u8 + 1;
        }
        lane += 1;
    }
    picks
}

/// How far the code of every lane lies from the start of its first byte.
const fn bit_shifts(bits: usize) -> [u32; 16] {
    let mut shifts = [0; 16];
    let mut lane = 0;
    while lane < 16 {
        shifts[lane] = (lane * bits % 8) as u32;
        lane += 1;
    }
    shifts
}

/// Constants of one code width.
struct Codes<const BITS: usize>;

impl<const BITS: usize> Codes<BITS> {
    const PICKS: [u8; 64] = byte_picks(BITS);
    const SHIFTS: [u32; 16] = bit_shifts(BITS);
}

/// Where the nibbles of two dwords lie.
const NIBBLE_SHIFTS: [u32; 16] = [0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28];
const ZERO_TO_FIFTEEN: Sixteen =
    [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// Either a table of the weights that codes up to 15 stand for, or scale and bias.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Palette {
    table_or_scale: __m512,
    bias: __m512,
}

impl Lanes for Avx512 {
    type F = __m512;
    type Palette = Palette;

    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn compiled<W: Work>(lanes: Avx512, work: W) -> W::Out {
            work.on(lanes)
        }
        // SAFETY: `self` proves that the CPU has these features.
        unsafe { compiled(self, work) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, x: &Sixteen) -> __m512 {
        // SAFETY: `self` proves avx512f; `x` is sixteen readable floats, loadu needs no alignment.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, out: &mut Sixteen) {
        // SAFETY: `self` proves avx512f; `out` is sixteen writable floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, x: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(x) }
    }
    #[inline(always)]
    fn power_of_two(self, n: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        let n = unsafe { _mm512_cvtps_epi32(n) };
        // SAFETY: `self` proves avx512f.
        let offset = unsafe { _mm512_set1_epi32(127) };
        // SAFETY: `self` proves avx512f.
        let exponent = unsafe { _mm512_add_epi32(n, offset) };
        // SAFETY: `self` proves avx512f.
        let bits = unsafe { _mm512_slli_epi32::<23>(exponent) };
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_castsi512_ps(bits) }
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        // SAFETY: `self` proves the features of `halving_sum`.
        unsafe { halving_sum(x) }
    }

    #[inline(always)]
    fn f32(self, bytes: &[u8; 64]) -> __m512 {
        // SAFETY: `self` proves avx512f; `bytes` is sixteen readable floats of any alignment.
        unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) }
    }
    #[inline(always)]
    fn f16(self, bytes: &[u8; 32]) -> __m512 {
        // SAFETY: `self` proves avx; `bytes` is 32 readable bytes of any alignment.
        let halves = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_cvtph_ps(halves) }
    }
    #[inline(always)]
    fn bf16(self, bytes: &[u8; 32]) -> __m512 {
        // SAFETY: `self` proves avx; `bytes` is 32 readable bytes of any alignment.
        let upper = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        // SAFETY: `self` proves the features of `widen_bf16`.
        unsafe { widen_bf16(upper) }
    }

    #[inline(always)]
    fn bf16_pair(self, bytes: &[u8; 4]) -> (__m512, __m512) {
        // SAFETY: `self` proves the features of `splat_bf16_pair`.
        unsafe { splat_bf16_pair(*bytes) }
    }
    #[inline(always)]
    fn palette<const BITS: usize>(self, scale: __m512, bias: __m512) -> Palette {
        if BITS > 4 {
            return Palette { table_or_scale: scale, bias };
        }
        let products = self.mul(self.load(&ZERO_TO_FIFTEEN), scale);
        Palette { table_or_scale: self.add(products, bias), bias }
    }

    #[inline(always)]
    fn affine<const BITS: usize>(self, palette: Palette, codes: &[u8]) -> __m512 {
        // SAFETY: `self` proves the features of `spread` and `spread_nibbles`.
        let lanes =
            unsafe { if BITS == 4 { spread_nibbles(codes) } else { spread::<BITS>(codes) } };
        if BITS == 4 {
            // The permutation looks at the lower four bits only: no mask is needed.
            // SAFETY: `self` proves avx512f.
            return unsafe { _mm512_permutexvar_ps(lanes, palette.table_or_scale) };
        }
        // SAFETY: `self` proves avx512f.
        let mask = unsafe { _mm512_set1_epi32((1 << BITS) - 1) };
        // SAFETY: `self` proves avx512f.
        let codes = unsafe { _mm512_and_si512(lanes, mask) };
        if BITS < 4 {
            // SAFETY: `self` proves avx512f.
            return unsafe { _mm512_permutexvar_ps(codes, palette.table_or_scale) };
        }
        // SAFETY: `self` proves avx512f.
        let codes = unsafe { _mm512_cvtepi32_ps(codes) };
        self.add(self.mul(codes, palette.table_or_scale), palette.bias)
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], ahead: usize) {
        let at = bytes.as_ptr().wrapping_add(ahead);
        // SAFETY: a prefetch of any address is a hint and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// Lane `i` gets nibble `i`, with the higher nibbles of its dword above it.
#[target_feature(enable = "avx512f")]
#[inline]
fn spread_nibbles(codes: &[u8]) -> __m512i {
    let (dwords, _) = codes.as_chunks::<4>();
    let low = _mm512_set1_epi32(i32::from_le_bytes(dwords[0]));
    let both = _mm512_mask_set1_epi32(low, 0xff00, i32::from_le_bytes(dwords[1]));
    // SAFETY: `NIBBLE_SHIFTS` is 64 readable bytes.
    let shifts = unsafe { _mm512_loadu_si512(NIBBLE_SHIFTS.as_ptr().cast()) };
    _mm512_srlv_epi32(both, shifts)
}

/// Lane `i` gets code `i` in its lower bits, with neighbours above it.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn spread<const BITS: usize>(codes: &[u8]) -> __m512i {
    if BITS == 8 {
        let (sixteen, _) = codes.as_chunks::<16>();
        // SAFETY: sixteen readable bytes.
        let bytes = unsafe { _mm_loadu_si128(sixteen[0].as_ptr().cast()) };
        return _mm512_cvtepu8_epi32(bytes);
    }
    let (low, high) = code_stream::<BITS>(codes);
    let stream = _mm_set_epi64x(high as i64, low as i64);
    // SAFETY: 64 readable bytes.
    let picks = unsafe { _mm512_loadu_si512(Codes::<BITS>::PICKS.as_ptr().cast()) };
    let pairs = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(stream), picks);
    // SAFETY: 64 readable bytes.
    let shifts = unsafe { _mm512_loadu_si512(Codes::<BITS>::SHIFTS.as_ptr().cast()) };
    _mm512_srlv_epi32(pairs, shifts)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn widen_bf16(upper: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(upper)))
}

/// A bf16 is the upper half of an f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn splat_bf16_pair(bytes: [u8; 4]) -> (__m512, __m512) {
    let both = _mm512_set1_epi32(i32::from_le_bytes(bytes));
    let upper = _mm512_and_si512(both, _mm512_set1_epi32(!0xffff));
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(upper))
}

#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn halving_sum(x: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
