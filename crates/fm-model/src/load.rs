//! Brings described tensors into memory, piece by piece: no second copy of a large tensor exists.

use std::ops::Range;

use fm_format::{
    record::{AffinePart, Extent, FileIndex, MatrixShape, ScaleSource, interleave},
    source::{Dtype, Files},
};
use fm_kernels::{
    Backend,
    backend::{DeviceResult, QMatrix, ViewMut},
};
use half::{bf16, f16};
use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    error::LoadError,
    spec::{
        MatrixRef, MatrixSource, ModelSpec, Projection, VectorRef, VectorTransform, for_each_tensor,
    },
};

/// Bytes of a tensor that are read at once.
const READ_BYTES: usize = 4 << 20;

/// Reads what a spec describes and hands it to a device.
#[derive(Debug)]
pub struct Loader<'a, B> {
    /// The device.
    pub device: &'a B,
    /// The checkpoint's files.
    pub files: &'a Files,
}

/// A weight matrix on a device.
#[derive(Debug)]
pub(crate) struct Matrix<B: Backend> {
    packed: B::Packed,
    pub(crate) shape: MatrixShape,
}

impl<B: Backend> Matrix<B> {
    /// The matrix as operations take it.
    pub(crate) fn view(&self) -> QMatrix<'_, B::Bytes> {
        QMatrix { bytes: self.packed.as_ref(), shape: self.shape }
    }
}

/// A matrix with an optional bias, on a device.
#[derive(Debug)]
pub(crate) struct Linear<B: Backend> {
    pub(crate) weight: Matrix<B>,
    pub(crate) bias: Option<B::Buf>,
}

impl<B: Backend> Linear<B> {
    /// `y = W x + bias`.
    pub(crate) fn forward(&self, device: &B, x: &B::Acts, y: ViewMut<'_, B::Buf>) -> DeviceResult {
        let ViewMut { buf, offset, rows, cols, stride } = y;
        let product = ViewMut { buf: &mut *buf, offset, rows, cols, stride };
        device.matmul(self.weight.view(), x, product)?;
        match &self.bias {
            Some(bias) => device.add_bias(bias, ViewMut { buf, offset, rows, cols, stride }),
            None => Ok(()),
        }
    }
}

impl<B: Backend> Loader<'_, B> {
    pub(crate) fn matrix(&self, matrix: &MatrixRef) -> Result<Matrix<B>, LoadError> {
        let packed = self.device.upload_packed(read_matrix(self.files, matrix)?)?;
        Ok(Matrix { packed, shape: matrix.shape })
    }

    pub(crate) fn linear(&self, projection: &Projection) -> Result<Linear<B>, LoadError> {
        let weight = self.matrix(&projection.weight)?;
        let bias = projection.bias.as_ref().map(|bias| self.vector(bias)).transpose()?;
        Ok(Linear { weight, bias })
    }

    pub(crate) fn vector(&self, vector: &VectorRef) -> Result<B::Buf, LoadError> {
        Ok(self.device.upload(&read_vector(self.files, vector)?)?)
    }
}

/// The bytes of a matrix, rows of whole blocks.
///
/// # Errors
/// If a read fails or comes up short.
pub fn read_matrix(files: &Files, matrix: &MatrixRef) -> Result<Vec<u8>, LoadError> {
    let shape = matrix.shape;
    let row_bytes = shape.row_bytes();
    let mut out = vec![0; shape.bytes()];
    let mut rest = out.as_mut_slice();
    // Every part has one row per weight row.
    let part_rows = |range: &Range<usize>, extent: Extent| {
        let bytes = extent.bytes / matrix.source_rows as u64;
        PartRows { file: extent.file, offset: extent.offset + range.start as u64 * bytes, bytes }
    };
    for range in &matrix.rows {
        let (rows, tail) = rest.split_at_mut(range.len() * row_bytes);
        rest = tail;
        match matrix.source {
            MatrixSource::Plain(extent) => {
                let PartRows { file, offset, .. } = part_rows(range, extent);
                files.read(file, offset, rows)?;
            }
            MatrixSource::Affine { codes, scales, biases, element } => {
                let parts = [
                    (AffinePart::Codes, codes),
                    (AffinePart::Scales, scales),
                    (AffinePart::Biases, biases),
                ];
                for (part, extent) in parts {
                    read_part(files, shape, (part, element), part_rows(range, extent), rows)?;
                }
            }
        }
    }
    Ok(out)
}

