//! Four-bit floats with a small float as their scale, as ggml packs them.
//!
//! ```text
//! mxfp4   scale e8m0 | nibbles 16 B                32 weights      value(nibble) · 2^(scale - 127)
//! nvfp4   4 scales ue4m3 | 4 · nibbles 8 B         64 weights      value(nibble) · scale of its 16
//! ```
//!
//! A nibble is an e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Nibbles lie in two planes of
//! the 16 (8) bytes. A scale of `nvfp4` has four exponent bits around 7 and three of a fraction,
//! denormals below, and its bytes 0x00 and 0x7f are zero; the upper bit is not looked at. A checkpoint
//! may have one more scale for a whole `nvfp4` tensor, which is a tensor of its own.
//!
//! Source: OCP Microscaling Formats (MX) 1.0; ggml, where values are doubled and scales halved.

use super::{
    super::{FormatKind, QuantFormat},
    GgmlKind, planes,
};

/// Twice the values of the codes. The negative zero is a zero here.
pub const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A power of two for 32 weights.
pub const MXFP4: QuantFormat = QuantFormat {
    name: "mxfp4",
    block_len: 32,
    block_bytes: 1 + 16,
    kind: FormatKind::Ggml(GgmlKind::Mxfp4),
    decode: |block, out| decode_group(half_of_e8m0(block[0]), &block[1..17], out),
    encode: None,
};

/// An eight-bit float for 16 weights.
pub const NVFP4: QuantFormat = QuantFormat {
    name: "nvfp4",
    block_len: 64,
    block_bytes: 4 + 32,
    kind: FormatKind::Ggml(GgmlKind::Nvfp4),
    decode: |block, out| {
        let (scales, nibbles) = block.split_at(4);
        let groups = out.chunks_exact_mut(16).zip(nibbles.chunks_exact(8));
        for ((out, nibbles), scale) in groups.zip(scales) {
            decode_group(half_of_ue4m3(*scale), nibbles, out);
        }
    },
    encode: None,
};

fn decode_group(half_scale: f32, nibbles: &[u8], out: &mut [f32]) {
    for (out, code) in out.iter_mut().zip(planes(nibbles, 4)) {
        *out = half_scale * f32::from(DOUBLED[usize::from(code)]);
    }
}

/// `2^(scale - 128)`, for [`DOUBLED`] values: the exponent of an f32, with denormals for 0 and 1.
#[inline]
pub fn half_of_e8m0(scale: u8) -> f32 {
    f32::from_bits(match scale {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        _ => u32::from(scale - 1) << 23,
    })
}

/// Half of a scale of `nvfp4`, for [`DOUBLED`] values.
#[inline]
pub fn half_of_ue4m3(scale: u8) -> f32 {
    let (exponent, fraction) = (scale >> 3 & 15, f32::from(scale & 7));
    match (scale, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => fraction / 1024.0,
        _ => (1.0 + fraction / 8.0) * f32::from_bits((u32::from(exponent) + 127 - 8) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_is_what_its_bits_say() {
        for scale in 0..=u8::MAX {
            let power = 2.0_f64.powi(i32::from(scale) - 127);
            assert_eq!(f64::from(half_of_e8m0(scale)) * 2.0, power, "e8m0 {scale}");

            let (exponent, fraction) = (i32::from(scale >> 3 & 15), f64::from(scale & 7) / 8.0);
            let value = match (scale, exponent) {
                (0x7f, _) => 0.0,
                (_, 0) => fraction * 2.0_f64.powi(1 - 7),
                _ => (1.0 + fraction) * 2.0_f64.powi(exponent - 7),
            };
            assert_eq!(f64::from(half_of_ue4m3(scale)) * 2.0, value, "ue4m3 {scale}");
        }
    }
}
