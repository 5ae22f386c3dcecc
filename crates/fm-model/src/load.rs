//! Brings described tensors into memory, piece by piece: no second copy of a large tensor exists.

mod identity;
mod staging;

use std::{cell::RefCell, ops::Range};

use fm_format::{
    quant::{FormatKind, QuantFormat},
    record::{Extent, FileIndex, MatrixShape, PlanarPart, ScaleSource, interleave, spread_tiles},
    source::{Dtype, Files, TensorCheck},
};
use fm_kernels::{
    Backend, WeightBytes,
    backend::{DeviceResult, Product, QMatrix, View, ViewMut},
};
use half::{bf16, f16};
use xxhash_rust::xxh3::Xxh3Default;

pub use self::identity::identity;
use self::staging::Staged;
use crate::{
    error::LoadError,
    spec::{
        MatrixRef, MatrixSource, MatrixTransform, ModelSpec, Projection, TiedTensor, VectorRef,
        VectorTransform, for_each_tensor,
    },
};

/// Bytes of a tensor that are read at once: they are still in the cache of the core when they are
/// checked and interleaved.
const READ_BYTES: usize = 1 << 20;

/// Reads what a spec describes and hands it to a device.
#[derive(Debug)]
pub struct Loader<'a, B> {
    device: &'a B,
    files: &'a Files,
    threads: usize,
    memory: WeightMemory,
    staged: RefCell<Option<Staged>>,
}

/// What the system may do with the memory of matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightMemory {
    /// Write it to swap space when memory is short.
    #[default]
    Pageable,
    /// Nothing: it stays.
    Locked,
}

impl WeightMemory {
    /// Its name, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pageable => "pageable",
            Self::Locked => "locked",
        }
    }
}

/// A weight matrix on a device.
#[derive(Debug)]
pub(crate) struct Matrix<B: Backend> {
    packed: B::Packed,
    pub(crate) shape: MatrixShape,
    arranged: bool,
}

impl<B: Backend> Matrix<B> {
    /// The matrix as operations take it.
    pub(crate) fn view(&self) -> QMatrix<'_, B::Bytes> {
        QMatrix { bytes: self.packed.as_ref(), shape: self.shape, arranged: self.arranged }
    }
}

/// A matrix with an optional bias, on a device.
#[derive(Debug)]
pub(crate) struct Linear<B: Backend> {
    pub(crate) weight: Matrix<B>,
    pub(crate) bias: Option<B::Buf>,
}

