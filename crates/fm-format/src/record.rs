//! Records: the bytes of one routed expert, as a slot holds them, and where they come from.
//!
//! ```text
//! record = [ gate rows | up rows | pad ][ down rows | pad ]      both parts start at a multiple of 4096
//! ```
//!
//! Every matrix is row-major, rows are whole blocks of its format. A container stores records
//! exactly like this. A published checkpoint has the same weights in several pieces, and
//! [`LayerRecords::place`] puts a piece where it belongs when it arrives.

mod blocks;

use std::{path::PathBuf, slice::ChunksExactMut};

use xxhash_rust::xxh3::xxh3_64;

pub use self::blocks::{InBlocks, MatrixStarts, Run};
use crate::{
    key::{ExpertKey, LayerIndex},
    quant::{FormatKind, QuantFormat, ScaleKind, affine, fp8::TILE},
};

/// Alignment of a record's parts in a slot and in a container: what `O_DIRECT` asks for.
pub const PART_ALIGN: usize = 4096;

/// The largest dimension we accept, a hundred times that of any model: products of two of them, and
/// of a small count, are then far from wrapping around.
pub const DIM_MAX: u64 = 1 << 24;

/// A file of a catalog, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIndex(pub u32);

/// A range of bytes in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The file.
    pub file: FileIndex,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// The three matrices of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixRole {
    /// `gate_proj`, `[ffn, hidden]`.
    Gate,
    /// `up_proj`, `[ffn, hidden]`.
    Up,
    /// `down_proj`, `[hidden, ffn]`.
    Down,
}

impl MatrixRole {
    /// In the order of a record.
    pub const ALL: [Self; 3] = [Self::Gate, Self::Up, Self::Down];
}

/// Shape and format of a matrix: `[rows, cols]`, row-major, rows made of whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// How weights are packed.
    pub format: &'static QuantFormat,
}

impl MatrixShape {
    /// Bytes of one row.
    ///
    /// # Panics
    /// If `cols` does not tile into blocks; shapes are checked when a checkpoint is opened.
    pub fn row_bytes(&self) -> usize {
        self.format
            .row_bytes(self.cols)
            .expect("shapes were checked when the checkpoint was opened")
    }

    /// Bytes of the whole matrix.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }
}

/// How a record lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// `gate_proj`, at the start of the record.
    pub gate: MatrixShape,
    /// `up_proj`, right behind `gate_proj`.
    pub up: MatrixShape,
    /// `down_proj`, at the start of the second part.
    pub down: MatrixShape,
}

impl RecordLayout {
    /// Byte offset of a matrix in the record.
    pub fn offset(&self, role: MatrixRole) -> usize {
        match role {
            MatrixRole::Gate => 0,
            MatrixRole::Up => self.gate.bytes(),
            MatrixRole::Down => self.first_part_bytes(),
        }
    }

    /// Shape and format of a matrix.
    pub fn shape(&self, role: MatrixRole) -> MatrixShape {
        match role {
            MatrixRole::Gate => self.gate,
            MatrixRole::Up => self.up,
            MatrixRole::Down => self.down,
        }
    }

    /// Bytes of gate and up with their padding: where down starts.
    pub fn first_part_bytes(&self) -> usize {
        (self.gate.bytes() + self.up.bytes()).next_multiple_of(PART_ALIGN)
    }

    /// Bytes of the whole record, a multiple of [`PART_ALIGN`].
    pub fn bytes(&self) -> usize {
        self.first_part_bytes() + self.down.bytes().next_multiple_of(PART_ALIGN)
    }

    /// Bytes of weights, without padding: what a token has to bring in.
    pub fn weight_bytes(&self) -> usize {
        self.gate.bytes() + self.up.bytes() + self.down.bytes()
    }

    /// XXH3-64 of the two parts of a record, weights only: padding is not covered.
    ///
    /// # Panics
    /// If `record` is shorter than [`RecordLayout::bytes`].
    pub fn checksums(&self, record: &[u8]) -> [u64; 2] {
        let gate_up = &record[..self.gate.bytes() + self.up.bytes()];
        let down = &record[self.first_part_bytes()..][..self.down.bytes()];
        [xxh3_64(gate_up), xxh3_64(down)]
    }
}

/// Which part of a matrix a published tensor holds, where codes and scales are tensors of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanarPart {
    /// The packed codes, `u32` words.
    Codes,
    /// One scale per group.
    Scales,
    /// One bias per group; mxfp4 has none.
    Biases,
}

