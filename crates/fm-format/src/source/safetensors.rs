//! The safetensors header, read as hostile input: names to offsets, nothing else.
//!
//! ```text
//! u64 header length, little-endian | JSON header | data
//! ```
//!
//! Source: the safetensors format description (huggingface/safetensors, README).

use std::{fmt, fs::File, io::Read, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::{
    error::FormatError,
    record::{Extent, FileIndex},
    source::{Dtype, LFS_POINTER, Tensor, check_places},
};

/// Longest header we accept: the format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Reads the header of one file.
///
/// # Errors
/// If the header is longer than the file, is not JSON, or a tensor's offsets do not fit its shape,
/// another tensor, or the file, or leave bytes of it to nobody.
pub fn read_header(path: &Path, file: FileIndex) -> Result<Vec<Tensor>, FormatError> {
    let io_error = |source| FormatError::Io { path: path.into(), source };
    let mut opened = File::open(path).map_err(io_error)?;
    let file_bytes = opened.metadata().map_err(io_error)?.len();
    let header = text_of(path, &mut opened, file_bytes)?;
    let data = Data { path, file, start: 8 + header.len() as u64, file_bytes };
    let tensors = parse_header(&header, &data)?;
    check_places(path, &tensors, data.start..file_bytes, 1)?;
    Ok(tensors)
}

/// The header's JSON with its padding, unparsed.
///
/// # Errors
/// If the header is longer than the file, or cannot be read.
pub fn header_text(path: &Path) -> Result<Vec<u8>, FormatError> {
    let io_error = |source| FormatError::Io { path: path.into(), source };
    let mut opened = File::open(path).map_err(io_error)?;
    let file_bytes = opened.metadata().map_err(io_error)?.len();
    text_of(path, &mut opened, file_bytes)
}

/// How long length and header of a file are of which only a reader is there.
pub(super) fn header_length(
    path: &Path,
    mut reader: impl Read,
    file_bytes: u64,
) -> Result<u64, FormatError> {
    Ok(8 + text_of(path, &mut reader, file_bytes)?.len() as u64)
}

fn text_of(path: &Path, opened: &mut impl Read, file_bytes: u64) -> Result<Vec<u8>, FormatError> {
    let io_error = |source| FormatError::Io { path: path.into(), source };
    let mut prefix = [0; 8];
    if file_bytes < 8 {
        return Err(FormatError::HeaderLength { path: path.into(), header: 8, file: file_bytes });
    }
    opened.read_exact(&mut prefix).map_err(io_error)?;
    if prefix.starts_with(&LFS_POINTER) {
        return Err(FormatError::LfsPointer { path: path.into() });
    }
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > HEADER_BYTES_MAX || header_bytes > file_bytes - 8 {
        return Err(FormatError::HeaderLength {
            path: path.into(),
            header: header_bytes,
            file: file_bytes,
        });
    }
    let mut header = vec![0; header_bytes as usize];
    opened.read_exact(&mut header).map_err(io_error)?;
    Ok(header)
}

/// Where the data of a file begins and ends.
struct Data<'a> {
    path: &'a Path,
    file: FileIndex,
    start: u64,
    file_bytes: u64,
}

fn parse_header(header: &[u8], data: &Data<'_>) -> Result<Vec<Tensor>, FormatError> {
    let Header(entries) = serde_json::from_slice(header)
        .map_err(|source| FormatError::Json { path: data.path.into(), source })?;
    entries.into_iter().map(|(name, entry)| parse_tensor(name, entry, data)).collect()
}

/// What a header says of its tensors, in its order.
struct Header(Vec<(String, Entry)>);

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

/// Dimensions, of which nobody has more than [`DIMS_MAX`]: a list is not read to its end to find that out.
struct Shape(Vec<usize>);

