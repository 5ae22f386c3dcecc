//! Checkpoints of noise: a shape, a layout, and files as the real publishers write them.
//!
//! ```no_run
//! use fm_testkit::tiny_checkpoint::{Family, Layout, TinyModel};
//!
//! let model = TinyModel { experts: 7, layers: 2, ..TinyModel::new(Family::Qwen3Next) };
//! model.write("/tmp/checkpoint".as_ref(), &Layout::Hf, 1);
//! ```
//!
//! Every tensor's noise depends on the seed and on the tensor's own name: two models that differ
//! in one number of the config share all weights whose shapes agree.

mod affine;
mod config_json;
mod disk;
mod gguf;
mod latent;
mod layout;
mod mxfp4;
mod packed;
mod small_floats;
mod weights;

use std::{fs, path::Path};

pub use crate::oracle::Family;

pub use self::{
    affine::Affine,
    gguf::GgufLayout,
    latent::{LatentShape, YarnShape},
    packed::tokenizer_bin,
    small_floats::SmallFloats,
};

/// How numbers are stored that are not packed into integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

/// Whose spelling and order of tensors.
#[derive(Clone, Debug)]
pub enum Layout {
    /// As transformers publishes; with the tensors of other networks that a reader must skip.
    Hf,
    /// As `mlx_lm.convert` writes.
    Mlx(MlxLayout),
}

/// What `mlx_lm.convert` was asked to quantise.
#[derive(Clone, Debug, Default)]
pub struct MlxLayout {
    /// The packing of every module without a rule of its own; `None` leaves all of them plain.
    pub affine: Option<Affine>,
    /// The first pair whose text ends a module's name decides: packed so, or plain (`None`).
    pub overrides: Vec<(&'static str, Option<Affine>)>,
    /// Whether `kv_b_proj` is there or what newer versions make of it.
    pub kv_b: KvB,
}

/// How `mlx_lm` stores what takes a latent to keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvB {
    /// `embed_q` and `unembed_out`.
    #[default]
    Absorbed,
    /// `kv_b_proj`.
    Joined,
}

impl MlxLayout {
    /// Every module packed alike (the routers in 8 bits, as `mlx_lm` insists).
    pub fn uniform(bits: usize, group: usize) -> Self {
        let (affine, overrides) = (Some(Affine { bits, group }), Vec::new());
        Self { affine, overrides, kv_b: KvB::Absorbed }
    }
}

/// Shapes of the delta-net layers.
#[derive(Clone, Copy, Debug)]
pub struct LinearShape {
    /// `linear_num_key_heads`
    pub key_heads: usize,
    /// `linear_num_value_heads`, a multiple of `key_heads`
    pub value_heads: usize,
    /// `linear_key_head_dim`
    pub key_dim: usize,
    /// `linear_value_head_dim`
    pub value_dim: usize,
    /// `linear_conv_kernel_dim`
    pub conv: usize,
}

/// A model, described. Start from [`TinyModel::new`] and change what the test is about.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// Which equations and which spelling.
    pub family: Family,
    /// `hidden_size`
    pub hidden: usize,
    /// `vocab_size`
    pub vocab: usize,
    /// `num_hidden_layers`
    pub layers: usize,
    /// `num_attention_heads`
    pub heads: usize,
    /// `num_key_value_heads`
    pub kv_heads: usize,
    /// `head_dim`
    pub head_dim: usize,
    /// `num_experts`
    pub experts: usize,
    /// `num_experts_per_tok`
    pub top_k: usize,
    /// `moe_intermediate_size`
    pub moe_ffn: usize,
    /// `shared_expert_intermediate_size`, in hybrids
    pub shared_ffn: usize,
    /// `intermediate_size` of dense layers
    pub dense_ffn: usize,
    /// Delta-net shapes, in hybrids
    pub linear: LinearShape,
    /// Every so many layers attend, in hybrids
    pub full_attention_interval: usize,
    /// Layers with a dense FFN, in `qwen3_moe` and `qwen3_next`
    pub mlp_only_layers: Vec<usize>,
    /// Layer `i` routes if `(i + 1) % step == 0`, in the same
    pub decoder_sparse_step: usize,
    /// Whether chosen weights are scaled to sum 1, in the same
    pub norm_topk_prob: bool,
    /// `tie_word_embeddings`
    pub tie_embeddings: bool,
    /// Biases on q, k, v, o projections; `gpt_oss` always has them
    pub attention_bias: bool,
    /// `rope_theta`
    pub rope_theta: f64,
    /// `partial_rotary_factor`, in hybrids and, as `rotary_dim`, in `minimax_m2`; the others rotate
    /// everything
    pub partial_rotary: f64,
    /// `sliding_window`: of every second layer in `gpt_oss`, of every layer in `mixtral`
    pub sliding_window: Option<usize>,
    /// `original_max_position_embeddings` of `yarn`, in `gpt_oss` and the latent families
    pub trained_context: usize,
    /// Latent attention, in `deepseek_v3` and `glm4_moe_lite`
    pub latent: LatentShape,
    /// `rope_scaling`, in the same
    pub yarn: Option<YarnShape>,
    /// `first_k_dense_replace`, in the same
    pub first_dense: usize,
    /// `n_group` and `topk_group`, in the same
    pub groups: (usize, usize),
    /// `routed_scaling_factor`, in the same
    pub route_factor: f64,
    /// `n_shared_experts`, in the same
    pub shared_experts: usize,
    /// `swiglu_limit`, in `gpt_oss`
    pub swiglu_limit: f64,
    /// `rms_norm_eps`
    pub eps: f64,
    /// Size of the values of an embedding that is not tied. Trained ones are small, and only then
    /// does an epsilon of the size that models have show.
    pub embedding_size: f64,
    /// Stored type of plain tensors and of MLX scales and biases
    pub dtype: Float,
    /// Another seed, other weights
    pub seed: u64,
}

