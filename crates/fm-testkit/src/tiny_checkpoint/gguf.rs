//! GGUF files as llama.cpp's converter writes them: other names, other orders, whole blocks.
//!
//! Every tensor of the file is a gather of one published tensor, so what packing loses is carried
//! back into the published checkpoint, and both hold the same model.

use std::{fs, path::Path};

use fm_format::quant::{self, FloatKind, QuantFormat};

use super::{
    Float, Layout, LinearShape, TinyModel, config_json,
    disk::{self},
    layout,
    weights::{Kind, Weight, noise_weights},
};
use crate::oracle::Family;

/// How the matrices of a GGUF file are packed, and how its parts lie.
#[derive(Clone, Debug)]
pub struct GgufLayout {
    /// Name of the format of every matrix whose rows are whole blocks of it.
    pub format: &'static str,
    /// The first pair whose text is in the name of a tensor decides instead.
    pub overrides: Vec<(&'static str, &'static str)>,
    /// Whether the delta nets of Qwen3-Next have one input projection, as older files do.
    pub fused_inputs: bool,
    /// `general.alignment`.
    pub alignment: u32,
    /// Files the model is split into.
    pub parts: usize,
}

impl GgufLayout {
    /// One file, everything alike.
    pub fn uniform(format: &'static str) -> Self {
        Self { format, overrides: Vec::new(), fused_inputs: false, alignment: 32, parts: 1 }
    }

    /// The format of a matrix; floats where its rows are not made of whole blocks, as the
    /// converter does.
    fn format_of(&self, name: &str, cols: usize) -> &'static QuantFormat {
        let own = self.overrides.iter().find(|(part, _)| name.contains(part));
        let format = own.map_or(self.format, |(_, format)| format);
        let format = quant::by_name(format).expect("a format of the table");
        if format.row_bytes(cols).is_some() { format } else { quant::float_format(FloatKind::F16) }
    }
}

/// A tensor as it lies in a file.
struct FileTensor {
    name: String,
    /// Outermost first.
    shape: Vec<usize>,
    type_id: u32,
    bytes: Vec<u8>,
}

impl TinyModel {
    /// Writes the same model twice: `dir/model.gguf` (or its parts), and in `dir/hf` as published,
    /// in f32, with the weights that packing has left.
    ///
    /// # Panics
    /// If the family has no such architecture, or `dir` cannot be written.
    pub fn write_gguf(&self, dir: &Path, layout: &GgufLayout) {
        self.check();
        let model = Self { dtype: Float::F32, ..self.clone() };
        let mut weights = noise_weights(&model);
        let mut tensors = Vec::new();
        for weight in &mut weights {
            let published = weight.name.clone();
            for (name, shape, gather) in model.gathers(weight, layout) {
                let values: Vec<f32> = gather.iter().map(|at| weight.values[*at]).collect();
                let (stored, kept) = stored(weight.kind, &values);
                let format = match weight.kind {
                    Kind::Matrix | Kind::Experts if !published.ends_with("mlp.gate.weight") => {
                        layout.format_of(&name, shape[shape.len() - 1])
                    }
                    _ => quant::float_format(FloatKind::F32),
                };
                let (bytes, decoded) = pack(format, shape[shape.len() - 1], &stored);
                if kept {
                    gather.iter().zip(&decoded).for_each(|(at, x)| weight.values[*at] = *x);
                }
                let type_id = format.kind.ggml_type().expect("a format of the file type");
                tensors.push(FileTensor { name, shape, type_id, bytes });
            }
        }
        fs::create_dir_all(dir.join("hf")).expect("a checkpoint directory can be created");
        let config = config_json::config(&model, &Layout::Hf, None);
        disk::write_json(&dir.join("hf/config.json"), &config);
        disk::write_tensors(&dir.join("hf"), &layout::hf(&model, &weights), 1, "pt");
        write_parts(dir, layout, &model, &tensors);
    }

