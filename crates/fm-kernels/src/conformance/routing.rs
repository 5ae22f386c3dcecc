//! Choice of experts.

use crate::{
    backend::{Backend, DeviceResult, RouterScale, RouterSpec, Routes, View},
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
}

impl Case for Route {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let &Self { rows, experts, spec, tied } = self;
        let logits: Vec<f32> = if tied {
            (0..rows * experts).map(|i| (i % 3) as f32).collect()
        } else {
            noise(1, rows * experts).iter().map(|x| x * 6.0).collect()
        };
        let logits = device.upload(&logits)?;
        let scores = device.alloc(rows * experts)?;
        let mut routes = Routes { scores, ids: Vec::new(), weights: Vec::new(), top_k: spec.top_k };
        device.route(spec, View::new(&logits, rows, experts), &mut routes)?;
        let ids = routes.ids.iter().map(|id| id.index() as f32);
        let mut all: Vec<f32> = ids.chain(routes.weights.iter().copied()).collect();
        all.extend(read_all(device, &routes.scores, rows * experts)?);
        Ok(all)
    }
}

/// [`Backend::route`]: the same experts in the same order, of equals the lower index.
pub fn route<B: Backend>(device: &B) {
    for (experts, top_k) in [(1, 1), (8, 2), (60, 4), (128, 8), (512, 10)] {
        for scale in [RouterScale::Plain, RouterScale::Renormalised] {
            for (rows, tied) in [(1, false), (5, false), (2, true)] {
                let spec = RouterSpec { top_k, scale };
                // Relative to the largest expert index, so scaled: weights still count.
                let tolerance = tolerance::ELEMENTWISE_F32 / experts as f32;
                Route { rows, experts, spec, tied }.check(device, tolerance);
            }
        }
    }
}