impl TinyModel {
    /// A small model without peculiarities: four layers, six experts, two of them chosen.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            hidden: 64,
            vocab: 304,
            layers: 4,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            experts: 6,
            top_k: 2,
            moe_ffn: 32,
            shared_ffn: 32,
            dense_ffn: 96,
            linear: LinearShape {
                key_heads: 2,
                value_heads: 4,
                key_dim: 16,
                value_dim: 16,
                conv: 4,
            },
            full_attention_interval: 4,
            mlp_only_layers: Vec::new(),
            decoder_sparse_step: 1,
            norm_topk_prob: true,
            tie_embeddings: false,
            attention_bias: false,
            rope_theta: 1e6,
            partial_rotary: if family == Family::MinimaxM2 { 0.5 } else { 0.25 },
            sliding_window: (family == Family::GptOss).then_some(16),
            trained_context: if family == Family::DeepseekV3 { 64 } else { 4096 },
            latent: LatentShape {
                q_rank: Some(32),
                rank: 32,
                nope: 32,
                rope: 16,
                value: 32,
                rope_interleave: None,
            },
            yarn: (family == Family::DeepseekV3).then_some(YarnShape {
                factor: 4.0,
                mscale: 1.0,
                mscale_all_dim: 1.0,
            }),
            first_dense: 1,
            groups: if family == Family::DeepseekV3 { (3, 2) } else { (1, 1) },
            route_factor: 1.8,
            shared_experts: 1,
            swiglu_limit: 7.0,
            eps: 1e-6,
            embedding_size: 1.0,
            dtype: Float::Bf16,
            seed: 1,
        }
    }

    /// Writes `config.json`, `generation_config.json` and the tensors: `model.safetensors`, or
    /// for more than one shard `model-00001-of-0000n.safetensors` and their index.
    ///
    /// # Panics
    /// If the description contradicts itself, or `dir` cannot be created or written.
    pub fn write(&self, dir: &Path, layout: &Layout, shards: usize) {
        self.check();
        fs::create_dir_all(dir).expect("a checkpoint directory can be created");
        let weights = weights::noise_weights(self);
        let (tensors, packing) = match layout {
            Layout::Hf => (layout::hf(self, &weights), None),
            Layout::Mlx(mlx) => {
                let absorbed = match mlx.kv_b {
                    KvB::Absorbed => latent::absorbed(self, &weights),
                    KvB::Joined => weights,
                };
                let (tensors, packing) = layout::mlx(self, mlx, &absorbed);
                (tensors, Some(packing))
            }
        };
        let config = config_json::config(self, layout, packing.as_ref());
        disk::write_json(&dir.join("config.json"), &config);
        disk::write_json(&dir.join("generation_config.json"), &config_json::generation_config());
        let format = if matches!(layout, Layout::Hf) { "pt" } else { "mlx" };
        disk::write_tensors(dir, &tensors, shards, format);
    }

    /// Whether the family mixes attention with delta-nets.
    pub fn is_hybrid(&self) -> bool {
        self.family.is_hybrid()
    }

    /// Whether `layer` attends (or is a delta-net).
    pub fn attends(&self, layer: usize) -> bool {
        !self.is_hybrid() || (layer + 1).is_multiple_of(self.full_attention_interval)
    }

    /// Whether `layer` has experts (or is dense).
    pub fn routes(&self, layer: usize) -> bool {
        if self.family.is_latent() {
            return layer >= self.first_dense;
        }
        let dense = self.mlp_only_layers.contains(&layer);
        !dense && (layer + 1).is_multiple_of(self.decoder_sparse_step)
    }

    fn check(&self) {
        assert!(
            self.heads.is_multiple_of(self.kv_heads),
            "query heads share key/value heads evenly"
        );
        let LinearShape { key_heads, value_heads, .. } = self.linear;
        assert!(value_heads.is_multiple_of(key_heads), "value heads share key heads evenly");
        assert!((1..=self.experts).contains(&self.top_k), "some experts are chosen, at most all");
        let (groups, open) = self.groups;
        let even = groups > 0 && self.experts.is_multiple_of(groups);
        assert!(!self.family.is_latent() || even && (1..=groups).contains(&open), "equal groups");
        let all_route = self.mlp_only_layers.is_empty() && self.decoder_sparse_step == 1;
        let may_be_dense = matches!(self.family, Family::Qwen3Moe | Family::Qwen3Next);
        assert!(all_route || may_be_dense, "{} has no dense layers", self.family.name());
        let parts = self.is_hybrid() || self.family == Family::MinimaxM2;
        let partial = if parts { self.partial_rotary } else { 1.0 };
        let rotary_dim = (self.head_dim as f64 * partial) as usize;
        assert!(rotary_dim.is_multiple_of(2), "{rotary_dim} dimensions cannot be rotated in pairs");
    }
}