    /// The file's tensors that a published tensor becomes: name, shape, and for every value its
    /// place in the published one.
    fn gathers(
        &self,
        weight: &Weight,
        layout: &GgufLayout,
    ) -> Vec<(String, Vec<usize>, Vec<usize>)> {
        let (layer, inner) = match weight.name.strip_prefix("layers.") {
            Some(inner) => inner.split_once('.').expect("a layer has modules"),
            None => ("", weight.name.as_str()),
        };
        let name = |inner: &str| {
            if layer.is_empty() { inner.to_owned() } else { format!("blk.{layer}.{inner}") }
        };
        let all: Vec<usize> = (0..weight.values.len()).collect();
        let cols = weight.shape.get(1).map_or(1, |_| weight.shape[weight.shape.len() - 1]);
        let rows_of = |rows: &[usize]| -> Vec<usize> {
            rows.iter().flat_map(|row| row * cols..(row + 1) * cols).collect()
        };
        let named = |theirs: &str, rows: Vec<usize>| {
            let mut shape = weight.shape.clone();
            shape[0] = rows.len();
            (name(theirs), shape, rows_of(&rows))
        };
        let LinearShape { key_heads, key_dim, value_dim, .. } = self.linear;
        let keys = key_heads * key_dim;
        let tiled = self.tiled_heads();
        let whole = |first: usize| -> Vec<usize> {
            let heads = tiled.iter().flat_map(|head| head * value_dim..(head + 1) * value_dim);
            (0..first).chain(heads.map(|row| first + row)).collect()
        };
        match inner {
            "linear_attn.in_proj_qkvz.weight" if layout.fused_inputs => {
                vec![(name("ssm_in.weight"), weight.shape.clone(), all)]
            }
            "linear_attn.in_proj_qkvz.weight" => {
                let [qkv, z] = self.qkvz_rows();
                vec![named("attn_qkv.weight", qkv), named("attn_gate.weight", z)]
            }
            "linear_attn.in_proj_qkv.weight" => vec![named("attn_qkv.weight", whole(2 * keys))],
            "linear_attn.conv1d.weight" => vec![named("ssm_conv1d.weight", whole(2 * keys))],
            "linear_attn.in_proj_z.weight" => vec![named("attn_gate.weight", whole(0))],
            "linear_attn.in_proj_a.weight" => vec![named("ssm_alpha.weight", tiled)],
            "linear_attn.in_proj_b.weight" => vec![named("ssm_beta.weight", tiled)],
            "linear_attn.A_log" => vec![named("ssm_a", tiled)],
            "linear_attn.dt_bias" => vec![named("ssm_dt.bias", tiled)],
            "linear_attn.out_proj.weight" => {
                let columns = whole(0);
                let row = |row: usize| {
                    columns.iter().map(move |column| row * cols + column).collect::<Vec<_>>()
                };
                let gather = (0..weight.shape[0]).flat_map(row).collect();
                vec![(name("ssm_out.weight"), weight.shape.clone(), gather)]
            }
            _ => vec![(name(&plain_name(self.family, inner)), weight.shape.clone(), all)],
        }
    }

    /// Value heads in the file's order: of Qwen3.5, first one of every key head, then the next.
    fn tiled_heads(&self) -> Vec<usize> {
        let LinearShape { key_heads, value_heads, .. } = self.linear;
        if self.family != Family::Qwen3_5Moe {
            return (0..value_heads).collect();
        }
        let per_key = value_heads / key_heads;
        let round = |turn: usize| (0..key_heads).map(move |key| key * per_key + turn);
        (0..per_key).flat_map(round).collect()
    }

    /// Rows of Qwen3-Next's one projection that are queries, keys and values, and output gates.
    fn qkvz_rows(&self) -> [Vec<usize>; 2] {
        let LinearShape { key_heads, value_heads, key_dim, value_dim, .. } = self.linear;
        let values = value_heads / key_heads * value_dim;
        let group = 2 * key_dim + 2 * values;
        let part = |first: usize, len: usize| {
            (0..key_heads).flat_map(move |head| {
                let begin = head * group + first;
                begin..begin + len
            })
        };
        let qkv = part(0, key_dim).chain(part(key_dim, key_dim)).chain(part(2 * key_dim, values));
        [qkv.collect(), part(2 * key_dim + values, values).collect()]
    }
}

