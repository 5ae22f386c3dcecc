//! The second half of a layer: routed experts with a shared one, or a dense FFN.
//!
//! Conventions held here: softmax over all experts before the choice; renormalisation of the
//! chosen weights; the shared expert's own gate is a sigmoid.

use super::{
    config::Config,
    maths::{sigmoid, silu, softmax},
    weights::Scope,
};

/// Which experts a token goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    /// Chosen experts, ascending.
    pub experts: Vec<usize>,
    /// Their weights, in the order of `experts`.
    pub weights: Vec<f64>,
    /// Router logit of the last chosen expert minus that of the first rejected one; infinite if
    /// none is rejected. A small gap means that rounding may choose differently.
    pub gap: f64,
}

/// Output for one token, with its routes if the layer has experts.
pub(super) fn ffn(
    config: &Config,
    layer: usize,
    weights: Scope<'_>,
    x: &[f64],
) -> (Vec<f64>, Option<Routes>) {
    if !config.routed[layer] {
        return (gated(weights, "", x), None);
    }
    let routes = route(config, &weights.linear("gate", x));
    let mut out = vec![0.0; x.len()];
    for (expert, weight) in routes.experts.iter().zip(&routes.weights) {
        let expert = gated(weights, &format!("experts.{expert}."), x);
        out.iter_mut().zip(&expert).for_each(|(out, y)| *out += weight * y);
    }
    if config.is_hybrid() {
        let gate = sigmoid(weights.linear("shared_expert_gate", x)[0]);
        let shared = gated(weights, "shared_expert.", x);
        out.iter_mut().zip(&shared).for_each(|(out, y)| *out += gate * y);
    }
    (out, Some(routes))
}

/// `down( silu(gate x) · up x )`
fn gated(weights: Scope<'_>, module: &str, x: &[f64]) -> Vec<f64> {
    let gate = weights.linear(&format!("{module}gate_proj"), x);
    let up = weights.linear(&format!("{module}up_proj"), x);
    let inner: Vec<f64> = gate.iter().zip(&up).map(|(gate, up)| silu(*gate) * up).collect();
    weights.linear(&format!("{module}down_proj"), &inner)
}

fn route(config: &Config, logits: &[f64]) -> Routes {
    assert_eq!(logits.len(), config.experts, "the router has one row per expert");
    let probabilities = softmax(logits);
    let mut order: Vec<usize> = (0..config.experts).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));

    let mut experts = order[..config.top_k].to_vec();
    let gap = order
        .get(config.top_k)
        .map_or(f64::INFINITY, |&rejected| logits[experts[config.top_k - 1]] - logits[rejected]);
    experts.sort_unstable();
    let chosen = experts.iter().map(|&expert| probabilities[expert]);
    let sum: f64 = if config.norm_topk_prob { chosen.clone().sum() } else { 1.0 };
    let weights = chosen.map(|probability| probability / sum).collect();
    Routes { experts, weights, gap }
}
