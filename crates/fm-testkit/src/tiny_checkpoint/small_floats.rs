//! Small floats as vendors publish them: eight bits with a scale per tile (`DeepSeek`, `MiniMax`, `Qwen`), and
//! MLX's modes with a scale per group.
//!
//! A checkpoint of plain floats is written a second time: packed, and plain again with the weights
//! that packing has left, for the oracle.

use std::{fs, path::Path, sync::LazyLock};

use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::{
    Float,
    disk::{self, DiskTensor},
};

/// A way of packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallFloats {
    /// `weight` in e4m3 and `weight_scale_inv`, one per 128 rows and columns, of this type.
    Fp8(Float),
    /// 4 bits, an exponent per 32.
    Mxfp4,
    /// 4 bits, an eight-bit float per 16.
    Nvfp4,
    /// 8 bits, an exponent per 32.
    Mxfp8,
}

impl SmallFloats {
    /// Packs the matrices of the checkpoint `from` into `dir/packed`, and writes what is left of
    /// them to `dir/plain`. Returns how many were packed.
    ///
    /// # Panics
    /// If `from` is no checkpoint in one file, or `dir` cannot be written.
    pub fn repack(self, from: &Path, dir: &Path) -> usize {
        let bytes = fs::read(from.join("model.safetensors")).expect("a checkpoint in one file");
        let file = SafeTensors::deserialize(&bytes).expect("a checkpoint is safetensors");
        let (mut packed, mut plain, mut count) = (Vec::new(), Vec::new(), 0);
        for (name, view) in file.tensors() {
            let shape = view.shape().to_vec();
            let Some(values) = floats(view.dtype(), view.data()) else {
                // Packed already, in a way of the family's own.
                packed.push(DiskTensor::raw(name.clone(), &view));
                plain.push(DiskTensor::raw(name, &view));
                continue;
            };
            if !self.packs(&name, &shape) {
                packed.push(DiskTensor::floats(name.clone(), shape.clone(), &values, Float::F32));
                plain.push(DiskTensor::floats(name, shape, &values, Float::F32));
                continue;
            }
            count += 1;
            let (tensors, left) = self.pack(&name, &shape, &values);
            packed.extend(tensors);
            plain.push(DiskTensor::floats(name, shape, &left, Float::F32));
        }
        let config = fs::read(from.join("config.json")).expect("a checkpoint has a configuration");
        let config: Value = serde_json::from_slice(&config).expect("a configuration is JSON");
        for (inner, tensors) in [("plain", &plain), ("packed", &packed)] {
            let dir = dir.join(inner);
            fs::create_dir_all(&dir).expect("a checkpoint directory can be created");
            let mut config = config.clone();
            if inner == "packed" {
                self.configure(&mut config);
            }
            disk::write_json(&dir.join("config.json"), &config);
            disk::write_tensors(&dir, tensors, 1, "pt");
        }
        count
    }

    fn packs(self, name: &str, shape: &[usize]) -> bool {
        let kept =
            ["norm", "embed_tokens", "lm_head", "conv1d", "mlp.gate.", "moe.gate.", "router"];
        let matrix = shape.len() >= 2 && name.ends_with(".weight");
        let stacked = shape.len() == 2 || !matches!(self, Self::Fp8(_));
        let group = if self == Self::Nvfp4 { 16 } else { 32 };
        let tiles = shape.last().is_some_and(|cols| cols.is_multiple_of(group));
        matrix && stacked && tiles && !kept.iter().any(|kept| name.contains(kept))
    }

    fn configure(self, config: &mut Value) {
        let (bits, group, mode) = match self {
            Self::Fp8(_) => {
                config["quantization_config"] = json!({
                    "activation_scheme": "dynamic",
                    "fmt": "e4m3",
                    "quant_method": "fp8",
                    "weight_block_size": [128, 128],
                });
                return;
            }
            Self::Mxfp4 => (4, 32, "mxfp4"),
            Self::Nvfp4 => (4, 16, "nvfp4"),
            Self::Mxfp8 => (8, 32, "mxfp8"),
        };
        config["quantization"] = json!({ "bits": bits, "group_size": group, "mode": mode });
    }

