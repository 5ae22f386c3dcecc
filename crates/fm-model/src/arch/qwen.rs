//! What the Qwen families share: the feed-forward network, and for the two hybrids the delta-net
//! layer. A family's own file reads its configuration and fills in a [`Family`].

use fm_format::record::LayerRecords;
use fm_kernels::backend::{
    Activation, DeltaShape, HeadOrder, RouterScale, RouterScoring, RouterSpec,
};
use serde::Deserialize;

use crate::{
    error::LoadError,
    spec::{DeltaNetSpec, FfnSpec, MatrixRef, MixerSpec, ModelSpec, Publisher, VectorTransform},
    weights::Weights,
};

use super::{
    attention::Attention,
    config::{MoeConfig, check_dims, layer_kinds, require},
    decoder_frame::{self, Frame, LayerHalves, LayerSite},
    experts::ExpertDims,
    ffn::{Experts, Router, SharedExpert, dense},
};

/// One family of the Qwen line, with a checkpoint's configuration in place.
pub(super) struct Family<'a> {
    pub(super) frame: Frame<'a>,
    pub(super) attention: Attention<'a>,
    pub(super) moe: &'a MoeConfig,
    pub(super) router_scale: RouterScale,
    /// The layers that are not attention, if the family has such.
    pub(super) linear: Option<Linear>,
}

/// The linear-attention layers of a hybrid.
pub(super) struct Linear {
    /// Which layers attend instead.
    pub(super) attends: Vec<bool>,
    pub(super) shape: DeltaShape,
    pub(super) publisher: Publisher,
    /// Finds the input projections of a layer.
    pub(super) inputs: fn(&LayerSite<'_, '_>, DeltaShape) -> Result<DeltaInputsSpec, LoadError>,
}

/// Describes a checkpoint of the family.
pub(super) fn describe(weights: Weights<'_>, family: &Family<'_>) -> Result<ModelSpec, LoadError> {
    decoder_frame::describe(weights, &family.frame, |layer| {
        let mixer = match &family.linear {
            Some(linear) if !linear.attends[layer.index] => {
                MixerSpec::DeltaNet(Box::new(linear.describe(layer)?))
            }
            _ => MixerSpec::Attention(Box::new(family.attention.describe(layer)?)),
        };
        let (ffn, records) = family.ffn(layer)?;
        Ok(LayerHalves { mixer, ffn, records })
    })
}

impl Family<'_> {
    /// `mlp` of a layer.
    fn ffn(&self, layer: &LayerSite<'_, '_>) -> Result<(FfnSpec, Option<LayerRecords>), LoadError> {
        let (moe, hidden) = (self.moe, layer.hidden);
        if !moe.is_sparse(layer.index) {
            let width = moe.intermediate_size.unwrap_or(0);
            require(width > 0, "intermediate_size", width, "dense layers need it")?;
            let (mlp, dims) = (layer.name("mlp"), (width, hidden));
            let mlp = dense(layer.weights, &mlp, dims, Activation::Silu)?;
            return Ok((FfnSpec::Mlp(Box::new(mlp)), None));
        }
        let shared = moe.shared_expert_intermediate_size.filter(|width| *width > 0);
        let experts = Experts {
            dims: ExpertDims { experts: moe.experts(), hidden, ffn: moe.moe_intermediate_size },
            router: Router::GATE,
            routing: RouterSpec {
                top_k: moe.num_experts_per_tok,
                scoring: RouterScoring::Softmax,
                scale: self.router_scale,
                groups: None,
                factor: 1.0,
            },
            activation: Activation::Silu,
            biases: None,
            shared: shared.map(|width| SharedExpert {
                module: "shared_expert",
                width,
                gate: Some("shared_expert_gate"),
            }),
        };
        experts.describe(layer, "mlp")
    }
}

