//! Every layout becomes one: names without prefixes, one matrix per expert, numbers in f64,
//! norm weights as they multiply.
//!
//! Conventions held here: HF or MLX layout, packed integers, fused and stacked experts,
//! zero-centred norm weights, which tensors are not part of the language model.

use std::{collections::HashMap, fs, path::Path};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;

use super::{
    config::{Config, Family},
    maths::dot,
};

/// Numbers with a shape, row-major.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<f64>,
}

impl Tensor {
    /// `y[i] = Σⱼ self[i, j] · x[j]`
    pub(super) fn times(&self, x: &[f64]) -> Vec<f64> {
        let [_, columns] = self.shape[..] else { panic!("{:?} is not a matrix", self.shape) };
        assert_eq!(columns, x.len(), "the matrix {:?} has the width of its input", self.shape);
        self.data.chunks(columns).map(|row| dot(row, x)).collect()
    }

    /// Row `index` of a matrix.
    pub(super) fn row(&self, index: usize) -> &[f64] {
        &self.data[index * self.shape[1]..][..self.shape[1]]
    }

    /// `self[index]`: the part at `index` of the first dimension.
    pub(super) fn part(&self, index: usize) -> Self {
        let shape = self.shape[1..].to_vec();
        let len = shape.iter().product::<usize>();
        Self { data: self.data[index * len..][..len].to_vec(), shape }
    }

    /// `self[j, i]`
    pub(super) fn transposed(&self) -> Self {
        let [rows, columns] = self.shape[..] else { panic!("{:?} is not a matrix", self.shape) };
        let data = (0..columns).flat_map(|j| (0..rows).map(move |i| self.row(i)[j])).collect();
        Self { shape: vec![columns, rows], data }
    }

    /// The rows `order` of a matrix (the values of a vector), in that order.
    pub(super) fn reordered(&self, order: impl Iterator<Item = usize>) -> Self {
        let columns: usize = self.shape[1..].iter().product();
        let data: Vec<f64> =
            order.flat_map(|row| self.data[row * columns..][..columns].to_vec()).collect();
        let mut shape = self.shape.clone();
        shape[0] = data.len() / columns;
        Self { shape, data }
    }
}

/// All tensors of the language model by canonical name.
#[derive(Clone, Debug)]
pub(super) struct Weights(HashMap<String, Tensor>);

impl Weights {
    /// Reads every `*.safetensors` in `dir`.
    pub(super) fn load(dir: &Path, config: &Config) -> Self {
        let files: Vec<Vec<u8>> = tensor_files(dir);
        let files: Vec<SafeTensors<'_>> = files
            .iter()
            .map(|bytes| SafeTensors::deserialize(bytes).expect("a checkpoint is safetensors"))
            .collect();
        let raw = unpacked(&files.iter().flat_map(SafeTensors::tensors).collect(), config);
        let mlx = is_mlx(&raw);
        let mut tensors = HashMap::new();
        for (name, tensor) in raw {
            let Some(name) = canonical_name(&name) else { continue };
            let zero_centred = config.is_hybrid() && !mlx && is_zero_centred(&name);
            let offset = if zero_centred { 1.0 } else { 0.0 };
            let data = tensor.data.iter().map(|w| w + offset).collect();
            let interleaved = config.family == Family::GptOss;
            insert(&mut tensors, name, Tensor { data, ..tensor }, interleaved);
        }
        Self(tensors)
    }

    pub(super) fn get(&self, name: &str) -> &Tensor {
        self.find(name).unwrap_or_else(|| panic!("the checkpoint has no {name}"))
    }

    pub(super) fn find(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// The tensors whose names end in `suffix`, for tests that break weights on purpose.
    #[cfg(test)]
    pub(super) fn ending_in(&mut self, suffix: &str) -> impl Iterator<Item = &mut Tensor> {
        let ends = move |(name, tensor): (&String, _)| name.ends_with(suffix).then_some(tensor);
        self.0.iter_mut().filter_map(ends)
    }

    /// The tensors whose names begin with `prefix`.
    pub(super) fn scope<'a>(&'a self, prefix: &'a str) -> Scope<'a> {
        Scope { weights: self, prefix }
    }
}

/// The tensors of one module, by their names inside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope<'a> {
    weights: &'a Weights,
    prefix: &'a str,
}

impl Scope<'_> {
    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.find(&format!("{}.{name}", self.prefix)).is_some()
    }

    pub(super) fn get(&self, name: &str) -> &Tensor {
        self.weights.get(&format!("{}.{name}", self.prefix))
    }

    /// `W · x (+ bias, if the checkpoint has one)`
    pub(super) fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mut y = self.get(&format!("{name}.weight")).times(x);
        if let Some(bias) = self.weights.find(&format!("{}.{name}.bias", self.prefix)) {
            y.iter_mut().zip(&bias.data).for_each(|(y, b)| *y += b);
        }
        y
    }
}

