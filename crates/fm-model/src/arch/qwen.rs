//! What the Qwen families share: the decoder's frame, attention, the MoE network, and for the two
//! hybrids the delta-net layer. A family's own file reads its configuration and fills in a
//! [`Family`]: what is called how, and what is stored where.

use fm_format::{
    record::{Catalog, LayerRecords},
    source::Checkpoint,
};
use fm_kernels::backend::{AttentionShape, DeltaShape, RouterScale, RouterSpec};
use serde::Deserialize;

use crate::{
    error::LoadError,
    spec::{
        AttentionSpec, DeltaNetSpec, FfnSpec, LayerSpec, MatrixRef, MixerSpec, MlpSpec, ModelSpec,
        MoeSpec, Publisher, Rotary, SharedSpec, VectorTransform,
    },
    weights::Weights,
};

use super::{
    config::{MoeConfig, TrunkConfig, require},
    experts::{ExpertDims, layer_records},
};

/// One family of the Qwen line, with a checkpoint's configuration in place.
pub(super) struct Family<'a> {
    pub(super) model_type: &'static str,
    pub(super) trunk: &'a TrunkConfig,
    pub(super) moe: &'a MoeConfig,
    pub(super) rotary: Rotary,
    pub(super) router_scale: RouterScale,
    pub(super) output_gate: OutputGate,
    /// How the norms around the layers and of query and key heads are stored.
    pub(super) norm: VectorTransform,
    /// Prefix of the decoder's tensors, and the name of the head.
    pub(super) names: (&'a str, &'a str),
    pub(super) tied: bool,
    /// The layers that are not attention, if the family has such.
    pub(super) linear: Option<Linear>,
    /// Prefixes of tensors that a text model has no use for.
    pub(super) skipped: &'a [&'a str],
}

/// The linear-attention layers of a hybrid.
pub(super) struct Linear {
    /// Which layers attend instead.
    pub(super) attends: Vec<bool>,
    pub(super) shape: DeltaShape,
    pub(super) publisher: Publisher,
    /// Finds the input projections of a layer: weights, layer prefix, shape, hidden.
    pub(super) inputs:
        fn(&Weights<'_>, &str, DeltaShape, usize) -> Result<DeltaInputsSpec, LoadError>,
}

/// Describes a checkpoint of the family.
pub(super) fn describe(weights: Weights<'_>, family: &Family<'_>) -> Result<ModelSpec, LoadError> {
    let (prefix, head) = family.names;
    let (vocab, hidden) = (family.trunk.vocab_size, family.trunk.hidden_size);
    let embed = weights.matrix(&format!("{prefix}embed_tokens"), vocab, hidden)?;
    let head = if family.tied {
        weights.skip(&format!("{head}."));
        None
    } else {
        Some(weights.matrix(head, vocab, hidden)?)
    };
    let final_norm = weights.vector(&format!("{prefix}norm.weight"), &[hidden], family.norm)?;
    let (mut layers, mut catalog) = (Vec::new(), Catalog::default());
    for index in 0..family.trunk.num_hidden_layers {
        let layer = format!("{prefix}layers.{index}.");
        let (spec, records) = describe_layer(&weights, family, index, &layer)?;
        layers.push(spec);
        catalog.layers.push(records);
    }
    family.skipped.iter().for_each(|prefix| weights.skip(prefix));
    catalog.files.clone_from(&weights.checkpoint.files);
    let publisher = publisher(weights.checkpoint)?;
    let trunk_tensors = weights.finish(family.model_type, &catalog)?;
    Ok(ModelSpec {
        model_type: family.model_type,
        hidden,
        vocab,
        context_max: family.trunk.max_position_embeddings,
        norm_eps: family.trunk.rms_norm_eps,
        embed,
        head,
        final_norm,
        layers,
        catalog,
        publisher,
        trunk_tensors,
    })
}

fn describe_layer(
    weights: &Weights<'_>,
    family: &Family<'_>,
    index: usize,
    layer: &str,
) -> Result<(LayerSpec, Option<LayerRecords>), LoadError> {
    let hidden = family.trunk.hidden_size;
    let norm =
        |name: &str| weights.vector(&format!("{layer}{name}.weight"), &[hidden], family.norm);
    let mixer = match &family.linear {
        Some(linear) if !linear.attends[index] => {
            let inputs = (linear.inputs)(weights, layer, linear.shape, hidden)?;
            let delta =
                delta_net(weights, layer, (linear.shape, hidden), linear.publisher, inputs)?;
            MixerSpec::DeltaNet(Box::new(delta))
        }
        _ => MixerSpec::Attention(Box::new(attention(weights, family, layer)?)),
    };
    let (ffn, records) = ffn(weights, layer, (index, hidden), family.moe, family.router_scale)?;
    let (mixer_norm, ffn_norm) = (norm("input_layernorm")?, norm("post_attention_layernorm")?);
    Ok((LayerSpec { mixer_norm, mixer, ffn_norm, ffn }, records))
}

/// The first of the candidates, prefix and head, whose embedding is there.
pub(super) fn names<'a>(
    weights: &Weights<'_>,
    candidates: &[(&'a str, &'a str)],
) -> (&'a str, &'a str) {
    let has_embedding = |prefix: &str| weights.has(&format!("{prefix}embed_tokens.weight"));
    let found = candidates.iter().find(|(prefix, _)| has_embedding(prefix));
    *found.unwrap_or(&candidates[0])
}

