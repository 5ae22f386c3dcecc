//! Multi-head latent attention, described. What a layer computes: `crate::layer::mla`.

use super::{MatrixRef, Projection, Rotary, VectorRef};

/// Dimensions of a latent-attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaShape {
    /// Query heads.
    pub heads: usize,
    /// Values of a query or key head without a position (`qk_nope_head_dim`).
    pub nope: usize,
    /// Values of a query or key head that are rotated (`qk_rope_head_dim`).
    pub rope: usize,
    /// Values of a value head.
    pub v_dim: usize,
    /// Values that keys and values of all heads are compressed to (`kv_lora_rank`).
    pub latent: usize,
    /// Factor on the scores.
    pub scale: f32,
}

impl MlaShape {
    /// Values of a query head as it is projected.
    pub fn q_dim(&self) -> usize {
        self.nope + self.rope
    }

    /// Values that are kept of a token: what the heads share.
    pub fn key_dim(&self) -> usize {
        self.latent + self.rope
    }
}

/// Multi-head latent attention.
#[derive(Clone, Debug)]
pub struct MlaSpec {
    /// Heads and dimensions.
    pub shape: MlaShape,
    /// Frequencies of the rotated values.
    pub rotary: Rotary,
    /// What comes before `q`, if anything does.
    pub q_a: Option<QueryCompression>,
    /// `[heads · (nope + rope), rank]`, or of `hidden` columns.
    pub q: Projection,
    /// `[latent + rope, hidden]`.
    pub kv_a: Projection,
    /// Norm of the latent, `[latent]`.
    pub kv_a_norm: VectorRef,
    /// `[heads · latent, nope]`: takes a head's query to the latent space.
    pub k_b: MatrixRef,
    /// `[heads · v_dim, latent]`: takes what a head has read back from there.
    pub v_b: MatrixRef,
    /// `[hidden, heads · v_dim]`.
    pub o: Projection,
}

/// Takes what queries are made from to few dimensions (`q_lora_rank`).
#[derive(Clone, Debug)]
pub struct QueryCompression {
    /// `[rank, hidden]`.
    pub projection: Projection,
    /// `[rank]`.
    pub norm: VectorRef,
}

impl MlaSpec {
    /// Dimensions that queries are compressed to; 0 if they are not.
    pub fn q_rank(&self) -> usize {
        self.q_a.as_ref().map_or(0, |q_a| q_a.projection.weight.shape.rows)
    }

    pub(super) fn for_each_tensor(
        &self,
        on_matrix: &mut dyn FnMut(&MatrixRef),
        on_vector: &mut dyn FnMut(&VectorRef),
    ) {
        let Self { shape: _, rotary: _, q_a, q, kv_a, kv_a_norm, k_b, v_b, o } = self;
        if let Some(QueryCompression { projection: Projection { weight, bias }, norm }) = q_a {
            on_matrix(weight);
            bias.iter().chain([norm]).for_each(&mut *on_vector);
        }
        for Projection { weight, bias } in [q, kv_a, o] {
            on_matrix(weight);
            bias.iter().for_each(&mut *on_vector);
        }
        on_vector(kv_a_norm);
        [k_b, v_b].into_iter().for_each(on_matrix);
    }
}
