//! Plain float weights: a block is one weight.

use half::{bf16, f16};

use super::{FloatKind, FormatKind, QuantFormat};

/// IEEE binary32, little-endian.
pub const F32: QuantFormat = QuantFormat {
    name: "f32",
    block_len: 1,
    block_bytes: 4,
    kind: FormatKind::Float(FloatKind::F32),
    decode: |block, out| out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
    encode: Some(|weights, block| block.copy_from_slice(&weights[0].to_le_bytes())),
};

/// IEEE binary16, little-endian.
pub const F16: QuantFormat = QuantFormat {
    name: "f16",
    block_len: 1,
    block_bytes: 2,
    kind: FormatKind::Float(FloatKind::F16),
    decode: |block, out| out[0] = f16::from_le_bytes([block[0], block[1]]).to_f32(),
    encode: Some(|weights, block| block.copy_from_slice(&f16::from_f32(weights[0]).to_le_bytes())),
};

/// bfloat16, little-endian.
pub const BF16: QuantFormat = QuantFormat {
    name: "bf16",
    block_len: 1,
    block_bytes: 2,
    kind: FormatKind::Float(FloatKind::Bf16),
    decode: |block, out| out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
    encode: Some(|weights, block| block.copy_from_slice(&bf16::from_f32(weights[0]).to_le_bytes())),
};