impl<B: Backend> Linear<B> {
    /// [`Linear::forward`] of several that read the same rows.
    pub(crate) fn forward_each<const N: usize>(
        device: &B,
        x: &B::Acts,
        mut each: [(&Self, ViewMut<'_, B::Buf>); N],
    ) -> DeviceResult {
        let products =
            each.each_mut().map(|(linear, y)| Product { w: linear.weight.view(), y: y.reborrow() });
        device.matmul_each(x, products)?;
        for (linear, y) in each {
            linear.add_bias(device, y)?;
        }
        Ok(())
    }

    /// `y = W x + bias`.
    pub(crate) fn forward(&self, device: &B, x: &B::Acts, y: ViewMut<'_, B::Buf>) -> DeviceResult {
        Self::forward_each(device, x, [(self, y)])
    }

    /// `y += bias`, if there is one.
    fn add_bias(&self, device: &B, y: ViewMut<'_, B::Buf>) -> DeviceResult {
        match &self.bias {
            Some(bias) => device.add_bias(View::new(bias, 1, y.cols), y),
            None => Ok(()),
        }
    }
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Reads from `files` with so many threads.
    pub fn new(device: &'a B, files: &'a Files, threads: usize) -> Self {
        let (memory, staged) = (WeightMemory::default(), RefCell::default());
        Self { device, files, threads, memory, staged }
    }

    /// The same loader for memory of this kind.
    #[must_use]
    pub fn into_memory(self, memory: WeightMemory) -> Self {
        Self { memory, ..self }
    }

    /// The device.
    pub(crate) fn device(&self) -> &'a B {
        self.device
    }

    /// See [`check_tied_head`].
    pub(crate) fn check_tied_head(&self, spec: &ModelSpec) -> Result<(), LoadError> {
        check_tied_head(self.files, spec)
    }

    /// Reads all matrices ahead. Tensors with a checksum have been checked then.
    pub(crate) fn stage(&self, spec: &ModelSpec) -> Result<(), LoadError> {
        let staged = Staged::read(self.files, spec, self.threads)?;
        if self.memory == WeightMemory::Locked {
            staged.lock()?;
        }
        self.staged.replace(Some(staged));
        Ok(())
    }

    /// A matrix whose rows stay rows: products with it are f32 in all numerics.
    pub(crate) fn exact(&self, matrix: &MatrixRef) -> Result<Matrix<B>, LoadError> {
        let bytes = match &mut *self.staged.borrow_mut() {
            Some(staged) => staged.take(matrix).expect("`for_each_tensor` names all that is read"),
            None => read_matrix(self.files, matrix)?,
        };
        let packed = self.device.upload_packed(bytes)?;
        Ok(Matrix { packed, shape: matrix.shape, arranged: false })
    }

    /// A matrix in the order that the device multiplies fastest, in the numerics in force.
    pub(crate) fn matrix(&self, matrix: &MatrixRef) -> Result<Matrix<B>, LoadError> {
        let mut loaded = self.exact(matrix)?;
        if self.device.arranges(loaded.shape) {
            self.device.arrange(loaded.shape, loaded.packed.as_mut())?;
            loaded.arranged = true;
        }
        Ok(loaded)
    }

    /// A projection, see [`Loader::matrix`].
    pub(crate) fn linear(&self, projection: &Projection) -> Result<Linear<B>, LoadError> {
        self.with_bias(self.matrix(&projection.weight)?, projection)
    }

    /// A projection that chooses or gates, see [`Loader::exact`].
    pub(crate) fn exact_linear(&self, projection: &Projection) -> Result<Linear<B>, LoadError> {
        self.with_bias(self.exact(&projection.weight)?, projection)
    }

    fn with_bias(
        &self,
        weight: Matrix<B>,
        projection: &Projection,
    ) -> Result<Linear<B>, LoadError> {
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
pub fn read_matrix(files: &Files, matrix: &MatrixRef) -> Result<WeightBytes, LoadError> {
    let mut out = WeightBytes::zeroed(matrix.shape.bytes());
    read_into(files, matrix, &mut out)?;
    Ok(out)
}

/// See [`read_matrix`].
fn read_into(files: &Files, matrix: &MatrixRef, out: &mut [u8]) -> Result<(), LoadError> {
    match matrix.transform {
        MatrixTransform::Plain => {
            read_rows(files, matrix, matrix.shape, &matrix.rows, out)?;
        }
        MatrixTransform::TransposedParts(part) => {
            let mut stored = vec![0; part.bytes()];
            let parts = out.chunks_exact_mut(part.cols * matrix.shape.row_bytes());
            for (index, out) in parts.enumerate() {
                let rows = slice_ranges(&matrix.rows, index * part.rows..(index + 1) * part.rows);
                read_rows(files, matrix, part, &rows, &mut stored)?;
                transpose(part, &stored, matrix.shape.format, out);
            }
        }
    }
    Ok(())
}

/// What is at `positions` of the ranges, one after the other.
fn slice_ranges(ranges: &[Range<usize>], positions: Range<usize>) -> Vec<Range<usize>> {
    let mut first = 0;
    let mut found = Vec::new();
    for range in ranges {
        let from = positions.start.clamp(first, first + range.len()) - first;
        let to = positions.end.clamp(first, first + range.len()) - first;
        if from < to {
            found.push(range.start + from..range.start + to);
        }
        first += range.len();
    }
    found
}

/// Transposes a matrix into `out`, whose format is its own or f32.
fn transpose(shape: MatrixShape, bytes: &[u8], format: &'static QuantFormat, out: &mut [u8]) {
    let decoded: Vec<u8>;
    let floats = if format == shape.format {
        bytes
    } else {
        let mut row = vec![0.0; shape.cols];
        let rows = bytes.chunks_exact(shape.row_bytes()).flat_map(|bytes| {
            shape.format.decode_row(bytes, &mut row);
            row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()
        });
        decoded = rows.collect();
        &decoded
    };
    let float_bytes = format.block_bytes;
    let row_bytes = shape.cols * float_bytes;
    let places = out.chunks_exact_mut(float_bytes).enumerate();
    for (at, place) in places {
        let (col, row) = (at / shape.rows, at % shape.rows);
        place.copy_from_slice(&floats[row * row_bytes + col * float_bytes..][..float_bytes]);
    }
}

/// Reads the given rows of a matrix as they are stored. Tensors that are read as a whole are checked.
fn read_rows(
    files: &Files,
    matrix: &MatrixRef,
    shape: MatrixShape,
    ranges: &[Range<usize>],
    out: &mut [u8],
) -> Result<(), LoadError> {
    let row_bytes = shape.row_bytes();
    let whole = ranges == std::slice::from_ref(&(0..matrix.source_rows));
    let check = |extent: Extent| whole.then(|| files.check(extent));
    let mut rest = out;
    // Every part has one row per weight row.
    let part_rows = |range: &Range<usize>, extent: Extent| {
        let bytes = extent.bytes / matrix.source_rows as u64;
        PartRows { file: extent.file, offset: extent.offset + range.start as u64 * bytes, bytes }
    };
    for range in ranges {
        let (rows, tail) = rest.split_at_mut(range.len() * row_bytes);
        rest = tail;
        match matrix.source {
            MatrixSource::Plain(extent) => {
                read_plain(files, part_rows(range, extent), check(extent), rows)?;
            }
            MatrixSource::Planar { codes, scales, biases, element } => {
                let parts = [(PlanarPart::Codes, codes), (PlanarPart::Scales, scales)];
                let biases = biases.map(|biases| (PlanarPart::Biases, biases));
                for (part, extent) in parts.into_iter().chain(biases) {
                    if let (FormatKind::Fp8 { .. }, PlanarPart::Scales) = (shape.format.kind, part)
                    {
                        let tiles = files.read_extent(extent)?;
                        spread_tiles(shape, range.start, element, &tiles, rows);
                        continue;
                    }
                    let piece = part_rows(range, extent);
                    read_part(files, shape, (part, element), (piece, check(extent)), rows)?;
                }
            }
        }
    }
    Ok(())
}

/// Rows of one part of a matrix on disk.
#[derive(Clone, Copy)]
struct PartRows {
    file: FileIndex,
    offset: u64,
    /// Bytes of a row of this part.
    bytes: u64,
}

fn read_plain(
    files: &Files,
    rows: PartRows,
    mut check: Option<TensorCheck<'_>>,
    out: &mut [u8],
) -> Result<(), LoadError> {
    for (i, piece) in out.chunks_mut(READ_BYTES).enumerate() {
        files.read(rows.file, rows.offset + (i * READ_BYTES) as u64, piece)?;
        if let Some(check) = &mut check {
            check.update(piece);
        }
    }
    Ok(check.map_or(Ok(()), TensorCheck::finish)?)
}

fn read_part(
    files: &Files,
    shape: MatrixShape,
    (part, element): (PlanarPart, ScaleSource),
    (piece, mut check): (PartRows, Option<TensorCheck<'_>>),
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
        if let Some(check) = &mut check {
            check.update(&buffer);
        }
        let shape = MatrixShape { rows: count, ..shape };
        interleave(shape, part, element, &buffer, rows);
    }
    Ok(check.map_or(Ok(()), TensorCheck::finish)?)
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
        VectorTransform::EverySecond { from } => values.into_iter().skip(from).step_by(2).collect(),
        VectorTransform::NegExp => values.into_iter().map(|w| -w.exp()).collect(),
        VectorTransform::Transposed { cols } => (0..cols)
            .flat_map(|col| values.iter().skip(col).step_by(cols).copied().collect::<Vec<_>>())
            .collect(),
    };
    Ok(vector.rows.iter().flat_map(|rows| values[rows.clone()].iter().copied()).collect())
}

/// Compares what the files have for a head with the embedding that serves as one.
///
/// # Errors
/// If they differ, or a read fails.
pub fn check_tied_head(files: &Files, spec: &ModelSpec) -> Result<(), LoadError> {
    for TiedTensor { name, head, embed } in &spec.tied_head {
        for start in (0..head.bytes).step_by(READ_BYTES) {
            let bytes = (head.bytes - start).min(READ_BYTES as u64);
            let part = |all: Extent| Extent { offset: all.offset + start, bytes, ..all };
            if files.read_extent(part(*head))? != files.read_extent(part(*embed))? {
                return Err(LoadError::TiedHead { tensor: name.clone() });
            }
        }
    }
    Ok(())
}

/// Bytes of every matrix that go into [`fingerprint`] and [`identity()`].
const SAMPLE_BYTES: u64 = 4096;

/// Tells weights apart: all small tensors, and the beginning of every matrix of the trunk. Two
/// checkpoints of one model with other weights differ in it, a container and what it was made of do
/// not: what is known of the use of experts holds for both. States are told apart by [`identity()`].
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
                MatrixSource::Planar { codes, .. } => codes,
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use fm_format::quant::{self, by_name};

    /// A matrix of `[5, 3]`, of which rows 0, 1, 3 and 4 are two parts.
    fn parts(format: &'static QuantFormat, bytes: &[u8], cols: usize) -> (Vec<u8>, MatrixRef) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        fs::write(&path, bytes).unwrap();
        let extent = Extent { file: FileIndex(0), offset: 0, bytes: bytes.len() as u64 };
        let whole = MatrixRef {
            name: "kv_b_proj".to_owned(),
            shape: MatrixShape { rows: 5, cols, format },
            source: MatrixSource::Plain(extent),
            source_rows: 5,
            rows: std::iter::once(0..5).collect(),
            transform: MatrixTransform::Plain,
        };
        let turned = whole.select(vec![0..2, 3..5]).transpose_parts(2);
        (read_matrix(&Files::new(vec![path]), &turned).unwrap().to_vec(), turned)
    }

    #[test]
    fn parts_are_transposed_each_by_itself_in_their_own_format() {
        let stored: Vec<u8> = (0..15_u16).flat_map(u16::to_le_bytes).collect();
        let (read, turned) = parts(by_name("bf16").unwrap(), &stored, 3);
        let expected = [0, 3, 1, 4, 2, 5, 9, 12, 10, 13, 11, 14_u16];
        assert_eq!(read, expected.map(u16::to_le_bytes).concat());
        assert_eq!((turned.shape.rows, turned.shape.cols), (6, 2));
    }

    #[test]
    fn parts_that_are_packed_come_out_as_f32() {
        let format = by_name("affine4_g32").unwrap();
        let values: Vec<f32> = (0..5 * 32).map(|i| (i as f32).sin()).collect();
        let mut stored = vec![0; 5 * format.row_bytes(32).unwrap()];
        let mut decoded = vec![vec![0.0; 32]; 5];
        let rows = stored.chunks_exact_mut(format.row_bytes(32).unwrap());
        for ((bytes, values), decoded) in rows.zip(values.chunks(32)).zip(&mut decoded) {
            format.encode_row(values, bytes);
            format.decode_row(bytes, decoded);
        }
        let (read, turned) = parts(format, &stored, 32);
        assert_eq!(turned.shape.format, quant::float_format(quant::FloatKind::F32));
        for (at, bytes) in read.chunks_exact(4).enumerate() {
            let (part, col, row) = (at / 64, at / 2 % 32, at % 2);
            let expected: f32 = decoded[[0, 1, 3, 4][2 * part + row]][col];
            assert_eq!(bytes, expected.to_le_bytes(), "weight {at}");
        }
    }

    #[test]
    fn rows_are_found_across_ranges() {
        let ranges = [4..6, 8..9, 0..3];
        assert_eq!(slice_ranges(&ranges, 0..2), ranges[..1]);
        assert_eq!(slice_ranges(&ranges, 1..5), [5..6, 8..9, 0..2]);
        assert_eq!(slice_ranges(&ranges, 3..6), ranges[2..]);
    }
}
