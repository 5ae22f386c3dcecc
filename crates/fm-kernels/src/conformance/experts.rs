//! Experts: one over its rows, and several at once.

use std::{array, fmt};

use fm_format::{
    quant::{FORMATS, QuantFormat},
    record::MatrixShape,
};

use crate::{
    backend::{
        Activation, Backend, Clamp, Combine, DeviceResult, ExpertBiases, ExpertCall, ExpertRow,
        ExpertScratch, ExpertWeights, View, ViewMut, expert_by_products,
    },
    tolerance,
};

use super::{Case, Weights, matmul::ROWS, noise, noise_weights, read_all};

/// Some rows of twice as many, in another order than their targets.
fn scattered(count: u32) -> Vec<ExpertRow> {
    let row =
        |i| ExpertRow { row: 2 * i, target: 2 * count - 1 - 2 * i, weight: 0.5 - i as f32 / 8.0 };
    (0..count).map(row).collect()
}

/// Shape and packed bytes of the gate, the projection beside it and the projection down.
type PackedExpert = [(MatrixShape, Vec<u8>); 3];

fn noise_expert(
    format: &'static QuantFormat,
    (hidden, ffn): (usize, usize),
    seed: u64,
) -> PackedExpert {
    let shapes = [(ffn, hidden), (ffn, hidden), (hidden, ffn)];
    array::from_fn(|i| {
        let (rows, cols) = shapes[i];
        let shape = MatrixShape { rows, cols, format };
        (shape, noise_weights(shape, 3 * seed + i as u64))
    })
}

/// Hidden and inner width of experts that can be arranged, and no wider than that takes: whole panels of
/// whole units in any format, and several tasks of either product.
fn arranged_widths(format: &QuantFormat) -> (usize, usize) {
    let ffn = format.block_len.max(128);
    (2 * ffn, ffn)
}

/// An expert's matrices on a device.
fn upload<B: Backend>(device: &B, packed: &PackedExpert) -> DeviceResult<[Weights<B>; 3]> {
    let [gate, up, down] = packed;
    let matrix = |(shape, bytes): &(_, Vec<u8>)| Weights::of(device, *shape, bytes);
    Ok([matrix(gate)?, matrix(up)?, matrix(down)?])
}

const CLAMP: Clamp = Clamp { limit: 1.5, alpha: 1.702 };

/// What an expert's neurons do, `biased` or plain.
fn activation(biased: bool) -> Activation {
    if biased { Activation::Clamped(CLAMP) } else { Activation::Silu }
}

/// The biases of an expert: a part of `values` for each product.
fn biases<Buf>(values: &Buf, (hidden, ffn): (usize, usize)) -> ExpertBiases<'_, Buf> {
    let part = |offset, cols| View { offset, ..View::new(values, 1, cols) };
    ExpertBiases { gate: part(0, ffn), up: part(ffn, ffn), down: part(2 * ffn, hidden) }
}

/// One expert over the rows that chose it.
#[derive(Clone)]
struct Expert<'a> {
    packed: &'a PackedExpert,
    combine: Combine,
    /// Of `tokens`.
    rows: Vec<ExpertRow>,
    tokens: usize,
    /// With biases and the clamped activation.
    biased: bool,
    /// By [`expert_by_products`].
    by_products: bool,
}

impl fmt::Debug for Expert<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packed: [(gate, _), ..], combine, rows, biased, .. } = self;
        let (format, count) = (gate.format.name, rows.len());
        write!(f, "{combine:?} an expert of {format} with {count} rows, biased: {biased}")
    }
}

impl Case for Expert<'_> {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let (MatrixShape { rows: ffn, cols: hidden, .. }, _) = self.packed[0];
        let tokens = self.tokens;
        let [gate, up, down] = upload(device, self.packed)?;
        let values = device.upload(&noise(6, 2 * ffn + hidden))?;
        let expert = ExpertWeights {
            gate: gate.matrix(),
            up: up.matrix(),
            down: down.matrix(),
            activation: activation(self.biased),
            biases: self.biased.then(|| biases(&values, (hidden, ffn))),
        };
        let x = device.upload(&noise(4, tokens * hidden))?;
        let mut acts = device.acts(tokens, hidden)?;
        device.prepare(View::new(&x, tokens, hidden), &mut acts)?;
        let mut scratch = ExpertScratch {
            gate: device.alloc(tokens * ffn)?,
            up: device.alloc(tokens * ffn)?,
            acts: device.acts(tokens, ffn)?,
            y: device.alloc(tokens * hidden)?,
        };
        let mut out = device.upload(&noise(5, tokens * hidden))?;
        let view = ViewMut::new(&mut out, tokens, hidden);
        let (rows, combine) = (&self.rows, self.combine);
        if self.by_products {
            expert_by_products(device, &expert, &acts, rows, &mut scratch, combine, view)?;
        } else {
            device.expert_rows(&expert, &acts, rows, &mut scratch, combine, view)?;
        }
        read_all(device, &out, tokens * hidden)
    }
}

