//! MLX affine blocks: `weight = code · scale + bias`, one scale and bias per group.
//!
//! ```text
//! scale | bias | codes            scale and bias bf16 or f32, codes one LSB-first bit stream
//! ```
//!
//! The codes are the checkpoint's `u32` words as they are (3, 5 and 6 bits straddle words); a group
//! is always a whole number of words. Checkpoints publish codes, scales and biases as three
//! tensors; `record.rs` interleaves them.
//!
//! Source: MLX `quantize`; checked bit for bit against `golden/quant_vectors`.

use half::bf16;

/// Bytes of scale and bias at the head of a block.
pub const fn head_bytes(f32_scale: bool) -> usize {
    if f32_scale { 8 } else { 4 }
}

/// Scale and bias of a block, and its codes.
fn split<const F32_SCALE: bool>(block: &[u8]) -> (f32, f32, &[u8]) {
    let (head, codes) = block.split_at(head_bytes(F32_SCALE));
    let number = |at: usize| {
        if F32_SCALE {
            f32::from_le_bytes([head[at * 4], head[at * 4 + 1], head[at * 4 + 2], head[at * 4 + 3]])
        } else {
            bf16::from_le_bytes([head[at * 2], head[at * 2 + 1]]).to_f32()
        }
    };
    (number(0), number(1), codes)
}

/// Decodes one block; multiplication and addition round separately, as in MLX.
///
/// # Panics
/// If the block is shorter than its codes.
pub fn decode<const BITS: usize, const F32_SCALE: bool>(block: &[u8], out: &mut [f32]) {
    let (scale, bias, codes) = split::<F32_SCALE>(block);
    let (mut window, mut filled, mut bytes) = (0_u32, 0, codes.iter());
    for weight in out {
        while filled < BITS {
            window |= u32::from(*bytes.next().expect("codes cover the group")) << filled;
            filled += 8;
        }
        let code = window & ((1 << BITS) - 1);
        window >>= BITS;
        filled -= BITS;
        *weight = code as f32 * scale + bias;
    }
}

/// Encodes one block: codes span the group's smallest to its largest weight.
pub fn encode<const BITS: usize, const F32_SCALE: bool>(weights: &[f32], block: &mut [u8]) {
    let low = weights.iter().copied().fold(f32::INFINITY, f32::min);
    let high = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let codes_max = ((1_u32 << BITS) - 1) as f32;
    let stored = |x: f32| if F32_SCALE { x } else { bf16::from_f32(x).to_f32() };
    let (scale, bias) = (stored((high - low) / codes_max), stored(low));

    let (head, codes) = block.split_at_mut(head_bytes(F32_SCALE));
    for (at, number) in [scale, bias].into_iter().enumerate() {
        if F32_SCALE {
            head[at * 4..][..4].copy_from_slice(&number.to_le_bytes());
        } else {
            head[at * 2..][..2].copy_from_slice(&bf16::from_f32(number).to_le_bytes());
        }
    }
    codes.fill(0);
    for (i, weight) in weights.iter().enumerate() {
        let code = if scale == 0.0 { 0.0 } else { (weight - bias) / scale };
        let code = code.round().clamp(0.0, codes_max) as u32;
        let (byte, shift) = (i * BITS / 8, i * BITS % 8);
        let spread = code << shift;
        codes[byte] |= spread as u8;
        if shift + BITS > 8 {
            codes[byte + 1] |= (spread >> 8) as u8;
        }
    }
}
