//! `manifest.json`: what a container consists of, in the order in which it is written.

use std::{collections::BTreeMap, fmt, path::Path};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;

use crate::{
    error::FormatError,
    record::{MatrixShape, RecordLayout},
};

/// What `container` says in every manifest of ours.
const MARK: &str = "flash-moe";
/// The version this build writes, and the only one it reads.
pub const VERSION: u32 = 0;

/// The whole manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    container: String,
    version: u32,
    /// Family, as in `config.json`.
    pub model_type: String,
    /// Whose conventions the trunk's tensors follow; the families know the names.
    pub publisher: String,
    /// Fingerprint of the checkpoint it was made from.
    pub source: Fingerprint,
    /// Small files, copied as they were, by name.
    pub files: BTreeMap<String, FileEntry>,
    /// `trunk.safetensors`.
    pub trunk: TrunkEntry,
    /// One entry per decoder layer; `null` for layers without routed experts.
    pub layers: Vec<Option<LayerEntry>>,
}

/// A small file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Length.
    pub bytes: u64,
    /// Of the whole file.
    pub xxh3: Checksum,
}

/// The trunk's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrunkEntry {
    /// Length.
    pub bytes: u64,
    /// Of the JSON header with its padding.
    pub header: Checksum,
    /// Of every tensor's bytes, by name.
    pub tensors: BTreeMap<String, Checksum>,
    /// Names in [`crate::quant::FORMATS`] of the tensors that safetensors has no element type for.
    /// The trunk holds them as `U8`, with the bytes of a row for columns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub formats: BTreeMap<String, String>,
}

/// A layer's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerEntry {
    /// Its name inside `experts/`.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// Records in it.
    pub experts: u64,
    /// Length of each of them.
    pub record_bytes: u64,
    /// `gate_proj`.
    pub gate: MatrixEntry,
    /// `up_proj`.
    pub up: MatrixEntry,
    /// `down_proj`.
    pub down: MatrixEntry,
    /// One entry per record.
    pub checksums: Vec<PartChecksums>,
}

/// Shape and format of a matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixEntry {
    /// Outputs.
    pub rows: u64,
    /// Inputs.
    pub cols: u64,
    /// Name in [`crate::quant::FORMATS`].
    pub format: String,
}

/// What a manifest says, without what is the same in all of this version.
#[derive(Clone, Debug)]
pub struct Contents {
    /// See [`Manifest::model_type`].
    pub model_type: String,
    /// See [`Manifest::publisher`].
    pub publisher: String,
    /// See [`Manifest::source`].
    pub source: Fingerprint,
    /// See [`Manifest::files`].
    pub files: BTreeMap<String, FileEntry>,
    /// See [`Manifest::trunk`].
    pub trunk: TrunkEntry,
    /// See [`Manifest::layers`].
    pub layers: Vec<Option<LayerEntry>>,
}

impl From<Contents> for Manifest {
    fn from(contents: Contents) -> Self {
        let Contents { model_type, publisher, source, files, trunk, layers } = contents;
        let (container, version) = (MARK.to_owned(), VERSION);
        Self { container, version, model_type, publisher, source, files, trunk, layers }
    }
}

impl Manifest {
    /// Reads the text of the manifest at `path`; `None` if it is somebody else's.
    ///
    /// # Errors
    /// If it is of another version or does not parse.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Option<Self>, FormatError> {
        #[derive(Deserialize)]
        struct Head {
            container: Option<Value>,
            version: Option<Value>,
        }
        let head = match serde_json::from_slice::<Head>(text) {
            Ok(head) => head,
            // Some other JSON: other programs call files so, too.
            Err(error) if error.is_data() => return Ok(None),
            Err(source) => return Err(FormatError::Json { path: path.into(), source }),
        };
        if head.container.as_ref().and_then(Value::as_str) != Some(MARK) {
            return Ok(None);
        }
        // Before the rest is looked at: another version may have other fields.
        match head.version.as_ref().and_then(Value::as_u64) {
            Some(found) if found != u64::from(VERSION) => {
                Err(FormatError::ContainerVersion { path: path.into(), found, known: VERSION })
            }
            _ => serde_json::from_slice(text)
                .map(Some)
                .map_err(|source| FormatError::Json { path: path.into(), source }),
        }
    }

    /// The text of the file. Equal manifests have equal texts.
    ///
    /// # Panics
    /// Never: a manifest consists of strings and numbers.
    pub fn to_text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("strings and numbers have a text");
        text.push(b'\n');
        text
    }
}

impl From<MatrixShape> for MatrixEntry {
    fn from(shape: MatrixShape) -> Self {
        let format = shape.format.name.to_owned();
        Self { rows: shape.rows as u64, cols: shape.cols as u64, format }
    }
}

impl LayerEntry {
    /// Describes the file of a layer.
    pub fn new(layer: usize, layout: &RecordLayout, checksums: Vec<PartChecksums>) -> Self {
        let (experts, record_bytes) = (checksums.len() as u64, layout.bytes() as u64);
        Self {
            file: super::layer_file(layer),
            bytes: experts * record_bytes,
            experts,
            record_bytes,
            gate: layout.gate.into(),
            up: layout.up.into(),
            down: layout.down.into(),
            checksums,
        }
    }
}

/// XXH3-64 of some bytes; 16 hexadecimal digits in JSON, where a number would lose bits in readers
/// that know only doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(pub u64);

/// XXH3-64 of `gate+up` and of `down`, without padding; 32 hexadecimal digits in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartChecksums(pub [u64; 2]);

/// XXH3-128 of what makes a checkpoint that checkpoint; 32 hexadecimal digits in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub u128);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for PartChecksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Exactly `digits` lowercase hexadecimal digits.
fn parse_hex<'de, D: Deserializer<'de>>(from: D, digits: usize) -> Result<u128, D::Error> {
    let text = String::deserialize(from)?;
    let plain =
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let value = plain.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
    value.ok_or_else(|| D::Error::custom(format_args!("`{text}` is not {digits} hex digits")))
}

/// Writes a checksum as its `Display` shows it, and reads exactly that.
macro_rules! hex_in_json {
    ($($name:ident, $digits:literal, $from:expr;)+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                parse_hex(from, $digits).map($from)
            }
        }
    )+};
}

hex_in_json! {
    Checksum, 16, |value| Self(value as u64);
    PartChecksums, 32, |value| Self([(value >> 64) as u64, value as u64]);
    Fingerprint, 32, Self;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_survive_json_with_all_their_digits() {
        let parts = PartChecksums([0x00ff, u64::MAX - 1]);
        let text = serde_json::to_string(&parts).unwrap();
        assert_eq!(text, r#""00000000000000fffffffffffffffffe""#);
        assert_eq!(serde_json::from_str::<PartChecksums>(&text).unwrap(), parts);
        assert_eq!(serde_json::to_string(&Checksum(1)).unwrap(), r#""0000000000000001""#);
        let print = Fingerprint(1 << 127);
        let text = serde_json::to_string(&print).unwrap();
        assert_eq!(serde_json::from_str::<Fingerprint>(&text).unwrap(), print);
    }

    #[test]
    fn anything_else_is_no_checksum() {
        for text in
            ["", "00000000000000f", "+000000000000001", "00000000000000FF", "0x00000000000ff1"]
        {
            let json = serde_json::to_string(text).unwrap();
            assert!(serde_json::from_str::<Checksum>(&json).is_err(), "{text}");
        }
    }
}
