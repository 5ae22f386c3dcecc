//! The bytes of a matrix, from its tensors in files to rows of whole blocks.

use std::ops::Range;

use fm_format::{
    quant::{FormatKind, QuantFormat},
    record::{Extent, FileIndex, MatrixShape, PlanarPart, ScaleSource, interleave, spread_tiles},
    source::{Files, TensorCheck},
};
use fm_kernels::WeightBytes;

use super::READ_BYTES;
use crate::{
    error::LoadError,
    spec::{MatrixRef, MatrixSource, MatrixTransform},
};

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
pub(super) fn read_into(
    files: &Files,
    matrix: &MatrixRef,
    out: &mut [u8],
) -> Result<(), LoadError> {
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
    let whole = ranges == std::slice::from_ref(&(0..matrix.source_rows));
    let mut rest = out;
    for range in ranges {
        let (out, tail) = rest.split_at_mut(range.len() * shape.row_bytes());
        rest = tail;
        let rows = |extent: Extent| {
            // Every tensor of a matrix has one row per weight row.
            let row_bytes = extent.bytes as usize / matrix.source_rows;
            let offset = extent.offset + (range.start * row_bytes) as u64;
            let check = whole.then(|| files.check(extent));
            StoredRows { files, file: extent.file, offset, row_bytes, check }
        };
        match matrix.source {
            MatrixSource::Plain(extent) => rows(extent).read_whole(out)?,
            MatrixSource::Planar { codes, scales, biases, element } => {
                let mut parts = vec![Part::Rows(PlanarPart::Codes, rows(codes))];
                parts.push(match shape.format.kind {
                    FormatKind::Fp8 { .. } => Part::Tiles(files.read_extent(scales)?),
                    _ => Part::Rows(PlanarPart::Scales, rows(scales)),
                });
                parts.extend(biases.map(|biases| Part::Rows(PlanarPart::Biases, rows(biases))));
                read_parts(shape, range.start, (parts, element), out)?;
            }
        }
    }
    Ok(())
}

/// Rows of one tensor on disk, read from the first to the last.
struct StoredRows<'a> {
    files: &'a Files,
    file: FileIndex,
    /// Of what is read next.
    offset: u64,
    row_bytes: usize,
    check: Option<TensorCheck<'a>>,
}

impl StoredRows<'_> {
    /// Reads the next bytes.
    fn read(&mut self, out: &mut [u8]) -> Result<(), LoadError> {
        self.files.read(self.file, self.offset, out)?;
        self.offset += out.len() as u64;
        if let Some(check) = &mut self.check {
            check.update(out);
        }
        Ok(())
    }

    /// Reads all of them.
    fn read_whole(mut self, out: &mut [u8]) -> Result<(), LoadError> {
        out.chunks_mut(READ_BYTES).try_for_each(|piece| self.read(piece))?;
        self.finish()
    }

    fn finish(self) -> Result<(), LoadError> {
        Ok(self.check.map_or(Ok(()), TensorCheck::finish)?)
    }
}

/// What the blocks of a matrix are made of.
#[expect(clippy::large_enum_variant, reason = "a matrix has two or three")]
enum Part<'a> {
    /// An element for every block.
    Rows(PlanarPart, StoredRows<'a>),
    /// Scales of `fp8`: of the whole matrix, each for many rows.
    Tiles(Vec<u8>),
}