/// What a container's manifest says; otherwise tells the publisher by the shape of a convolution,
/// or by stacked experts where that is silent.
pub(super) fn publisher(checkpoint: &Checkpoint) -> Result<Publisher, LoadError> {
    if let Some(container) = &checkpoint.container {
        let name = &container.manifest.publisher;
        return Publisher::by_name(name)
            .ok_or_else(|| LoadError::Publisher { publisher: name.clone() });
    }
    let convolution = checkpoint.tensors.values().find(|t| t.name.ends_with("conv1d.weight"));
    let mlx = match convolution.map(|tensor| tensor.shape.as_slice()) {
        Some([_, taps, 1]) if *taps > 1 => true,
        Some([_, 1, taps]) if *taps > 1 => false,
        _ => checkpoint.tensors.keys().any(|n| n.contains("switch_mlp") || n.ends_with(".scales")),
    };
    Ok(if mlx { Publisher::Mlx } else { Publisher::HuggingFace })
}

/// Whether queries carry an output gate: rows are then `[q, gate]` per head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputGate {
    None,
    PerHead,
}

/// `self_attn` of a layer.
fn attention(
    weights: &Weights<'_>,
    family: &Family<'_>,
    layer: &str,
) -> Result<AttentionSpec, LoadError> {
    let Family { trunk, norm, .. } = *family;
    let (hidden, dim) = (trunk.hidden_size, trunk.head_dim());
    let (heads, kv_heads) = (trunk.num_attention_heads, trunk.num_key_value_heads);
    let module = |name: &str| format!("{layer}self_attn.{name}");
    let (q, gate) = match family.output_gate {
        OutputGate::None => (weights.projection(&module("q_proj"), heads * dim, hidden)?, None),
        OutputGate::PerHead => {
            let both = weights.projection(&module("q_proj"), 2 * heads * dim, hidden)?;
            let half = |at: usize| {
                let begin = |head: usize| (2 * head + at) * dim;
                both.select((0..heads).map(|head| begin(head)..begin(head) + dim).collect())
            };
            (half(0), Some(half(1)))
        }
    };
    let scale = (dim as f32).sqrt().recip();
    Ok(AttentionSpec {
        shape: AttentionShape { heads, kv_heads, k_dim: dim, v_dim: dim, scale },
        rotary: family.rotary,
        q,
        gate,
        k: weights.projection(&module("k_proj"), kv_heads * dim, hidden)?,
        v: weights.projection(&module("v_proj"), kv_heads * dim, hidden)?,
        o: weights.projection(&module("o_proj"), hidden, heads * dim)?,
        q_norm: Some(weights.vector(&module("q_norm.weight"), &[dim], norm)?),
        k_norm: Some(weights.vector(&module("k_norm.weight"), &[dim], norm)?),
    })
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
}

