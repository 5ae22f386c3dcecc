//! Names and shapes on disk: HF's and MLX's.

use serde_json::{Map, Value, json};

use super::{
    Affine, Float, MlxLayout, TinyModel,
    disk::DiskTensor,
    mxfp4,
    weights::{Kind, Weight},
};
use crate::{noise::Noise, oracle::Family};

/// The tensors as transformers publishes them, decoys included.
pub(super) fn hf(model: &TinyModel, weights: &[Weight]) -> Vec<DiskTensor> {
    let mut tensors = Vec::new();
    for weight in weights {
        let name = hf_name(model.family, &weight.name);
        let plain = |values: &[f32], stored| {
            DiskTensor::floats(name.clone(), weight.shape.clone(), values, stored)
        };
        match weight.kind {
            Kind::Norm if !model.is_hybrid() => {
                tensors.push(plain(&one_plus(&weight.values), model.dtype));
            }
            Kind::Matrix | Kind::Vector | Kind::Norm => {
                tensors.push(plain(&weight.values, model.dtype));
            }
            Kind::GatedNorm | Kind::DecayRate => {
                let kept = weight.kind == Kind::DecayRate || model.family == Family::Qwen3_5Moe;
                let stored = if kept { Float::F32 } else { model.dtype };
                tensors.push(plain(&weight.values, stored));
            }
            Kind::Conv => {
                let shape = vec![weight.shape[0], 1, weight.shape[1]];
                tensors.push(DiskTensor::floats(name, shape, &weight.values, model.dtype));
            }
            Kind::ChoiceBias => tensors.push(plain(&weight.values, Float::F32)),
            Kind::Experts | Kind::ExpertBiases => match model.family {
                Family::Qwen3_5Moe => tensors.extend(fused_experts(model, weights, weight)),
                Family::GptOss => tensors.extend(interleaved_experts(model, weights, weight)),
                _ => tensors.extend(split_experts(model, weight)),
            },
        }
    }
    tensors.extend(decoys(model));
    tensors
}

fn hf_name(family: Family, name: &str) -> String {
    match family {
        _ if name.starts_with("lm_head.") => name.to_owned(),
        Family::Qwen3_5Moe => format!("model.language_model.{name}"),
        Family::Mixtral | Family::MinimaxM2 => {
            format!("model.{}", name.replace(".mlp.", ".block_sparse_moe."))
        }
        Family::GptOss => format!("model.{}", name.replace(".mlp.gate.", ".mlp.router.")),
        Family::DeepseekV3 | Family::Glm4MoeLite | Family::Qwen3Moe | Family::Qwen3Next => {
            format!("model.{name}")
        }
    }
}

/// `gate_up_proj` with the rows of gate and up in turns, in the place of the first; matrices in
/// mxfp4.
fn interleaved_experts(model: &TinyModel, weights: &[Weight], weight: &Weight) -> Vec<DiskTensor> {
    let bias = weight.kind == Kind::ExpertBiases;
    let module = hf_name(model.family, weight.name.trim_end_matches(".bias"));
    let (mut shape, mut values) = (weight.shape.clone(), weight.values.clone());
    if weight.name.contains("up_proj") {
        return Vec::new();
    }
    if weight.name.contains("gate_proj") {
        let up = weight.name.replace("gate_proj", "up_proj");
        let up = weights.iter().find(|weight| weight.name == up).expect("gate comes with up");
        let columns = shape.get(2).copied().unwrap_or(1);
        let rows = weight.values.chunks(columns).zip(up.values.chunks(columns));
        values = rows.flat_map(|(gate, up)| [gate, up].concat()).collect();
        shape[1] *= 2;
    }
    let module = module.replace("gate_proj", "gate_up_proj");
    if bias {
        return vec![DiskTensor::floats(format!("{module}_bias"), shape, &values, model.dtype)];
    }
    let groups = shape[2] / mxfp4::GROUP;
    let packed = mxfp4::pack(&values);
    let (scales, blocks) = (vec![shape[0], shape[1], groups], vec![shape[0], shape[1], groups, 16]);
    vec![
        DiskTensor::bytes(format!("{module}_blocks"), blocks, packed.codes),
        DiskTensor::bytes(format!("{module}_scales"), scales, packed.scales),
    ]
}

/// `experts.gate_proj` and `experts.up_proj` as one `gate_up_proj [E, 2I, H]`, in the place of
/// the first; `experts.down_proj` as it is.
fn fused_experts(model: &TinyModel, weights: &[Weight], weight: &Weight) -> Option<DiskTensor> {
    let name = hf_name(model.family, &weight.name);
    if let Some(module) = weight.name.strip_suffix("gate_proj") {
        let up_name = format!("{module}up_proj");
        let up = weights.iter().find(|weight| weight.name == up_name).expect("gate comes with up");
        let [experts, rows, columns] = weight.shape[..] else { panic!("experts are stacked") };
        let halves = weight.values.chunks(rows * columns).zip(up.values.chunks(rows * columns));
        let values: Vec<f32> = halves.flat_map(|(gate, up)| [gate, up].concat()).collect();
        let name = name.replace("gate_proj", "gate_up_proj");
        let shape = vec![experts, 2 * rows, columns];
        return Some(DiskTensor::floats(name, shape, &values, model.dtype));
    }
    let whole = || DiskTensor::floats(name, weight.shape.clone(), &weight.values, model.dtype);
    weight.name.ends_with("down_proj").then(whole)
}

