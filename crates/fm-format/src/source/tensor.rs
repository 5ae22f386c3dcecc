//! Tensors of a checkpoint: names, types, shapes and places, in whatever file they are.

use std::{ops::Range, path::Path};

use crate::{
    error::FormatError,
    quant::{FloatKind, QuantFormat},
    record::Extent,
};

/// Element type of a tensor on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// FP8 with four exponent bits.
    F8E4m3,
    /// FP8 with five exponent bits.
    F8E5m2,
    /// One byte, zero or one.
    Bool,
    /// Signed integers; width in bytes.
    Signed(u8),
    /// Unsigned integers; width in bytes.
    Unsigned(u8),
    /// Rows of whole blocks of weights, as GGUF has them.
    Packed(&'static QuantFormat),
}

impl Dtype {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "F64" => Self::F64,
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "F8_E4M3" => Self::F8E4m3,
            "F8_E5M2" => Self::F8E5m2,
            "I64" => Self::Signed(8),
            "I32" => Self::Signed(4),
            "I16" => Self::Signed(2),
            "I8" => Self::Signed(1),
            "BOOL" => Self::Bool,
            "U64" => Self::Unsigned(8),
            "U32" => Self::Unsigned(4),
            "U16" => Self::Unsigned(2),
            "U8" => Self::Unsigned(1),
            _ => return None,
        })
    }

    /// What a header calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F64 => "F64",
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F8E4m3 => "F8_E4M3",
            Self::F8E5m2 => "F8_E5M2",
            Self::Bool => "BOOL",
            Self::Signed(1) => "I8",
            Self::Signed(2) => "I16",
            Self::Signed(4) => "I32",
            Self::Signed(_) => "I64",
            Self::Unsigned(1) => "U8",
            Self::Unsigned(2) => "U16",
            Self::Unsigned(4) => "U32",
            Self::Unsigned(_) => "U64",
            Self::Packed(format) => format.name,
        }
    }

    /// Bytes of a tensor of this shape, outermost dimension first; `None` if they cannot be counted
    /// or a row is no whole number of blocks.
    pub fn tensor_bytes(self, shape: &[usize]) -> Option<u64> {
        let (row, outer) = match self {
            Self::Packed(format) => {
                let (cols, outer) = shape.split_last()?;
                (format.row_bytes(*cols)?, outer)
            }
            Self::F64 => (8, shape),
            Self::F32 => (4, shape),
            Self::F16 | Self::Bf16 => (2, shape),
            Self::F8E4m3 | Self::F8E5m2 | Self::Bool => (1, shape),
            Self::Signed(bytes) | Self::Unsigned(bytes) => (usize::from(bytes), shape),
        };
        outer.iter().try_fold(row as u64, |bytes, &dim| bytes.checked_mul(dim as u64))
    }
}

impl From<FloatKind> for Dtype {
    fn from(kind: FloatKind) -> Self {
        match kind {
            FloatKind::F32 => Self::F32,
            FloatKind::F16 => Self::F16,
            FloatKind::Bf16 => Self::Bf16,
        }
    }
}

/// One tensor: what it is and where it lies.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name in the checkpoint.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its bytes; their number has been checked against shape and dtype.
    pub extent: Extent,
}

/// No two tensors of a file share bytes, and all bytes of its data belong to one, but for less than `slack` before
/// each and at the end: where there are others, tensors do not lie where the header says.
pub(super) fn check_places(
    path: &Path,
    tensors: &[Tensor],
    data: Range<u64>,
    slack: u64,
) -> Result<(), FormatError> {
    let mut ascending: Vec<&Tensor> = tensors.iter().filter(|t| t.extent.bytes > 0).collect();
    ascending.sort_by_key(|tensor| tensor.extent.offset);
    let gap = |offset: u64, end: u64, before: Option<&Tensor>| {
        let bytes = end.saturating_sub(offset);
        let before = before.map(|tensor| tensor.name.clone());
        let gap = || FormatError::Gap { path: path.into(), offset, bytes, before };
        if bytes < slack { Ok(()) } else { Err(gap()) }
    };
    let (mut end, mut last) = (data.start, None::<&Tensor>);
    for tensor in ascending {
        let begin = tensor.extent.offset;
        if let Some(last) = last.filter(|_| end > begin) {
            let (first, second) = (last.name.clone(), tensor.name.clone());
            return Err(FormatError::Overlap { path: path.into(), first, second });
        }
        gap(end, begin, Some(tensor))?;
        (end, last) = (begin + tensor.extent.bytes, Some(tensor));
    }
    gap(end, data.end, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_is_written_as_it_is_read() {
        let names = "F64 F32 F16 BF16 F8_E4M3 F8_E5M2 BOOL I64 I32 I16 I8 U64 U32 U16 U8";
        for name in names.split(' ') {
            assert_eq!(Dtype::parse(name).unwrap().name(), name);
        }
    }
}
