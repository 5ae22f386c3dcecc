//! The GGUF header, read as hostile input: metadata, and names to offsets.
//!
//! ```text
//! "GGUF" | version u32 | tensor count u64 | metadata count u64
//! metadata: key | value type u32 | value        texts are a u64 length and UTF-8
//! tensors:  name | dimension count u32 | dimensions u64, innermost first | type u32 | offset u64
//! padding to the alignment | data               offsets count from the beginning of the data
//! ```
//!
//! All numbers are little-endian. A large model is split into `NAME-00001-of-0000N.gguf` and so on;
//! the first part has the metadata. Source: the GGUF description (ggml-org/ggml, `docs/gguf.md`);
//! checked against files of llama.cpp's converter.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use crate::{
    error::FormatError,
    quant::{self, FormatKind},
    record::{Extent, FileIndex},
    source::{Dtype, LFS_POINTER, Tensor, check_places, file_prefix},
};

mod cursor;
mod error;
mod metadata;
mod split;
#[cfg(test)]
mod tests;

pub use error::GgufError;
pub use metadata::{Metadata, Numbers, Value};
pub(in crate::source) use split::has_magic;
pub(super) use split::{find, open};
pub use split::{is_gguf, part_name};

use cursor::Cursor;
use error::HeaderError;

const MAGIC: [u8; 4] = *b"GGUF";
/// Most dimensions a tensor can have.
const DIMENSIONS_MAX: u32 = 4;
/// Where data begins if `general.alignment` is silent.
const ALIGNMENT_DEFAULT: u64 = 32;

/// What one file says of itself.
#[derive(Clone, Debug)]
pub struct Header {
    /// Key-value pairs.
    pub metadata: Metadata,
    /// Every tensor of the file, in its order.
    pub tensors: Vec<Tensor>,
    /// Where the metadata ends.
    metadata_end: u64,
    /// Where the tensor list ends, and the header with it.
    tensors_end: u64,
    /// What the places of tensors, and that where their data begins, are multiples of.
    alignment: u64,
}

/// Reads the header of one file.
///
/// # Errors
/// If a count, a size, a type or an offset does not fit the file or contradicts another. Memory is
/// bounded by a small multiple of the file's length.
pub fn read_header(path: &Path, file: FileIndex) -> Result<Header, FormatError> {
    read_part(path, file, ALIGNMENT_DEFAULT)
}

/// [`read_header`] of a part whose tensors are aligned like this where it does not say so itself.
fn read_part(path: &Path, file: FileIndex, alignment: u64) -> Result<Header, FormatError> {
    let io_error = |source| FormatError::Io { path: path.into(), source };
    let opened = File::open(path).map_err(io_error)?;
    let file_bytes = opened.metadata().map_err(io_error)?.len();
    let header =
        parse(BufReader::new(opened), file_bytes, file, alignment).map_err(|e| e.at(path))?;
    check_extents(path, file_bytes, &header)?;
    Ok(header)
}

/// The header's bytes, unparsed but whole.
///
/// # Errors
/// As [`read_header`].
pub fn header_bytes(path: &Path) -> Result<Vec<u8>, FormatError> {
    file_prefix(path, read_header(path, FileIndex(0))?.tensors_end)
}

/// How long the header of a file is of which only a reader is there, and at most `file_bytes`.
/// Nothing is read from behind it but what a buffer takes.
pub(super) fn header_length(
    path: &Path,
    reader: impl Read,
    file_bytes: u64,
) -> Result<u64, FormatError> {
    // Where tensors lie is not asked here.
    let header = parse(BufReader::new(reader), file_bytes, FileIndex(0), 1);
    let header = header.map_err(|e| e.at(path))?;
    Ok(header.tensors_end)
}

/// A GGUF file with the metadata of the file at `path`, and without its tensors.
///
/// # Errors
/// As [`read_header`].
pub fn without_tensors(path: &Path) -> Result<Vec<u8>, FormatError> {
    let mut bytes = file_prefix(path, read_header(path, FileIndex(0))?.metadata_end)?;
    bytes[8..16].fill(0);
    Ok(bytes)
}

