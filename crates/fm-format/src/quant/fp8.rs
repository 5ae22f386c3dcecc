//! Eight-bit floats as they are published in two tensors, codes and scales.
//!
//! ```text
//! mxfp8       scale e8m0 | codes 32 B       32 weights      e4m3(code) · 2^(scale - 127)
//! fp8_gG      scale f32 | codes G B         G weights       e4m3(code) · scale
//! ```
//!
//! Several vendors publish `fp8`: a scale belongs to 128 rows and 128 columns. Each row gets
//! its own copy, for 3 % more bytes, so that a row stands by itself. Where a row is no multiple of
//! 128 columns, its blocks are shorter and several of them share a scale.
//!
//! Source: Micikevicius et al., *FP8 Formats for Deep Learning*, 2022, arXiv:2209.05433 (e4m3);
//! `DeepSeek-AI`, *`DeepSeek-V3` Technical Report*, 2024, arXiv:2412.19437, section 3.3 (blocks); MLX
//! `quantize` in mode `mxfp8`, checked bit for bit against `golden/quant_vectors`.

use super::{FormatKind, QuantFormat, ggml::fp4::half_of_e8m0};

/// Rows, and columns, that share a scale of `fp8`.
pub const TILE: usize = 128;

/// One exponent for 32 weights.
pub const MXFP8: QuantFormat = QuantFormat {
    name: "mxfp8",
    block_len: 32,
    block_bytes: 1 + 32,
    kind: FormatKind::Mxfp8,
    decode: |block, out| {
        // The whole scale would be too large for an f32 at its upper end; twice its half never is
        // where the product is not.
        let half = half_of_e8m0(block[0]);
        decode(block, 1, |code| 2.0 * code * half, out);
    },
    encode: None,
};

/// Rows of the table, by the length of a block.
macro_rules! fp8_row {
    ($name:literal, $group:literal) => {
        QuantFormat {
            name: $name,
            block_len: $group,
            block_bytes: 4 + $group,
            kind: FormatKind::Fp8 { group: $group },
            decode: |block, out| {
                let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
                decode(block, 4, |code| code * scale, out);
            },
            encode: None,
        }
    };
}

/// Rows of whole tiles.
pub const FP8_G128: QuantFormat = fp8_row!("fp8_g128", 128);
/// Rows that are multiples of 64 columns.
pub const FP8_G64: QuantFormat = fp8_row!("fp8_g64", 64);
/// Rows that are multiples of 32 columns.
pub const FP8_G32: QuantFormat = fp8_row!("fp8_g32", 32);

fn decode(block: &[u8], head: usize, value: impl Fn(f32) -> f32, out: &mut [f32]) {
    for (out, code) in out.iter_mut().zip(&block[head..]) {
        *out = value(VALUES[usize::from(*code)]);
    }
}

/// The bits of the f16 that is the 256th part of a code's value, all of which f16 has: it has the same fraction, and
/// one more bit of exponent, around 15.
#[inline]
pub const fn e4m3_as_f16(code: u8) -> u16 {
    let moved = ((code as i8 as i16) << 8 >> 1) as u16 & 0xbfff;
    // The largest exponent and fraction are no number there, and are one here.
    if code | 0x80 == 0xff { moved | 0x7e00 } else { moved }
}

/// The value of a code: a sign, four bits of exponent around 7, three of a fraction, denormals, no
/// infinities; 0x7f and 0xff are no numbers.
#[inline]
pub fn e4m3(code: u8) -> f32 {
    VALUES[usize::from(code)]
}

static VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = value_of(code as u32);
        code += 1;
    }
    values
};

/// [`e4m3`], for tables.
pub const fn value_of(code: u32) -> f32 {
    let (exponent, fraction) = (code >> 3 & 15, code & 7);
    let size = match (exponent, fraction) {
        (15, 7) => f32::NAN,
        // 2^-9 is the smallest number.
        (0, _) => fraction as f32 / 512.0,
        _ => f32::from_bits((exponent + 127 - 7) << 23 | fraction << 20),
    };
    if code & 0x80 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_what_its_bits_say() {
        for code in 0..=u8::MAX {
            let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
            let size = match (exponent, code & 7) {
                (15, 7) => f64::NAN,
                (0, _) => fraction * 2.0_f64.powi(-6),
                _ => (1.0 + fraction) * 2.0_f64.powi(exponent - 7),
            };
            let want = if code < 128 { size } else { -size };
            let half = half::f16::from_bits(e4m3_as_f16(code));
            for found in [f64::from(e4m3(code)), f64::from(half) * 256.0] {
                let same = found == want || found.is_nan() && want.is_nan();
                assert!(
                    same && found.is_sign_positive() == (code < 128),
                    "{code:#x}: {found} {want}"
                );
            }
        }
        assert_eq!((e4m3(0x7e), e4m3(0x81)), (448.0, -1.0 / 512.0));
    }
}