impl LinearConfig {
    pub(super) fn shape(&self) -> Result<DeltaShape, LoadError> {
        let positive = [
            ("linear_num_key_heads", self.linear_num_key_heads),
            ("linear_num_value_heads", self.linear_num_value_heads),
            ("linear_key_head_dim", self.linear_key_head_dim),
            ("linear_value_head_dim", self.linear_value_head_dim),
            ("linear_conv_kernel_dim", self.linear_conv_kernel_dim),
        ];
        for (field, value) in positive {
            require(value > 0, field, value, "expected at least 1")?;
        }
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
        })
    }

    /// Which layers attend: `layer_types`, or every `full_attention_interval`-th.
    pub(super) fn attends(&self, layers: usize) -> Result<Vec<bool>, LoadError> {
        let Some(kinds) = &self.layer_types else {
            let interval = self.full_attention_interval.unwrap_or(4);
            require(interval > 0, "full_attention_interval", interval, "expected at least 1")?;
            return Ok((1..=layers).map(|layer| layer.is_multiple_of(interval)).collect());
        };
        require(kinds.len() == layers, "layer_types", kinds.len(), "one entry per layer")?;
        let attends = |kind: &String| match kind.as_str() {
            "full_attention" => Ok(true),
            "linear_attention" => Ok(false),
            other => Err(LoadError::Field {
                field: "layer_types",
                found: other.into(),
                expected: "`full_attention` or `linear_attention`",
            }),
        };
        kinds.iter().map(attends).collect()
    }
}

/// The four input projections of a delta-net layer.
pub(super) struct DeltaInputsSpec {
    pub(super) qkv: MatrixRef,
    pub(super) z: MatrixRef,
    pub(super) b: MatrixRef,
    pub(super) a: MatrixRef,
}

/// `linear_attn` of a layer.
fn delta_net(
    weights: &Weights<'_>,
    layer: &str,
    (shape, hidden): (DeltaShape, usize),
    publisher: Publisher,
    inputs: DeltaInputsSpec,
) -> Result<DeltaNetSpec, LoadError> {
    let name = |tensor: &str| format!("{layer}linear_attn.{tensor}");
    let (channels, taps, heads) = (shape.channels(), shape.conv_taps, shape.value_heads);
    let conv_shape = match publisher {
        Publisher::HuggingFace => [channels, 1, taps],
        Publisher::Mlx => [channels, taps, 1],
    };
    let transposed = VectorTransform::Transposed { cols: taps };
    let plain = VectorTransform::Plain;
    Ok(DeltaNetSpec {
        shape,
        qkv: inputs.qkv,
        z: inputs.z,
        b: inputs.b,
        a: inputs.a,
        conv: weights.vector(&name("conv1d.weight"), &conv_shape, transposed)?,
        neg_a: weights.vector(&name("A_log"), &[heads], VectorTransform::NegExp)?,
        dt_bias: weights.vector(&name("dt_bias"), &[heads], plain)?,
        norm: weights.vector(&name("norm.weight"), &[shape.v_dim], plain)?,
        out: weights.matrix(&name("out_proj"), hidden, heads * shape.v_dim)?,
    })
}

/// `mlp` of a layer: routed experts, or one network for all.
fn ffn(
    weights: &Weights<'_>,
    layer: &str,
    (index, hidden): (usize, usize),
    moe: &MoeConfig,
    scale: RouterScale,
) -> Result<(FfnSpec, Option<LayerRecords>), LoadError> {
    let mlp = format!("{layer}mlp");
    if !moe.is_sparse(index) {
        let width = moe.intermediate_size.unwrap_or(0);
        require(width > 0, "intermediate_size", width, "dense layers need it")?;
        return Ok((FfnSpec::Mlp(Box::new(dense(weights, &mlp, width, hidden)?)), None));
    }
    let dims = ExpertDims { experts: moe.num_experts, hidden, ffn: moe.moe_intermediate_size };
    let shared = match moe.shared_expert_intermediate_size {
        None | Some(0) => None,
        Some(width) => Some(SharedSpec {
            mlp: dense(weights, &format!("{mlp}.shared_expert"), width, hidden)?,
            gate: Some(weights.matrix(&format!("{mlp}.shared_expert_gate"), 1, hidden)?),
        }),
    };
    let spec = MoeSpec {
        router: weights.matrix(&format!("{mlp}.gate"), moe.num_experts, hidden)?,
        routing: RouterSpec { top_k: moe.num_experts_per_tok, scale },
        shared,
    };
    let records = layer_records(weights, &mlp, index, dims)?;
    Ok((FfnSpec::Moe(Box::new(spec)), Some(records)))
}

fn dense(
    weights: &Weights<'_>,
    module: &str,
    ffn: usize,
    hidden: usize,
) -> Result<MlpSpec, LoadError> {
    Ok(MlpSpec {
        gate: weights.matrix(&format!("{module}.gate_proj"), ffn, hidden)?,
        up: weights.matrix(&format!("{module}.up_proj"), ffn, hidden)?,
        down: weights.matrix(&format!("{module}.down_proj"), hidden, ffn)?,
    })
}
