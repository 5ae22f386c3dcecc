//! `self_attn` of a layer with latent attention.

use fm_kernels::backend::RopeLayout;
use serde::Deserialize;

use crate::{
    error::LoadError,
    spec::{MatrixRef, MlaShape, MlaSpec, QueryCompression, Rotary, VectorTransform},
    weights::Bias,
};

use super::{
    config::{RopeConfig, TrunkConfig, check_dims, require},
    decoder_frame::LayerSite,
};

/// Dimensions of latent attention, as `config.json` spells them.
#[derive(Debug, Deserialize)]
pub(super) struct MlaConfig {
    q_lora_rank: Option<usize>,
    kv_lora_rank: usize,
    qk_nope_head_dim: usize,
    qk_rope_head_dim: usize,
    v_head_dim: usize,
    rope_interleave: Option<bool>,
}

/// Latent attention of a checkpoint.
pub(super) struct Mla {
    shape: MlaShape,
    rotary: Rotary,
    q_rank: Option<usize>,
    /// Of what reads the residual stream compressed, and of what writes to it.
    bias: Bias,
}

impl MlaConfig {
    pub(super) fn check(&self, trunk: &TrunkConfig, rope: &RopeConfig) -> Result<Mla, LoadError> {
        check_dims(&[
            ("q_lora_rank", self.q_lora_rank.unwrap_or(1)),
            ("kv_lora_rank", self.kv_lora_rank),
            ("qk_nope_head_dim", self.qk_nope_head_dim),
            ("qk_rope_head_dim", self.qk_rope_head_dim),
            ("v_head_dim", self.v_head_dim),
        ])?;
        let layout = match self.rope_interleave {
            Some(false) => RopeLayout::HalfSplit,
            Some(true) | None => RopeLayout::Interleaved,
        };
        let rotary = Rotary { layout, ..rope.rotary(self.qk_rope_head_dim, 1.0)? };
        require(
            rotary.dim == self.qk_rope_head_dim,
            "partial_rotary_factor",
            rotary.dim,
            "all of qk_rope_head_dim is rotated",
        )?;
        let (nope, rope) = (self.qk_nope_head_dim, self.qk_rope_head_dim);
        let scale = rotary.score_factor() / ((nope + rope) as f64).sqrt();
        let shape = MlaShape {
            heads: trunk.num_attention_heads,
            nope,
            rope,
            v_dim: self.v_head_dim,
            latent: self.kv_lora_rank,
            scale: scale as f32,
        };
        Ok(Mla { shape, rotary, q_rank: self.q_lora_rank, bias: trunk.attention_bias(Bias::None) })
    }
}

impl Mla {
    /// Finds the tensors of a layer.
    pub(super) fn describe(&self, layer: &LayerSite<'_, '_>) -> Result<MlaSpec, LoadError> {
        let (weights, hidden, shape) = (layer.weights, layer.hidden, self.shape);
        let module = |name: &str| layer.name(&format!("self_attn.{name}"));
        let norm = |name: &str, len: usize| {
            weights.vector(&module(&format!("{name}.weight")), &[len], VectorTransform::Plain)
        };
        let projection =
            |name: &str, rows, cols, bias| weights.projection(&module(name), (rows, cols), bias);
        let queries = shape.heads * shape.q_dim();
        let (q_a, q) = match self.q_rank {
            None => (None, projection("q_proj", queries, hidden, Bias::None)?),
            Some(rank) => {
                let compressed = projection("q_a_proj", rank, hidden, self.bias)?;
                let norm = norm("q_a_layernorm", rank)?;
                let q = projection("q_b_proj", queries, rank, Bias::None)?;
                (Some(QueryCompression { projection: compressed, norm }), q)
            }
        };
        let (k_b, v_b) = self.heads(layer)?;
        let values = shape.heads * shape.v_dim;
        Ok(MlaSpec {
            shape,
            rotary: self.rotary,
            q_a,
            q,
            kv_a: projection("kv_a_proj_with_mqa", shape.key_dim(), hidden, self.bias)?,
            kv_a_norm: norm("kv_a_layernorm", shape.latent)?,
            k_b,
            v_b,
            o: projection("o_proj", hidden, values, self.bias)?,
        })
    }

    /// What takes the heads' queries to the latent space, and what they read back from it.
    ///
    /// mlx-lm stores both as they are used. transformers stores what takes a latent to keys and
    /// values, `[nope + v_dim, latent]` per head: the part of the keys is transposed.
    fn heads(&self, layer: &LayerSite<'_, '_>) -> Result<(MatrixRef, MatrixRef), LoadError> {
        let MlaShape { heads, nope, v_dim, latent, .. } = self.shape;
        let (weights, module) =
            (layer.weights, |name: &str| layer.name(&format!("self_attn.{name}")));
        if weights.has(&module("embed_q.weight")) {
            let k_b = weights.stacked_matrix(&module("embed_q"), &[heads, latent], nope)?;
            let v_b = weights.stacked_matrix(&module("unembed_out"), &[heads, v_dim], latent)?;
            return Ok((k_b, v_b));
        }
        let both = weights.matrix(&module("kv_b_proj"), heads * (nope + v_dim), latent)?;
        let part = |first: usize, len: usize| {
            let begin = |head: usize| head * (nope + v_dim) + first;
            both.select((0..heads).map(|head| begin(head)..begin(head) + len).collect())
        };
        Ok((part(0, nope).transpose_parts(nope), part(nope, v_dim)))
    }
}