const DIMS_MAX: usize = 8;

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tensors by name")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Header, M::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of up to {DIMS_MAX} dimensions")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Shape, S::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = list.next_element()? {
                    if dims.len() == DIMS_MAX {
                        return Err(de::Error::invalid_length(DIMS_MAX + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }
        deserializer.deserialize_seq(Dims)
    }
}

fn parse_tensor(name: String, entry: Entry, data: &Data<'_>) -> Result<Tensor, FormatError> {
    let Entry { dtype, shape: Shape(shape), data_offsets: [begin, end] } = entry;
    let Some(known) = Dtype::parse(&dtype) else {
        return Err(FormatError::Dtype { path: data.path.into(), tensor: name, dtype });
    };
    let needed = known.tensor_bytes(&shape).unwrap_or(u64::MAX);
    if end.checked_sub(begin) != Some(needed) {
        return Err(FormatError::Extent {
            path: data.path.into(),
            tensor: name,
            begin,
            end,
            needed,
        });
    }
    let end = data.start.saturating_add(end);
    if end > data.file_bytes {
        return Err(FormatError::Truncated {
            path: data.path.into(),
            tensor: name,
            end,
            file: data.file_bytes,
        });
    }
    let extent = Extent { file: data.file, offset: data.start + begin, bytes: needed };
    Ok(Tensor { name, dtype: known, shape, extent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn header_of(bytes: &[u8]) -> Result<Vec<Tensor>, FormatError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        read_header(file.path(), FileIndex(0))
    }

    fn with_header(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data_bytes, 7);
        bytes
    }

    #[test]
    fn offsets_are_counted_from_the_start_of_the_file() {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"z":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
        let tensors = header_of(&with_header(header, 16)).unwrap();
        let offset = 8 + header.len() as u64 + 4;
        assert_eq!(tensors[0].extent, Extent { file: FileIndex(0), offset, bytes: 12 });
        assert_eq!(tensors[0].shape, [2, 3]);
    }

    #[test]
    fn a_header_longer_than_the_file_is_refused_before_it_is_read() {
        let mut bytes = u64::MAX.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        assert!(matches!(header_of(&bytes), Err(FormatError::HeaderLength { .. })));
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
        assert!(matches!(header_of(pointer), Err(FormatError::LfsPointer { .. })));
        assert!(matches!(header_of(b"short"), Err(FormatError::HeaderLength { .. })));
    }

    #[test]
    fn a_tensor_beyond_the_end_of_the_file_is_named() {
        let header = r#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
        let error = header_of(&with_header(header, 15)).unwrap_err();
        assert!(
            matches!(&error, FormatError::Truncated { tensor, .. } if tensor == "w"),
            "{error}"
        );
    }

    #[test]
    fn a_shape_that_overflows_or_does_not_fit_its_bytes_is_refused() {
        for shape in ["[4611686018427387904,4]", "[3]", "[5]"] {
            let header =
                format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":[0,16]}}}}"#);
            let error = header_of(&with_header(&header, 16)).unwrap_err();
            assert!(matches!(error, FormatError::Extent { .. }), "{shape}: {error}");
        }
    }

    #[test]
    fn a_shape_is_not_read_to_its_end_to_find_that_it_is_none() {
        let dims = |count: usize| {
            let dims = vec!["1"; count].join(",");
            header_of(&with_header(
                &format!(r#"{{"w":{{"dtype":"U8","shape":[{dims}],"data_offsets":[0,1]}}}}"#),
                1,
            ))
        };
        assert_eq!(dims(8).unwrap()[0].shape, [1; 8]);
        let error = dims(9).unwrap_err();
        assert!(matches!(error, FormatError::Json { .. }), "{error}");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("up to 8 dimensions"), "{cause}");
    }

    #[test]
    fn tensors_that_share_bytes_are_refused() {
        let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}"#;
        assert!(matches!(header_of(&with_header(header, 8)), Err(FormatError::Overlap { .. })));
    }

    #[test]
    fn bytes_that_belong_to_no_tensor_are_refused() {
        let header = |a: u64, b: u64| {
            let tensor = |begin: u64| {
                format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":[{begin},{}]}}"#, begin + 4)
            };
            format!(
                r#"{{"a":{},"none":{{"dtype":"U8","shape":[0],"data_offsets":[2,2]}},"b":{}}}"#,
                tensor(a),
                tensor(b)
            )
        };
        assert_eq!(header_of(&with_header(&header(0, 4), 8)).unwrap().len(), 3);
        for (header, bytes, gap, before) in [
            (header(1, 5), 9, (0, 1), Some("a")),
            (header(0, 6), 10, (4, 2), Some("b")),
            (header(4, 0), 4096, (8, 4088), None),
        ] {
            let error = header_of(&with_header(&header, bytes)).unwrap_err();
            let FormatError::Gap { offset, bytes, before: named, .. } = error else {
                panic!("{error}")
            };
            assert_eq!((offset - 8 - header.len() as u64, bytes), gap);
            assert_eq!(named.as_deref(), before);
        }
        // A header that is said to be shorter than it is: its padding is taken for data.
        let mut padded = with_header(&format!("{}    ", header(0, 4)), 8);
        padded[0] -= 4;
        assert!(matches!(header_of(&padded), Err(FormatError::Gap { bytes: 4, .. })));
    }

    #[test]
    fn an_unknown_dtype_is_named() {
        let header = r#"{"a":{"dtype":"Q9","shape":[4],"data_offsets":[0,4]}}"#;
        let error = header_of(&with_header(header, 8)).unwrap_err();
        assert!(error.to_string().contains("unknown dtype `Q9`"), "{error}");
    }
}