/// Names of tensors that are only renamed.
fn plain_name(family: Family, inner: &str) -> String {
    let ffn_norm = if family == Family::Qwen3Moe { "ffn_norm" } else { "post_attention_norm" };
    let pairs = [
        ("embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("post_attention_layernorm", ffn_norm),
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("linear_attn.in_proj_ba", "ssm_ba"),
        ("linear_attn.norm", "ssm_norm"),
        ("mlp.experts.gate_proj", "ffn_gate_exps.weight"),
        ("mlp.experts.up_proj", "ffn_up_exps.weight"),
        ("mlp.experts.down_proj", "ffn_down_exps.weight"),
        ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("norm.weight", "output_norm.weight"),
    ];
    let (ours, theirs) =
        pairs.iter().find(|(ours, _)| inner.starts_with(ours)).expect("a tensor the file has");
    format!("{theirs}{}", &inner[ours.len()..])
}

/// Values as the file has them, and whether they are the published ones.
fn stored(kind: Kind, values: &[f32]) -> (Vec<f32>, bool) {
    match kind {
        Kind::Norm => (values.iter().map(|w| 1.0 + w).collect(), false),
        Kind::DecayRate => (values.iter().map(|w| -w.exp()).collect(), false),
        Kind::Matrix
        | Kind::Experts
        | Kind::ExpertBiases
        | Kind::GatedNorm
        | Kind::Conv
        | Kind::ChoiceBias
        | Kind::Vector => (values.to_vec(), true),
    }
}

/// Packs rows of `cols` values; also returns what is left of them.
fn pack(format: &'static QuantFormat, cols: usize, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let row_bytes = format.row_bytes(cols).expect("rows are whole blocks");
    let rows = values.len() / cols;
    let (mut bytes, mut decoded) = (vec![0; rows * row_bytes], vec![0.0; values.len()]);
    let each = bytes.chunks_exact_mut(row_bytes).zip(decoded.chunks_exact_mut(cols));
    for ((bytes, decoded), values) in each.zip(values.chunks_exact(cols)) {
        format.encode_row(values, bytes);
        format.decode_row(bytes, decoded);
    }
    (bytes, decoded)
}

fn write_parts(dir: &Path, layout: &GgufLayout, model: &TinyModel, tensors: &[FileTensor]) {
    let parts = layout.parts;
    let each = tensors.len().div_ceil(parts);
    for (part, own) in tensors.chunks(each).enumerate() {
        let mut pairs = if part == 0 { model.pairs() } else { Pairs::default() };
        pairs.unsigned("general.alignment", u64::from(layout.alignment));
        if parts > 1 {
            pairs.unsigned("split.no", part as u64);
            pairs.unsigned("split.count", parts as u64);
            pairs.unsigned("split.tensors.count", tensors.len() as u64);
        }
        let name = match parts {
            1 => "model.gguf".to_owned(),
            _ => format!("model-{:05}-of-{parts:05}.gguf", part + 1),
        };
        let bytes = file_bytes(&pairs, own, layout.alignment as usize);
        fs::write(dir.join(name), bytes).expect("a file can be written");
    }
}

fn file_bytes(pairs: &Pairs, tensors: &[FileTensor], alignment: usize) -> Vec<u8> {
    let mut head = b"GGUF\x03\0\0\0".to_vec();
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend(pairs.count.to_le_bytes());
    head.extend(&pairs.bytes);
    let mut data = Vec::new();
    for tensor in tensors {
        data.resize(usize::next_multiple_of(data.len(), alignment), 0);
        push_text(&mut head, &tensor.name);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|dim| head.extend((*dim as u64).to_le_bytes()));
        head.extend(tensor.type_id.to_le_bytes());
        head.extend((data.len() as u64).to_le_bytes());
        data.extend(&tensor.bytes);
    }
    head.resize(usize::next_multiple_of(head.len(), alignment), 0);
    head.extend(data);
    head
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Metadata under way.
#[derive(Default)]
struct Pairs {
    count: u64,
    bytes: Vec<u8>,
}

impl Pairs {
    fn begin(&mut self, key: &str, kind: u32) {
        self.count += 1;
        push_text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn text(&mut self, key: &str, text: &str) {
        self.begin(key, 8);
        push_text(&mut self.bytes, text);
    }

    fn unsigned(&mut self, key: &str, value: u64) {
        self.begin(key, 4);
        self.bytes.extend((value as u32).to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f64) {
        self.begin(key, 6);
        self.bytes.extend((value as f32).to_le_bytes());
    }

    fn bools(&mut self, key: &str, values: &[bool]) {
        self.begin(key, 9);
        self.bytes.extend(7_u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        self.bytes.extend(values.iter().map(|value| u8::from(*value)));
    }
}

impl TinyModel {
    fn pairs(&self) -> Pairs {
        let architecture = match self.family {
            Family::Qwen3Moe => "qwen3moe",
            Family::Qwen3Next => "qwen3next",
            Family::Qwen3_5Moe => "qwen35moe",
            other => panic!("the kit writes no GGUF of {}", other.name()),
        };
        let mut pairs = Pairs::default();
        pairs.text("general.architecture", architecture);
        let mut unsigned = |key: &str, value: usize| {
            pairs.unsigned(&format!("{architecture}.{key}"), value as u64);
        };
        unsigned("block_count", self.layers);
        unsigned("context_length", 4096);
        unsigned("embedding_length", self.hidden);
        unsigned("feed_forward_length", self.dense_ffn);
        unsigned("attention.head_count", self.heads);
        unsigned("attention.head_count_kv", self.kv_heads);
        unsigned("attention.key_length", self.head_dim);
        unsigned("attention.value_length", self.head_dim);
        unsigned("expert_count", self.experts);
        unsigned("expert_used_count", self.top_k);
        unsigned("expert_feed_forward_length", self.moe_ffn);
        if self.is_hybrid() {
            let LinearShape { key_heads, value_heads, key_dim, value_dim, conv } = self.linear;
            unsigned("expert_shared_feed_forward_length", self.shared_ffn);
            unsigned("ssm.conv_kernel", conv);
            unsigned("ssm.state_size", key_dim);
            unsigned("ssm.group_count", key_heads);
            unsigned("ssm.time_step_rank", value_heads);
            unsigned("ssm.inner_size", value_heads * value_dim);
            unsigned("full_attention_interval", self.full_attention_interval);
            let rotated = (self.head_dim as f64 * self.partial_rotary) as usize;
            unsigned("rope.dimension_count", rotated);
            let recurrent: Vec<bool> = (0..self.layers).map(|layer| !self.attends(layer)).collect();
            pairs.bools(&format!("{architecture}.attention.recurrent_layers"), &recurrent);
        }
        pairs.float(&format!("{architecture}.rope.freq_base"), self.rope_theta);
        let eps = format!("{architecture}.attention.layer_norm_rms_epsilon");
        pairs.float(&eps, self.eps);
        pairs
    }
}
