//! Files: safetensors, their index, JSON.

use std::{borrow::Cow, collections::HashMap, fs, path::Path};

use half::{bf16, f16};
use safetensors::{Dtype, View, tensor::TensorView};
use serde_json::{Value, json};

use super::Float;

impl Float {
    /// The nearest number that this type can store.
    pub(super) fn round(self, value: f32) -> f32 {
        match self {
            Self::Bf16 => bf16::from_f32(value).to_f32(),
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::F32 => value,
        }
    }

    /// The name in `torch_dtype`.
    pub(super) fn torch_name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::F32 => "float32",
        }
    }
}

/// One tensor as it lies in a file.
#[derive(Clone, Debug)]
pub(super) struct DiskTensor {
    pub(super) name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl DiskTensor {
    pub(super) fn floats(name: String, shape: Vec<usize>, values: &[f32], stored: Float) -> Self {
        let (dtype, bytes) = match stored {
            Float::Bf16 => (
                Dtype::BF16,
                values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            ),
            Float::F16 => {
                (Dtype::F16, values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect())
            }
            Float::F32 => (Dtype::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        };
        Self { name, dtype, shape, bytes }
    }

    pub(super) fn bytes(name: String, shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        Self { name, dtype: Dtype::U8, shape, bytes }
    }

    pub(super) fn raw(name: String, view: &TensorView<'_>) -> Self {
        let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
        Self { name, dtype: view.dtype(), shape, bytes }
    }

    pub(super) fn e4m3(name: String, shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        Self { name, dtype: Dtype::F8_E4M3, shape, bytes }
    }

    pub(super) fn words(name: String, shape: Vec<usize>, words: &[u32]) -> Self {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Self { name, dtype: Dtype::U32, shape, bytes }
    }
}

impl DiskTensor {
    /// The `index`-th of `count` equal parts of the bytes.
    pub(super) fn part(&self, index: usize, count: usize) -> std::ops::Range<usize> {
        let bytes = self.bytes.len() / count;
        index * bytes..(index + 1) * bytes
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.bytes
    }

    /// Type and shape as headers have them.
    pub(super) fn header(&self) -> Value {
        json!({ "dtype": format!("{:?}", self.dtype), "shape": self.shape })
    }
}

impl View for &DiskTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

pub(super) fn write_json(path: &Path, value: &Value) {
    let text = serde_json::to_string_pretty(value).expect("a JSON value has a text");
    fs::write(path, text).expect("a checkpoint directory can be written");
}

/// Writes the tensors in order into `shards` files of nearly equal count, so that the tensors of
/// one layer, and of one expert, may lie in different files.
pub(super) fn write_tensors(dir: &Path, tensors: &[DiskTensor], shards: usize, format: &str) {
    assert!((1..=tensors.len()).contains(&shards), "every shard holds a tensor");
    let metadata = HashMap::from([("format".to_owned(), format.to_owned())]);
    let write = |file: &str, tensors: &[DiskTensor]| {
        let named = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor));
        safetensors::serialize_to_file(named, Some(metadata.clone()), &dir.join(file))
            .expect("tensors can be written");
    };
    if shards == 1 {
        write("model.safetensors", tensors);
        return;
    }
    let mut weight_map = serde_json::Map::new();
    for shard in 0..shards {
        let file = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
        let (from, to) = (tensors.len() * shard / shards, tensors.len() * (shard + 1) / shards);
        write(&file, &tensors[from..to]);
        weight_map.extend(tensors[from..to].iter().map(|t| (t.name.clone(), json!(file))));
    }
    let total_size: usize = tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    write_json(&dir.join("model.safetensors.index.json"), &index);
}
