//! ggml's IQ1, IQ2 and IQ3 formats: eight or four weights are one entry of a codebook.
//!
//! ```text
//! iq1_s     d f16 | entries 32 B | group heads 8 · u16                           50 B, groups of 32
//! iq1_m     entries 32 B | upper bits 16 B | group heads 4 · u16                 56 B, groups of 16
//! iq2_xxs   d f16 | 8 · (entries 4 B | signs and scale u32)                      66 B, groups of 32
//! iq2_xs    d f16 | entries and signs 32 · u16 | scales 8 B                      74 B, groups of 16
//! iq2_s     d f16 | entries 32 B | signs 32 B | upper bits 8 B | scales 8 B      82 B, groups of 16
//! iq3_xxs   d f16 | entries 64 B | signs and scales 8 · u32                      98 B, groups of 32
//! iq3_s     d f16 | entries 64 B | upper bits 8 B | signs 32 B | scales 4 B     110 B, groups of 32
//!
//! iq1       d · (2 · scale + 1) · (value ± 1/8)
//! iq2       d · (scale + 1/2) / 4 · ± value
//! iq3_xxs   d · (scale + 1/2) / 2 · ± value
//! iq3_s     d · (2 · scale + 1) · ± value
//! ```
//!
//! Blocks have 256 weights. An entry gives eight weights, in `iq3` four; its lower byte is in
//! `entries`, what is above in `upper bits` or in the group's head. Signs are a bit per weight, or
//! seven bits for eight weights: the number of negative ones is then even. Scales are nibbles, the
//! lower one of a byte first, or the upper four bits of a u32.
//!
//! `iq1_s` heads: three upper bits of each of the four entries, a three-bit scale, and the sign of the
//! eighth. `iq1_m`: a nibble per entry has three upper bits and that sign; each u16 has four
//! three-bit scales, and the upper nibbles of all are `d`.

use half::f16;

use super::{
    super::{FormatKind, QuantFormat},
    GgmlKind, LARGE, grids, half_at,
};

/// What the codes of `iq2` stand for; there is no 3.
pub const TWO_BIT_VALUES: [u8; 4] = [8, 25, 43, 0];

/// What the codes of `iq3_xxs` stand for; those of `iq3_s` are the odd numbers.
pub const THREE_BIT_VALUES: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// About 1.6 bits per weight.
pub const IQ1_S: QuantFormat = QuantFormat {
    name: "iq1_s",
    block_len: LARGE,
    block_bytes: 50,
    kind: FormatKind::Ggml(GgmlKind::Iq1S),
    decode: |block, out| {
        let d = half_at(block, 0);
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let head = u16_at(block, 34 + i / 4 * 2);
            let upper = head >> (i % 4 * 3) & 7;
            let scale = d * f32::from(2 * (head >> 12 & 7) + 1);
            ternary(out, scale, u16::from(block[2 + i]) | upper << 8, head >> 15 == 1);
        }
    },
    encode: None,
};

/// About 1.8 bits per weight.
pub const IQ1_M: QuantFormat = QuantFormat {
    name: "iq1_m",
    block_len: LARGE,
    block_bytes: 56,
    kind: FormatKind::Ggml(GgmlKind::Iq1M),
    decode: |block, out| {
        let head = |at: usize| u16_at(block, 48 + at * 2);
        let d = (0..4).map(|at| head(at) >> 12 << (at * 4)).sum();
        let d = f16::from_bits(d).to_f32();
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let group = i / 2;
            let scale = d * f32::from(2 * (head(group / 4) >> (group % 4 * 3) & 7) + 1);
            let upper = u16::from(block[32 + i / 2] >> (i % 2 * 4) & 15);
            ternary(out, scale, u16::from(block[i]) | (upper & 7) << 8, upper >> 3 == 1);
        }
    },
    encode: None,
};

/// About 2.1 bits per weight.
pub const IQ2_XXS: QuantFormat = QuantFormat {
    name: "iq2_xxs",
    block_len: LARGE,
    block_bytes: 66,
    kind: FormatKind::Ggml(GgmlKind::Iq2Xxs),
    decode: |block, out| {
        let d = half_at(block, 0);
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let group = 2 + i / 4 * 8;
            let head = u32_at(block, group + 4);
            let scale = d * (0.5 + (head >> 28) as f32) * 0.25;
            let entry = grids::IQ2_XXS[usize::from(block[group + i % 4])];
            signed(out, scale, two_bit_codes(entry), even_signs(head >> (i % 4 * 7)));
        }
    },
    encode: None,
};

