//! Every tensor of a checkpoint in the order in which it is written: names and shapes as MLX or
//! Hugging Face publish them, scales that keep activations sane.
//!
//! Inputs of all linear maps have unit size (they come from a norm) and so have their outputs.
//! Each of the two branches of a layer adds about `1 / (2 · layers)` to the residual's variance, so
//! that it grows from 0.5 to about 1.5 in any depth.

use half::bf16;

use crate::{
    Synth,
    affine::{Bits, GROUP},
    geometry::{Family, LinearShape},
    matrix::{Fill, Matrix, Part},
    noise::Stream,
};

/// Deviation of the embedding beside the tape, whose columns have 1.
const EMBEDDING: f64 = 0.7;
/// Deviation of the logits of ids beyond the tape.
const LOGITS: f64 = 1.0;
/// Largest distance of norm weights from their neutral value.
const NORM_SPREAD: f64 = 0.15;
/// What outputs are multiplied by, beside `1 / √(2 · layers)`, to have unit size: attention averages
/// values and halves them with its gate, …
const ATTENTION_GAIN: f64 = 2.0;
/// … the delta-net multiplies unit values by `silu` of unit gates, of size 0.6, …
const DELTA_GAIN: f64 = 1.6;
/// … and so does an expert; weights `1 / top_k` take the root of `top_k` more, …
const EXPERT_GAIN: f64 = 1.6;
/// … and the shared expert's own gate halves it.
const SHARED_GAIN: f64 = 3.0;

/// One tensor of a file.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) content: Content,
}

/// What a tensor holds.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Made row by row when it is written.
    Rows(Matrix, Part),
    /// Small enough to be kept.
    Small(Vec<u8>),
}

impl Tensor {
    pub(crate) fn bytes(&self) -> u64 {
        match &self.content {
            Content::Rows(matrix, part) => (matrix.rows * matrix.row_bytes(*part)) as u64,
            Content::Small(bytes) => bytes.len() as u64,
        }
    }
}

/// Deviation of weights that turn `cols` inputs of unit size into outputs of unit size.
fn unit(cols: usize) -> f64 {
    (cols as f64).sqrt().recip()
}

/// Collects the tensors of a checkpoint.
pub(crate) struct Layout<'a> {
    synth: &'a Synth<'a>,
    tensors: Vec<Tensor>,
    /// Modules with a packing of their own, for `quantization` in `config.json`.
    routers: Vec<String>,
}

impl<'a> Layout<'a> {
    /// All tensors, and the modules packed as routers.
    pub(crate) fn of(synth: &'a Synth<'a>) -> (Vec<Tensor>, Vec<String>) {
        let geometry = synth.geometry;
        let mut all = Self { synth, tensors: Vec::new(), routers: Vec::new() };
        let embedding = Fill::Embedding { deviation: EMBEDDING };
        all.matrix("embed_tokens", &[geometry.vocab, geometry.hidden], embedding);
        for layer in 0..synth.layers {
            all.layer(layer);
        }
        all.norm("norm", geometry.hidden);
        let head = Fill::Head { deviation: LOGITS / (geometry.hidden as f64).sqrt() };
        all.matrix("lm_head", &[geometry.vocab, geometry.hidden], head);
        (all.tensors, all.routers)
    }

    fn layer(&mut self, layer: usize) {
        let hidden = self.synth.geometry.hidden;
        let prefix = format!("layers.{layer}");
        self.norm(&format!("{prefix}.input_layernorm"), hidden);
        match &self.synth.geometry.linear {
            Some(shape) if !self.synth.geometry.attends(layer) => {
                self.delta_net(&format!("{prefix}.linear_attn"), shape);
            }
            _ => self.attention(&format!("{prefix}.self_attn")),
        }
        self.norm(&format!("{prefix}.post_attention_layernorm"), hidden);
        self.ffn(&format!("{prefix}.mlp"), layer);
    }

    fn attention(&mut self, module: &str) {
        let geometry = self.synth.geometry;
        let dim = geometry.head_dim;
        let gate = if geometry.family.is_hybrid() { 2 } else { 1 };
        let rows = [
            ("q_proj", geometry.heads * dim * gate),
            ("k_proj", geometry.kv_heads * dim),
            ("v_proj", geometry.kv_heads * dim),
        ];
        for (name, rows) in rows {
            self.input(&format!("{module}.{name}"), rows);
        }
        self.output(&format!("{module}.o_proj"), geometry.heads * dim, ATTENTION_GAIN);
        self.norm(&format!("{module}.q_norm"), dim);
        self.norm(&format!("{module}.k_norm"), dim);
    }

