//! `inspect`: what a model is made of.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use clap::{ArgMatches, Command};
use fm_engine::{EngineError, backends::KvFormat, bytes::Bytes};
use fm_format::source::Checkpoint;
use fm_model::{
    arch::describe,
    footprint::Footprint,
    spec::{FfnSpec, ModelSpec, for_each_tensor},
};
use serde::Serialize;

use super::{json_arg, model_arg, model_path};
use crate::console;

pub(super) fn command() -> Command {
    Command::new("inspect")
        .about("Show family, layers, experts, formats and bytes of a model")
        .arg(model_arg())
        .arg(json_arg())
}

/// Tensors of one class and one format.
#[derive(Debug, Default, Serialize)]
struct Row {
    class: &'static str,
    format: &'static str,
    bits_per_weight: f64,
    tensors: usize,
    weights: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Inspection {
    schema: &'static str,
    model: String,
    model_type: &'static str,
    layers: usize,
    attention_layers: usize,
    delta_net_layers: usize,
    moe_layers: usize,
    experts: usize,
    top_k: usize,
    hidden: usize,
    vocab: usize,
    context: u32,
    bytes: u64,
    active_bytes_per_token: u64,
    active_expert_bytes_per_token: u64,
    kv_bytes_per_token: u64,
    recurrent_bytes_per_session: u64,
    tensors: Vec<Row>,
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let dir = model_path(matches)?;
    let checkpoint = Checkpoint::open(&dir).map_err(EngineError::from)?;
    let spec = describe(&checkpoint).map_err(EngineError::from)?;
    let inspection = inspect(dir.display().to_string(), &spec);
    if matches.get_flag("json") {
        return console::print_json(&inspection);
    }
    Ok(print(&inspection, &mut io::stdout().lock())?)
}

fn inspect(model: String, spec: &ModelSpec) -> Inspection {
    let footprint = Footprint::of(spec, None, KvFormat::F32);
    let tensors = rows(spec);
    let moe_layers = spec.catalog.layers.iter().flatten();
    Inspection {
        schema: "flash-moe.inspect/1",
        model,
        model_type: spec.model_type,
        layers: spec.layers.len(),
        attention_layers: spec.kv_shapes().count(),
        delta_net_layers: spec.delta_layers().count(),
        moe_layers: moe_layers.clone().count(),
        experts: moe_layers.map(|layer| layer.records.len()).max().unwrap_or(0),
        top_k: spec.moe_dims(None).top_k,
        hidden: spec.hidden,
        vocab: spec.vocab,
        context: spec.context_max,
        bytes: tensors.iter().map(|row| row.bytes).sum(),
        active_bytes_per_token: footprint.active,
        active_expert_bytes_per_token: footprint.active_experts,
        kv_bytes_per_token: footprint.kv_block / fm_engine::KV_BLOCK_TOKENS,
        recurrent_bytes_per_session: footprint.recurrent,
        tensors,
    }
}

/// Every matrix by class and format, and all small tensors together.
fn rows(spec: &ModelSpec) -> Vec<Row> {
    let mut rows = BTreeMap::<(&'static str, &'static str), Row>::new();
    let mut add = |class, shape: fm_format::record::MatrixShape, count: usize| {
        let row = rows.entry((class, shape.format.name)).or_default();
        let (weights, bytes) = ((shape.rows * shape.cols) as u64, shape.bytes() as u64);
        row.class = class;
        row.format = shape.format.name;
        row.bits_per_weight = shape.format.bits_per_weight();
        row.tensors += count;
        row.weights += weights * count as u64;
        row.bytes += bytes * count as u64;
    };
    for layer in spec.catalog.layers.iter().flatten() {
        for shape in [layer.layout.gate, layer.layout.up, layer.layout.down] {
            add("routed experts", shape, layer.records.len());
        }
    }
    // Families have names of their own for them; the description knows which they are.
    let moe = spec.layers.iter().filter_map(|layer| match &layer.ffn {
        FfnSpec::Moe(moe) => Some(moe.router.weight.name.as_str()),
        FfnSpec::Mlp(_) => None,
    });
    let routers: BTreeSet<&str> = moe.collect();
    let class = |name: &str| if routers.contains(name) { "routers" } else { class_of(name) };
    let (mut small, mut values) = (0, 0);
    for_each_tensor(spec, &mut |matrix| add(class(&matrix.name), matrix.shape, 1), &mut |vector| {
        small += 1;
        values += vector.len as u64;
    });
    let mut rows: Vec<Row> = rows.into_values().collect();
    rows.push(Row {
        class: "norms and the like",
        format: "f32",
        bits_per_weight: 32.0,
        tensors: small,
        weights: values,
        bytes: 4 * values,
    });
    rows
}

/// Class of a trunk matrix, by the name of its module.
fn class_of(name: &str) -> &'static str {
    const CLASSES: [(&str, &str); 6] = [
        ("embed_tokens", "embedding"),
        ("lm_head", "head"),
        ("shared_expert", "shared experts"),
        ("self_attn", "attention"),
        ("linear_attn", "delta net"),
        (".mlp.", "dense networks"),
    ];
    CLASSES.iter().find(|(part, _)| name.contains(part)).map_or("other", |row| row.1)
}