/// [`Backend::expert_rows`], stored and accumulated.
pub fn expert_rows<B: Backend>(devices: &[B]) {
    for format in &FORMATS {
        let hidden = 144_usize.next_multiple_of(format.block_len);
        let packed = &noise_expert(format, (hidden, 256), 1);
        for combine in [Combine::Store, Combine::Accumulate] {
            for rows in [&ROWS[..1], &ROWS] {
                for biased in [false, true] {
                    let (rows, tokens) = (rows.to_vec(), 6);
                    let expert =
                        Expert { packed, combine, rows, tokens, biased, by_products: false };
                    expert.check(devices, tolerance::chained(devices[0].numerics()));
                }
            }
        }
    }
}

/// [`Backend::expert_rows`] gives the bits of its products one after the other, for any number of rows.
///
/// # Panics
/// If one bit differs.
pub fn expert_rows_as_products<B: Backend>(devices: &[B]) {
    let check = |packed: &PackedExpert, count: u32, combine: Combine, biased: bool| {
        let (rows, tokens) = (scattered(count), 2 * count as usize);
        let fused = Expert { packed, combine, rows, tokens, biased, by_products: false };
        let parted = Expert { by_products: true, ..fused.clone() };
        fused.check_bits(devices, &parted);
    };
    for format in &FORMATS {
        let packed = noise_expert(format, arranged_widths(format), 1);
        check(&packed, 2, Combine::Store, false);
        check(&packed, 65, Combine::Accumulate, false);
        // How rows are cut, and what becomes of products, is no matter of the format.
        if format.name == "q4_0" {
            check(&packed, 65, Combine::Store, true);
            check(&packed, 130, Combine::Accumulate, false);
            check(&packed, 65, Combine::Accumulate, true);
        }
    }
}

/// Experts of one activation; the `i`-th has `rows[i]` rows.
struct Experts<'a> {
    /// They take turns: to make them takes longer than to compute them.
    packed: &'a [PackedExpert],
    rows: Vec<usize>,
    /// With biases and the clamped activation.
    biased: bool,
    /// By one [`Backend::expert_rows`] per expert instead.
    one_by_one: bool,
}

impl fmt::Debug for Experts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.packed[0][0].0.format;
        write!(f, "experts of {} with {:?} rows, biased: {}", format.name, self.rows, self.biased)
    }
}

impl Case for Experts<'_> {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let (MatrixShape { rows: ffn, cols: hidden, .. }, _) = self.packed[0][0];
        let (tokens, count) = (4, self.rows.len());
        let experts: Vec<_> =
            self.packed.iter().map(|packed| upload(device, packed)).collect::<DeviceResult<_>>()?;
        let all: usize = self.rows.iter().sum();
        let rows: Vec<ExpertRow> = (0..all as u32)
            // Backwards, so that no result lands where it would by chance.
            .map(|i| ExpertRow { row: i % 4, target: all as u32 - 1 - i, weight: 1.0 })
            .collect();
        let bias_values: Vec<_> = (0..count)
            .map(|at| device.upload(&noise(6 + at as u64, 2 * ffn + hidden)))
            .collect::<DeviceResult<_>>()?;
        let call = |at: usize| {
            let [gate, up, down] = &experts[at % experts.len()];
            let first: usize = self.rows[..at].iter().sum();
            let weights = ExpertWeights {
                gate: gate.matrix(),
                up: up.matrix(),
                down: down.matrix(),
                activation: activation(self.biased),
                biases: self.biased.then(|| biases(&bias_values[at], (hidden, ffn))),
            };
            ExpertCall { weights, rows: &rows[first..][..self.rows[at]] }
        };
        let x = device.upload(&noise(4, tokens * hidden))?;
        let mut acts = device.acts(tokens, hidden)?;
        device.prepare(View::new(&x, tokens, hidden), &mut acts)?;
        let room = all.max(tokens);
        let mut scratch = ExpertScratch {
            gate: device.alloc(room * ffn)?,
            up: device.alloc(room * ffn)?,
            acts: device.acts(room, ffn)?,
            y: device.alloc(room * hidden)?,
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
pub fn experts<B: Backend>(devices: &[B]) {
    for format in &FORMATS {
        let widths = arranged_widths(format);
        let packed: Vec<_> = (0..5).map(|seed| noise_expert(format, widths, seed)).collect();
        // One text; several; more experts, and more rows of one, than are computed together.
        let many: Vec<_> = (0..17).map(|at| 1 + at % 2).collect();
        // What becomes of products is no matter of the format.
        let biased = [vec![1; 8], many.clone()].map(|rows| (rows, true));
        let biased = biased.into_iter().filter(|_| format.name == "q4_0");
        let plain = [vec![], vec![1], vec![1; 8], vec![2, 17, 1], many];
        for (rows, biased) in plain.map(|rows| (rows, false)).into_iter().chain(biased) {
            let together = Experts { packed: &packed, rows, biased, one_by_one: false };
            together.check(devices, tolerance::chained(devices[0].numerics()));
            let one_by_one = Experts { one_by_one: true, rows: together.rows.clone(), ..together };
            together.check_bits(devices, &one_by_one);
        }
    }
}