/// About 2.3 bits per weight.
pub const IQ2_XS: QuantFormat = QuantFormat {
    name: "iq2_xs",
    block_len: LARGE,
    block_bytes: 74,
    kind: FormatKind::Ggml(GgmlKind::Iq2Xs),
    decode: |block, out| {
        let d = half_at(block, 0);
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let packed = u16_at(block, 2 + i * 2);
            let scale = d * (0.5 + nibble(&block[66..], i / 2)) * 0.25;
            let entry = grids::IQ2_XS[usize::from(packed & 511)];
            signed(out, scale, two_bit_codes(entry), even_signs(u32::from(packed >> 9)));
        }
    },
    encode: None,
};

/// About 2.6 bits per weight.
pub const IQ2_S: QuantFormat = QuantFormat {
    name: "iq2_s",
    block_len: LARGE,
    block_bytes: 82,
    kind: FormatKind::Ggml(GgmlKind::Iq2S),
    decode: |block, out| {
        let d = half_at(block, 0);
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let upper = block[66 + i / 4] >> (i % 4 * 2) & 3;
            let scale = d * (0.5 + nibble(&block[74..], i / 2)) * 0.25;
            let entry = grids::IQ2_S[usize::from(block[2 + i]) | usize::from(upper) << 8];
            signed(out, scale, two_bit_codes(entry), block[34 + i]);
        }
    },
    encode: None,
};

/// About 3.1 bits per weight.
pub const IQ3_XXS: QuantFormat = QuantFormat {
    name: "iq3_xxs",
    block_len: LARGE,
    block_bytes: 98,
    kind: FormatKind::Ggml(GgmlKind::Iq3Xxs),
    decode: |block, out| {
        let d = half_at(block, 0);
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let head = u32_at(block, 66 + i / 4 * 4);
            let scale = d * (0.5 + (head >> 28) as f32) * 0.5;
            let entry = |at: usize| grids::IQ3_XXS[usize::from(block[2 + i * 2 + at])];
            let codes = three_bit_codes([entry(0), entry(1)]);
            let values = codes.map(|code| THREE_BIT_VALUES[usize::from(code)]);
            signed(out, scale, values, even_signs(head >> (i % 4 * 7)));
        }
    },
    encode: None,
};

/// About 3.4 bits per weight.
pub const IQ3_S: QuantFormat = QuantFormat {
    name: "iq3_s",
    block_len: LARGE,
    block_bytes: 110,
    kind: FormatKind::Ggml(GgmlKind::Iq3S),
    decode: |block, out| {
        let d = half_at(block, 0);
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let upper = block[66 + i / 4] >> (i % 4 * 2);
            let scale = d * (1.0 + 2.0 * nibble(&block[106..], i / 4));
            let entry = |at: usize| {
                let upper = usize::from(upper >> at & 1);
                grids::IQ3_S[usize::from(block[2 + i * 2 + at]) | upper << 8]
            };
            let values = three_bit_codes([entry(0), entry(1)]).map(|code| 2 * code + 1);
            signed(out, scale, values, block[74 + i]);
        }
    },
    encode: None,
};

/// Eight weights of `iq1`.
fn ternary(out: &mut [f32], scale: f32, entry: u16, eighth_less: bool) {
    let eighth = if eighth_less { -0.125 } else { 0.125 };
    let entry = grids::IQ1[usize::from(entry)];
    for (k, out) in out.iter_mut().enumerate() {
        *out = scale * (f32::from(entry >> (2 * k) & 3) - 1.0 + eighth);
    }
}

/// Eight weights; a bit of `signs` is 1 where they are negative.
fn signed(out: &mut [f32], scale: f32, values: [u8; 8], signs: u8) {
    for (k, (out, value)) in out.iter_mut().zip(values).enumerate() {
        let sign = if signs >> k & 1 == 1 { -1.0 } else { 1.0 };
        *out = scale * f32::from(value) * sign;
    }
}

/// The values of an `iq2` entry.
fn two_bit_codes(entry: u16) -> [u8; 8] {
    std::array::from_fn(|k| TWO_BIT_VALUES[usize::from(entry >> (2 * k) & 3)])
}

/// The codes of two `iq3` entries.
fn three_bit_codes(entries: [u16; 2]) -> [u8; 8] {
    std::array::from_fn(|k| (entries[k / 4] >> (k % 4 * 3) & 7) as u8)
}

/// Eight signs of which an even number is negative, from seven bits.
fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | (bits.count_ones() as u8 & 1) << 7
}

fn nibble(bytes: &[u8], i: usize) -> f32 {
    f32::from(bytes[i / 2] >> (i % 2 * 4) & 15)
}

fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