    /// The tensors of a matrix, and what its values have become.
    fn pack(self, name: &str, shape: &[usize], values: &[f32]) -> (Vec<DiskTensor>, Vec<f32>) {
        let cols = shape[shape.len() - 1];
        let module = name.strip_suffix(".weight").expect("a matrix is a weight");
        if let Self::Fp8(stored) = self {
            let (codes, scales, left) = tiles(values, cols, stored);
            let across = vec![shape[0].div_ceil(128), cols.div_ceil(128)];
            let scale_name = format!("{module}.weight_scale_inv");
            let tensors = vec![
                DiskTensor::e4m3(name.to_owned(), shape.to_vec(), codes),
                DiskTensor::floats(scale_name, across, &scales, stored),
            ];
            return (tensors, left);
        }
        let (mut bytes, mut scales, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for group in values.chunks(if self == Self::Nvfp4 { 16 } else { 32 }) {
            let (scale, stored) = self.scale(group);
            scales.push(stored);
            let sizes = if self == Self::Mxfp8 { &*E4M3 } else { &*E2M1 };
            let codes: Vec<u8> = group.iter().map(|x| sizes.nearest(x / scale)).collect();
            left.extend(codes.iter().map(|code| sizes.value(*code) * scale));
            match self {
                Self::Mxfp8 => bytes.extend(codes),
                _ => bytes.extend(codes.chunks(2).map(|pair| pair[0] | pair[1] << 4)),
            }
        }
        let words: Vec<u32> =
            bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let with = |last: usize| [&shape[..shape.len() - 1], &[last]].concat();
        let rows = values.len() / cols;
        let tensors = vec![
            DiskTensor::words(name.to_owned(), with(words.len() / rows), &words),
            DiskTensor::bytes(format!("{module}.scales"), with(scales.len() / rows), scales),
        ];
        (tensors, left)
    }

    /// A scale that the largest value of a group fits, and its code.
    fn scale(self, group: &[f32]) -> (f32, u8) {
        let largest = group.iter().fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
        if self == Self::Nvfp4 {
            let code = E4M3.nearest(largest / 6.0).max(1);
            return (E4M3.value(code), code);
        }
        let fits = if self == Self::Mxfp8 { 448.0 } else { 6.0 };
        let exponent = (largest / fits).log2().ceil();
        (exponent.exp2(), (exponent + 127.0) as u8)
    }
}

/// The values of a tensor of plain floats.
fn floats(dtype: Dtype, data: &[u8]) -> Option<Vec<f32>> {
    let pairs = || data.as_chunks::<2>().0.iter();
    Some(match dtype {
        Dtype::F32 => data.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        Dtype::F16 => pairs().map(|x| half::f16::from_le_bytes(*x).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|x| half::bf16::from_le_bytes(*x).to_f32()).collect(),
        _ => return None,
    })
}

/// Codes, scales and what is left, of tiles of 128 rows and columns.
fn tiles(values: &[f32], cols: usize, stored: Float) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let (rows, across) = (values.len() / cols, cols.div_ceil(128));
    let mut scales = vec![f32::MIN_POSITIVE; rows.div_ceil(128) * across];
    let tile = |at: usize| at / cols / 128 * across + at % cols / 128;
    for (at, value) in values.iter().enumerate() {
        scales[tile(at)] = scales[tile(at)].max(value.abs() / 448.0);
    }
    scales.iter_mut().for_each(|scale| *scale = stored.round(*scale));
    let code = |(at, value): (usize, &f32)| E4M3.nearest(value / scales[tile(at)]);
    let codes: Vec<u8> = values.iter().enumerate().map(code).collect();
    let left = codes.iter().enumerate().map(|(at, code)| E4M3.value(*code) * scales[tile(at)]);
    let left = left.collect();
    (codes, scales, left)
}

/// A float of few bits without infinities.
struct Minifloat {
    /// What the codes without a sign stand for, ascending.
    sizes: Vec<f32>,
    sign: u8,
}

static E4M3: LazyLock<Minifloat> = LazyLock::new(|| Minifloat::new(4, 3, 0x7e));
static E2M1: LazyLock<Minifloat> = LazyLock::new(|| Minifloat::new(2, 1, 7));

impl Minifloat {
    /// `largest` is the largest code without a sign that is a number.
    fn new(exponent_bits: u32, fraction_bits: u32, largest: u8) -> Self {
        let bias = (1 << (exponent_bits - 1)) - 1;
        let size = |code: u8| {
            let (exponent, fraction) = (code >> fraction_bits, code & ((1 << fraction_bits) - 1));
            let fraction = f32::from(fraction) / f32::from(1_u8 << fraction_bits);
            match exponent {
                0 => fraction * ((1 - bias) as f32).exp2(),
                _ => (1.0 + fraction) * ((i32::from(exponent) - bias) as f32).exp2(),
            }
        };
        let sizes = (0..=largest).map(size).collect();
        Self { sizes, sign: 1 << (exponent_bits + fraction_bits) }
    }

    fn value(&self, code: u8) -> f32 {
        let size = self.sizes[usize::from(code & (self.sign - 1))];
        if code & self.sign == 0 { size } else { -size }
    }

    fn nearest(&self, value: f32) -> u8 {
        let size = value.abs();
        let above = self.sizes.partition_point(|own| *own < size).min(self.sizes.len() - 1);
        let below = above.saturating_sub(1);
        let is_nearer = size - self.sizes[below] < self.sizes[above] - size;
        let code = if is_nearer { below } else { above };
        code as u8 | if value < 0.0 { self.sign } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_papers() {
        let sizes: Vec<f32> = (0..8).map(|code| E2M1.value(code)).collect();
        assert_eq!(sizes, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(
            [0x7e, 0x38, 0x01, 0xb8].map(|code| E4M3.value(code)),
            [448.0, 1.0, 0.001_953_125, -1.0]
        );
        for code in 0..=0x7e {
            assert_eq!(E4M3.nearest(E4M3.value(code)), code);
        }
    }
}
