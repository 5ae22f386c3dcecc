//! Which tensors go into which file, and the header each file begins with.

use std::ops::Range;

use serde_json::{Map, Value, json};

use crate::layout::Tensor;

/// A file ends before it outgrows this, unless one tensor does alone.
pub(crate) const SHARD_BYTES: u64 = 4_000_000_000;

/// One file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shard {
    pub(crate) file: String,
    pub(crate) tensors: Range<usize>,
}

/// Fills file after file in the order of the tensors.
pub(crate) fn shards(tensors: &[Tensor], shard_bytes: u64) -> Vec<Shard> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut filled = 0;
    for (at, tensor) in tensors.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if filled + tensor.bytes() <= shard_bytes => range.end = at + 1,
            _ => {
                ranges.push(at..at + 1);
                filled = 0;
            }
        }
        filled += tensor.bytes();
    }
    let count = ranges.len();
    let name = |at: usize| match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
    };
    let named = ranges.into_iter().enumerate();
    named.map(|(at, tensors)| Shard { file: name(at), tensors }).collect()
}

/// Length and JSON, padded so that the data begins at a multiple of eight.
pub(crate) fn header(tensors: &[Tensor], format: &str) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({ "format": format }));
    let mut begin = 0;
    for tensor in tensors {
        let end = begin + tensor.bytes();
        let entry =
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end] });
        entries.insert(tensor.name.clone(), entry);
        begin = end;
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes(), json.as_slice()].concat()
}

/// `model.safetensors.index.json`.
pub(crate) fn index(tensors: &[Tensor], shards: &[Shard]) -> Value {
    let total: u64 = tensors.iter().map(Tensor::bytes).sum();
    let files = shards.iter().flat_map(|shard| {
        tensors[shard.tensors.clone()].iter().map(|tensor| (tensor.name.clone(), json!(shard.file)))
    });
    let mut names: Vec<(String, Value)> = files.collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    json!({ "metadata": { "total_size": total }, "weight_map": Map::from_iter(names) })
}
