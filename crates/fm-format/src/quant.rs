//! Quant formats: what a block of packed weights means. One row per format in [`FORMATS`].
//!
//! A format is a value, not a type: everything that depends on it asks its row. Rows of a matrix
//! are whole blocks, front to back, so that a kernel streams them. Formats that publish their
//! parts in separate tensors (MLX affine) get one fixed interleaved block here. Blocks have any
//! number of bytes, so nothing in a row is aligned.

use std::fmt;

pub mod affine;
pub mod float;
pub mod fp4;
pub mod fp8;
pub mod ggml;

pub use ggml::GgmlKind;

/// Everything the engine knows about a quant format.
pub struct QuantFormat {
    /// Name in manifests and reports, for example `affine4_g64`.
    pub name: &'static str,
    /// Weights per block.
    pub block_len: usize,
    /// Bytes per block on disk and in memory.
    pub block_bytes: usize,
    /// What kind of block this is, with its parameters: kernels choose by it.
    pub kind: FormatKind,
    /// Exact scalar decode of one block: the definition that every kernel is compared with.
    /// `block` has `block_bytes` bytes, `out` has `block_len` values.
    pub decode: fn(block: &[u8], out: &mut [f32]),
    /// Nearest encoding of one block, for the converter, synthetic weights and tests. Formats whose
    /// encoding is a search, or that nobody here writes, have none.
    pub encode: Option<Encode>,
}

/// Encodes one block: `weights` has `block_len` values, `block` has `block_bytes` bytes.
pub type Encode = fn(weights: &[f32], block: &mut [u8]);

/// The family of a format and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatKind {
    /// One IEEE or brain float per weight.
    Float(FloatKind),
    /// Unsigned codes of `bits` bits, LSB first, with one scale and one bias per group.
    Affine {
        /// Width of a code.
        bits: u8,
        /// Weights that share a scale and a bias: the block length.
        group: u8,
        /// How scale and bias are stored in the block.
        scale: ScaleKind,
    },
    /// Four-bit floats in the order of the weights, 32 with one exponent.
    Mxfp4,
    /// Four-bit floats in the order of the weights, 16 with one eight-bit float as their scale.
    Nvfp4,
    /// Eight-bit floats, 32 with one exponent.
    Mxfp8,
    /// Eight-bit floats with an f32 scale.
    Fp8 {
        /// Weights in a block; the scale belongs to more of them.
        group: u8,
    },
    /// A block type of ggml.
    Ggml(GgmlKind),
}

/// Plain floating-point weight types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatKind {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
}

/// Type of an affine block's scale and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleKind {
    /// bf16, as nearly every published checkpoint has them.
    Bf16,
    /// f32, into which f16 and f32 scales widen exactly.
    F32,
}

impl QuantFormat {
    /// Bytes one row of `cols` weights occupies, or `None` if the row does not tile into blocks
    /// or cannot be counted.
    pub fn row_bytes(&self, cols: usize) -> Option<usize> {
        let tiles = cols.is_multiple_of(self.block_len);
        tiles.then(|| (cols / self.block_len).checked_mul(self.block_bytes)).flatten()
    }

    /// Average bits per weight, scales included.
    pub fn bits_per_weight(&self) -> f64 {
        self.block_bytes as f64 * 8.0 / self.block_len as f64
    }

    /// Decodes one row. `row` is `row_bytes(out.len())` bytes long.
    ///
    /// # Panics
    /// If the lengths do not fit each other; they are fixed when a model is loaded.
    pub fn decode_row(&self, row: &[u8], out: &mut [f32]) {
        assert_eq!(Some(row.len()), self.row_bytes(out.len()), "row bytes fit the row");
        let blocks = row.chunks_exact(self.block_bytes);
        for (block, out) in blocks.zip(out.chunks_exact_mut(self.block_len)) {
            (self.decode)(block, out);
        }
    }

    /// Encodes one row, the counterpart of [`QuantFormat::decode_row`].
    ///
    /// # Panics
    /// If the lengths do not fit each other, or the format has no encoder.
    pub fn encode_row(&self, weights: &[f32], row: &mut [u8]) {
        assert_eq!(Some(row.len()), self.row_bytes(weights.len()), "row bytes fit the row");
        let encode = self.encode.expect("the caller chose a format that is written");
        let blocks = row.chunks_exact_mut(self.block_bytes);
        for (block, weights) in blocks.zip(weights.chunks_exact(self.block_len)) {
            encode(weights, block);
        }
    }
}

impl fmt::Debug for QuantFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

