//! What can be wrong with a GGUF header.

use std::{io, path::Path};

use crate::error::FormatError;

/// Why a GGUF header cannot be read. `field` names what was being read: a metadata key, a tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// Another kind of file.
    #[error("not a GGUF file: it begins with {found:02x?}")]
    Magic {
        /// Its first four bytes.
        found: [u8; 4],
    },

    /// What git-lfs leaves in the place of a file that it has not fetched.
    #[error("this is a pointer of git-lfs, not the file itself, which `git lfs pull` brings")]
    LfsPointer,

    /// A version with another layout.
    #[error("GGUF version {found}; this build reads versions 2 and 3")]
    Version {
        /// What the file says.
        found: u32,
    },

    /// Written on a big-endian machine.
    #[error("a big-endian GGUF file; this build reads little-endian ones")]
    BigEndian,

    /// The file ends inside the header, or a count is larger than the file.
    #[error(
        "{field}: needs {needed} bytes at byte {at}, but the file has {left} left; \
         the download is probably incomplete"
    )]
    Short {
        /// What was being read.
        field: String,
        /// Where.
        at: u64,
        /// Least number of bytes it takes.
        needed: u64,
        /// Bytes from there to the end.
        left: u64,
    },

    /// Text that is not UTF-8.
    #[error("{field}: the text at byte {at} is not UTF-8")]
    Text {
        /// What was being read.
        field: String,
        /// Where the text begins.
        at: u64,
    },

    /// A value type that the format does not have.
    #[error("{field}: unknown value type {found}")]
    ValueType {
        /// The key.
        field: String,
        /// What the file says.
        found: u32,
    },

    /// Arrays in arrays in arrays.
    #[error("{field}: arrays nested deeper than {most}")]
    Nested {
        /// The key.
        field: String,
        /// What we accept.
        most: usize,
    },

    /// The same key twice.
    #[error("{field}: there twice")]
    DuplicateKey {
        /// The key.
        field: String,
    },

    /// A number of dimensions that no tensor has.
    #[error("{field}: {found} dimensions; a tensor has 1 to {most}")]
    Dimensions {
        /// The tensor.
        field: String,
        /// What the file says.
        found: u32,
        /// What the format allows.
        most: u32,
    },

    /// A tensor of more bytes than can be counted, or with rows of broken blocks.
    #[error("{field}: shape {shape:?} is no whole number of `{dtype}` blocks per row")]
    Shape {
        /// The tensor.
        field: String,
        /// Its dimensions, outermost first.
        shape: Vec<u64>,
        /// Its type.
        dtype: &'static str,
    },

    /// A tensor type this build does not know.
    #[error("{field}: unknown tensor type {found}; known: {}", known.join(", "))]
    TensorType {
        /// The tensor.
        field: String,
        /// What the file says.
        found: u32,
        /// Names of those we read.
        known: Vec<&'static str>,
    },

    /// `general.alignment` is no alignment.
    #[error("`general.alignment` is {found}; expected a power of two")]
    Alignment {
        /// What the file says.
        found: u64,
    },

    /// A tensor that does not begin where the alignment asks for.
    #[error("{field}: offset {offset} is no multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        field: String,
        /// Its offset in the data.
        offset: u64,
        /// `general.alignment`.
        alignment: u64,
    },

    /// A metadata key of another type than its meaning asks for.
    #[error("`{key}` is {found}, expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },

    /// A part of a split file that says it is another part.
    #[error(
        "says it is part {part} of {count} with {tensors} tensors, which does not fit the other parts"
    )]
    Split {
        /// `split.no`, from 0.
        part: u64,
        /// `split.count`.
        count: u64,
        /// `split.tensors.count`.
        tensors: u64,
    },
}

/// A header that cannot be read, or that is wrong.
#[derive(Debug)]
pub(super) enum HeaderError {
    Io(io::Error),
    Content(GgufError),
}

impl From<GgufError> for HeaderError {
    fn from(error: GgufError) -> Self {
        Self::Content(error)
    }
}

impl HeaderError {
    pub(super) fn at(self, path: &Path) -> FormatError {
        let path = path.into();
        match self {
            Self::Io(source) => FormatError::Io { path, source },
            Self::Content(source) => FormatError::Gguf { path, source },
        }
    }
}
