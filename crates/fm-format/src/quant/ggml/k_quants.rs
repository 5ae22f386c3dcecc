//! ggml's K-quants: blocks of 256 weights in groups of 16 or 32, whose scales are codes themselves.
//!
//! ```text
//! q2_k   group heads 16 B | codes 64 B | d f16 | dmin f16            84 B, groups of 16
//! q3_k   third bits 32 B | codes 64 B | group scales 12 B | d f16   110 B, groups of 16
//! q4_k   d f16 | dmin f16 | group heads 12 B | nibbles 128 B        144 B, groups of 32
//! q5_k   d f16 | dmin f16 | group heads 12 B | fifth bits 32 B | nibbles 128 B     176 B
//! q6_k   nibbles 128 B | upper bits 64 B | group scales 16 B | d f16               210 B, of 16
//!
//! q2_k   d · scale · code - dmin · min       scale, min: nibbles of the group's byte
//! q3_k   d · (scale - 32) · (code - 4)       the third bit of a code is 1 where nothing is taken off
//! q4_k, q5_k   d · scale · code - dmin · min  scale, min: six bits
//! q6_k   d · scale · (code - 32)             scale: signed byte
//! ```
//!
//! Two-bit codes lie in four planes of every 32 bytes, nibbles in two planes of every 32 (in `q6_k`
//! 64) bytes, so a plane is a run of 32 (64) weights; third and fifth bits in eight planes of their
//! 32 bytes, the upper bits of `q6_k` in four planes of every 32 bytes.
//!
//! Group heads of `q4_k` and `q5_k`, three dwords of four bytes: `ssaaaaaa`, `nnbbbbbb`, `ddddcccc`.
//! `a` and `b` are scale and minimum of groups 0 to 3; `sscccc` and `nndddd` those of 4 to 7.
//! Group scales of `q3_k`: nibbles of 8 bytes in two planes, and two bits above each from the last
//! 4 bytes in four planes.

use std::array;

use super::{
    super::{FormatKind, QuantFormat},
    GgmlKind, LARGE, fill_planes, half_at, inverse, planes, store_half,
};

/// Two bits with a minimum: about 2.6 bits per weight.
pub const Q2_K: QuantFormat = QuantFormat {
    name: "q2_k",
    block_len: LARGE,
    block_bytes: 84,
    kind: FormatKind::Ggml(GgmlKind::Q2K),
    decode: |block, out| {
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        let codes = block[16..80].chunks_exact(32).flat_map(|bytes| planes(bytes, 2));
        for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            let head = block[i / 16];
            *out = d * f32::from(head & 15) * f32::from(code) - dmin * f32::from(head >> 4);
        }
    },
    encode: None,
};

/// Three bits around zero: about 3.4 bits per weight.
pub const Q3_K: QuantFormat = QuantFormat {
    name: "q3_k",
    block_len: LARGE,
    block_bytes: 110,
    kind: FormatKind::Ggml(GgmlKind::Q3K),
    decode: |block, out| {
        let d = half_at(block, 108);
        let mut scales = [0.0; 16];
        let upper = planes(&block[104..108], 2);
        for ((scale, low), high) in scales.iter_mut().zip(planes(&block[96..104], 4)).zip(upper) {
            *scale = d * (f32::from(low | high << 4) - 32.0);
        }
        let low = block[32..96].chunks_exact(32).flat_map(|bytes| planes(bytes, 2));
        let codes = low.zip(planes(&block[..32], 1)).map(|(low, high)| low | high << 2);
        for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            *out = scales[i / 16] * (f32::from(code) - 4.0);
        }
    },
    encode: None,
};

/// Four bits with a minimum: 4.5 bits per weight.
pub const Q4_K: QuantFormat = QuantFormat {
    name: "q4_k",
    block_len: LARGE,
    block_bytes: 144,
    kind: FormatKind::Ggml(GgmlKind::Q4K),
    decode: |block, out| {
        let heads = group_heads(block);
        let codes = block[16..144].chunks_exact(32).flat_map(|bytes| planes(bytes, 4));
        for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            let (scale, min) = heads[i / 32];
            *out = scale * f32::from(code) - min;
        }
    },
    encode: Some(|weights, block| {
        let codes = encode_groups::<15>(weights, block);
        fill_nibbles(&mut block[16..144], 32, &codes);
    }),
};

/// Five bits with a minimum: 5.5 bits per weight.
pub const Q5_K: QuantFormat = QuantFormat {
    name: "q5_k",
    block_len: LARGE,
    block_bytes: 176,
    kind: FormatKind::Ggml(GgmlKind::Q5K),
    decode: |block, out| {
        let heads = group_heads(block);
        let low = block[48..176].chunks_exact(32).flat_map(|bytes| planes(bytes, 4));
        let codes = low.zip(planes(&block[16..48], 1)).map(|(low, high)| low | high << 4);
        for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            let (scale, min) = heads[i / 32];
            *out = scale * f32::from(code) - min;
        }
    },
    encode: Some(|weights, block| {
        let codes = encode_groups::<31>(weights, block);
        fill_nibbles(&mut block[48..176], 32, &codes);
        fill_planes(&mut block[16..48], 1, &codes.map(|code| code >> 4));
    }),
};

