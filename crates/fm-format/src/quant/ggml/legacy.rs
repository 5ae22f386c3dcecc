//! ggml blocks of 32 weights with one scale.
//!
//! ```text
//! q4_0   d f16             | nibbles 16 B                  (code -  8) · d
//! q4_1   d f16 | m f16     | nibbles 16 B                   code · d + m
//! q5_0   d f16             | fifth bits 4 B | nibbles 16 B (code - 16) · d
//! q5_1   d f16 | m f16     | fifth bits 4 B | nibbles 16 B  code · d + m
//! q8_0   d f16             | codes 32 B, signed             code · d
//! ```
//!
//! Nibbles are two planes: weights 0 to 15 below, 16 to 31 above. Fifth bits are one u32, bit `i`
//! for weight `i`. Encoders give the same bytes as ggml's reference quantisation.

use super::{
    super::{FormatKind, QuantFormat},
    GgmlKind, fill_planes, half_at, inverse, planes, store_half,
};

/// Weights of a block.
const LEN: usize = 32;

/// Four bits around zero.
pub const Q4_0: QuantFormat = QuantFormat {
    name: "q4_0",
    block_len: LEN,
    block_bytes: 2 + 16,
    kind: FormatKind::Ggml(GgmlKind::Q4_0),
    decode: |block, out| {
        let d = half_at(block, 0);
        for (out, code) in out.iter_mut().zip(planes(&block[2..18], 4)) {
            *out = (f32::from(code) - 8.0) * d;
        }
    },
    encode: Some(|weights, block| {
        let codes = centred_codes::<8>(weights, block);
        fill_planes(&mut block[2..18], 4, &codes);
    }),
};

/// Four bits from a minimum on.
pub const Q4_1: QuantFormat = QuantFormat {
    name: "q4_1",
    block_len: LEN,
    block_bytes: 4 + 16,
    kind: FormatKind::Ggml(GgmlKind::Q4_1),
    decode: |block, out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        for (out, code) in out.iter_mut().zip(planes(&block[4..20], 4)) {
            *out = f32::from(code) * d + m;
        }
    },
    encode: Some(|weights, block| {
        let codes = codes_from_minimum::<15>(weights, block);
        fill_planes(&mut block[4..20], 4, &codes);
    }),
};

/// Five bits around zero.
pub const Q5_0: QuantFormat = QuantFormat {
    name: "q5_0",
    block_len: LEN,
    block_bytes: 2 + 4 + 16,
    kind: FormatKind::Ggml(GgmlKind::Q5_0),
    decode: |block, out| {
        let d = half_at(block, 0);
        for (out, code) in out.iter_mut().zip(five_bits(&block[2..22])) {
            *out = (f32::from(code) - 16.0) * d;
        }
    },
    encode: Some(|weights, block| {
        let codes = centred_codes::<16>(weights, block);
        fill_five_bits(&mut block[2..22], &codes);
    }),
};

/// Five bits from a minimum on.
pub const Q5_1: QuantFormat = QuantFormat {
    name: "q5_1",
    block_len: LEN,
    block_bytes: 4 + 4 + 16,
    kind: FormatKind::Ggml(GgmlKind::Q5_1),
    decode: |block, out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        for (out, code) in out.iter_mut().zip(five_bits(&block[4..24])) {
            *out = f32::from(code) * d + m;
        }
    },
    encode: Some(|weights, block| {
        let codes = codes_from_minimum::<31>(weights, block);
        fill_five_bits(&mut block[4..24], &codes);
    }),
};

/// Eight bits around zero.
pub const Q8_0: QuantFormat = QuantFormat {
    name: "q8_0",
    block_len: LEN,
    block_bytes: 2 + 32,
    kind: FormatKind::Ggml(GgmlKind::Q8_0),
    decode: |block, out| {
        let d = half_at(block, 0);
        for (out, code) in out.iter_mut().zip(&block[2..34]) {
            *out = f32::from(code.cast_signed()) * d;
        }
    },
    encode: Some(|weights, block| {
        let d = weights.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 127.0;
        let inverse = inverse(d);
        store_half(block, 0, d);
        for (code, weight) in block[2..34].iter_mut().zip(weights) {
            *code = ((weight * inverse).round() as i8).cast_unsigned();
        }
    }),
};

/// Fifth bits, then nibbles.
fn five_bits(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let (high, low) = bytes.split_at(4);
    let high = (0..LEN).map(|i| high[i / 8] >> (i % 8) & 1);
    planes(low, 4).zip(high).map(|(low, high)| low | high << 4)
}

fn fill_five_bits(bytes: &mut [u8], codes: &[u8; LEN]) {
    let (high, low) = bytes.split_at_mut(4);
    fill_planes(low, 4, codes);
    high.fill(0);
    for (i, code) in codes.iter().enumerate() {
        high[i / 8] |= code >> 4 << (i % 8);
    }
}

/// Stores the scale and gives the codes of weights around code `ZERO`: the weight furthest from
/// zero becomes code 0.
fn centred_codes<const ZERO: u8>(weights: &[f32], block: &mut [u8]) -> [u8; LEN] {
    let further = |a: f32, b: &f32| if b.abs() > a.abs() { *b } else { a };
    let d = weights.iter().fold(0.0, further) / -f32::from(ZERO);
    let inverse = inverse(d);
    store_half(block, 0, d);
    std::array::from_fn(|i| {
        ((weights[i] * inverse + (f32::from(ZERO) + 0.5)) as u8).min(2 * ZERO - 1)
    })
}

/// Stores scale and minimum and gives the codes: the smallest weight becomes 0, the largest `MAX`.
fn codes_from_minimum<const MAX: u8>(weights: &[f32], block: &mut [u8]) -> [u8; LEN] {
    let low = weights.iter().copied().fold(f32::INFINITY, f32::min);
    let high = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (high - low) / f32::from(MAX);
    let inverse = inverse(d);
    store_half(block, 0, d);
    store_half(block, 2, low);
    std::array::from_fn(|i| (((weights[i] - low) * inverse + 0.5) as u8).min(MAX))
}