fn split_experts(model: &TinyModel, weight: &Weight) -> Vec<DiskTensor> {
    let (module, matrix) = weight.name.rsplit_once('.').expect("an expert matrix has a module");
    let shape = &weight.shape[1..];
    let parts = weight.values.chunks(shape.iter().product()).enumerate();
    let matrix = match (model.family, matrix) {
        (Family::Mixtral | Family::MinimaxM2, "gate_proj") => "w1",
        (Family::Mixtral | Family::MinimaxM2, "down_proj") => "w2",
        (Family::Mixtral | Family::MinimaxM2, "up_proj") => "w3",
        (_, matrix) => matrix,
    };
    let split = |(expert, values)| {
        let name = hf_name(model.family, &format!("{module}.{expert}.{matrix}.weight"));
        DiskTensor::floats(name, shape.to_vec(), values, model.dtype)
    };
    parts.map(split).collect()
}

/// Tensors of other networks in the same files: multi-token prediction and vision.
fn decoys(model: &TinyModel) -> Vec<DiskTensor> {
    let (hidden, inner) = (model.hidden, model.moe_ffn);
    let mut shapes: Vec<(&str, Vec<usize>)> = vec![
        ("mtp.fc.weight", vec![hidden, 2 * hidden]),
        ("mtp.norm.weight", vec![hidden]),
        ("mtp.layers.0.input_layernorm.weight", vec![hidden]),
    ];
    let ahead = ["eh_proj", "enorm"].map(|at| format!("model.layers.{}.{at}.weight", model.layers));
    match model.family {
        Family::DeepseekV3 | Family::Glm4MoeLite => {
            shapes = vec![(&ahead[0], vec![hidden, 2 * hidden]), (&ahead[1], vec![hidden])];
        }
        Family::Mixtral | Family::MinimaxM2 | Family::GptOss | Family::Qwen3Moe => shapes.clear(),
        Family::Qwen3Next => {
            shapes.push(("mtp.layers.0.mlp.experts.0.gate_proj.weight", vec![inner, hidden]));
        }
        Family::Qwen3_5Moe => {
            let fused = vec![model.experts, 2 * inner, hidden];
            shapes.push(("mtp.layers.0.mlp.experts.gate_up_proj", fused));
            shapes.push(("model.visual.patch_embed.proj.bias", vec![32]));
            shapes.push(("model.visual.blocks.0.norm1.weight", vec![32]));
        }
    }
    let noise = |(name, shape): (&str, Vec<usize>)| {
        let values = Noise::named(model.seed, name).normals(shape.iter().product(), 1.0);
        DiskTensor::floats(name.to_owned(), shape, &values, model.dtype)
    };
    shapes.into_iter().map(noise).collect()
}

/// The tensors as `mlx_lm.convert` writes them, and the `quantization` object that says how.
pub(super) fn mlx(
    model: &TinyModel,
    mlx: &MlxLayout,
    weights: &[Weight],
) -> (Vec<DiskTensor>, Value) {
    let mut tensors = Vec::new();
    let mut own_rules = Map::new();
    for weight in weights {
        let name = mlx_name(model.family, &weight.name);
        let plain = |shape: &[usize], values: &[f32], stored| {
            DiskTensor::floats(name.clone(), shape.to_vec(), values, stored)
        };
        match weight.kind {
            Kind::Matrix | Kind::Experts => {
                let module = name.strip_suffix(".weight").expect("a matrix is a weight");
                if is_mxfp4(model.family, mlx, module, weight) {
                    tensors.extend(packed_mxfp4(module, weight));
                    continue;
                }
                let Some(affine) = affine_of(model.family, mlx, module, weight) else {
                    tensors.push(plain(&weight.shape, &weight.values, model.dtype));
                    continue;
                };
                tensors.extend(packed(module, weight, affine, model.dtype));
                own_rules.extend(own_rule(model.family, mlx, module, affine));
            }
            Kind::ExpertBiases => {
                let name = name.replace(".bias.weight", ".bias");
                let shape = weight.shape.clone();
                tensors.push(DiskTensor::floats(name, shape, &weight.values, model.dtype));
            }
            Kind::ChoiceBias => tensors.push(plain(&weight.shape, &weight.values, Float::F32)),
            Kind::Norm => {
                tensors.push(plain(&weight.shape, &one_plus(&weight.values), model.dtype));
            }
            Kind::GatedNorm | Kind::Vector => {
                tensors.push(plain(&weight.shape, &weight.values, model.dtype));
            }
            Kind::DecayRate => {
                let kept = model.family == Family::Qwen3_5Moe;
                let stored = if kept { Float::F32 } else { model.dtype };
                tensors.push(plain(&weight.shape, &weight.values, stored));
            }
            Kind::Conv => {
                let shape = [weight.shape[0], weight.shape[1], 1];
                tensors.push(plain(&shape, &weight.values, model.dtype));
            }
        }
    }
    (tensors, quantization(model.family, mlx, own_rules))
}