/// MLX moves the taps of the convolution and stacks experts as `switch_mlp`; either gives it away.
fn is_mlx(tensors: &HashMap<String, Tensor>) -> bool {
    tensors.iter().any(|(name, tensor)| {
        let moved_taps = name.ends_with("conv1d.weight") && tensor.shape[1] != 1;
        moved_taps || name.contains(".switch_mlp.")
    })
}

/// Drops the prefix that the family and the layout put before the language model; `None` for
/// tensors of other networks in the same file (vision tower, multi-token prediction).
fn canonical_name(name: &str) -> Option<String> {
    if ["mtp.", "model.visual.", "vision_tower."].iter().any(|other| name.starts_with(other)) {
        return None;
    }
    let prefixes = ["model.language_model.", "language_model.model.", "language_model.", "model."];
    let inner = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    // Mixtral's names of the network and of an expert's matrices, gpt-oss's of the router.
    let others = [
        (".block_sparse_moe.", ".mlp."),
        (".mlp.router.", ".mlp.gate."),
        (".w1.weight", ".gate_proj.weight"),
        (".w2.weight", ".down_proj.weight"),
        (".w3.weight", ".up_proj.weight"),
    ];
    Some(others.iter().fold(inner.to_owned(), |name, (other, ours)| name.replace(other, ours)))
}

/// HF checkpoints of the hybrids store `w − 1` for every norm but the gated one of the delta-net.
fn is_zero_centred(name: &str) -> bool {
    let suffixes = [
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "q_norm.weight",
        "k_norm.weight",
    ];
    name == "norm.weight" || suffixes.iter().any(|suffix| name.ends_with(suffix))
}

/// Files a tensor under its canonical name, experts one by one.
fn insert(tensors: &mut HashMap<String, Tensor>, name: String, tensor: Tensor, interleaved: bool) {
    let stacked = name.split_once(".mlp.").and_then(|(layer, module)| {
        let inner = ["experts.", "switch_mlp."].iter().find_map(|at| module.strip_prefix(at))?;
        let named = inner.starts_with(|c: char| c.is_ascii_digit());
        (!named).then(|| (layer.to_owned(), inner.to_owned()))
    });
    let Some((layer, inner)) = stacked else {
        tensors.insert(name, tensor);
        return;
    };
    // `gate_up_proj`, `gate_up_proj_bias`, `down_proj.bias`, `down_proj.weight`, …
    let is_bias = inner.ends_with("bias");
    let matrix = inner.trim_end_matches("bias").trim_end_matches("weight");
    let matrix = matrix.trim_end_matches(['.', '_']);
    let kind = if is_bias { "bias" } else { "weight" };
    for expert in 0..tensor.shape[0] {
        let part = tensor.part(expert);
        let place = |matrix: &str| format!("{layer}.mlp.experts.{expert}.{matrix}.{kind}");
        if matrix != "gate_up_proj" {
            tensors.insert(place(matrix), part);
            continue;
        }
        let rows = part.shape[0];
        let order = |which: usize| -> Vec<usize> {
            if interleaved {
                (which..rows).step_by(2).collect()
            } else {
                (which * rows / 2..(which + 1) * rows / 2).collect()
            }
        };
        tensors.insert(place("gate_proj"), part.reordered(order(0).into_iter()));
        tensors.insert(place("up_proj"), part.reordered(order(1).into_iter()));
    }
}

fn tensor_files(dir: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(dir).expect("a checkpoint is a directory");
    let paths = entries.map(|entry| entry.expect("a directory can be listed").path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| fs::read(path).expect("a checkpoint can be read"))
        .collect()
}

/// All tensors in f64, the packed ones unpacked. Needs all files at once: integers, scales and
/// biases of one module may lie in different shards.
fn unpacked(views: &HashMap<String, TensorView<'_>>, config: &Config) -> HashMap<String, Tensor> {
    let mut tensors = HashMap::new();
    for (name, view) in views {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        if let Some(module) = name.strip_suffix("_blocks") {
            let scales = &views[&format!("{module}_scales")];
            tensors.insert(module.to_owned(), mxfp4(view, scales));
        } else if view.dtype() == Dtype::U32 {
            let scales = &views[&format!("{module}.scales")];
            let tensor = if scales.dtype() == Dtype::U8 {
                mxfp4(view, scales)
            } else {
                let biases = floats(&views[&format!("{module}.biases")]);
                let (bits, group) = affine_shape(&config.quantization, module);
                let scales = floats(scales);
                dequantise(&Packed { view, scales, biases, bits, group })
            };
            tensors.insert(name.clone(), tensor);
        } else if !["scales", "biases"].iter().any(|part| name.ends_with(part)) {
            tensors.insert(name.clone(), floats(view));
        }
    }
    tensors
}

/// Codes of four bits, the lower half of a byte first, and a power of two for every 32 of them.
/// Source: OCP Microscaling Formats (MX), 2023.
fn mxfp4(codes: &TensorView<'_>, scales: &TensorView<'_>) -> Tensor {
    const SIZES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let nibbles = codes.data().iter().flat_map(|byte| [byte & 15, byte >> 4]);
    let data: Vec<f64> = nibbles
        .enumerate()
        .map(|(at, code)| {
            let size = SIZES[usize::from(code & 7)];
            let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
            sign * size * (f64::from(scales.data()[at / 32]) - 127.0).exp2()
        })
        .collect();
    let mut shape = scales.shape().to_vec();
    *shape.last_mut().expect("scales have rows") *= 32;
    Tensor { shape, data }
}

