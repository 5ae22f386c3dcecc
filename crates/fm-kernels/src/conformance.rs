//! What every backend must agree on with the scalar reference, operation by operation and format
//! by format, and what it must give bit for bit whatever stands beside a row.
//!
//! A backend is held to all of it by one line among its tests:
//!
//! ```ignore
//! fm_kernels::conformance!([Cpu::open(2)]);
//! ```
//!
//! Devices of one kind and of the same numerics are checked together: to compute what they must give takes longer
//! than all of them take to give it.

// Conformance checks are tests: they panic, and `expect` is how they say why.
use fm_format::quant::QuantFormat;
use fm_format::record::MatrixShape;

use crate::{
    WeightBytes,
    backend::{Backend, DeviceResult, QMatrix, View},
    reference::Reference,
};

mod bits;
mod elementwise;
mod experts;
mod matmul;
mod noise;
mod routing;
mod sequence;

use bits::bits;
pub use bits::{a_prompt_may_be_chunked_anywhere, a_row_does_not_see_its_neighbours};
pub use elementwise::{
    add, add_bias, buffers, clamped_mul, gated_norm_heads, rms_norm, rms_norm_heads, rope,
    sigmoid_mul, silu_mul,
};
pub use experts::{expert_rows, expert_rows_as_products, experts};
pub use matmul::{
    combine_rows, embed, matmul, matmul_each, matmul_heads, matmul_rows, scatter_rows,
};
use noise::noise;
pub use noise::noise_weights;
pub use routing::route;
pub use sequence::{attention, causal_conv, delta_net, kv_copy_block, kv_formats};

/// Stamps the whole suite out for one backend, a test per operation.
///
/// It takes devices of the same numerics, as an array or a vector. If there are none, this machine has no such
/// device, and the tests say so instead of passing silently.
#[macro_export]
macro_rules! conformance {
    ($devices:expr) => {
        $crate::conformance! { @each $devices;
            a_prompt_may_be_chunked_anywhere a_row_does_not_see_its_neighbours
            add add_bias attention buffers causal_conv clamped_mul combine_rows delta_net embed expert_rows
            expert_rows_as_products experts gated_norm_heads kv_copy_block kv_formats matmul matmul_each matmul_heads matmul_rows rms_norm rms_norm_heads rope route
            scatter_rows sigmoid_mul silu_mul
        }
    };
    (@each $devices:expr; $($operation:ident)*) => {$(
        #[test]
        fn $operation() {
            match &$devices[..] {
                [] => $crate::conformance::skipped(stringify!($operation)),
                devices => $crate::conformance::$operation(devices),
            }
        }
    )*};
}

/// Says that a test had no device to run on.
#[expect(clippy::print_stderr, reason = "a test that did not run must not look like one that did")]
pub fn skipped(operation: &str) {
    eprintln!("skipped {operation}: this machine has no such device");
}

/// One operation on given operands.
trait Case: std::fmt::Debug {
    /// What it gives on `device`.
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>>;

    /// Compares each of `devices`, which have the same numerics, with the reference. `tolerance` is relative to
    /// the largest value, and absolute where all are small.
    ///
    /// # Panics
    /// If one differs by more, or has other numerics.
    fn check<B: Backend>(&self, devices: &[B], tolerance: f32) {
        let numerics = devices[0].numerics();
        // What a device quantises differs too much from what it does not, to say anything of products.
        let reference = Reference::in_numerics(numerics);
        let want = self.run(&reference).expect("the reference cannot fail");
        for device in devices {
            assert_eq!(
                device.numerics(),
                numerics,
                "{device:?} is compared with the same reference"
            );
            let got = self.run(device).expect("the device runs");
            assert_close(&(self, device), &got, &want, tolerance);
        }
    }

    /// Holds what each of `devices` gives to what it gives for `other`, bit for bit.
    ///
    /// # Panics
    /// If one bit differs.
    fn check_bits<B: Backend>(&self, devices: &[B], other: &Self) {
        for device in devices {
            let run = |case: &Self| bits(&case.run(device).expect("the device runs"));
            assert!(run(self) == run(other), "{self:?} and {other:?} on {device:?}");
        }
    }
}

/// # Panics
/// If a value of `got` is further from `want` than `tolerance` times the largest of `want` or 1.
fn assert_close(case: &dyn std::fmt::Debug, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{case:?}");
    let largest = want.iter().fold(1.0_f32, |largest, x| largest.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (got - want).abs() / largest;
        // Written so that not-a-number fails.
        assert!(off <= tolerance, "{case:?}: value {i} is {got}, want {want}, off by {off:e}");
    }
}

/// A weight matrix of noise, on a device.
struct Weights<B: Backend> {
    packed: B::Packed,
    shape: MatrixShape,
    arranged: bool,
}

impl<B: Backend> Weights<B> {
    fn noise(
        device: &B,
        format: &'static QuantFormat,
        (rows, cols): (usize, usize),
        seed: u64,
    ) -> DeviceResult<Self> {
        let shape = MatrixShape { rows, cols, format };
        Self::of(device, shape, &noise_weights(shape, seed))
    }

    /// As [`Weights::noise`], but the rows stay rows.
    fn noise_rows(
        device: &B,
        format: &'static QuantFormat,
        (rows, cols): (usize, usize),
        seed: u64,
    ) -> DeviceResult<Self> {
        let shape = MatrixShape { rows, cols, format };
        Self::rows_of(device, shape, &noise_weights(shape, seed))
    }

    /// The rows stay rows.
    fn rows_of(device: &B, shape: MatrixShape, bytes: &[u8]) -> DeviceResult<Self> {
        Ok(Self { packed: device.upload_packed(WeightBytes::from(bytes))?, shape, arranged: false })
    }

    /// Arranged, if the device does so.
    fn of(device: &B, shape: MatrixShape, bytes: &[u8]) -> DeviceResult<Self> {
        let mut weights = Self::rows_of(device, shape, bytes)?;
        weights.arranged = device.arranges(shape);
        if weights.arranged {
            device.arrange(shape, weights.packed.as_mut())?;
        }
        Ok(weights)
    }

    fn matrix(&self) -> QMatrix<'_, B::Bytes> {
        QMatrix { bytes: self.packed.as_ref(), shape: self.shape, arranged: self.arranged }
    }
}

/// All values of a buffer.
fn read_all<B: Backend>(device: &B, buf: &B::Buf, len: usize) -> DeviceResult<Vec<f32>> {
    let mut values = vec![0.0; len];
    device.read(View::new(buf, 1, len), &mut values)?;
    Ok(values)
}

#[cfg(test)]
mod tests;