// A format is identified by its row.
impl PartialEq for QuantFormat {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
impl Eq for QuantFormat {}

/// A row of the table whose codec is a pair of functions generic over the block's parameters.
macro_rules! affine_row {
    ($name:literal, $bits:literal, $group:literal, Bf16) => {
        QuantFormat {
            name: $name,
            block_len: $group,
            block_bytes: 4 + $bits * $group / 8,
            kind: FormatKind::Affine { bits: $bits, group: $group, scale: ScaleKind::Bf16 },
            decode: affine::decode::<$bits, false>,
            encode: Some(affine::encode::<$bits, false>),
        }
    };
    ($name:literal, $bits:literal, $group:literal, F32) => {
        QuantFormat {
            name: $name,
            block_len: $group,
            block_bytes: 8 + $bits * $group / 8,
            kind: FormatKind::Affine { bits: $bits, group: $group, scale: ScaleKind::F32 },
            decode: affine::decode::<$bits, true>,
            encode: Some(affine::encode::<$bits, true>),
        }
    };
}

/// Every format this build reads. Adding one means adding a row.
pub static FORMATS: [QuantFormat; 68] = [
    float::F32,
    float::F16,
    float::BF16,
    affine_row!("affine2_g32", 2, 32, Bf16),
    affine_row!("affine2_g64", 2, 64, Bf16),
    affine_row!("affine2_g128", 2, 128, Bf16),
    affine_row!("affine3_g32", 3, 32, Bf16),
    affine_row!("affine3_g64", 3, 64, Bf16),
    affine_row!("affine3_g128", 3, 128, Bf16),
    affine_row!("affine4_g32", 4, 32, Bf16),
    affine_row!("affine4_g64", 4, 64, Bf16),
    affine_row!("affine4_g128", 4, 128, Bf16),
    affine_row!("affine5_g32", 5, 32, Bf16),
    affine_row!("affine5_g64", 5, 64, Bf16),
    affine_row!("affine5_g128", 5, 128, Bf16),
    affine_row!("affine6_g32", 6, 32, Bf16),
    affine_row!("affine6_g64", 6, 64, Bf16),
    affine_row!("affine6_g128", 6, 128, Bf16),
    affine_row!("affine8_g32", 8, 32, Bf16),
    affine_row!("affine8_g64", 8, 64, Bf16),
    affine_row!("affine8_g128", 8, 128, Bf16),
    affine_row!("affine2_g32_f32", 2, 32, F32),
    affine_row!("affine2_g64_f32", 2, 64, F32),
    affine_row!("affine2_g128_f32", 2, 128, F32),
    affine_row!("affine3_g32_f32", 3, 32, F32),
    affine_row!("affine3_g64_f32", 3, 64, F32),
    affine_row!("affine3_g128_f32", 3, 128, F32),
    affine_row!("affine4_g32_f32", 4, 32, F32),
    affine_row!("affine4_g64_f32", 4, 64, F32),
    affine_row!("affine4_g128_f32", 4, 128, F32),
    affine_row!("affine5_g32_f32", 5, 32, F32),
    affine_row!("affine5_g64_f32", 5, 64, F32),
    affine_row!("affine5_g128_f32", 5, 128, F32),
    affine_row!("affine6_g32_f32", 6, 32, F32),
    affine_row!("affine6_g64_f32", 6, 64, F32),
    affine_row!("affine6_g128_f32", 6, 128, F32),
    affine_row!("affine8_g32_f32", 8, 32, F32),
    affine_row!("affine8_g64_f32", 8, 64, F32),
    affine_row!("affine8_g128_f32", 8, 128, F32),
    ggml::legacy::Q4_0,
    ggml::legacy::Q4_1,
    ggml::legacy::Q5_0,
    ggml::legacy::Q5_1,
    ggml::legacy::Q8_0,
    ggml::k_quants::Q2_K,
    ggml::k_quants::Q3_K,
    ggml::k_quants::Q4_K,
    ggml::k_quants::Q5_K,
    ggml::k_quants::Q6_K,
    ggml::iq::IQ1_S,
    ggml::iq::IQ1_M,
    ggml::iq::IQ2_XXS,
    ggml::iq::IQ2_XS,
    ggml::iq::IQ2_S,
    ggml::iq::IQ3_XXS,
    ggml::iq::IQ3_S,
    ggml::iq4::IQ4_NL,
    ggml::iq4::IQ4_XS,
    ggml::ternary::TQ1_0,
    ggml::ternary::TQ2_0,
    ggml::fp4::MXFP4,
    ggml::fp4::NVFP4,
    fp4::MXFP4_SEQ,
    fp4::NVFP4_SEQ,
    fp8::MXFP8,
    fp8::FP8_G128,
    fp8::FP8_G64,
    fp8::FP8_G32,
];

/// Finds a format by its manifest name.
pub fn by_name(name: &str) -> Option<&'static QuantFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

/// Finds the row of plain float weights.
///
/// # Panics
/// Never: every [`FloatKind`] has a row.
pub fn float_format(kind: FloatKind) -> &'static QuantFormat {
    by_kind(FormatKind::Float(kind)).expect("every float kind has a row")
}