/// Element type of published scales and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleSource {
    /// bf16, stored as it is.
    Bf16,
    /// f16, widened exactly to f32.
    F16,
    /// f32, stored as it is.
    F32,
    /// One byte: an exponent, or a small float, as the format says.
    Byte,
}

impl ScaleSource {
    /// Bytes of one published scale or bias.
    fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::Byte => 1,
        }
    }
}

/// Where the bytes of a piece go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// As they are, from this byte of the record on.
    Copy {
        /// Offset in the record.
        at: usize,
    },
    /// As [`Place::Interleave`], for a piece that holds rows of gate and up in turns, gate first.
    InTurns {
        /// What the piece holds of both matrices.
        part: PlanarPart,
        /// Element type of scales and biases; codes ignore it.
        source: ScaleSource,
    },
    /// Into the blocks of a matrix that is published in parts.
    Interleave {
        /// The matrix.
        role: MatrixRole,
        /// What the piece holds of it.
        part: PlanarPart,
        /// Element type of scales and biases; codes ignore it.
        source: ScaleSource,
    },
}

/// One contiguous read of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The bytes on disk.
    pub extent: Extent,
    /// Where they go.
    pub place: Place,
}

/// One expert on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What to read. Together the pieces cover every weight of the record exactly once.
    pub pieces: Vec<Piece>,
    /// [`RecordLayout::checksums`] of the assembled record, where they are known.
    pub checksums: Option<[u64; 2]>,
}

/// All routed experts of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRecords {
    /// The common layout.
    pub layout: RecordLayout,
    /// One record per expert, ascending.
    pub records: Vec<Record>,
}

/// Every routed expert of a checkpoint or container, and the files they lie in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// Files, addressed by [`FileIndex`].
    pub files: Vec<PathBuf>,
    /// One entry per decoder layer; `None` for layers without routed experts.
    pub layers: Vec<Option<LayerRecords>>,
}

impl Catalog {
    /// Records of a layer that has routed experts.
    ///
    /// # Panics
    /// If the layer has none: asking for them is a bug in the caller.
    pub fn layer(&self, layer: LayerIndex) -> &LayerRecords {
        self.layers[layer.index()].as_ref().expect("the layer has routed experts")
    }

    /// The record of one expert.
    pub fn record(&self, key: ExpertKey) -> &Record {
        &self.layer(key.layer).records[key.expert.index()]
    }

    /// The path of a file.
    pub fn path(&self, file: FileIndex) -> &PathBuf {
        &self.files[file.0 as usize]
    }

    /// Bytes that all records take up in their files.
    pub fn file_bytes(&self) -> u64 {
        let layers = self.layers.iter().flatten();
        layers.flat_map(|layer| &layer.records).map(Record::file_bytes).sum()
    }

    /// Bytes of all records, in a container.
    pub fn bytes(&self) -> u64 {
        let layers = self.layers.iter().flatten();
        layers.map(|l| l.layout.bytes() as u64 * l.records.len() as u64).sum()
    }
}

impl Record {
    /// Bytes that it takes up in its files.
    pub fn file_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.extent.bytes).sum()
    }
}

impl LayerRecords {
    /// Puts the bytes of one piece where they belong. Pieces may arrive in any order.
    ///
    /// # Panics
    /// If the lengths do not fit; they were checked when the catalog was built.
    pub fn place(&self, piece: &Piece, bytes: &[u8], record: &mut [u8]) {
        place_in(&self.layout, piece.place, bytes, record);
    }
}

/// See [`LayerRecords::place`]; also used for matrices of the trunk.
fn place_in(layout: &RecordLayout, place: Place, bytes: &[u8], record: &mut [u8]) {
    match place {
        Place::Copy { at } => record[at..at + bytes.len()].copy_from_slice(bytes),
        Place::Interleave { role, part, source } => {
            let shape = layout.shape(role);
            let matrix = &mut record[layout.offset(role)..][..shape.bytes()];
            interleave(shape, part, source, bytes, matrix);
        }
        Place::InTurns { part, source } => {
            let row = MatrixShape { rows: 1, ..layout.gate };
            let (gates, ups) = record[..2 * layout.gate.bytes()].split_at_mut(layout.gate.bytes());
            let rows = gates.chunks_exact_mut(row.bytes()).zip(ups.chunks_exact_mut(row.bytes()));
            let pairs = bytes.chunks_exact(bytes.len() / layout.gate.rows);
            for ((gate, up), pair) in rows.zip(pairs) {
                let (of_gate, of_up) = pair.split_at(pair.len() / 2);
                interleave(row, part, source, of_gate, gate);
                interleave(row, part, source, of_up, up);
            }
        }
    }
}

