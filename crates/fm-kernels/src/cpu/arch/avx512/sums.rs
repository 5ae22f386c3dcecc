//! Sums of lanes: `i` with `i + 8`, then `i + 4`, `i + 2`, `i + 1`.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::arch::x86_64::*;

// Which of four parts of two registers a shuffle takes: the upper half of one and the lower half of the other, or every
// second part.
const SWAPPED: i32 = 0b01_00_11_10;
const EVEN: i32 = 0b10_00_10_00;
const ODD: i32 = 0b11_01_11_01;

#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
pub(super) fn halving_sum(x: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The first two halvings of four sums: those of each are the four lanes of one quarter.
///
/// What is added is a mix of two registers where lanes stay in place, and one where they change places: only the latter
/// is a shuffle, of which a core begins one per cycle where it begins two of all else.
#[target_feature(enable = "avx512f")]
#[inline]
fn halved_twice([a, b, c, d]: [__m512; 4]) -> __m512 {
    let eights_ac =
        _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, c), _mm512_shuffle_f32x4::<SWAPPED>(a, c));
    let eights_bd =
        _mm512_add_ps(_mm512_mask_blend_ps(0xff00, b, d), _mm512_shuffle_f32x4::<SWAPPED>(b, d));
    let swapped = _mm512_setr_epi64(2, 3, 8, 9, 6, 7, 12, 13);
    let [ac, bd] = [_mm512_castps_pd(eights_ac), _mm512_castps_pd(eights_bd)];
    _mm512_add_ps(
        _mm512_mask_blend_ps(0xf0f0, eights_ac, eights_bd),
        _mm512_castpd_ps(_mm512_permutex2var_pd(ac, swapped, bd)),
    )
}

/// Four times [`halving_sum`], side by side in the quarters of a register.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn halving_sums(x: [__m512; 4]) -> [f32; 4] {
    let fours = halved_twice(x);
    let twos = _mm512_add_ps(fours, _mm512_permute_ps::<0b01_00_11_10>(fours));
    let ones = _mm512_add_ps(twos, _mm512_permute_ps::<0b10_11_00_01>(twos));
    let mut all = [0.0; 16];
    // SAFETY: sixteen writable floats.
    unsafe { _mm512_storeu_ps(all.as_mut_ptr(), ones) };
    [all[0], all[4], all[8], all[12]]
}

/// Sixteen times [`halving_sum`], those of `x[n]` in quarter `n`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn halving_tile([a, b, c, d]: [[__m512; 4]; 4]) -> __m512 {
    let [a, b, c, d] = [halved_twice(a), halved_twice(b), halved_twice(c), halved_twice(d)];
    let twos_ab =
        _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps::<SWAPPED>(a, b));
    let twos_cd =
        _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, c, d), _mm512_shuffle_ps::<SWAPPED>(c, d));
    // Quarter `i` has sum `i` of each.
    let ones = _mm512_add_ps(
        _mm512_shuffle_ps::<EVEN>(twos_ab, twos_cd),
        _mm512_shuffle_ps::<ODD>(twos_ab, twos_cd),
    );
    let turned = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_ps(turned, ones)
}
