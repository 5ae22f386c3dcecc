//! Four-bit floats as they are published in two tensors, codes and scales.
//!
//! ```text
//! mxfp4_seq   scale e8m0 | codes 16 B       32 weights      value(code) · 2^(scale - 127)
//! nvfp4_seq   scale e4m3 | codes 8 B        16 weights      value(code) · scale
//! ```
//!
//! Weight `2i` is the lower half of byte `i` and weight `2i + 1` the upper; ggml has another order,
//! see [`super::ggml::fp4`], and the same values. transformers (`_blocks`, `_scales`) and MLX (modes
//! `mxfp4` and `nvfp4`, in words) agree. `record.rs` interleaves codes and scales.
//!
//! Source: OCP Microscaling Formats (MX) 1.0, 2023; MLX `quantize`, checked bit for bit against
//! `golden/quant_vectors`.

use super::{
    FormatKind, QuantFormat,
    fp8::e4m3,
    ggml::fp4::{DOUBLED, half_of_e8m0},
};

/// One exponent for 32 weights.
pub const MXFP4_SEQ: QuantFormat = QuantFormat {
    name: "mxfp4_seq",
    block_len: 32,
    block_bytes: 1 + 16,
    kind: FormatKind::Mxfp4,
    decode: |block, out| decode(half_of_e8m0(block[0]), block, out),
    encode: None,
};

/// An eight-bit float for 16 weights.
pub const NVFP4_SEQ: QuantFormat = QuantFormat {
    name: "nvfp4_seq",
    block_len: 16,
    block_bytes: 1 + 8,
    kind: FormatKind::Nvfp4,
    decode: |block, out| decode(0.5 * e4m3(block[0]), block, out),
    encode: None,
};

/// `scale` is half of the block's, because [`DOUBLED`] values are twice the codes'.
fn decode(scale: f32, block: &[u8], out: &mut [f32]) {
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
        (MXFP4_SEQ.decode)(&block, &mut out);
        assert_eq!(out[..5], [1.0, 2.0, 12.0, -12.0, 0.0]);
        assert_eq!(out[30..], [-8.0, -1.0]);
        block[0] = 0;
        (MXFP4_SEQ.decode)(&block, &mut out);
        assert_eq!(out[0], 0.5 * f32::MIN_POSITIVE / 2.0, "2^-127 is a denormal, not zero");
    }
}
