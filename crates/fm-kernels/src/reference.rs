//! The scalar definitions: safe, slow, obviously right. Every other kernel is compared with them.

pub mod activation;
pub mod attention;
pub mod delta_net;
pub mod matmul;
pub mod norm;
// Compiled for every instruction set, inside the function that calls it.
#[allow(clippy::inline_always)]
pub mod quantise;
pub mod rope;
pub mod router;

use fm_format::{quant::QuantFormat, record::MatrixShape};

use crate::{
    backend::Numerics,
    host::{Host, Kernels, Parallel, RowSelection},
};

/// The scalar backend: one thread, f32 in source order.
pub type Reference = Host<Scalar>;

impl Reference {
    /// The scalar backend.
    pub fn open() -> Self {
        Host::new(Scalar::PLAIN)
    }

    /// What a backend with these numerics is compared with: matrices that it arranges stay rows
    /// here, and are multiplied with what its quantised activations stand for.
    pub fn in_numerics(numerics: Numerics) -> Self {
        if !numerics.quantises() {
            return Self::open();
        }
        Host::new(Scalar { numerics, arranges: crate::cpu::arranges })
    }
}

/// Inner loops of [`Reference`].
#[derive(Clone, Copy, Debug)]
pub struct Scalar {
    numerics: Numerics,
    arranges: fn(MatrixShape) -> bool,
}

impl Scalar {
    /// Nothing is arranged, nothing quantised.
    pub(crate) const PLAIN: Self = Self { numerics: Numerics::Reference, arranges: |_| false };
}

impl Parallel for Scalar {
    fn threads(&self) -> usize {
        1
    }

    fn for_each_chunk<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        data.chunks_mut(chunk).enumerate().for_each(|(i, chunk)| task(i, chunk));
    }

    fn for_each_pair<A: Send, B: Send>(
        &self,
        (a, a_chunk): (&mut [A], usize),
        (b, b_chunk): (&mut [B], usize),
        task: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        let pairs = a.chunks_mut(a_chunk).zip(b.chunks_mut(b_chunk));
        pairs.enumerate().for_each(|(i, (a, b))| task(i, a, b));
    }
}

impl Kernels for Scalar {
    fn numerics(&self) -> Numerics {
        self.numerics
    }

    fn arranges(&self, shape: MatrixShape) -> bool {
        (self.arranges)(shape)
    }

    fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    fn axpy(&self, scale: f32, x: &[f32], acc: &mut [f32]) {
        acc.iter_mut().zip(x).for_each(|(acc, x)| *acc += scale * x);
    }

    fn row_dots(
        &self,
        format: &'static QuantFormat,
        row: &[u8],
        x: &RowSelection<'_>,
        out: &mut [f32],
    ) {
        matmul::row_dots(format, row, x, out);
    }

    fn delta_steps(&self, steps: &[delta_net::DeltaStep<'_>], state: &mut [f32], out: &mut [f32]) {
        for (step, out) in steps.iter().zip(out.chunks_exact_mut(steps[0].value.len())) {
            delta_net::delta_step(*step, state, out);
        }
    }
}