/// Six bits around zero: about 6.6 bits per weight.
pub const Q6_K: QuantFormat = QuantFormat {
    name: "q6_k",
    block_len: LARGE,
    block_bytes: 210,
    kind: FormatKind::Ggml(GgmlKind::Q6K),
    decode: |block, out| {
        let d = half_at(block, 208);
        let low = block[..128].chunks_exact(64).flat_map(|bytes| planes(bytes, 4));
        let high = block[128..192].chunks_exact(32).flat_map(|bytes| planes(bytes, 2));
        let codes = low.zip(high).map(|(low, high)| low | high << 4);
        for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            let scale = d * f32::from(block[192 + i / 16].cast_signed());
            *out = scale * (f32::from(code) - 32.0);
        }
    },
    encode: Some(encode_q6_k),
};

/// Scale and minimum of the eight groups of a `q4_k` or `q5_k` block.
fn group_heads(block: &[u8]) -> [(f32, f32); 8] {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    array::from_fn(|group| {
        let (scale, min) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let (low, above) = (packed[group + 4], group - 4);
            (low & 15 | packed[above] >> 6 << 4, low >> 4 | packed[above + 4] >> 6 << 4)
        };
        (d * f32::from(scale), dmin * f32::from(min))
    })
}

/// Stores `d`, `dmin` and the group heads of a `q4_k` or `q5_k` block, and gives the codes.
fn encode_groups<const MAX: u8>(weights: &[f32], block: &mut [u8]) -> [u8; LARGE] {
    let groups: [(f32, f32); 8] = array::from_fn(|group| {
        let weights = &weights[group * 32..][..32];
        let low = weights.iter().copied().fold(0.0, f32::min);
        let high = weights.iter().copied().fold(0.0, f32::max);
        ((high - low) / f32::from(MAX), -low)
    });
    let largest = groups.iter().fold((0.0_f32, 0.0_f32), |a, b| (a.0.max(b.0), a.1.max(b.1)));
    let d = store_half(block, 0, largest.0 / 63.0);
    let dmin = store_half(block, 2, largest.1 / 63.0);
    let code = |x: f32, unit: f32| ((x * inverse(unit)).round() as u8).min(63);
    let packed = &mut block[4..16];
    packed.fill(0);
    for (group, (scale, min)) in groups.iter().enumerate() {
        let (scale, min) = (code(*scale, d), code(*min, dmin));
        if group < 4 {
            packed[group] |= scale;
            packed[group + 4] |= min;
        } else {
            packed[group + 4] = scale & 15 | min << 4;
            packed[group - 4] |= scale >> 4 << 6;
            packed[group] |= min >> 4 << 6;
        }
    }
    let heads = group_heads(block);
    array::from_fn(|i| {
        let (scale, min) = heads[i / 32];
        (((weights[i] + min) * inverse(scale)).round() as u8).min(MAX)
    })
}

fn encode_q6_k(weights: &[f32], block: &mut [u8]) {
    let groups: [f32; 16] = array::from_fn(|group| {
        let weights = &weights[group * 16..][..16];
        weights.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 31.0
    });
    let d = store_half(block, 208, groups.iter().copied().fold(0.0, f32::max) / 127.0);
    for (byte, scale) in block[192..208].iter_mut().zip(groups) {
        *byte = ((scale * inverse(d)).round() as u8).min(127);
    }
    let codes: [u8; LARGE] = array::from_fn(|i| {
        let scale = d * f32::from(block[192 + i / 16]);
        ((weights[i] * inverse(scale)).round() + 32.0).clamp(0.0, 63.0) as u8
    });
    fill_nibbles(&mut block[..128], 64, &codes);
    for (bytes, codes) in block[128..192].chunks_exact_mut(32).zip(codes.chunks_exact(128)) {
        let upper: [u8; 128] = array::from_fn(|i| codes[i] >> 4);
        fill_planes(bytes, 2, &upper);
    }
}

/// Nibbles in two planes of every `bytes_per_pair` bytes.
fn fill_nibbles(bytes: &mut [u8], bytes_per_pair: usize, codes: &[u8; LARGE]) {
    let pairs = bytes.chunks_exact_mut(bytes_per_pair);
    for (bytes, codes) in pairs.zip(codes.chunks_exact(2 * bytes_per_pair)) {
        fill_planes(bytes, 4, codes);
    }
}
