//! Sums of lanes: `i` with `i + 8`, then `i + 4`, `i + 2`, `i + 1`.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::arch::x86_64::*;

use super::Halves;

/// The last three halvings.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn halving_sum(eight: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The first two halvings of two sums, side by side.
#[target_feature(enable = "avx2")]
#[inline]
fn halved_twice([a, b]: [Halves; 2]) -> __m256 {
    let (a, b) = (_mm256_add_ps(a.0, a.1), _mm256_add_ps(b.0, b.1));
    let (low, high) = (_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
    _mm256_add_ps(low, high)
}

/// Four sums.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn halving_sums([a, b, c, d]: [Halves; 4]) -> [f32; 4] {
    const FIRST_TWO: i32 = 0b01_00_01_00;
    const LAST_TWO: i32 = 0b11_10_11_10;
    let (ac, bd) = (halved_twice([a, c]), halved_twice([b, d]));
    let twos = _mm256_add_ps(
        _mm256_shuffle_ps::<FIRST_TWO>(ac, bd),
        _mm256_shuffle_ps::<LAST_TWO>(ac, bd),
    );
    // Lanes 0 and 2 of the halves: a and b, c and d.
    let ones = _mm256_add_ps(twos, _mm256_movehdup_ps(twos));
    let (ab, cd) = (_mm256_castps256_ps128(ones), _mm256_extractf128_ps::<1>(ones));
    let (sums, mut all) = (_mm_shuffle_ps::<0b10_00_10_00>(ab, cd), [0.0; 4]);
    // SAFETY: four writable floats.
    unsafe { _mm_storeu_ps(all.as_mut_ptr(), sums) };
    all
}