/// Writes a model of noise whose vocabulary is that of `golden/pieces`: many of its words begin with a space, and its
/// tokenizer takes the first one away. The template adds nothing to a question.
///
/// # Panics
/// If `dir` cannot be written.
pub fn write_model_of_pieces(dir: &Path) {
    let model = TinyModel { vocab: 900, ..TinyModel::new(Family::Mixtral) };
    model.write(dir, &Layout::Hf, 1);
    let pieces = crate::golden::workspace_dir().join("golden/pieces/tokenizer.json");
    fs::copy(pieces, dir.join("tokenizer.json")).expect("the tokenizer is copied");
    let template = "<s>{{ messages[0].content }}";
    fs::write(dir.join("chat_template.jinja"), template).expect("a template is written");
}

/// Questions to such a model. Noise says anything; some of it begins with a space.
pub const QUESTIONS_TO_PIECES: [&str; 12] =
    ["a", "the", "b", "is", "of", "to", "in", "you", "that", "it", "he", "was"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Oracle;

    fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        let read = |entry: fs::DirEntry| {
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
        };
        let mut files: Vec<_> = entries.map(read).collect();
        files.sort();
        files
    }

    #[test]
    fn the_same_description_writes_the_same_bytes() {
        for layout in [Layout::Hf, Layout::Mlx(MlxLayout::uniform(4, 32))] {
            let [a, b] = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let model = TinyModel::new(Family::Qwen3_5Moe);
            model.write(a.path(), &layout, 2);
            model.write(b.path(), &layout, 2);
            assert_eq!(files(a.path()), files(b.path()));
        }
    }

    #[test]
    fn shards_hold_the_same_model() {
        let [one, many] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let model = TinyModel { layers: 2, ..TinyModel::new(Family::Qwen3Next) };
        model.write(one.path(), &Layout::Hf, 1);
        model.write(many.path(), &Layout::Hf, 3);
        assert!(many.path().join("model-00003-of-00003.safetensors").exists());
        assert!(many.path().join("model.safetensors.index.json").exists());
        let run = |dir: &Path| Oracle::load(dir).run(&[3, 1, 4]).logits;
        assert_eq!(run(one.path()), run(many.path()));
    }

    #[test]
    fn hf_and_mlx_layouts_hold_the_same_model_in_f32() {
        for (_, family) in Family::ALL {
            let [hf, mlx] = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let model = TinyModel { dtype: Float::F32, ..TinyModel::new(family) };
            model.write(hf.path(), &Layout::Hf, 1);
            model.write(mlx.path(), &Layout::Mlx(MlxLayout::default()), 1);
            let run = |dir: &Path| Oracle::load(dir).run(&[3, 1, 4, 1, 5]).logits;
            let diff = crate::compare::max_abs_diff_rows(&run(hf.path()), &run(mlx.path()));
            // 1 + w is rounded to f32 once more.
            assert!(diff < 1e-4, "{family:?}: {diff}");
        }
    }
}