/// Finds the row of a format kind, if this build reads it.
pub fn by_kind(kind: FormatKind) -> Option<&'static QuantFormat> {
    FORMATS.iter().find(|format| format.kind == kind)
}

/// Finds the row of a tensor type of ggml by its number, as GGUF files state it.
pub fn by_ggml_type(id: u32) -> Option<&'static QuantFormat> {
    FORMATS.iter().find(|format| format.kind.ggml_type() == Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_and_kinds_are_unique() {
        for (i, format) in FORMATS.iter().enumerate() {
            assert!(FORMATS[..i].iter().all(|other| other.name != format.name), "{format:?}");
            assert!(FORMATS[..i].iter().all(|other| other.kind != format.kind), "{format:?}");
        }
    }

    #[test]
    fn ggml_types_are_found_by_their_numbers() {
        let name = |id| by_ggml_type(id).map(|format| format.name);
        assert_eq!([0, 1, 30].map(name), [Some("f32"), Some("f16"), Some("bf16")]);
        assert_eq!([2, 12, 19, 40].map(name), ["q4_0", "q4_k", "iq1_s", "nvfp4"].map(Some));
        // A type that ggml has for activations only, one it has withdrawn, one of the future.
        assert_eq!([9, 4, 1000].map(name), [None; 3]);
    }

    /// The largest distance between two neighbours among the values of a block, and a little more
    /// because scales are rounded.
    fn ggml_step(kind: GgmlKind) -> f32 {
        match kind {
            // The far end of the other sign has no code: it is a whole step away.
            GgmlKind::Q4_0 => 2.0 * 8.01 / 8.0,
            GgmlKind::Q5_0 => 2.0 * 8.01 / 16.0,
            GgmlKind::Q4_1 => 16.1 / 15.0,
            GgmlKind::Q5_1 => 16.2 / 31.0,
            // 127 steps of a scale in f16, which is off by 2^-11 of itself.
            GgmlKind::Q8_0 => 8.0 / 127.0 * (1.0 + 2.0 * 127.0 / 2048.0),
            // Scales and minima are rounded to a 63rd of the largest one of the block.
            GgmlKind::Q4K => 16.0 / 15.0 * (1.0 + 15.0 / 63.0) + 8.0 / 63.0,
            GgmlKind::Q5K => 16.0 / 31.0 * (1.0 + 31.0 / 63.0) + 8.0 / 63.0,
            GgmlKind::Q6K => 8.0 / 31.0 * (1.0 + 31.0 / 127.0),
            _ => unreachable!("it has no encoder"),
        }
    }

    proptest! {
        /// Holds for every row of `FORMATS` that has an encoder; a new kind says above or below how far its steps are.
        #[test]
        fn decode_of_encode_is_within_half_a_step(
            weights in prop::collection::vec(-8.0_f32..8.0, 256),
        ) {
            for format in FORMATS.iter().filter(|format| format.encode.is_some()) {
                let row_bytes = format.row_bytes(weights.len()).expect("256 tiles every block");
                let mut row = vec![0; row_bytes];
                let mut back = vec![0.0; weights.len()];
                format.encode_row(&weights, &mut row);
                format.decode_row(&row, &mut back);
                let step = match format.kind {
                    FormatKind::Float(FloatKind::F32) => 0.0,
                    FormatKind::Float(_) => 8.0 / 128.0,
                    // A group spans at most 16; scale and bias in bf16 shift a weight further.
                    FormatKind::Affine { bits, .. } =>
                        16.0 / f32::from((1_u16 << bits) - 1) + 2.0 * 8.0 / 128.0 ,
                    FormatKind::Ggml(kind) => ggml_step(kind),
                    _ => unreachable!("it has no encoder"),
                };
                for (weight, back) in weights.iter().zip(&back) {
                    prop_assert!((weight - back).abs() <= 0.51 * step, "{}: {weight} {back}", format.name);
                }
            }
        }
    }
}
