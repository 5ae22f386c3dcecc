//! Microscaling blocks as they are published in two tensors: one exponent and 32 four-bit floats.
//!
//! ```text
//! scale e8m0 | codes 16 B             weight = value(code) · 2^(scale - 127)
//! ```
//!
//! Weight `2i` is the lower half of byte `i` and weight `2i + 1` the upper; ggml has another order,
//! see [`super::ggml::fp4`], and the same values. transformers (`_blocks`, `_scales`) and MLX (mode
//! `mxfp4`, in words) agree. `record.rs` interleaves codes and scales.
//!
//! Source: OCP Microscaling Formats (MX) 1.0, 2023.

use super::{
    FormatKind, QuantFormat,
    ggml::fp4::{DOUBLED, half_of_e8m0},
};

/// See the module.
pub const MXFP4_SEQ: QuantFormat = QuantFormat {
    name: "mxfp4_seq",
    block_len: 32,
    block_bytes: 1 + 16,
    kind: FormatKind::Mxfp4,
    decode,
    encode: None,
};

fn decode(block: &[u8], out: &mut [f32]) {
    let scale = half_of_e8m0(block[0]);
    let codes = block[1..].iter().flat_map(|byte| [byte & 15, byte >> 4]);
    for (out, code) in out.iter_mut().zip(codes) {
        *out = scale * f32::from(DOUBLED[usize::from(code)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_each_other_and_share_an_exponent() {
        let mut block = [0; 17];
        block[0] = 128;
        (block[1], block[2], block[16]) = (0x21, 0xf7, 0x9e);
        let mut out = [7.0; 32];
        decode(&block, &mut out);
        assert_eq!(out[..5], [1.0, 2.0, 12.0, -12.0, 0.0]);
        assert_eq!(out[30..], [-8.0, -1.0]);
        block[0] = 0;
        decode(&block, &mut out);
        assert_eq!(out[0], 0.5 * f32::MIN_POSITIVE / 2.0, "2^-127 is a denormal, not zero");
    }
}