/// Rows of one part of a matrix on disk.
#[derive(Clone, Copy)]
struct PartRows {
    file: FileIndex,
    offset: u64,
    /// Bytes of a row of this part.
    bytes: u64,
}

fn read_part(
    files: &Files,
    shape: MatrixShape,
    (part, element): (AffinePart, ScaleSource),
    piece: PartRows,
    out: &mut [u8],
) -> Result<(), LoadError> {
    let part_row_bytes = piece.bytes as usize;
    let rows_at_once = (READ_BYTES / part_row_bytes.max(1)).max(1);
    let mut buffer = Vec::new();
    let chunks = out.chunks_mut(rows_at_once * shape.row_bytes());
    for (i, rows) in chunks.enumerate() {
        let count = rows.len() / shape.row_bytes();
        buffer.resize(count * part_row_bytes, 0);
        let offset = piece.offset + (i * rows_at_once) as u64 * piece.bytes;
        files.read(piece.file, offset, &mut buffer)?;
        let shape = MatrixShape { rows: count, ..shape };
        interleave(shape, part, element, &buffer, rows);
    }
    Ok(())
}

/// A small tensor as f32, transformed.
///
/// # Errors
/// If a read fails or comes up short.
pub fn read_vector(files: &Files, vector: &VectorRef) -> Result<Vec<f32>, LoadError> {
    let bytes = files.read_extent(vector.extent)?;
    let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    let values: Vec<f32> = match vector.dtype {
        Dtype::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        Dtype::F16 => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
        Dtype::Bf16 => pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        found => {
            let tensor = vector.name.clone();
            return Err(LoadError::Dtype { tensor, expected: "F32, F16 or BF16", found });
        }
    };
    let values: Vec<f32> = match vector.transform {
        VectorTransform::Plain => values,
        VectorTransform::PlusOne => values.into_iter().map(|w| 1.0 + w).collect(),
        VectorTransform::NegExp => values.into_iter().map(|w| -w.exp()).collect(),
        VectorTransform::Transposed { cols } => (0..cols)
            .flat_map(|col| values.iter().skip(col).step_by(cols).copied().collect::<Vec<_>>())
            .collect(),
    };
    Ok(vector.rows.iter().flat_map(|rows| values[rows.clone()].iter().copied()).collect())
}

/// Bytes of every matrix that go into [`fingerprint`].
const SAMPLE_BYTES: u64 = 4096;

/// Tells models apart: their description, all small tensors, and the beginning of every matrix of
/// the trunk. Two checkpoints of one model with other weights differ in it.
///
/// # Errors
/// If a read fails or comes up short.
pub fn fingerprint(files: &Files, spec: &ModelSpec) -> Result<u128, LoadError> {
    let mut extents = Vec::new();
    let mut hash = Xxh3Default::new();
    hash.update(spec.model_type.as_bytes());
    for_each_tensor(
        spec,
        &mut |matrix| {
            let first = match matrix.source {
                MatrixSource::Plain(extent) => extent,
                MatrixSource::Affine { codes, .. } => codes,
            };
            extents.push(Extent { bytes: first.bytes.min(SAMPLE_BYTES), ..first });
        },
        &mut |_| {},
    );
    for_each_tensor(spec, &mut |_| {}, &mut |vector| extents.push(vector.extent));
    for extent in extents {
        hash.update(&files.read_extent(extent)?);
    }
    Ok(hash.digest128())
}