/// Dimensions of the linear-attention layers, as `config.json` spells them.
#[derive(Debug, Deserialize)]
pub(super) struct LinearConfig {
    linear_num_key_heads: usize,
    linear_num_value_heads: usize,
    linear_key_head_dim: usize,
    linear_value_head_dim: usize,
    linear_conv_kernel_dim: usize,
    full_attention_interval: Option<usize>,
    layer_types: Option<Vec<String>>,
    /// What the output gate of these layers goes through.
    output_gate_type: Option<String>,
}

impl LinearConfig {
    pub(super) fn shape(&self, head_order: HeadOrder) -> Result<DeltaShape, LoadError> {
        let gate = self.output_gate_type.as_deref().unwrap_or("silu");
        let silu = ["silu", "swish"].contains(&gate);
        require(silu, "output_gate_type", gate, "expected `silu` or `swish`, which is the same")?;
        check_dims(&[
            ("linear_num_key_heads", self.linear_num_key_heads),
            ("linear_num_value_heads", self.linear_num_value_heads),
            ("linear_key_head_dim", self.linear_key_head_dim),
            ("linear_value_head_dim", self.linear_value_head_dim),
            ("linear_conv_kernel_dim", self.linear_conv_kernel_dim),
        ])?;
        require(
            self.linear_num_value_heads.is_multiple_of(self.linear_num_key_heads),
            "linear_num_value_heads",
            self.linear_num_value_heads,
            "expected a multiple of linear_num_key_heads",
        )?;
        Ok(DeltaShape {
            key_heads: self.linear_num_key_heads,
            value_heads: self.linear_num_value_heads,
            k_dim: self.linear_key_head_dim,
            v_dim: self.linear_value_head_dim,
            conv_taps: self.linear_conv_kernel_dim,
            head_order,
        })
    }

    /// Which layers attend: `layer_types`, or every `full_attention_interval`-th.
    pub(super) fn attends(&self, layers: usize) -> Result<Vec<bool>, LoadError> {
        let interval = self.full_attention_interval.unwrap_or(4);
        let known = self.layer_types.is_some();
        require(interval > 0 || known, "full_attention_interval", interval, "expected at least 1")?;
        let list = ("layer_types", self.layer_types.as_deref());
        let words = [("full_attention", true), ("linear_attention", false)];
        let words = (words, "`full_attention` or `linear_attention`");
        layer_kinds(list, layers, words, |layer| (layer + 1).is_multiple_of(interval))
    }
}

/// The four input projections of a delta-net layer.
pub(super) struct DeltaInputsSpec {
    pub(super) qkv: MatrixRef,
    pub(super) z: MatrixRef,
    pub(super) b: MatrixRef,
    pub(super) a: MatrixRef,
}

impl Linear {
    /// `linear_attn` of a layer.
    fn describe(&self, layer: &LayerSite<'_, '_>) -> Result<DeltaNetSpec, LoadError> {
        let (weights, hidden, shape) = (layer.weights, layer.hidden, self.shape);
        let name = |tensor: &str| layer.name(&format!("linear_attn.{tensor}"));
        let (channels, taps, heads) = (shape.channels(), shape.conv_taps, shape.value_heads);
        let (conv_shape, decay): (&[usize], _) = match self.publisher {
            Publisher::HuggingFace => (&[channels, 1, taps], VectorTransform::NegExp),
            Publisher::Mlx => (&[channels, taps, 1], VectorTransform::NegExp),
            Publisher::Gguf => (&[channels, taps], VectorTransform::Plain),
        };
        let transposed = VectorTransform::Transposed { cols: taps };
        let plain = VectorTransform::Plain;
        let DeltaInputsSpec { qkv, z, b, a } = (self.inputs)(layer, shape)?;
        Ok(DeltaNetSpec {
            shape,
            qkv,
            z,
            b,
            a,
            conv: weights.vector(&name("conv1d.weight"), conv_shape, transposed)?,
            neg_a: weights.vector(&name("A_log"), &[heads], decay)?,
            dt_bias: weights.vector(&name("dt_bias"), &[heads], plain)?,
            norm: weights.vector(&name("norm.weight"), &[shape.v_dim], plain)?,
            out: weights.matrix(&name("out_proj"), hidden, heads * shape.v_dim)?,
        })
    }
}
