//! The CPU backend: the fastest instruction set the machine has, on all of its cores.
//!
//! ```text
//! host          views, shapes, who runs in parallel        shared with the reference
//! cpu           which instruction set runs a kernel        dispatch
//! cpu/*         the kernels, once, in safe code            matmul, attention, delta_net, …
//! cpu/lanes     sixteen floats and what can be done        the trait between the two
//! cpu/arch/*    instruction sets                           the only intrinsics
//! ```

use fm_format::{quant::QuantFormat, record::MatrixShape};

use crate::{
    backend::{AttentionShape, Clamp, Numerics, Rope, View},
    host::{ConvWeight, Host, HostBuf, HostKvView, Kernels, Parallel, RowSelection},
    reference::{delta_net::DeltaStep, quantise::Block},
};

// Functions over `Lanes` must disappear into the one function that is compiled for an instruction
// set; where the compiler keeps one, its intrinsics become calls.
#[allow(clippy::inline_always)]
mod activation;
#[allow(clippy::inline_always)]
mod arch;
#[allow(clippy::inline_always)]
mod attention;

mod codebook;
#[allow(clippy::inline_always)]
mod decode;
#[allow(clippy::inline_always)]
mod delta_net;
mod dispatch;
#[allow(clippy::inline_always)]
mod ints;
#[allow(clippy::inline_always)]
mod lanes;
#[allow(clippy::inline_always)]
mod matmul;
#[allow(clippy::inline_always)]
mod panels;
mod pool;
#[allow(clippy::inline_always)]
pub mod probe;
#[allow(clippy::inline_always)]
mod quantise;
#[allow(clippy::inline_always)]
mod rope;
#[allow(clippy::inline_always)]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "only these have tiles")
)]
mod tiles;
#[allow(clippy::inline_always)]
mod vector;

pub use dispatch::Level;
use dispatch::on_level;
pub use panels::arranges;

/// The CPU backend.
pub type Cpu = Host<Simd>;

impl Cpu {
    /// The fastest instruction set of this machine on `threads` threads, the caller included, or on as many as
    /// the system gives.
    ///
    /// # Panics
    /// If `threads` is zero.
    pub fn open(threads: usize) -> Self {
        Self::with_level(Level::best(), threads)
    }

    /// As [`Cpu::open`] on a chosen instruction set.
    ///
    /// # Panics
    /// If `threads` is zero.
    pub fn with_level(level: Level, threads: usize) -> Self {
        Self::new(Simd { level, pool: pool::Pool::new(threads), numerics: Numerics::F32 })
    }

    /// The same with other numerics.
    ///
    /// # Panics
    /// If these are the reference's.
    pub fn in_numerics(self, numerics: Numerics) -> Self {
        assert_ne!(numerics, Numerics::Reference, "the CPU is not the reference");
        Self::new(Simd { numerics, ..self.into_kernels() })
    }

    /// The instruction set in use.
    pub fn level(&self) -> Level {
        self.kernels().level
    }
}

/// Inner loops of [`Cpu`].
#[derive(Debug)]
pub struct Simd {
    level: Level,
    pool: pool::Pool,
    numerics: Numerics,
}

impl Parallel for Simd {
    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn for_each_chunk<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        self.pool.for_each_chunk(data, chunk, task);
    }

    fn for_each_pair<A: Send, B: Send>(
        &self,
        a: (&mut [A], usize),
        b: (&mut [B], usize),
        task: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        self.pool.for_each_pair(a, b, task);
    }
}

impl Kernels for Simd {
    fn numerics(&self) -> Numerics {
        self.numerics
    }

    fn arranges(&self, shape: MatrixShape) -> bool {
        self.numerics.quantises() && panels::arranges(shape)
    }

    fn arrange(&self, shape: MatrixShape, bytes: &mut [u8], scratch: &mut Vec<u8>) {
        panels::arrange(self, self.level, shape, bytes, scratch);
    }

    fn quantise<const LINES: usize>(&self, row: &[f32], blocks: &mut [Block<LINES>]) {
        self.level.run(quantise::Quantise { row, blocks });
    }

    fn wants_rows_spaced(&self, format: &QuantFormat, rows: usize) -> bool {
        on_level!(self.level, lanes => panels::wants_rows_spaced(lanes, format, rows))
    }

    fn arranged_dots(
        &self,
        format: &'static QuantFormat,
        panels: &[u8],
        x: &RowSelection<'_>,
        out: &mut [&mut [f32]],
    ) {
        on_level!(self.level, with products, lanes => panels::dots(lanes, format, panels, x, out));
    }

    fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        self.level.run(vector::Dot { a, b })
    }

    fn axpy(&self, scale: f32, x: &[f32], acc: &mut [f32]) {
        self.level.run(vector::Axpy { scale, x, acc });
    }

    fn ask_for(&self, values: &[f32]) {
        self.level.run(vector::AskFor { values });
    }

    fn row_dots(
        &self,
        format: &'static QuantFormat,
        row: &[u8],
        x: &RowSelection<'_>,
        out: &mut [f32],
    ) {
        self.rows_dots(format, row, x, out);
    }

    fn rows_dots(
        &self,
        format: &'static QuantFormat,
        rows: &[u8],
        x: &RowSelection<'_>,
        out: &mut [f32],
    ) {
        on_level!(self.level, lanes => matmul::rows_dots(lanes, format, rows, x, out));
    }

    fn silu_mul(&self, up: &[f32], gate: &mut [f32]) {
        self.level.run(activation::SiluMul { up, gate });
    }

    fn clamped_mul(&self, clamp: Clamp, up: &[f32], gate: &mut [f32]) {
        self.level.run(activation::ClampedMul { clamp, up, gate });
    }

    fn mul_silu(&self, z: &[f32], x: &mut [f32]) {
        self.level.run(activation::MulSilu { z, x });
    }

    fn sigmoid_mul(&self, gate: &[f32], x: &mut [f32]) {
        self.level.run(activation::SigmoidMul { gate, x });
    }

    fn softmax(&self, logits: &[f32], scores: &mut [f32]) {
        self.level.run(activation::Softmax { logits, scores });
    }

    fn rope_row(&self, spec: &Rope<'_, HostBuf>, position: u32, x: &mut [f32]) {
        self.level.run(rope::RopeRow { spec, position, x });
    }

    fn attend(
        &self,
        shape: AttentionShape,
        q: View<'_, HostBuf>,
        (kv, head): (HostKvView<'_>, usize),
        position: usize,
        out: &mut [f32],
    ) {
        match kv {
            HostKvView::F32(kv) => {
                self.level.run(attention::Attend { shape, q, kv, head, position, out });
            }
            HostKvView::F16(kv) => {
                self.level.run(attention::Attend { shape, q, kv, head, position, out });
            }
        }
    }

    fn conv_row(&self, weight: ConvWeight<'_>, history: &mut [&mut [f32]], x: &mut [f32]) {
        self.level.run(delta_net::ConvRow { weight, history, x });
    }

    fn delta_steps(&self, steps: &[DeltaStep<'_>], state: &mut [f32], out: &mut [f32]) {
        self.level.run(delta_net::Steps { inputs: steps, state, out });
    }
}

#[cfg(test)]
mod tests;
