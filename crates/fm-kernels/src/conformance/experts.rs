//! Several experts at once.

use fm_format::quant::{FORMATS, QuantFormat};

use crate::backend::{
    Activation, Backend, Combine, DeviceResult, ExpertCall, ExpertRow, ExpertScratch,
    ExpertWeights, View, ViewMut,
};

use super::{Case, Weights, bits::bits, noise, read_all};
use crate::tolerance;

/// Experts of one activation; the `i`-th has `rows[i]` rows.
#[derive(Debug)]
struct Experts {
    format: &'static QuantFormat,
    rows: Vec<usize>,
    /// By one [`Backend::expert_rows`] per expert instead.
    one_by_one: bool,
}

impl Case for Experts {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let (hidden, ffn, tokens, count) = (512, 256, 4, self.rows.len());
        let matrix = |shape, seed| Weights::noise(device, self.format, shape, seed);
        let mut experts = Vec::new();
        for seed in (0..3 * count as u64).step_by(3) {
            let gate = matrix((ffn, hidden), seed)?;
            let up = matrix((ffn, hidden), seed + 1)?;
            experts.push((gate, up, matrix((hidden, ffn), seed + 2)?));
        }
        let all: usize = self.rows.iter().sum();
        let rows: Vec<ExpertRow> = (0..all as u32)
            // Backwards, so that no result lands where it would by chance.
            .map(|i| ExpertRow { row: i % 4, target: all as u32 - 1 - i, weight: 1.0 })
            .collect();
        let call = |at: usize| {
            let (gate, up, down) = &experts[at];
            let first: usize = self.rows[..at].iter().sum();
            let weights = ExpertWeights {
                gate: gate.matrix(),
                up: up.matrix(),
                down: down.matrix(),
                activation: Activation::Silu,
                biases: None,
            };
            ExpertCall { weights, rows: &rows[first..][..self.rows[at]] }
        };
        let x = device.upload(&noise(4, tokens * hidden))?;
        let mut acts = device.acts(tokens, hidden)?;
        device.prepare(View::new(&x, tokens, hidden), &mut acts)?;
        let mut scratch = ExpertScratch {
            gate: device.alloc(count.max(tokens) * ffn)?,
            up: device.alloc(count.max(tokens) * ffn)?,
            acts: device.acts(count.max(tokens), ffn)?,
            y: device.alloc(count.max(tokens) * hidden)?,
        };
        let mut out = device.upload(&noise(5, all * hidden))?;
        if self.one_by_one {
            for at in 0..count {
                let ExpertCall { weights, rows } = call(at);
                let out = ViewMut::new(&mut out, all, hidden);
                device.expert_rows(&weights, &acts, rows, &mut scratch, Combine::Store, out)?;
            }
        } else {
            let out = ViewMut::new(&mut out, all, hidden);
            device.experts(count, &call, &acts, &mut scratch, out)?;
        }
        read_all(device, &out, all * hidden)
    }
}

/// [`Backend::experts`], and that it gives the bits of one expert after the other.
///
/// # Panics
/// If one bit differs.
pub fn experts<B: Backend>(device: &B) {
    for format in &FORMATS {
        for rows in [vec![], vec![1], vec![1; 8], vec![1, 3, 1], vec![1; 19]] {
            let together = Experts { format, rows, one_by_one: false };
            together.check(device, tolerance::chained(device.numerics()));
            let bits = |case: &Experts| bits(&case.run(device).expect("the device runs"));
            let one_by_one = Experts { one_by_one: true, rows: together.rows.clone(), ..together };
            assert!(bits(&together) == bits(&one_by_one), "{together:?}");
        }
    }
}
