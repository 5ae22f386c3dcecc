//! What makes a checkpoint that checkpoint, without reading all of it.
//!
//! Names and headers alone would not do: a fine-tuned model has those of its base. So a few
//! kilobytes from the middle of every trunk tensor and of three experts per layer are hashed, too:
//! some thousand reads, a second on a slow SSD. Times and paths are left out; a copy of a
//! checkpoint is the same checkpoint.

use fm_format::{
    FormatError,
    container::manifest::Fingerprint,
    record::Extent,
    source::{Checkpoint, Files, header_bytes},
};
use fm_model::spec::ModelSpec;
use xxhash_rust::xxh3::Xxh3;

use crate::source::Copied;

/// Bytes of a tensor, or of a piece of a record, that are hashed.
const SAMPLE_BYTES: u64 = 4096;

/// The fingerprint of an opened checkpoint.
pub(crate) fn of(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    files: &Files,
    copied: &[Copied],
) -> Result<Fingerprint, FormatError> {
    let mut hash = Fields(Xxh3::new());
    hash.add(spec.model_type.as_bytes());
    for file in copied {
        hash.add(file.name.as_bytes());
        hash.add(&file.entry.bytes.to_le_bytes());
        hash.add(&file.entry.xxh3.0.to_le_bytes());
    }
    for path in &checkpoint.files {
        hash.add(path.file_name().unwrap_or_default().as_encoded_bytes());
        hash.add(&header_bytes(path)?);
    }
    for extent in samples(checkpoint, spec) {
        hash.add(&files.read_extent(extent)?);
    }
    Ok(Fingerprint(hash.0.digest128()))
}

/// The middle of every trunk tensor, and of the pieces of three experts of every layer.
fn samples<'a>(
    checkpoint: &'a Checkpoint,
    spec: &'a ModelSpec,
) -> impl Iterator<Item = Extent> + 'a {
    let trunk = spec.trunk_tensors.iter().map(|name| checkpoint.tensors[name].extent);
    let layers = spec.catalog.layers.iter().flatten();
    let pieces = layers.flat_map(|layer| {
        let count = layer.records.len();
        let records = [0, count / 2, count - 1].into_iter().map(|expert| &layer.records[expert]);
        records.flat_map(|record| record.pieces.iter().map(|piece| piece.extent))
    });
    trunk.chain(pieces).map(|extent| {
        let bytes = extent.bytes.min(SAMPLE_BYTES);
        Extent { offset: extent.offset + (extent.bytes - bytes) / 2, bytes, ..extent }
    })
}

/// A hash over fields, each with its length: no two lists of fields are the same bytes.
struct Fields(Xxh3);

impl Fields {
    fn add(&mut self, field: &[u8]) {
        self.0.update(&(field.len() as u64).to_le_bytes());
        self.0.update(field);
    }
}
