//! `self_attn` of a layer with grouped key/value heads.

use fm_kernels::backend::AttentionShape;

use crate::{
    error::LoadError,
    spec::{AttentionSpec, Rotary, VectorTransform},
    weights::Bias,
};

use super::{config::TrunkConfig, decoder_frame::LayerSite};

/// What a family's attention has.
pub(super) struct Attention<'a> {
    pub(super) trunk: &'a TrunkConfig,
    pub(super) rotary: Rotary,
    pub(super) output_gate: OutputGate,
    pub(super) norm: QueryKeyNorm,
    /// The latest positions that a row sees, if not all.
    pub(super) window: Option<usize>,
    /// Of all four projections.
    pub(super) bias: Bias,
    /// The tensor with one more score of every head, if there is one.
    pub(super) sinks: Option<&'a str>,
}

/// Whether queries carry an output gate: rows are then `[q, gate]` per head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputGate {
    None,
    PerHead,
}

/// The norm of queries and keys before their rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryKeyNorm {
    None,
    /// Each head by itself, with weights that are stored like this.
    PerHead(VectorTransform),
    /// All heads of a row together.
    WholeRow,
}

impl Attention<'_> {
    /// Finds the tensors of a layer.
    pub(super) fn describe(&self, layer: &LayerSite<'_, '_>) -> Result<AttentionSpec, LoadError> {
        let (weights, hidden, dim) = (layer.weights, layer.hidden, self.trunk.head_dim());
        let heads = self.trunk.num_attention_heads;
        let kv_heads = self.trunk.num_key_value_heads;
        let module = |name: &str| layer.name(&format!("self_attn.{name}"));
        let projection =
            |name: &str, rows, cols| weights.projection(&module(name), (rows, cols), self.bias);
        let (q, gate) = match self.output_gate {
            OutputGate::None => (projection("q_proj", heads * dim, hidden)?, None),
            OutputGate::PerHead => {
                let both = projection("q_proj", 2 * heads * dim, hidden)?;
                let half = |at: usize| {
                    let begin = |head: usize| (2 * head + at) * dim;
                    both.select((0..heads).map(|head| begin(head)..begin(head) + dim).collect())
                };
                (half(0), Some(half(1)))
            }
        };
        let norm = |name: &str, heads: usize| {
            let (len, stored) = match self.norm {
                QueryKeyNorm::None => return Ok(None),
                QueryKeyNorm::PerHead(stored) => (dim, stored),
                QueryKeyNorm::WholeRow => (heads * dim, VectorTransform::Plain),
            };
            weights.vector(&module(name), &[len], stored).map(Some)
        };
        let plain = VectorTransform::Plain;
        let sinks = self.sinks.map(|sinks| weights.vector(&module(sinks), &[heads], plain));
        let scale = (dim as f32).sqrt().recip();
        Ok(AttentionSpec {
            shape: AttentionShape {
                heads,
                kv_heads,
                k_dim: dim,
                v_dim: dim,
                scale,
                window: self.window,
            },
            rotary: self.rotary,
            q,
            gate,
            k: projection("k_proj", kv_heads * dim, hidden)?,
            v: projection("v_proj", kv_heads * dim, hidden)?,
            o: projection("o_proj", hidden, heads * dim)?,
            sinks: sinks.transpose()?,
            q_norm: norm("q_norm.weight", heads)?,
            k_norm: norm("k_norm.weight", kv_heads)?,
        })
    }
}
