//! Blocks of the ggml library, as GGUF files hold them.
//!
//! A row is a sequence of blocks of 32 weights, or of 256 ("K-quants" and what came after them);
//! `d` is the scale of a block, an f16. Most codes lie in *planes*: the lowest bits of all bytes of
//! a run of bytes come first, then the next higher bits of the same bytes, see `planes`.
//!
//! Every product of a scale and a code fits the 24 bits of an f32 exactly, so a weight is rounded
//! once at most, by the addition of a minimum. Only the sign of a zero depends on how it is
//! computed, and products do not see that.
//!
//! Source: ggml's `ggml-common.h` and `ggml-quants.c`, as gguf-py 0.19 decodes; checked bit for bit
//! against `golden/quant_vectors`.

use half::f16;

use super::{FloatKind, FormatKind};

pub mod fp4;
pub mod grids;
pub mod iq;
pub mod iq4;
pub mod k_quants;
pub mod legacy;
pub mod ternary;

/// Weights of a large block, ggml's `QK_K`.
pub(super) const LARGE: usize = 256;

/// A block type of ggml. The value is its number in ggml and in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "each is described where its row is")]
pub enum GgmlKind {
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2K = 10,
    Q3K = 11,
    Q4K = 12,
    Q5K = 13,
    Q6K = 14,
    Iq2Xxs = 16,
    Iq2Xs = 17,
    Iq3Xxs = 18,
    Iq1S = 19,
    Iq4Nl = 20,
    Iq3S = 21,
    Iq2S = 22,
    Iq4Xs = 23,
    Iq1M = 29,
    Tq1_0 = 34,
    Tq2_0 = 35,
    Mxfp4 = 39,
    Nvfp4 = 40,
}

impl FormatKind {
    /// Number of the type in ggml and GGUF, if they have it.
    pub fn ggml_type(self) -> Option<u32> {
        match self {
            Self::Float(FloatKind::F32) => Some(0),
            Self::Float(FloatKind::F16) => Some(1),
            Self::Float(FloatKind::Bf16) => Some(30),
            Self::Ggml(kind) => Some(kind as u32),
            Self::Affine { .. } | Self::Mxfp4 | Self::Nvfp4 | Self::Mxfp8 | Self::Fp8 { .. } => {
                None
            }
        }
    }
}

/// The f16 at byte `at`.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores `x` at byte `at` as an f16, and gives what that became.
pub(super) fn store_half(block: &mut [u8], at: usize, x: f32) -> f32 {
    let half = f16::from_f32(x);
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// Codes in planes: the lowest `bits` bits of every byte, then the next `bits` of every byte, …
pub(super) fn planes(bytes: &[u8], bits: usize) -> impl Iterator<Item = u8> {
    let mask = u8::MAX >> (8 - bits);
    (0..8).step_by(bits).flat_map(move |shift| bytes.iter().map(move |byte| byte >> shift & mask))
}

/// The counterpart of [`planes`]; more bits of a code than `bits` are dropped.
pub(super) fn fill_planes(bytes: &mut [u8], bits: usize, codes: &[u8]) {
    bytes.fill(0);
    let mask = u8::MAX >> (8 - bits);
    for (plane, codes) in codes.chunks_exact(bytes.len()).enumerate() {
        for (byte, code) in bytes.iter_mut().zip(codes) {
            *byte |= (code & mask) << (plane * bits);
        }
    }
}

/// `1 / x`, and 0 for 0.
pub(super) fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}
