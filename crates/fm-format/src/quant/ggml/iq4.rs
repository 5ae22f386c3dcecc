//! ggml's IQ4 formats: four-bit codes for sixteen values that lie denser around zero.
//!
//! ```text
//! iq4_nl   d f16 | nibbles 16 B                                     32 weights   d · value
//! iq4_xs   d f16 | upper bits u16 | lower nibbles 4 B | nibbles 128 B   256      d · (scale - 32) · value
//! ```
//!
//! Nibbles lie in two planes of every 16 bytes. The scale of a group of 32 is six bits: nibble
//! `group` of the lower ones, and the two bits from `2 · group` on of the upper ones.

use super::{
    super::{FormatKind, QuantFormat},
    GgmlKind, LARGE, half_at, planes,
};

/// What the codes stand for.
pub const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// One scale for 32 weights.
pub const IQ4_NL: QuantFormat = QuantFormat {
    name: "iq4_nl",
    block_len: 32,
    block_bytes: 2 + 16,
    kind: FormatKind::Ggml(GgmlKind::Iq4Nl),
    decode: |block, out| decode_group(half_at(block, 0), &block[2..18], out),
    encode: None,
};

/// Groups of 32 with six-bit scales.
pub const IQ4_XS: QuantFormat = QuantFormat {
    name: "iq4_xs",
    block_len: LARGE,
    block_bytes: 136,
    kind: FormatKind::Ggml(GgmlKind::Iq4Xs),
    decode: |block, out| {
        let d = half_at(block, 0);
        let upper = u16::from_le_bytes([block[2], block[3]]);
        let groups = out.chunks_exact_mut(32).zip(block[8..136].chunks_exact(16));
        for (group, (out, nibbles)) in groups.enumerate() {
            let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
            let high = (upper >> (group * 2) & 3) as u8;
            decode_group(d * (f32::from(low | high << 4) - 32.0), nibbles, out);
        }
    },
    encode: None,
};

fn decode_group(scale: f32, nibbles: &[u8], out: &mut [f32]) {
    for (out, code) in out.iter_mut().zip(planes(nibbles, 4)) {
        *out = scale * f32::from(VALUES[usize::from(code)]);
    }
}
