//! What the families after DeepSeek-V3 share: latent attention, dense layers before the routed ones,
//! a router that scores by sigmoid, chooses by a corrected score and looks at the best groups only,
//! a shared expert without a gate. Source: DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024,
//! arXiv:2412.19437.

use fm_format::{record::LayerRecords, source::Checkpoint};
use fm_kernels::backend::{
    Activation, ROUTER_GROUPS_MAX, RouterGroups, RouterScale, RouterScoring, RouterSpec,
};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::LoadError,
    spec::{FfnSpec, MixerSpec, ModelSpec, VectorTransform},
    weights::Weights,
};

use super::{
    config::{RopeConfig, TrunkConfig, announced, check_dims, layer_kinds, parse, require},
    decoder_frame::{self, Frame, LayerHalves, LayerSite, NAMES},
    experts::ExpertDims,
    ffn::{Experts, Router, SharedExpert, dense},
    mla::MlaConfig,
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    trunk: TrunkConfig,
    #[serde(flatten)]
    mla: MlaConfig,
    #[serde(flatten)]
    moe: GroupedConfig,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// The feed-forward networks, as `config.json` spells them.
#[derive(Debug, Deserialize)]
struct GroupedConfig {
    n_routed_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    intermediate_size: usize,
    n_shared_experts: Option<usize>,
    first_k_dense_replace: Option<usize>,
    moe_layer_freq: Option<usize>,
    mlp_layer_types: Option<Vec<String>>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: f32,
    scoring_func: Option<String>,
    topk_method: Option<String>,
    /// Layers that predict tokens further ahead; they come after all others.
    num_nextn_predict_layers: Option<usize>,
}

/// Experts of a model that may have one group of them. Larger ones, as V3 and R1, choose among the best of 8 groups.
const UNGROUPED_MAX: usize = 64;

/// Dense layers before the routed ones where the configuration is silent.
pub(super) struct DenseDefault(pub(super) usize);

/// Describes a checkpoint of a family.
pub(super) fn describe(
    (checkpoint, config): (&Checkpoint, &Value),
    model_type: &'static str,
    dense_default: DenseDefault,
) -> Result<ModelSpec, LoadError> {
    let Config { trunk, mla, moe, rope } = parse(model_type, config)?;
    // GGUF files from before there was a key for it do not say so.
    if checkpoint.metadata.is_none() {
        announced(config, &["n_group"])?;
    }
    trunk.check()?;
    let mla = mla.check(&trunk, &rope)?;
    let routing = moe.routing()?;
    let dense = moe.dense_layers(trunk.num_hidden_layers, dense_default)?;
    let weights = Weights::new(checkpoint)?;
    let ahead = moe.layers_ahead(&weights, trunk.num_hidden_layers)?;
    let frame = Frame {
        model_type,
        trunk: &trunk,
        names: NAMES,
        tied: trunk.tie_word_embeddings.unwrap_or(false),
        norm: VectorTransform::Plain,
        skipped: &ahead.iter().map(String::as_str).collect::<Vec<_>>(),
    };
    let spec = decoder_frame::describe(weights, &frame, |layer| {
        let mixer = MixerSpec::Mla(Box::new(mla.describe(layer)?));
        let (ffn, records) = moe.describe(layer, routing, dense[layer.index])?;
        Ok(LayerHalves { mixer, ffn, records })
    })?;
    Ok(ModelSpec { assumed: moe.assumed().into_iter().collect(), ..spec })
}

impl GroupedConfig {
    /// Prefixes of the layers that predict further tokens, and have a norm for those that came before.
    fn layers_ahead(&self, weights: &Weights<'_>, first: usize) -> Result<Vec<String>, LoadError> {
        let count = self.num_nextn_predict_layers.unwrap_or(1);
        require(u16::try_from(count).is_ok(), "num_nextn_predict_layers", count, "at most 65535")?;
        let prefixes = (first..first + count).map(|layer| format!("{}layers.{layer}.", NAMES.0));
        Ok(prefixes.filter(|prefix| weights.has(&format!("{prefix}enorm.weight"))).collect())
    }

    fn routing(&self) -> Result<RouterSpec, LoadError> {
        let (experts, top_k) = (self.n_routed_experts, self.num_experts_per_tok);
        require((1..=65535).contains(&experts), "n_routed_experts", experts, "from 1 to 65535")?;
        let scoring = self.scoring_func.as_deref().unwrap_or("sigmoid");
        require(scoring == "sigmoid", "scoring_func", scoring, "this family uses `sigmoid`")?;
        let method = self.topk_method.as_deref().unwrap_or("noaux_tc");
        require(method == "noaux_tc", "topk_method", method, "this family uses `noaux_tc`")?;
        let groups = self.groups()?;
        let scale = match self.norm_topk_prob {
            Some(false) => RouterScale::Plain,
            Some(true) | None => RouterScale::Renormalised,
        };
        let factor = self.routed_scaling_factor;
        require(
            factor > 0.0 && factor.is_finite(),
            "routed_scaling_factor",
            f64::from(factor),
            "expected a number above 0",
        )?;
        let scoring = RouterScoring::Sigmoid;
        let spec = RouterSpec { top_k, scoring, scale, groups, factor };
        require(
            (1..=spec.reachable(experts)).contains(&top_k),
            "num_experts_per_tok",
            top_k,
            "expected at least 1 and at most the experts of topk_group groups",
        )?;
        Ok(spec)
    }

    /// What is taken for granted where nobody says whether experts are in groups, in words.
    fn assumed(&self) -> Option<String> {
        let experts = self.n_routed_experts;
        (self.n_group.is_none() && experts > UNGROUPED_MAX).then(|| {
            format!("all {experts} experts taken for one group: nothing says how many there are (`n_group`, in GGUF files `expert_group_count`)")
        })
    }

    /// `None` if every expert can be chosen anyway.
    fn groups(&self) -> Result<Option<RouterGroups>, LoadError> {
        let (count, experts) = (self.n_group.unwrap_or(1), self.n_routed_experts);
        let chosen = self.topk_group.unwrap_or(count);
        require(
            (1..=ROUTER_GROUPS_MAX).contains(&count) && experts.is_multiple_of(count),
            "n_group",
            count,
            "expected a divisor of n_routed_experts, at most 64",
        )?;
        require(
            count == 1 || self.topk_group.is_some(),
            "topk_group",
            "missing",
            "expected where there are several groups",
        )?;
        let in_range = (1..=count).contains(&chosen);
        require(in_range, "topk_group", chosen, "expected at least 1 and at most n_group")?;
        if chosen == count {
            return Ok(None);
        }
        require(experts / count > 1, "n_group", count, "a group has two experts at least")?;
        Ok(Some(RouterGroups { count, chosen }))
    }

    /// Which layers have one network for all positions.
    fn dense_layers(
        &self,
        layers: usize,
        DenseDefault(dense_default): DenseDefault,
    ) -> Result<Vec<bool>, LoadError> {
        let every = self.moe_layer_freq.unwrap_or(1);
        require(every == 1, "moe_layer_freq", every, "this build knows 1")?;
        let first = self.first_k_dense_replace.unwrap_or(dense_default);
        let list = ("mlp_layer_types", self.mlp_layer_types.as_deref());
        let words = ([("dense", true), ("sparse", false)], "`dense` or `sparse`");
        let dense = layer_kinds(list, layers, words, |layer| layer < first)?;
        if let Some(first) = self.first_k_dense_replace {
            let agrees = dense.iter().enumerate().all(|(layer, dense)| *dense == (layer < first));
            require(agrees, "first_k_dense_replace", first, "expected what mlp_layer_types says")?;
        }
        Ok(dense)
    }

    /// `mlp` of a layer.
    fn describe(
        &self,
        layer: &LayerSite<'_, '_>,
        routing: RouterSpec,
        is_dense: bool,
    ) -> Result<(FfnSpec, Option<LayerRecords>), LoadError> {
        let hidden = layer.hidden;
        if is_dense {
            let width = self.intermediate_size;
            check_dims(&[("intermediate_size", width)])?;
            let (mlp, dims) = (layer.name("mlp"), (width, hidden));
            let mlp = dense(layer.weights, &mlp, dims, Activation::Silu)?;
            return Ok((FfnSpec::Mlp(Box::new(mlp)), None));
        }
        let ffn = self.moe_intermediate_size;
        let shared = self.n_shared_experts.filter(|count| *count > 0);
        check_dims(&[("moe_intermediate_size", ffn), ("n_shared_experts", shared.unwrap_or(1))])?;
        let experts = Experts {
            dims: ExpertDims { experts: self.n_routed_experts, hidden, ffn },
            router: Router { choice_bias: Some("gate.e_score_correction_bias"), ..Router::GATE },
            routing,
            activation: Activation::Silu,
            biases: None,
            // Several are stored as one wide one.
            shared: shared.map(|count| SharedExpert {
                module: "shared_experts",
                width: count * ffn,
                gate: None,
            }),
        };
        experts.describe(layer, "mlp")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn many_experts_whose_groups_nobody_tells_are_told_of() {
        let assumed = |experts: usize, groups: Option<usize>| {
            let config = json!({
                "n_routed_experts": experts, "num_experts_per_tok": 8, "moe_intermediate_size": 1,
                "intermediate_size": 1, "routed_scaling_factor": 1.0, "n_group": groups,
            });
            serde_json::from_value::<GroupedConfig>(config).unwrap().assumed()
        };
        assert!(assumed(256, None).unwrap().starts_with("all 256 experts taken for one group"));
        for known in [assumed(256, Some(8)), assumed(384, Some(1)), assumed(64, None)] {
            assert_eq!(known, None);
        }
    }
}