fn parse(
    reader: impl Read,
    file_bytes: u64,
    file: FileIndex,
    alignment: u64,
) -> Result<Header, HeaderError> {
    let mut cursor = Cursor::new(reader, file_bytes);
    let found = cursor.array()?;
    if found == LFS_POINTER {
        return Err(GgufError::LfsPointer.into());
    }
    if found != MAGIC {
        return Err(GgufError::Magic { found }.into());
    }
    match cursor.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() < 256 => return Err(GgufError::BigEndian.into()),
        found => return Err(GgufError::Version { found }.into()),
    }
    let (tensor_count, pair_count) = (cursor.u64()?, cursor.u64()?);
    let metadata = Metadata::read(&mut cursor, pair_count)?;
    let metadata_end = cursor.at();
    "tensor count".clone_into(&mut cursor.field);
    // A name's length, a dimension count, a dimension, a type and an offset.
    cursor.expect(tensor_count, 8 + 4 + 8 + 4 + 8)?;
    let infos: Result<Vec<_>, _> =
        (0..tensor_count).map(|index| TensorInfo::read(&mut cursor, index)).collect();
    let (infos, tensors_end) = (infos?, cursor.at());
    let alignment = metadata.unsigned("general.alignment")?.unwrap_or(alignment);
    if !alignment.is_power_of_two() {
        return Err(GgufError::Alignment { found: alignment }.into());
    }
    let data = tensors_end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    let placed = infos.into_iter().map(|info| info.tensor(file, data, alignment));
    let tensors = placed.collect::<Result<_, _>>()?;
    Ok(Header { metadata, tensors, metadata_end, tensors_end, alignment })
}

/// A tensor as the header has it.
struct TensorInfo {
    name: String,
    /// Outermost first.
    shape: Vec<u64>,
    type_id: u32,
    offset: u64,
}

impl TensorInfo {
    fn read<R: Read>(cursor: &mut Cursor<R>, index: u64) -> Result<Self, HeaderError> {
        cursor.field = format!("name of tensor {index}");
        let name = cursor.text()?;
        cursor.field = format!("tensor `{name}`");
        let found = cursor.u32()?;
        if !(1..=DIMENSIONS_MAX).contains(&found) {
            let field = cursor.field.clone();
            return Err(GgufError::Dimensions { field, found, most: DIMENSIONS_MAX }.into());
        }
        let shape: Result<Vec<u64>, _> = (0..found).map(|_| cursor.u64()).collect();
        let mut shape = shape?;
        shape.reverse();
        Ok(Self { name, shape, type_id: cursor.u32()?, offset: cursor.u64()? })
    }

    fn tensor(self, file: FileIndex, data: u64, alignment: u64) -> Result<Tensor, GgufError> {
        let Self { name, shape, type_id, offset } = self;
        let field = || format!("tensor `{name}`");
        let Some(dtype) = dtype_of(type_id) else {
            let known = TYPES.iter().map(|(_, dtype)| dtype.name());
            let packed = quant::FORMATS.iter().filter(|f| f.kind.ggml_type().is_some());
            let known = packed.map(|format| format.name).chain(known).collect();
            return Err(GgufError::TensorType { field: field(), found: type_id, known });
        };
        if !offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { field: field(), offset, alignment });
        }
        let dims: Option<Vec<usize>> = shape.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        let sized = dims.and_then(|dims| Some((dtype.tensor_bytes(&dims)?, dims)));
        let Some((bytes, dims)) = sized else {
            return Err(GgufError::Shape { field: field(), shape, dtype: dtype.name() });
        };
        let extent = Extent { file, offset: data.saturating_add(offset), bytes };
        Ok(Tensor { name, dtype, shape: dims, extent })
    }
}

/// Types of plain numbers that are no weights, by the format's number.
const TYPES: [(u32, Dtype); 5] = [
    (24, Dtype::Signed(1)),
    (25, Dtype::Signed(2)),
    (26, Dtype::Signed(4)),
    (27, Dtype::Signed(8)),
    (28, Dtype::F64),
];

fn dtype_of(type_id: u32) -> Option<Dtype> {
    if let Some(format) = quant::by_ggml_type(type_id) {
        return Some(match format.kind {
            FormatKind::Float(kind) => kind.into(),
            _ => Dtype::Packed(format),
        });
    }
    TYPES.iter().find(|(id, _)| *id == type_id).map(|(_, dtype)| *dtype)
}

/// Every tensor lies inside the file, no two share bytes, and there are none between them but padding.
fn check_extents(path: &Path, file_bytes: u64, header: &Header) -> Result<(), FormatError> {
    for Tensor { name, extent, .. } in &header.tensors {
        let end = extent.offset.saturating_add(extent.bytes);
        if end > file_bytes {
            let (path, tensor) = (path.into(), name.clone());
            return Err(FormatError::Truncated { path, tensor, end, file: file_bytes });
        }
    }
    let data = header.tensors_end..file_bytes;
    check_places(path, &header.tensors, data, header.alignment)
}