/// Scatters one published tensor of a matrix into its blocks.
///
/// # Panics
/// If the format is not published in parts or a length does not fit the shape.
pub fn interleave(
    shape: MatrixShape,
    part: PlanarPart,
    source: ScaleSource,
    bytes: &[u8],
    matrix: &mut [u8],
) {
    let head = match shape.format.kind {
        FormatKind::Affine { scale, .. } => affine::head_bytes(scale == ScaleKind::F32),
        FormatKind::Mxfp4 | FormatKind::Nvfp4 | FormatKind::Mxfp8 => 1,
        FormatKind::Fp8 { .. } if part == PlanarPart::Scales => {
            return spread_tiles(shape, 0, source, bytes, matrix);
        }
        FormatKind::Fp8 { .. } => 4,
        _ => panic!("{:?} is not published in parts", shape.format),
    };
    let (element, at) = match part {
        PlanarPart::Codes => (shape.format.block_bytes - head, head),
        PlanarPart::Scales => (source.bytes(), 0),
        PlanarPart::Biases => (source.bytes(), head / 2),
    };
    let blocks = matrix.len() / shape.format.block_bytes;
    assert_eq!(bytes.len(), blocks * element, "one element per block");
    let blocks = matrix.chunks_exact_mut(shape.format.block_bytes);
    if part != PlanarPart::Codes && source == ScaleSource::F16 {
        for (block, element) in blocks.zip(bytes.as_chunks::<2>().0) {
            let value = half::f16::from_le_bytes(*element).to_f32();
            block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        return;
    }
    // Every element length that a format or scale has: a copy of known length is a move or two, one
    // of unknown length a call, and records have hundreds of thousands of them.
    match element {
        1 => scatter::<1>(bytes, blocks, at),
        2 => scatter::<2>(bytes, blocks, at),
        4 => scatter::<4>(bytes, blocks, at),
        8 => scatter::<8>(bytes, blocks, at),
        12 => scatter::<12>(bytes, blocks, at),
        16 => scatter::<16>(bytes, blocks, at),
        20 => scatter::<20>(bytes, blocks, at),
        24 => scatter::<24>(bytes, blocks, at),
        32 => scatter::<32>(bytes, blocks, at),
        40 => scatter::<40>(bytes, blocks, at),
        48 => scatter::<48>(bytes, blocks, at),
        64 => scatter::<64>(bytes, blocks, at),
        80 => scatter::<80>(bytes, blocks, at),
        96 => scatter::<96>(bytes, blocks, at),
        128 => scatter::<128>(bytes, blocks, at),
        other => unreachable!("no format has elements of {other} bytes"),
    }
}

/// Gives rows of `fp8` their scales. `first_row` is that of the rows in `matrix`; `tiles` are the scales
/// of the whole published matrix, one for [`TILE`] rows and as many columns.
///
/// # Panics
/// If the format is another or a length does not fit the shape.
pub fn spread_tiles(
    shape: MatrixShape,
    first_row: usize,
    source: ScaleSource,
    tiles: &[u8],
    matrix: &mut [u8],
) {
    let across = shape.cols.div_ceil(TILE);
    let scale = |row: usize, col: usize| {
        let at = ((first_row + row) / TILE * across + col / TILE) * source.bytes();
        match source {
            ScaleSource::Bf16 => half::bf16::from_le_bytes([tiles[at], tiles[at + 1]]).to_f32(),
            ScaleSource::F16 => half::f16::from_le_bytes([tiles[at], tiles[at + 1]]).to_f32(),
            ScaleSource::F32 => f32::from_le_bytes(tiles[at..at + 4].try_into().expect("4 bytes")),
            ScaleSource::Byte => unreachable!("tiles have wide scales"),
        }
    };
    for (row, blocks) in matrix.chunks_exact_mut(shape.row_bytes()).enumerate() {
        for (block, out) in blocks.chunks_exact_mut(shape.format.block_bytes).enumerate() {
            let value = scale(row, block * shape.format.block_len);
            out[..4].copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Copies the `i`-th `N` bytes to offset `at` of the `i`-th block.
fn scatter<const N: usize>(bytes: &[u8], blocks: ChunksExactMut<'_, u8>, at: usize) {
    for (block, element) in blocks.zip(bytes.as_chunks::<N>().0) {
        block[at..at + N].copy_from_slice(element);
    }
}
