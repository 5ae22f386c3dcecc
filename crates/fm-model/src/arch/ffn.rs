//! The feed-forward half of a layer: routed experts, or one network for all.

use fm_format::record::LayerRecords;
use fm_kernels::backend::{Activation, RouterSpec};

use crate::{
    error::LoadError,
    spec::{ExpertBiasesSpec, FfnSpec, MlpSpec, MoeSpec, SharedSpec, VectorTransform},
    weights::{Bias, Weights},
};

use super::{
    decoder_frame::LayerSite,
    experts::{ExpertDims, layer_records},
};

/// The routed experts of a family, and the one that every position uses.
pub(super) struct Experts<'a> {
    pub(super) dims: ExpertDims,
    pub(super) router: Router<'a>,
    pub(super) routing: RouterSpec,
    /// Of the routed and of the shared expert.
    pub(super) activation: Activation,
    /// Finds the experts' biases, if they have such.
    pub(super) biases: Option<FindBiases>,
    pub(super) shared: Option<SharedExpert<'a>>,
}

/// Finds the biases of the experts in a network of these dimensions.
pub(super) type FindBiases =
    fn(&Weights<'_>, mlp: &str, dims: ExpertDims) -> Result<ExpertBiasesSpec, LoadError>;

/// What the router of a family is called.
#[derive(Clone, Copy)]
pub(super) struct Router<'a> {
    /// Its module inside the feed-forward network.
    pub(super) module: &'a str,
    pub(super) bias: Bias,
    /// The tensor inside the network that is added to the scores for the choice only.
    pub(super) choice_bias: Option<&'a str>,
}

impl Router<'static> {
    /// `gate`, and no bias of any kind.
    pub(super) const GATE: Self = Self { module: "gate", bias: Bias::None, choice_bias: None };
}

/// The shared expert.
pub(super) struct SharedExpert<'a> {
    /// Its module inside the feed-forward network.
    pub(super) module: &'a str,
    /// Width of its intermediate.
    pub(super) width: usize,
    /// The module of its gate, if there is one.
    pub(super) gate: Option<&'a str>,
}

impl Experts<'_> {
    /// Finds the tensors of a layer whose feed-forward network is called `mlp`.
    pub(super) fn describe(
        &self,
        layer: &LayerSite<'_, '_>,
        mlp: &str,
    ) -> Result<(FfnSpec, Option<LayerRecords>), LoadError> {
        let (weights, hidden, mlp) = (layer.weights, layer.hidden, layer.name(mlp));
        let shared = self.shared.as_ref().map(|shared| {
            let gate = |gate: &str| weights.matrix(&format!("{mlp}.{gate}"), 1, hidden);
            Ok::<_, LoadError>(SharedSpec {
                mlp: dense(
                    weights,
                    &format!("{mlp}.{}", shared.module),
                    (shared.width, hidden),
                    self.activation,
                )?,
                gate: shared.gate.map(gate).transpose()?,
            })
        });
        let choice_bias = self.router.choice_bias.map(|bias| {
            let (name, plain) = (format!("{mlp}.{bias}"), VectorTransform::Plain);
            weights.vector(&name, &[self.dims.experts], plain)
        });
        let spec = MoeSpec {
            router: weights.projection(
                &format!("{mlp}.{}", self.router.module),
                (self.dims.experts, hidden),
                self.router.bias,
            )?,
            choice_bias: choice_bias.transpose()?,
            routing: self.routing,
            activation: self.activation,
            biases: self.biases.map(|biases| biases(weights, &mlp, self.dims)).transpose()?,
            shared: shared.transpose()?,
        };
        let records = layer_records(weights, &mlp, layer.index, self.dims)?;
        Ok((FfnSpec::Moe(Box::new(spec)), Some(records)))
    }
}

/// What the sparse network of a layer is called: `block_sparse_moe` as Mixtral's authors had it, or
/// `mlp` as everybody since.
pub(super) fn sparse_module(layer: &LayerSite<'_, '_>) -> &'static str {
    let older = layer.weights.has(&layer.name("block_sparse_moe.gate.weight"));
    if older { "block_sparse_moe" } else { "mlp" }
}

/// One network for all positions: `{gate,up,down}_proj` of a module.
pub(super) fn dense(
    weights: &Weights<'_>,
    module: &str,
    (ffn, hidden): (usize, usize),
    activation: Activation,
) -> Result<MlpSpec, LoadError> {
    Ok(MlpSpec {
        gate: weights.matrix(&format!("{module}.gate_proj"), ffn, hidden)?,
        up: weights.matrix(&format!("{module}.up_proj"), ffn, hidden)?,
        down: weights.matrix(&format!("{module}.down_proj"), hidden, ffn)?,
        activation,
    })
}
