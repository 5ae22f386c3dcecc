//! The frame of every decoder: embedding, layers of two halves with a norm before each, final norm,
//! head. A family fills in a [`Frame`] and says what each layer's halves are.

use std::sync::Arc;

use fm_format::{
    record::{Catalog, LayerRecords},
    source::Checkpoint,
};

use crate::{
    error::LoadError,
    spec::{FfnSpec, LayerSpec, MixerSpec, ModelSpec, Publisher, VectorTransform},
    weights::Weights,
};

use super::config::TrunkConfig;

/// What the frame of a family is called, and how it is stored.
pub(super) struct Frame<'a> {
    pub(super) model_type: &'static str,
    pub(super) trunk: &'a TrunkConfig,
    /// Prefix of the decoder's tensors, and the name of the head.
    pub(super) names: (&'a str, &'a str),
    pub(super) tied: bool,
    /// How the norms before the halves of a layer and before the head are stored.
    pub(super) norm: VectorTransform,
    /// Prefixes of tensors that a text model has no use for.
    pub(super) skipped: &'a [&'a str],
}

/// Prefix and head of most families.
pub(super) const NAMES: (&str, &str) = ("model.", "lm_head");

/// A layer whose tensors are looked for.
pub(super) struct LayerSite<'a, 'w> {
    pub(super) weights: &'a Weights<'w>,
    pub(super) index: usize,
    pub(super) hidden: usize,
    /// Prefix of its tensors, with the dot.
    prefix: String,
}

impl LayerSite<'_, '_> {
    /// The name of a module or tensor inside the layer.
    pub(super) fn name(&self, inner: &str) -> String {
        format!("{}{inner}", self.prefix)
    }
}

/// The two halves of a layer, and where its routed experts lie.
pub(super) struct LayerHalves {
    pub(super) mixer: MixerSpec,
    pub(super) ffn: FfnSpec,
    pub(super) records: Option<LayerRecords>,
}

/// Describes a checkpoint; `halves` describes what is inside each layer.
pub(super) fn describe(
    weights: Weights<'_>,
    frame: &Frame<'_>,
    halves: impl Fn(&LayerSite<'_, '_>) -> Result<LayerHalves, LoadError>,
) -> Result<ModelSpec, LoadError> {
    let (prefix, head) = frame.names;
    let (vocab, hidden) = (frame.trunk.vocab_size, frame.trunk.hidden_size);
    let embed = weights.matrix(&format!("{prefix}embed_tokens"), vocab, hidden)?;
    let (head, tied_head) = if frame.tied {
        let copies = weights.copies(head, &format!("{prefix}embed_tokens"))?;
        weights.skip(&format!("{head}."));
        (None, copies)
    } else {
        (Some(weights.matrix(head, vocab, hidden)?), Vec::new())
    };
    let norm = |name: &str| weights.vector(&format!("{name}.weight"), &[hidden], frame.norm);
    let final_norm = norm(&format!("{prefix}norm"))?;
    let (mut layers, mut catalog) = (Vec::new(), Catalog::default());
    for index in 0..frame.trunk.num_hidden_layers {
        let prefix = format!("{prefix}layers.{index}.");
        let site = LayerSite { weights: &weights, index, hidden, prefix };
        let LayerHalves { mixer, ffn, records } = halves(&site)?;
        let mixer_norm = norm(&site.name("input_layernorm"))?;
        let ffn_norm = norm(&site.name("post_attention_layernorm"))?;
        layers.push(LayerSpec { mixer_norm, mixer, ffn_norm, ffn });
        catalog.layers.push(records);
    }
    frame.skipped.iter().for_each(|prefix| weights.skip(prefix));
    catalog.files.clone_from(&weights.checkpoint.files);
    let publisher = publisher(weights.checkpoint)?;
    let trunk_tensors = weights.finish(frame.model_type, &catalog)?;
    Ok(ModelSpec {
        model_type: frame.model_type,
        hidden,
        vocab,
        context_max: frame.trunk.max_position_embeddings,
        norm_eps: frame.trunk.rms_norm_eps,
        embed,
        head,
        tied_head,
        final_norm,
        layers,
        catalog: Arc::new(catalog),
        publisher,
        trunk_tensors,
        assumed: Vec::new(),
    })
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
    if checkpoint.metadata.is_some() {
        return Ok(Publisher::Gguf);
    }
    if checkpoint.records.is_some() {
        return Ok(Publisher::Mlx); // packed files are made of nothing else
    }
    let convolution = checkpoint.tensors.values().find(|t| t.name.ends_with("conv1d.weight"));
    let mlx = match convolution.map(|tensor| tensor.shape.as_slice()) {
        Some([_, taps, 1]) if *taps > 1 => true,
        Some([_, 1, taps]) if *taps > 1 => false,
        _ => checkpoint.tensors.keys().any(|n| n.contains("switch_mlp") || n.ends_with(".scales")),
    };
    Ok(if mlx { Publisher::Mlx } else { Publisher::HuggingFace })
}
