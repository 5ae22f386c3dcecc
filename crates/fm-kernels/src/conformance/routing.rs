//! Choice of experts.

use crate::{
    backend::{
        Backend, DeviceResult, RouterGroups, RouterLogits, RouterScale, RouterScoring, RouterSpec,
        Routes, View,
    },
    tolerance,
};

use super::{Case, noise, read_all};

/// Experts, weights and all scores of some rows, as numbers.
#[derive(Debug)]
struct Route {
    rows: usize,
    experts: usize,
    spec: RouterSpec,
    /// Equal logits instead of noise.
    tied: bool,
    /// With a bias that makes every key negative.
    biased: bool,
}

impl Case for Route {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let &Self { rows, experts, spec, tied, biased } = self;
        let logits: Vec<f32> = if tied {
            (0..rows * experts).map(|i| (i % 3) as f32).collect()
        } else {
            noise(1, rows * experts).iter().map(|x| x * 6.0).collect()
        };
        let bias = noise(2, experts);
        let bias = bias.iter().map(|x| if tied { -8.0 } else { x - 8.0 }).collect::<Vec<_>>();
        let (logits, bias) = (device.upload(&logits)?, device.upload(&bias)?);
        let scores = device.alloc(rows * experts)?;
        let mut routes = Routes { scores, ids: Vec::new(), weights: Vec::new(), top_k: spec.top_k };
        let logits = View::new(&logits, rows, experts);
        let router = RouterLogits { logits, bias: biased.then_some(&bias) };
        device.route(spec, router, &mut routes)?;
        let ids = routes.ids.iter().map(|id| id.index() as f32);
        let mut all: Vec<f32> = ids.chain(routes.weights.iter().copied()).collect();
        all.extend(read_all(device, &routes.scores, rows * experts)?);
        Ok(all)
    }
}

/// [`Backend::route`]: the same experts in the same order, of equals the lower index.
pub fn route<B: Backend>(devices: &[B]) {
    use RouterScale::{Plain, Renormalised};
    use RouterScoring::{Sigmoid, Softmax, SoftmaxOfChosen};
    let ways = [
        (Softmax, Plain, 1.0, false),
        (Softmax, Renormalised, 1.0, false),
        (Sigmoid, Plain, 1.5, true),
        (Sigmoid, Renormalised, 2.5, true),
        (SoftmaxOfChosen, Renormalised, 1.0, false),
    ];
    let shapes =
        [(1, 1, None), (8, 2, None), (60, 4, None), (128, 8, None), (512, 10, None)].into_iter();
    let grouped = [(8, 2, (4, 2)), (15, 4, (3, 1)), (256, 8, (8, 4))].map(
        |(experts, top_k, (count, chosen))| (experts, top_k, Some(RouterGroups { count, chosen })),
    );
    for (experts, top_k, groups) in shapes.chain(grouped) {
        for (scoring, scale, factor, biased) in ways {
            for (rows, tied) in [(1, false), (5, false), (2, true)] {
                let spec = RouterSpec { top_k, scoring, scale, groups, factor };
                // Relative to the largest expert index, so scaled: weights still count.
                let tolerance = tolerance::ELEMENTWISE_F32 / experts as f32;
                Route { rows, experts, spec, tied, biased }.check(devices, tolerance);
            }
        }
    }
}
