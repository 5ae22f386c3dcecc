//! The second half of a layer: routed experts with a shared one, or a dense FFN.
//!
//! Conventions held here: softmax over all experts before the choice, or over the chosen after it,
//! or sigmoids with a bias that chooses and does not weigh; renormalisation of the chosen weights;
//! the clamped activation; the shared expert's own gate is a sigmoid, where it has one; groups are
//! worth their two best; the factor on all weights.

use super::{
    config::{Config, Groups, Scoring},
    maths::{add, sigmoid, silu, softmax},
    weights::Scope,
};

/// Which experts a token goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    /// Chosen experts, ascending.
    pub experts: Vec<usize>,
    /// Their weights, in the order of `experts`.
    pub weights: Vec<f64>,
    /// Router logit (with sigmoids: biased score) of the last chosen expert minus that of the first
    /// rejected one; infinite if none is rejected. A small gap means that rounding may choose
    /// differently.
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
        return (gated(config, weights, "", x), None);
    }
    let routes = route(config, weights, &weights.linear("gate", x));
    let mut out = vec![0.0; x.len()];
    for (expert, weight) in routes.experts.iter().zip(&routes.weights) {
        let expert = gated(config, weights, &format!("experts.{expert}."), x);
        out.iter_mut().zip(&expert).for_each(|(out, y)| *out += weight * y);
    }
    if weights.has("shared_experts.gate_proj.weight") {
        out = add(&out, &gated(config, weights, "shared_experts.", x));
    }
    if config.is_hybrid() {
        let gate = sigmoid(weights.linear("shared_expert_gate", x)[0]);
        let shared = gated(config, weights, "shared_expert.", x);
        out.iter_mut().zip(&shared).for_each(|(out, y)| *out += gate * y);
    }
    (out, Some(routes))
}

/// `down( silu(gate x) · up x )`, or with the clamped activation.
fn gated(config: &Config, weights: Scope<'_>, module: &str, x: &[f64]) -> Vec<f64> {
    let gate = weights.linear(&format!("{module}gate_proj"), x);
    let up = weights.linear(&format!("{module}up_proj"), x);
    let inner = gate.iter().zip(&up).map(|(&gate, &up)| match config.clamped {
        None => silu(gate) * up,
        Some(clamped) => {
            let (gate, up) = (gate.min(clamped.limit), up.clamp(-clamped.limit, clamped.limit));
            (up + 1.0) * gate * sigmoid(clamped.alpha * gate)
        }
    });
    weights.linear(&format!("{module}down_proj"), &inner.collect::<Vec<_>>())
}

fn route(config: &Config, weights: Scope<'_>, logits: &[f64]) -> Routes {
    assert_eq!(logits.len(), config.experts, "the router has one row per expert");
    let (keys, scores): (Vec<f64>, Vec<f64>) = match config.scoring {
        Scoring::Softmax => (logits.to_vec(), softmax(logits)),
        Scoring::SoftmaxOfChosen => (logits.to_vec(), logits.to_vec()),
        Scoring::Sigmoid => {
            let scores: Vec<f64> = logits.iter().map(|logit| sigmoid(*logit)).collect();
            let names = ["e_score_correction_bias", "gate.e_score_correction_bias"];
            let name = names.into_iter().find(|name| weights.has(name)).expect("it is corrected");
            (add(&scores, &weights.get(name).data), scores)
        }
    };
    let (keys, group_gap) = match config.groups {
        Some(groups) => of_best_groups(groups, keys),
        None => (keys, f64::INFINITY),
    };
    let mut order: Vec<usize> = (0..config.experts).collect();
    order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]).then(a.cmp(&b)));

    let mut experts = order[..config.top_k].to_vec();
    let gap = order
        .get(config.top_k)
        .map_or(f64::INFINITY, |&rejected| keys[experts[config.top_k - 1]] - keys[rejected]);
    let gap = gap.min(group_gap);
    experts.sort_unstable();
    let mut chosen: Vec<f64> = experts.iter().map(|&expert| scores[expert]).collect();
    if config.scoring == Scoring::SoftmaxOfChosen {
        chosen = softmax(&chosen);
    }
    let sum: f64 = if config.norm_topk_prob { chosen.iter().sum() } else { 1.0 };
    let weights = chosen.iter().map(|score| score / sum * config.route_factor).collect();
    Routes { experts, weights, gap }
}

/// The keys of the experts in the best groups, minus infinity for all others, and by how much the
/// last chosen group is better than the first rejected one. A group is as good as the sum of its two
/// best keys.
fn of_best_groups(groups: Groups, keys: Vec<f64>) -> (Vec<f64>, f64) {
    let Groups { count, chosen } = groups;
    if chosen == count {
        return (keys, f64::INFINITY);
    }
    let size = keys.len() / count;
    let worth = |group: &[f64]| {
        let mut sorted = group.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted[0] + sorted[1]
    };
    let worths: Vec<f64> = keys.chunks(size).map(worth).collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| worths[b].total_cmp(&worths[a]).then(a.cmp(&b)));
    let gap = worths[order[chosen - 1]] - worths[order[chosen]];
    let open = &order[..chosen];
    let of_open =
        |(expert, key)| if open.contains(&(expert / size)) { key } else { f64::NEG_INFINITY };
    (keys.into_iter().enumerate().map(of_open).collect(), gap)
}
