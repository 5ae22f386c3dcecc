//! Eight-bit floats, see `fm_format::quant::fp8`.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::arch::x86_64::*;

use fm_format::quant::fp8;

/// Byte `BYTE` of the values of all codes without a sign: the two upper bytes have all bits that are not zero.
const fn bytes_of_values<const BYTE: usize>() -> [u8; 128] {
    let mut bytes = [0; 128];
    let mut code = 0;
    while code < 128 {
        bytes[code] = fp8::value_of(code as u32).to_le_bytes()[BYTE];
        code += 1;
    }
    bytes
}

static THIRD_BYTES: [u8; 128] = bytes_of_values::<2>();
static FOURTH_BYTES: [u8; 128] = bytes_of_values::<3>();

/// Code `i` to the two upper bytes of dword `i`, of which every quarter of a register has four.
const TO_UPPER: [u8; 64] = {
    let mut picks = [0x80; 64];
    let mut lane = 0;
    while lane < 16 {
        picks[lane * 4 + 2] = lane as u8;
        picks[lane * 4 + 3] = lane as u8;
        lane += 1;
    }
    picks
};

/// Sixteen of them: two bytes of each value are looked up.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
pub(super) fn values(codes: &[u8; 16]) -> __m512 {
    // SAFETY: sixteen readable bytes.
    let codes = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(codes.as_ptr().cast()) });
    let codes = _mm512_shuffle_epi8(codes, register(&TO_UPPER));
    let third = look_up(codes, 0x4444_4444_4444_4444, &THIRD_BYTES);
    let size = look_up(third, 0x8888_8888_8888_8888, &FOURTH_BYTES);
    // size | codes & sign
    let sign = _mm512_set1_epi32(i32::MIN);
    _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xf8>(size, codes, sign))
}

/// `table[byte & 127]` in place of every byte that is in `which`.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
fn look_up(bytes: __m512i, which: u64, table: &[u8; 128]) -> __m512i {
    let ([low, high], []) = table.as_chunks::<64>() else { unreachable!("two halves") };
    _mm512_mask2_permutex2var_epi8(register(low), bytes, which, register(high))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn register(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 readable bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
