//! `trunk.safetensors`: every tensor that is no routed expert, by name, back to back.

use fm_format::{
    container::manifest::{Checksum, TrunkEntry},
    record::Extent,
    source::{Checkpoint, Dtype, Files, Tensor},
};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{error::ConvertError, progress::Meter, staged::Staged};

/// The data begins at a multiple of this. Tensors follow without gaps, as the format demands; in
/// real models their sizes are multiples of it, too.
const ALIGN: usize = 64;
/// Bytes of a tensor that are in memory at once.
const CHUNK_BYTES: u64 = 4 << 20;

/// The file before it is written.
pub(crate) struct Trunk<'a> {
    /// Length prefix and JSON.
    head: Vec<u8>,
    tensors: Vec<&'a Tensor>,
    pub(crate) bytes: u64,
}

impl<'a> Trunk<'a> {
    /// `names` are tensors of the checkpoint, ascending.
    pub(crate) fn new(checkpoint: &'a Checkpoint, names: &[String]) -> Self {
        let tensors: Vec<_> = names.iter().map(|name| &checkpoint.tensors[name]).collect();
        let mut entries = Map::new();
        let mut end = 0;
        for tensor in &tensors {
            let begin = end;
            end += tensor.extent.bytes;
            let (dtype, shape) = stored_as(tensor);
            let entry = json!({
                "dtype": dtype.name(),
                "shape": shape,
                "data_offsets": [begin, end],
            });
            entries.insert(tensor.name.clone(), entry);
        }
        let mut text = Value::Object(entries).to_string().into_bytes();
        text.resize((8 + text.len()).next_multiple_of(ALIGN) - 8, b' ');
        let mut head = (text.len() as u64).to_le_bytes().to_vec();
        head.append(&mut text);
        let bytes = head.len() as u64 + end;
        Self { head, tensors, bytes }
    }

    pub(crate) fn write(
        &self,
        files: &Files,
        to: &mut Staged,
        meter: &mut Meter<'_>,
    ) -> Result<TrunkEntry, ConvertError> {
        to.write(&self.head)?;
        meter.advance(self.head.len() as u64)?;
        let mut tensors = std::collections::BTreeMap::new();
        for tensor in &self.tensors {
            let checksum = each_chunk(files, tensor.extent, |chunk| {
                to.write(chunk)?;
                meter.advance(chunk.len() as u64)
            })?;
            tensors.insert(tensor.name.clone(), checksum);
        }
        let header = Checksum(xxh3_64(&self.head[8..]));
        let formats = self.tensors.iter().filter_map(|tensor| match tensor.dtype {
            Dtype::Packed(format) => Some((tensor.name.clone(), format.name.to_owned())),
            _ => None,
        });
        Ok(TrunkEntry { bytes: self.bytes, header, tensors, formats: formats.collect() })
    }
}

/// Element type and shape of a tensor in the trunk: blocks, which safetensors has no type for, are
/// bytes, and the manifest names their format.
fn stored_as(tensor: &Tensor) -> (Dtype, Vec<usize>) {
    let mut shape = tensor.shape.clone();
    let Dtype::Packed(format) = tensor.dtype else { return (tensor.dtype, shape) };
    if let Some(cols) = shape.last_mut() {
        *cols = *cols / format.block_len * format.block_bytes;
    }
    (Dtype::Unsigned(1), shape)
}

/// Reads an extent piece by piece and returns its checksum.
pub(crate) fn each_chunk(
    files: &Files,
    extent: Extent,
    mut take: impl FnMut(&[u8]) -> Result<(), ConvertError>,
) -> Result<Checksum, ConvertError> {
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; extent.bytes.min(CHUNK_BYTES) as usize];
    let mut done = 0;
    while done < extent.bytes {
        let chunk = &mut buffer[..(extent.bytes - done).min(CHUNK_BYTES) as usize];
        files.read(extent.file, extent.offset + done, chunk)?;
        hash.update(chunk);
        take(chunk)?;
        done += chunk.len() as u64;
    }
    Ok(Checksum(hash.digest()))
}