fn mlx_name(family: Family, name: &str) -> String {
    let name = match name.split_once(".experts.") {
        Some((layer, matrix)) if family == Family::GptOss => {
            format!("{layer}.experts.{matrix}.weight")
        }
        Some((layer, matrix)) => format!("{layer}.switch_mlp.{matrix}.weight"),
        None => name.to_owned(),
    };
    let name = match family {
        Family::Mixtral | Family::MinimaxM2 => name.replace(".mlp.", ".block_sparse_moe."),
        Family::GptOss => name.replace(".mlp.gate.", ".mlp.router."),
        Family::DeepseekV3
        | Family::Glm4MoeLite
        | Family::Qwen3Moe
        | Family::Qwen3Next
        | Family::Qwen3_5Moe => name,
    };
    let outer = if family == Family::Qwen3_5Moe { "language_model." } else { "" };
    let inner = if name.starts_with("lm_head.") { "" } else { "model." };
    format!("{outer}{inner}{name}")
}

/// Whether a module keeps the packing that its publisher gave it.
fn is_mxfp4(family: Family, mlx: &MlxLayout, module: &str, weight: &Weight) -> bool {
    let by_rule = mlx.overrides.iter().any(|(suffix, _)| module.ends_with(suffix));
    family == Family::GptOss && weight.kind == Kind::Experts && mlx.affine.is_some() && !by_rule
}

/// How a module is packed; `None` if it stays plain: by rule, or because its rows do not consist
/// of whole groups, which MLX passes over in silence.
fn affine_of(family: Family, mlx: &MlxLayout, module: &str, weight: &Weight) -> Option<Affine> {
    let default = mlx.affine?;
    let by_rule = mlx.overrides.iter().find(|(suffix, _)| module.ends_with(suffix));
    // mlx_lm has no opinion on Mixtral's.
    let router = [".gate", ".router", ".shared_expert_gate"].iter().any(|at| module.ends_with(at));
    let affine = match by_rule {
        Some((_, affine)) => (*affine)?,
        // To mlx_lm those of the latent families are no linear layers.
        None if router && family.is_latent() => return None,
        None if router && family != Family::Mixtral => Affine { bits: 8, group: 64 },
        None => default,
    };
    let columns = *weight.shape.last().expect("a matrix has columns");
    columns.is_multiple_of(affine.group).then_some(affine)
}

/// The entry of a module that is packed otherwise than the configuration says of all.
fn own_rule(
    family: Family,
    mlx: &MlxLayout,
    module: &str,
    affine: Affine,
) -> Option<(String, Value)> {
    let mut rule = json!({ "group_size": affine.group, "bits": affine.bits });
    match (family, Some(affine) == mlx.affine) {
        (Family::GptOss, true) => rule["mode"] = json!("affine"),
        (_, true) => return None,
        (_, false) => {}
    }
    Some((module.to_owned(), rule))
}

fn packed_mxfp4(module: &str, weight: &Weight) -> [DiskTensor; 2] {
    let (columns, rows) = weight.shape.split_last().expect("a matrix has columns");
    let packed = mxfp4::pack(&weight.values);
    let shape = |columns: usize| [rows, &[columns]].concat();
    let words = packed.codes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    let words: Vec<u32> = words.collect();
    [
        DiskTensor::words(format!("{module}.weight"), shape(columns / 8), &words),
        DiskTensor::bytes(format!("{module}.scales"), shape(columns / 32), packed.scales),
    ]
}

fn packed(module: &str, weight: &Weight, affine: Affine, stored: Float) -> [DiskTensor; 3] {
    let (columns, rows) = weight.shape.split_last().expect("a matrix has columns");
    let packed = affine.pack(&weight.values, *columns, stored);
    let shape = |columns: usize| [rows, &[columns]].concat();
    let groups = columns / affine.group;
    [
        DiskTensor::words(
            format!("{module}.weight"),
            shape(columns * affine.bits / 32),
            &packed.words,
        ),
        DiskTensor::floats(format!("{module}.scales"), shape(groups), &packed.scales, stored),
        DiskTensor::floats(format!("{module}.biases"), shape(groups), &packed.biases, stored),
    ]
}

fn quantization(family: Family, mlx: &MlxLayout, own_rules: Map<String, Value>) -> Value {
    let Some(Affine { bits, group }) = mlx.affine else { return Value::Null };
    let (bits, group, mode) =
        if family == Family::GptOss { (4, 32, "mxfp4") } else { (bits, group, "affine") };
    let mut object = Map::new();
    object.insert("group_size".to_owned(), json!(group));
    object.insert("bits".to_owned(), json!(bits));
    object.insert("mode".to_owned(), json!(mode));
    object.extend(own_rules);
    Value::Object(object)
}

fn one_plus(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| 1.0 + value).collect()
}