    fn delta_net(&mut self, module: &str, shape: &LinearShape) {
        let (keys, values, heads) = (shape.keys(), shape.values(), shape.value_heads);
        let rows: &[(&str, usize)] = if self.synth.geometry.family == Family::Qwen3Next {
            &[("in_proj_qkvz", 2 * keys + 2 * values), ("in_proj_ba", 2 * heads)]
        } else {
            &[
                ("in_proj_qkv", 2 * keys + values),
                ("in_proj_z", values),
                ("in_proj_b", heads),
                ("in_proj_a", heads),
            ]
        };
        for (name, rows) in rows {
            self.input(&format!("{module}.{name}"), *rows);
        }
        let (channels, taps) = (2 * keys + values, shape.conv);
        let conv = if self.plain() { vec![channels, 1, taps] } else { vec![channels, taps, 1] };
        let tap = (taps as f64).sqrt().recip();
        self.vector(&format!("{module}.conv1d.weight"), conv, "BF16", |noise, at| {
            tap * noise.normal(at)
        });
        // Memories of 1 to 1000 tokens, as the inventors initialise them: A uniform in [1, 16],
        // softplus(dt_bias) log-uniform in [0.001, 0.1].
        let packed = self.synth.geometry.family == Family::Qwen3_5Moe;
        let wide = if self.plain() || packed { "F32" } else { "BF16" };
        self.vector(&format!("{module}.A_log"), vec![heads], wide, |noise, at| {
            (1.0 + 15.0 * noise.unit(at)).ln()
        });
        self.vector(&format!("{module}.dt_bias"), vec![heads], "BF16", |noise, at| {
            let dt = (0.001_f64.ln() + 100.0_f64.ln() * noise.unit(at)).exp();
            dt + (-(-dt).exp_m1()).ln()
        });
        let wide = if self.plain() && packed { "F32" } else { "BF16" };
        self.vector(&format!("{module}.norm.weight"), vec![shape.head_dim], wide, |noise, at| {
            1.0 + NORM_SPREAD * (2.0 * noise.unit(at) - 1.0)
        });
        self.output(&format!("{module}.out_proj"), values, DELTA_GAIN);
    }

    fn ffn(&mut self, module: &str, layer: usize) {
        let geometry = self.synth.geometry;
        let router = format!("{module}.gate");
        self.router(&router, geometry.experts, Fill::Router { layer });
        self.experts(module);
        if geometry.shared_ffn > 0 {
            let shared = format!("{module}.shared_expert");
            self.input(&format!("{shared}.gate_proj"), geometry.shared_ffn);
            self.input(&format!("{shared}.up_proj"), geometry.shared_ffn);
            self.output(&format!("{shared}.down_proj"), geometry.shared_ffn, SHARED_GAIN);
            let noise = Fill::Noise { deviation: unit(geometry.hidden) };
            self.router(&format!("{module}.shared_expert_gate"), 1, noise);
        }
    }

    /// Stacked by MLX, fused by the transformers of Qwen3.5, one by one by the others.
    fn experts(&mut self, module: &str) {
        let geometry = self.synth.geometry;
        let (experts, hidden, ffn) = (geometry.experts, geometry.hidden, geometry.moe_ffn);
        let input = Fill::Noise { deviation: unit(hidden) };
        let gain = EXPERT_GAIN * (geometry.top_k as f64).sqrt();
        let output = Fill::Output { deviation: self.branch(ffn, gain), period: hidden };
        if !self.plain() {
            let module = format!("{module}.switch_mlp");
            self.matrix(&format!("{module}.gate_proj"), &[experts, ffn, hidden], input);
            self.matrix(&format!("{module}.up_proj"), &[experts, ffn, hidden], input);
            self.matrix(&format!("{module}.down_proj"), &[experts, hidden, ffn], output);
        } else if geometry.family == Family::Qwen3_5Moe {
            let module = format!("{module}.experts");
            self.plain_matrix(
                &format!("{module}.gate_up_proj"),
                "",
                &[experts, 2 * ffn, hidden],
                input,
            );
            self.plain_matrix(&format!("{module}.down_proj"), "", &[experts, hidden, ffn], output);
        } else {
            for expert in 0..experts {
                let module = format!("{module}.experts.{expert}");
                self.matrix(&format!("{module}.gate_proj"), &[ffn, hidden], input);
                self.matrix(&format!("{module}.up_proj"), &[ffn, hidden], input);
                self.matrix(&format!("{module}.down_proj"), &[hidden, ffn], output);
            }
        }
    }

    fn plain(&self) -> bool {
        self.synth.bits.is_plain()
    }

    /// Deviation of the weights at the end of a branch.
    fn branch(&self, cols: usize, gain: f64) -> f64 {
        gain * unit(cols) / (2.0 * self.synth.layers as f64).sqrt()
    }