fn print(inspection: &Inspection, out: &mut impl Write) -> io::Result<()> {
    let i = inspection;
    writeln!(out, "{} · {} · {}", i.model, i.model_type, Bytes(i.bytes))?;
    writeln!(
        out,
        "  {} layers ({} attention, {} delta net), hidden {}, vocabulary {}, context {}",
        i.layers, i.attention_layers, i.delta_net_layers, i.hidden, i.vocab, i.context
    )?;
    writeln!(out, "  {} layers with {} experts, {} per token", i.moe_layers, i.experts, i.top_k)?;
    writeln!(
        out,
        "  {} read per token, {} of it routed experts; {} of keys and values per token",
        Bytes(i.active_bytes_per_token),
        Bytes(i.active_expert_bytes_per_token),
        Bytes(i.kv_bytes_per_token)
    )?;
    writeln!(
        out,
        "\n  {:<20} {:<16} {:>6} {:>8} {:>10}",
        "class", "format", "bits", "tensors", "bytes"
    )?;
    for row in &i.tensors {
        writeln!(
            out,
            "  {:<20} {:<16} {:>6.2} {:>8} {:>10}",
            row.class,
            row.format,
            row.bits_per_weight,
            row.tensors,
            Bytes(row.bytes).to_string()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fm_model::arch::MODEL_TYPES;
    use fm_testkit::golden::golden_dir;

    use super::*;

    #[test]
    fn every_matrix_of_every_family_has_its_class_in_every_layout() {
        for family in MODEL_TYPES {
            let mut expected = None;
            for layout in ["hf", "mlx-4bit", "mlx-mixed", "bf16.gguf", "q8_0.gguf"] {
                let checkpoint = Checkpoint::open(&golden_dir(family).join(layout)).unwrap();
                let spec = describe(&checkpoint).unwrap();
                let mut matrices = BTreeMap::<&str, usize>::new();
                for row in rows(&spec) {
                    *matrices.entry(row.class).or_default() += row.tensors;
                }
                let case = format!("{family} {layout}: {matrices:?}");
                assert!(!matrices.contains_key("other"), "{case}");
                let sparse = spec.catalog.layers.iter().flatten().count();
                assert_eq!(matrices["routers"], sparse, "{case}");
                let dense = 3 * (spec.layers.len() - sparse);
                assert_eq!(matrices.get("dense networks").copied().unwrap_or(0), dense, "{case}");
                let shared = spec.layers.iter().filter(
                    |layer| matches!(&layer.ffn, FfnSpec::Moe(moe) if moe.shared.is_some()),
                );
                let named = matrices.contains_key("shared experts");
                assert_eq!(named, shared.count() > 0, "{case}");
                let classes: Vec<&str> = matrices.into_keys().collect();
                assert_eq!(*expected.get_or_insert(classes.clone()), classes, "{family} {layout}");
            }
        }
    }
}