/// Reads parts beside each other: blocks are still in the cache of the core when their last part
/// comes. `first_row` is that of `out` in the published matrix.
fn read_parts(
    shape: MatrixShape,
    first_row: usize,
    (mut parts, element): (Vec<Part<'_>>, ScaleSource),
    out: &mut [u8],
) -> Result<(), LoadError> {
    let rows_at_once = (READ_BYTES / shape.row_bytes()).max(1);
    // No part of a row has more bytes than the row.
    let mut buffer = vec![0; (rows_at_once * shape.row_bytes()).min(out.len())];
    for (i, out) in out.chunks_mut(rows_at_once * shape.row_bytes()).enumerate() {
        let some = MatrixShape { rows: out.len() / shape.row_bytes(), ..shape };
        for part in &mut parts {
            match part {
                Part::Rows(part, rows) => {
                    let bytes = &mut buffer[..some.rows * rows.row_bytes];
                    rows.read(bytes)?;
                    interleave(some, *part, element, bytes, out);
                }
                Part::Tiles(tiles) => {
                    spread_tiles(some, first_row + i * rows_at_once, element, tiles, out);
                }
            }
        }
    }
    parts.into_iter().try_for_each(|part| match part {
        Part::Rows(_, rows) => rows.finish(),
        Part::Tiles(_) => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use fm_format::{
        quant::{self, by_name},
        source::TensorChecksum,
    };
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

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

    const ROWS: usize = 700;
    const COLS: usize = 1024;

    /// A file of `parts`, the matrix that they are, and what keeps the file.
    fn planar(
        format: &'static QuantFormat,
        parts: [&[u8]; 3],
    ) -> (tempfile::TempDir, PathBuf, MatrixRef) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        fs::write(&path, parts.concat()).unwrap();
        let mut offset = 0;
        let [codes, scales, biases] = parts.map(|part| {
            let bytes = part.len() as u64;
            offset += bytes;
            Extent { file: FileIndex(0), offset: offset - bytes, bytes }
        });
        let biases = (biases.bytes > 0).then_some(biases);
        let matrix = MatrixRef {
            name: "lm_head".to_owned(),
            shape: MatrixShape { rows: ROWS, cols: COLS, format },
            source: MatrixSource::Planar { codes, scales, biases, element: ScaleSource::Bf16 },
            source_rows: ROWS,
            rows: std::iter::once(0..ROWS).collect(),
            transform: MatrixTransform::Plain,
        };
        assert!(matrix.shape.bytes() > READ_BYTES, "more than is read at once");
        (dir, path, matrix)
    }

    /// Bytes of which no two rows are alike.
    fn noise(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|i| (((i + seed) * 0x9E37_79B9) >> 16) as u8).collect()
    }

    /// Codes, scales and biases of `affine4_g64`.
    fn affine_parts() -> [Vec<u8>; 3] {
        let blocks = ROWS * COLS / 64;
        [noise(32 * blocks, 1), noise(2 * blocks, 2), noise(2 * blocks, 3)]
    }

    #[test]
    fn parts_meet_in_their_blocks_whatever_is_read_at_once() {
        let parts = affine_parts();
        let format = by_name("affine4_g64").unwrap();
        let (_dir, path, matrix) = planar(format, parts.each_ref().map(Vec::as_slice));
        let mut whole = vec![0; matrix.shape.bytes()];
        for (part, bytes) in
            [PlanarPart::Codes, PlanarPart::Scales, PlanarPart::Biases].into_iter().zip(&parts)
        {
            interleave(matrix.shape, part, ScaleSource::Bf16, bytes, &mut whole);
        }
        let files = Files::new(vec![path]);
        assert!(*read_matrix(&files, &matrix).unwrap() == *whole);
        let some = matrix.select(vec![3..640, 655..700]);
        let row = matrix.shape.row_bytes();
        let expected = [&whole[3 * row..640 * row], &whole[655 * row..]].concat();
        assert!(*read_matrix(&files, &some).unwrap() == *expected);
    }

    #[test]
    fn tiles_reach_rows_of_every_read() {
        let format = by_name("fp8_g64").unwrap();
        let tiles = ROWS.div_ceil(128) * COLS / 128;
        let (codes, scales) = (noise(ROWS * COLS, 4), noise(2 * tiles, 5));
        let (_dir, path, matrix) = planar(format, [&codes, &scales, &[]]);
        for rows in [0..ROWS, 100..ROWS] {
            let shape = MatrixShape { rows: rows.len(), ..matrix.shape };
            let mut expected = vec![0; shape.bytes()];
            let codes = &codes[rows.start * COLS..];
            interleave(shape, PlanarPart::Codes, ScaleSource::Bf16, codes, &mut expected);
            spread_tiles(shape, rows.start, ScaleSource::Bf16, &scales, &mut expected);
            let files = Files::new(vec![path.clone()]);
            assert!(*read_matrix(&files, &matrix.select(vec![rows])).unwrap() == *expected);
        }
    }

    #[test]
    fn every_part_is_held_to_its_checksum() {
        let parts = affine_parts();
        let format = by_name("affine4_g64").unwrap();
        let (_dir, path, matrix) = planar(format, parts.each_ref().map(Vec::as_slice));
        let MatrixSource::Planar { codes, scales, biases, .. } = matrix.source else { panic!() };
        let extents = [codes, scales, biases.unwrap()];
        for wrong in 0..3 {
            let tensors = extents.iter().zip(&parts).zip(["codes", "scales", "biases"]);
            let tensors = tensors.enumerate().map(|(at, ((extent, part), name))| TensorChecksum {
                name: name.to_owned(),
                extent: *extent,
                checksum: xxh3_64(part) ^ u64::from(at == wrong),
            });
            let files = Files::new(vec![path.clone()]).with_checksums(tensors.collect());
            let error = read_matrix(&files, &matrix).unwrap_err().to_string();
            assert!(error.contains(["codes", "scales", "biases"][wrong]), "{error}");
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