    /// A projection that reads the residual.
    fn input(&mut self, module: &str, rows: usize) {
        let hidden = self.synth.geometry.hidden;
        self.matrix(module, &[rows, hidden], Fill::Noise { deviation: unit(hidden) });
    }

    /// A projection that writes the residual, the tape excepted.
    fn output(&mut self, module: &str, cols: usize, gain: f64) {
        let hidden = self.synth.geometry.hidden;
        let fill = Fill::Output { deviation: self.branch(cols, gain), period: hidden };
        self.matrix(module, &[hidden, cols], fill);
    }

    fn router(&mut self, module: &str, rows: usize, fill: Fill) {
        let bits = if self.plain() { self.synth.bits } else { Bits::ROUTER };
        if !self.plain() {
            let name = self.name(module);
            self.routers.push(name);
        }
        self.packed(module, &[rows, self.synth.geometry.hidden], fill, bits);
    }

    fn matrix(&mut self, module: &str, shape: &[usize], fill: Fill) {
        self.packed(module, shape, fill, self.synth.bits);
    }

    /// A module: codes, scales and biases, or one plain weight.
    fn packed(&mut self, module: &str, shape: &[usize], fill: Fill, bits: Bits) {
        if bits.is_plain() {
            self.plain_matrix(module, ".weight", shape, fill);
            return;
        }
        let (cols, leading) = shape.split_last().expect("a matrix has columns");
        let matrix = whole(module, shape, fill, bits);
        let (words, groups) = (bits.code_bytes(*cols) / 4, cols / GROUP);
        let parts = [
            (".weight", "U32", words, Part::Weight),
            (".scales", "BF16", groups, Part::Scales),
            (".biases", "BF16", groups, Part::Biases),
        ];
        for (suffix, dtype, last, part) in parts {
            self.tensors.push(Tensor {
                name: self.name(&format!("{module}{suffix}")),
                dtype,
                shape: [leading, &[last]].concat(),
                content: Content::Rows(matrix.clone(), part),
            });
        }
    }

    /// A plain tensor.
    fn plain_matrix(&mut self, module: &str, suffix: &str, shape: &[usize], fill: Fill) {
        let matrix = whole(module, shape, fill, self.synth.bits);
        self.tensors.push(Tensor {
            name: self.name(&format!("{module}{suffix}")),
            dtype: "BF16",
            shape: shape.to_vec(),
            content: Content::Rows(matrix, Part::Weight),
        });
    }

    /// Norm weights, neutral in the columns of the tape: routers and the head must see it as it is.
    fn norm(&mut self, module: &str, len: usize) {
        let geometry = self.synth.geometry;
        let reserved = if len == geometry.hidden { geometry.tape_dims as u64 } else { 0 };
        let neutral = if self.plain() && geometry.family.is_hybrid() { 0.0 } else { 1.0 };
        self.vector(&format!("{module}.weight"), vec![len], "BF16", |noise, at| {
            let spread = if at < reserved { 0.0 } else { NORM_SPREAD };
            neutral + spread * (2.0 * noise.unit(at) - 1.0)
        });
    }

    fn vector(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        dtype: &'static str,
        draw: impl Fn(Stream, u64) -> f64,
    ) {
        let noise = Stream::named(self.synth.seed, name);
        let values = (0..shape.iter().product::<usize>() as u64).map(|at| draw(noise, at));
        let bytes = if dtype == "F32" {
            values.flat_map(|value| (value as f32).to_le_bytes()).collect()
        } else {
            values.flat_map(|value| bf16::from_f64(value).to_le_bytes()).collect()
        };
        let (name, content) = (self.name(name), Content::Small(bytes));
        self.tensors.push(Tensor { name, dtype, shape, content });
    }

    /// A name inside the language model as the publisher spells it.
    fn name(&self, inner: &str) -> String {
        let decoder = !inner.starts_with("lm_head.");
        let nested = self.synth.geometry.family == Family::Qwen3_5Moe;
        match (nested, self.plain(), decoder) {
            (false, _, true) => format!("model.{inner}"),
            (true, true, true) => format!("model.language_model.{inner}"),
            (true, false, true) => format!("language_model.model.{inner}"),
            (true, false, false) => format!("language_model.{inner}"),
            (false, _, false) | (true, true, false) => inner.to_owned(),
        }
    }
}

fn whole(module: &str, shape: &[usize], fill: Fill, bits: Bits) -> Matrix {
    let (cols, leading) = shape.split_last().expect("a matrix has columns");
    Matrix { name: module.to_owned(), rows: leading.iter().product(), cols: *cols, bits, fill }
}
