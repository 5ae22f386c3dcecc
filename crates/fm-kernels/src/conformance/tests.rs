//! The suite passes what is right and notices what is wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fm_format::quant::QuantFormat;

use crate::{
    backend::{AttentionShape, Clamp, Numerics, Rope, View},
    host::{ConvWeight, Host, HostBuf, HostKvView, Kernels, Parallel, RowSelection},
    reference::{Scalar, delta_net::DeltaStep},
};

mod reference {
    crate::conformance!([crate::reference::Reference::open()]);
}

/// What [`Wrong`] gets wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    ShortDot,
    UnweightedAxpy,
    LastColumn,
    SeesNeighbours,
    NoDecay,
    NoUp,
    NoOne,
    NoGate,
    NoSilu,
    NoSum,
    NextPosition,
    SeesTheFuture,
    StaleHistory,
}

/// The reference with one mistake.
#[derive(Debug)]
struct Wrong(Mistake);

impl Parallel for Wrong {
    fn threads(&self) -> usize {
        1
    }
    fn for_each_chunk<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        Scalar::PLAIN.for_each_chunk(data, chunk, task);
    }
    fn for_each_pair<A: Send, B: Send>(
        &self,
        a: (&mut [A], usize),
        b: (&mut [B], usize),
        task: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        Scalar::PLAIN.for_each_pair(a, b, task);
    }
}

impl Kernels for Wrong {
    fn numerics(&self) -> Numerics {
        Numerics::F32
    }

    fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        let len = if self.0 == Mistake::ShortDot { a.len() - 1 } else { a.len() };
        Scalar::PLAIN.dot(&a[..len], &b[..len])
    }
    fn axpy(&self, scale: f32, x: &[f32], acc: &mut [f32]) {
        Scalar::PLAIN.axpy(if self.0 == Mistake::UnweightedAxpy { 1.0 } else { scale }, x, acc);
    }
    fn row_dots(
        &self,
        format: &'static QuantFormat,
        row: &[u8],
        x: &RowSelection<'_>,
        out: &mut [f32],
    ) {
        Scalar::PLAIN.row_dots(format, row, x, out);
        if self.0 == Mistake::LastColumn {
            let mut weights = vec![0.0; x.cols()];
            format.decode_row(row, &mut weights);
            let last = x.cols() - 1;
            out.iter_mut().enumerate().for_each(|(i, out)| *out -= weights[last] * x.row(i)[last]);
        }
        if self.0 == Mistake::SeesNeighbours && x.rows() > 1 {
            out.iter_mut().for_each(|out| *out = f32::from_bits(out.to_bits() ^ 1));
        }
    }
    fn silu_mul(&self, up: &[f32], gate: &mut [f32]) {
        let ones = vec![1.0; up.len()];
        Scalar::PLAIN.silu_mul(if self.0 == Mistake::NoUp { &ones } else { up }, gate);
    }
    fn clamped_mul(&self, clamp: Clamp, up: &[f32], gate: &mut [f32]) {
        let one = if self.0 == Mistake::NoOne { 1.0 } else { 0.0 };
        let up: Vec<f32> = up.iter().map(|up| up - one).collect();
        Scalar::PLAIN.clamped_mul(clamp, &up, gate);
    }
    fn mul_silu(&self, z: &[f32], x: &mut [f32]) {
        if self.0 != Mistake::NoSilu {
            Scalar::PLAIN.mul_silu(z, x);
        }
    }
    fn sigmoid_mul(&self, gate: &[f32], x: &mut [f32]) {
        if self.0 != Mistake::NoGate {
            Scalar::PLAIN.sigmoid_mul(gate, x);
        }
    }
    fn softmax(&self, logits: &[f32], scores: &mut [f32]) {
        Scalar::PLAIN.softmax(logits, scores);
        if self.0 == Mistake::NoSum {
            scores.iter_mut().for_each(|score| *score *= 1.001);
        }
    }
    fn rope_row(&self, spec: &Rope<'_, HostBuf>, position: u32, x: &mut [f32]) {
        Scalar::PLAIN.rope_row(spec, position + u32::from(self.0 == Mistake::NextPosition), x);
    }
    fn attend(
        &self,
        shape: AttentionShape,
        q: View<'_, HostBuf>,
        kv: (HostKvView<'_>, usize),
        position: usize,
        out: &mut [f32],
    ) {
        let len = out.len() / q.rows;
        for (row, out) in out.chunks_exact_mut(len).enumerate() {
            // Within a block only: the next one may not exist.
            let future = self.0 == Mistake::SeesTheFuture && (position + row) % 64 != 63;
            let position = position + row + usize::from(future);
            Scalar::PLAIN.attend(shape, q.rows(row, 1), kv, position, out);
        }
    }
    fn conv_row(&self, weight: ConvWeight<'_>, history: &mut [&mut [f32]], x: &mut [f32]) {
        let before: Vec<Vec<f32>> = history.iter().map(|past| past.to_vec()).collect();
        Scalar::PLAIN.conv_row(weight, history, x);
        if self.0 == Mistake::StaleHistory {
            history.iter_mut().zip(before).for_each(|(past, before)| past.copy_from_slice(&before));
        }
    }
    fn delta_steps(&self, steps: &[DeltaStep<'_>], state: &mut [f32], out: &mut [f32]) {
        let mut steps = steps.to_vec();
        if self.0 == Mistake::NoDecay {
            steps.iter_mut().for_each(|step| step.decay = 1.0);
        }
        Scalar::PLAIN.delta_steps(&steps, state, out);
    }
}

#[test]
fn every_mistake_is_noticed() {
    type Check = fn(&[Host<Wrong>]);
    let checks: [(Mistake, Check); 18] = [
        (Mistake::ShortDot, super::rms_norm),
        (Mistake::ShortDot, super::rms_norm_heads),
        (Mistake::UnweightedAxpy, super::scatter_rows),
        (Mistake::UnweightedAxpy, super::expert_rows),
        (Mistake::UnweightedAxpy, super::combine_rows),
        (Mistake::LastColumn, super::matmul),
        (Mistake::LastColumn, super::matmul_heads),
        (Mistake::SeesNeighbours, super::a_row_does_not_see_its_neighbours),
        (Mistake::NoDecay, super::delta_net),
        (Mistake::NoUp, super::silu_mul),
        (Mistake::NoOne, super::clamped_mul),
        (Mistake::NoOne, super::expert_rows),
        (Mistake::NoGate, super::sigmoid_mul),
        (Mistake::NoSilu, super::gated_norm_heads),
        (Mistake::NoSum, super::route),
        (Mistake::NextPosition, super::rope),
        (Mistake::SeesTheFuture, super::attention),
        (Mistake::StaleHistory, super::causal_conv),
    ];
    for (mistake, check) in checks {
        let device = [Host::new(Wrong(mistake))];
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&device)));
        assert!(outcome.is_err(), "{mistake:?} went unnoticed");
    }
}

#[test]
#[should_panic(expected = "value 1")]
fn not_a_number_is_not_close() {
    super::assert_close(&"", &[1.0, f32::NAN], &[1.0, 1.0], 1.0);
}

#[test]
fn noise_fills_its_range_and_depends_on_the_seed() {
    let values = super::noise(1, 10_000);
    let mean = values.iter().sum::<f32>() / 10_000.0;
    assert!(mean.abs() < 0.02, "{mean}");
    assert!(values.iter().all(|x| x.abs() < 1.0));
    assert!(values.iter().any(|x| *x > 0.99) && values.iter().any(|x| *x < -0.99));
    assert_ne!(values[..10], super::noise(2, 10));
    assert_eq!(values[..10], super::noise(1, 10));
}
