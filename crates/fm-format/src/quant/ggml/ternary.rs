//! ggml's ternary blocks: 256 weights of -d, 0 or d.
//!
//! ```text
//! tq1_0   digits of 240 weights 48 B | digits of 16 weights 4 B | d f16       (digit - 1) · d
//! tq2_0   codes 64 B | d f16                                                  (code - 1) · d
//! ```
//!
//! `tq1_0` packs five base-3 digits into a byte `b` as the fraction `b / 256`: the next digit is the
//! integer part of three times the fraction. Weights lie in five planes of 32 bytes, five planes of
//! 16 bytes and four planes of 4 bytes. `tq2_0` has two-bit codes in four planes of every 32 bytes.

use super::{
    super::{FormatKind, QuantFormat},
    GgmlKind, LARGE, half_at, planes,
};

/// Five weights per byte.
pub const TQ1_0: QuantFormat = QuantFormat {
    name: "tq1_0",
    block_len: LARGE,
    block_bytes: 54,
    kind: FormatKind::Ggml(GgmlKind::Tq1_0),
    decode: |block, out| {
        let d = half_at(block, 52);
        let digits = digit_planes(&block[..32], 5)
            .chain(digit_planes(&block[32..48], 5))
            .chain(digit_planes(&block[48..52], 4));
        for (out, digit) in out.iter_mut().zip(digits) {
            *out = (f32::from(digit) - 1.0) * d;
        }
    },
    encode: None,
};

/// Four weights per byte.
pub const TQ2_0: QuantFormat = QuantFormat {
    name: "tq2_0",
    block_len: LARGE,
    block_bytes: 66,
    kind: FormatKind::Ggml(GgmlKind::Tq2_0),
    decode: |block, out| {
        let d = half_at(block, 64);
        let codes = block[..64].chunks_exact(32).flat_map(|bytes| planes(bytes, 2));
        for (out, code) in out.iter_mut().zip(codes) {
            *out = (f32::from(code) - 1.0) * d;
        }
    },
    encode: None,
};

/// The first digit of every byte, then the second, …
fn digit_planes(bytes: &[u8], digits: u32) -> impl Iterator<Item = u8> {
    (0..digits).flat_map(move |digit| {
        let skip = 3_u8.pow(digit);
        bytes.iter().map(move |byte| ((u16::from(byte.wrapping_mul(skip)) * 3) >> 8) as u8)
    })
}
