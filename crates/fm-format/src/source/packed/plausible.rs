//! Whether the bytes where scales and biases should be are scales and biases.
//!
//! The files say nothing about themselves: cut out of the wrong places they have the right length
//! and become fluent nonsense. Packing does leave a trace. Weights lie on both sides of zero, so the
//! bias of a group, its lowest or highest weight, is at most all steps away from zero, on the other
//! side of it than the scale; and both are numbers of a size that weights have.

use std::path::PathBuf;

use half::bf16;

use super::{PackedError, ROLES};
use crate::{
    error::FormatError,
    quant::FormatKind,
    record::{Extent, LayerRecords, MatrixRole, MatrixShape, Piece, Place, PlanarPart, Record},
    source::Files,
};

/// Scales and biases looked at, at either end of a part: what is shifted shows at an end.
const SAMPLE: u64 = 64;

/// Powers of two between which scales lie. Those of trained weights are near 2⁻⁸; MLX makes none
/// smaller than 10⁻⁷, even for weights that are all zero.
const SCALE_EXPONENTS: std::ops::RangeInclusive<i32> = -40..=4;

/// The largest exponent of scales of weights that are all zero, which alone have no bias.
const NOUGHT: i32 = -20;

/// Looks at scales and biases at both ends of the first, the middle and the last expert of every
/// layer, matrix by matrix.
///
/// A pair is sound if both are finite, the scale has an exponent in [`SCALE_EXPONENTS`], and the
/// bias is of the other sign and at most `2^bits` scales (or zero, with the scale that groups of zeros have). Up to an eighth of 64 may be unsound
/// (groups of equal weights are). Random bytes make a sound pair with a probability below 45/256 (the
/// exponent) · 1/2 (the sign), and 56 of 64 of them with one below 10⁻⁴⁸; zeros never do. Bytes shifted by
/// an odd number are random in this sense everywhere. Shifted by an even number they are so at the
/// first expert's beginning or the last one's end, where the neighbour is no scale.
///
/// # Errors
/// If they are anything else, or cannot be read.
pub(super) fn check(paths: &[PathBuf], layers: &[Option<LayerRecords>]) -> Result<(), FormatError> {
    let files = Files::new(paths.to_vec());
    for (layer, records) in layers.iter().enumerate() {
        let Some(LayerRecords { layout, records }) = records else { continue };
        let mut experts = vec![0, records.len() / 2, records.len() - 1];
        experts.dedup();
        for expert in experts {
            for (role, projection) in ROLES {
                let shape = layout.shape(role);
                let Some([count, wrong]) = unsound(&files, shape, &records[expert], role)? else {
                    continue;
                };
                let file = records[expert].pieces[0].extent.file;
                let path = paths[file.0 as usize].clone();
                let source = PackedError::Implausible { layer, expert, projection, wrong, count };
                return Err(FormatError::Packed { path, source });
            }
        }
    }
    Ok(())
}

/// How many pairs were looked at and how many of them were unsound, at an end of a matrix where
/// they are too many.
fn unsound(
    files: &Files,
    shape: MatrixShape,
    record: &Record,
    role: MatrixRole,
) -> Result<Option<[usize; 2]>, FormatError> {
    let FormatKind::Affine { bits, .. } = shape.format.kind else {
        unreachable!("packed experts are affine")
    };
    let scales = extent(&record.pieces, role, PlanarPart::Scales);
    let biases = extent(&record.pieces, role, PlanarPart::Biases);
    let bytes = scales.bytes.min(2 * SAMPLE);
    for skip in [0, scales.bytes - bytes] {
        let read =
            |part: Extent| files.read_extent(Extent { offset: part.offset + skip, bytes, ..part });
        let (scales, biases) = (numbers(&read(scales)?), numbers(&read(biases)?));
        let count = scales.len();
        let pairs = scales.into_iter().zip(biases);
        let wrong = pairs.filter(|(scale, bias)| !is_sound(*scale, *bias, bits)).count();
        if wrong * 8 > count {
            return Ok(Some([count, wrong]));
        }
    }
    Ok(None)
}

fn extent(pieces: &[Piece], wanted: MatrixRole, of: PlanarPart) -> Extent {
    let is = |piece: &&Piece| matches!(piece.place, Place::Interleave { role, part, .. } if role == wanted && part == of);
    pieces.iter().find(is).expect("an expert has nine parts").extent
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect()
}

fn is_sound(scale: f32, bias: f32, bits: u8) -> bool {
    // Of zero, infinity and NaN it is far outside.
    let exponent = (scale.to_bits() >> 23 & 0xff) as i32 - 127;
    let reach = scale.abs() * (1_u32 << bits) as f32;
    let opposite = if bias == 0.0 { exponent <= NOUGHT } else { (bias < 0.0) != (scale < 0.0) };
    SCALE_EXPONENTS.contains(&exponent) && opposite && bias.abs() <= reach
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mlx_writes_is_sound_and_what_it_never_writes_is_not() {
        for (scale, bias) in [(0.01, -0.08), (-0.01, 0.08), (1e-7, 0.0), (0.02, -0.3)] {
            assert!(is_sound(scale, bias, 4), "{scale} {bias}");
        }
        for (scale, bias) in [
            (0.0, 0.0),
            (0.01, 0.0),
            (0.01, 0.08),
            (0.01, -0.17),
            (1e9, -1e9),
            (1e-20, 0.0),
            (f32::NAN, 0.0),
            (0.01, f32::NAN),
            (f32::INFINITY, 0.0),
        ] {
            assert!(!is_sound(scale, bias, 4), "{scale} {bias}");
        }
    }
}