/// `(bits, group_size)` of a module: its own entry in `quantization`, or the default.
fn affine_shape(quantization: &Value, module: &str) -> (usize, usize) {
    let own = &quantization[module];
    let entry = if own.is_object() { own } else { quantization };
    let number = |key: &str| entry[key].as_u64().expect("quantization has numbers") as usize;
    assert!(
        matches!(entry["mode"].as_str(), None | Some("affine")),
        "the oracle knows affine only"
    );
    (number("bits"), number("group_size"))
}

struct Packed<'a> {
    view: &'a TensorView<'a>,
    scales: Tensor,
    biases: Tensor,
    bits: usize,
    group: usize,
}

/// `w[i] = q[i] · scale[i / group] + bias[i / group]`, where `q[i]` is the `bits` wide integer
/// that begins at bit `i · bits` of the row, counted from the least significant bit of its first
/// u32.
fn dequantise(packed: &Packed<'_>) -> Tensor {
    let Packed { view, scales, biases, bits, group } = packed;
    let mut shape = view.shape().to_vec();
    let words_per_row = shape.pop().expect("a packed tensor has rows");
    let columns = words_per_row * 32 / bits;
    let groups = columns / group;
    assert_eq!(scales.shape.last(), Some(&groups), "config and scales agree on the group size");
    shape.push(columns);

    let words: Vec<u32> = view
        .data()
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    let mut data = Vec::new();
    for (row, words) in words.chunks(words_per_row).enumerate() {
        for column in 0..columns {
            let q = (0..*bits).fold(0_u32, |q, bit| {
                let position = column * bits + bit;
                q | (words[position / 32] >> (position % 32) & 1) << bit
            });
            let at = row * groups + column / group;
            data.push(f64::from(q) * scales.data[at] + biases.data[at]);
        }
    }
    Tensor { shape, data }
}

fn floats(view: &TensorView<'_>) -> Tensor {
    let bytes = view.data();
    let pairs = bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    let data = match view.dtype() {
        Dtype::BF16 => pairs.map(|b| bf16::from_le_bytes(b).to_f64()).collect(),
        Dtype::F16 => pairs.map(|b| f16::from_le_bytes(b).to_f64()).collect(),
        Dtype::F32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
        other => panic!("the oracle does not read {other:?}"),
    };
    Tensor { shape: view.shape().to_vec(), data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{demo_bf16_dir, demo_dir, workspace_dir};

    /// Bits of bf16 numbers, which is how the vectors file keeps scales and biases.
    fn bf16_bits(view: &TensorView<'_>) -> Tensor {
        let pairs = view.data().chunks_exact(2).map(|b| [b[0], b[1]]);
        let data = pairs.map(|b| bf16::from_le_bytes(b).to_f64()).collect();
        Tensor { shape: view.shape().to_vec(), data }
    }

    #[test]
    fn unpacks_like_mlx_in_every_width_and_group() {
        let path = workspace_dir().join("golden/quant_vectors/mlx_quant.safetensors");
        let bytes = fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                let part = |part| file.tensor(&format!("affine.b{bits}.g{group}.{part}")).unwrap();
                let scales = bf16_bits(&part("s_bf16_bits"));
                let biases = bf16_bits(&part("b_bf16_bits"));
                let view = part("q");
                let found = dequantise(&Packed { view: &view, scales, biases, bits, group });
                let expected = floats(&part("dequant"));
                assert_eq!(found.shape, expected.shape);
                let diff = crate::compare::max_abs_diff(&found.data, &expected.data);
                // MLX multiplies and adds in f32.
                assert!(diff < 1e-6, "{bits} bits, groups of {group}: {diff:.1e}");
            }
        }
    }

    /// The same trained model in HF layout and, converted by MLX, in 4 bits: after all layouts
    /// are undone, tensor by tensor the same but for what 4 bits lose.
    #[test]
    fn the_demo_checkpoints_are_one_model() {
        let load = |dir: &Path| Weights::load(dir, &Config::load(dir)).0;
        let (plain, packed) = (load(&demo_bf16_dir()), load(&demo_dir()));
        assert_eq!(plain.len(), packed.len());
        for (name, plain) in &plain {
            let packed = &packed[name].data;
            let square = |sum: f64, x: f64| sum + x * x;
            let lost = plain.data.iter().zip(packed).map(|(a, b)| a - b).fold(0.0, square);
            let share = (lost / plain.data.iter().copied().fold(0.0, square)).sqrt();
            // A group of 64 normal values spans about 5 deviations, cut into 15 steps; a step
            // loses its width divided by √12: 0.1.
            assert!(share < 0.15, "{name}: {share:.3}");
        }
    }
}
