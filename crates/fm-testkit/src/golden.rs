//! Reads what the official implementations answered: `golden/<family>/golden*.safetensors`.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use half::bf16;
use safetensors::{Dtype, SafeTensors};

/// The root of the workspace, where `golden/` and `models/` lie.
pub fn workspace_dir() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).expect("the crate lies in crates/ of the workspace").to_owned()
}

/// `golden/<family>`, for example `golden_dir("qwen3_next")`.
pub fn golden_dir(family: &str) -> PathBuf {
    workspace_dir().join("golden").join(family)
}

/// The trained demonstration model, quantised by MLX.
pub fn demo_dir() -> PathBuf {
    workspace_dir().join("models/demo")
}

/// The trained demonstration model as its trainer wrote it: HF layout, bf16.
pub fn demo_bf16_dir() -> PathBuf {
    workspace_dir().join("models/demo-bf16")
}

/// Copies the files of a checkpoint.
pub fn copy_files(from: &Path, to: &Path) {
    for file in fs::read_dir(from).expect("the checkpoint is a directory") {
        let file = file.expect("its files can be listed");
        fs::copy(file.path(), to.join(file.file_name())).expect("its files can be copied");
    }
}

/// The same for one that has one file of weights, and sets all numbers of a bf16 tensor to `value`.
pub fn copy_filled(from: &Path, to: &Path, tensor: &str, value: f32) {
    copy_files(from, to);
    let path = to.join("model.safetensors");
    let mut bytes = fs::read(&path).expect("there is one file of weights");
    let (length, header) = SafeTensors::read_metadata(&bytes).expect("it is valid safetensors");
    let tensor = header.info(tensor).expect("the tensor is there");
    assert_eq!(tensor.dtype, Dtype::BF16);
    let (start, end) = tensor.data_offsets;
    let numbers = bytes[size_of::<u64>() + length..][start..end].as_chunks_mut().0;
    numbers.fill(bf16::from_f32(value).to_le_bytes());
    fs::write(path, bytes).expect("the copy can be written");
}

/// Named arrays of one file, with their shapes.
#[derive(Debug)]
pub struct Golden {
    floats: HashMap<String, (Vec<f32>, Vec<usize>)>,
    integers: HashMap<String, (Vec<i32>, Vec<usize>)>,
}

impl Golden {
    /// Reads every f32 and i32 tensor of a safetensors file; other types are passed over.
    pub fn open(path: &Path) -> Self {
        let bytes = fs::read(path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        let file = SafeTensors::deserialize(&bytes).expect("a golden is valid safetensors");
        let (mut floats, mut integers) = (HashMap::new(), HashMap::new());
        for (name, view) in file.tensors() {
            let words = view.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
            let shape = view.shape().to_vec();
            match view.dtype() {
                Dtype::F32 => {
                    floats.insert(name, (words.map(f32::from_le_bytes).collect(), shape));
                }
                Dtype::I32 => {
                    integers.insert(name, (words.map(i32::from_le_bytes).collect(), shape));
                }
                _ => {}
            }
        }
        Self { floats, integers }
    }

    /// The f32 array `name` and its shape.
    pub fn f32(&self, name: &str) -> (&[f32], &[usize]) {
        let (data, shape) =
            self.floats.get(name).unwrap_or_else(|| panic!("the golden has no f32 array {name}"));
        (data, shape)
    }

    /// The i32 array `name` and its shape.
    pub fn i32(&self, name: &str) -> (&[i32], &[usize]) {
        let (data, shape) =
            self.integers.get(name).unwrap_or_else(|| panic!("the golden has no i32 array {name}"));
        (data, shape)
    }

    /// Whether the file holds the f32 array `name`.
    pub fn has_f32(&self, name: &str) -> bool {
        self.floats.contains_key(name)
    }

    /// The f32 array `name` cut into rows of its last dimension.
    pub fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let (data, shape) = self.f32(name);
        let width = *shape.last().expect("a golden array has dimensions");
        data.chunks(width).map(<[f32]>::to_vec).collect()
    }

    /// The token ids in the i32 array `name`.
    pub fn tokens(&self, name: &str) -> Vec<u32> {
        let (data, _) = self.i32(name);
        data.iter().map(|&id| u32::try_from(id).expect("token ids are not negative")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_golden_opens_with_shapes() {
        let golden = Golden::open(&golden_dir("qwen3_moe").join("golden.safetensors"));
        let (logits, shape) = golden.f32("hf_f32.logits");
        assert_eq!((logits.len(), shape), (32 * 304, &[32, 304][..]));
        assert_eq!(golden.tokens("tokens").len(), 32);
        assert!(golden.has_f32("hf_f32.embed") && !golden.has_f32("tokens"));
        assert!(demo_dir().join("config.json").exists());
        assert!(demo_bf16_dir().join("config.json").exists());
    }
}
