//! Norms, activations, rotary embedding: what happens value by value or head by head.

use crate::{
    backend::{Backend, Clamp, DeviceResult, Rope, RopeLayout, View, ViewMut},
    tolerance,
};

use super::{Case, noise, read_all};

/// Shapes `(rows, cols)` with columns that do not fill vectors, many rows, and a row that is worth sharing out.
const SHAPES: [(usize, usize); 7] =
    [(1, 1), (1, 16), (3, 40), (2, 77), (5, 1024), (300, 72), (1, 5120)];

/// An operation on a matrix that has neighbours left and right, which must survive.
#[derive(Debug)]
struct InColumns {
    operation: Operation,
    rows: usize,
    cols: usize,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    RmsNorm,
    RmsNormHeads,
    GatedNormHeads,
    AddBias,
    Add,
    SiluMul,
    ClampedMul,
    SigmoidMul,
    SigmoidMulByRow,
}

impl Case for InColumns {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let &Self { operation, rows, cols } = self;
        let stride = cols + 5;
        // Activations and gates are a few units large; beyond 20 the sigmoid saturates.
        let wide = |seed| noise(seed, rows * stride).iter().map(|x| x * 24.0).collect::<Vec<_>>();
        let (x, z) = (device.upload(&wide(1))?, device.upload(&wide(2))?);
        let mut out = device.upload(&wide(3))?;
        let heads = [80, 2, 1].into_iter().find(|heads| cols.is_multiple_of(*heads));
        let heads = heads.expect("one divides everything");
        let whole = device.upload(&noise(4, cols))?;
        let per_head = device.upload(&noise(5, cols / heads))?;
        let x = View::new(&x, rows, stride).columns(1, cols);
        let z = View::new(&z, rows, stride).columns(2, cols);
        let view = ViewMut::new(&mut out, rows, stride).columns(3, cols);
        match operation {
            Operation::RmsNorm => device.rms_norm(x, &whole, 1e-6, view),
            Operation::RmsNormHeads => device.rms_norm_heads(view, &per_head, 1e-6),
            Operation::GatedNormHeads => device.gated_norm_heads(view, z, &per_head, 1e-6),
            Operation::AddBias => device.add_bias(View::new(&whole, 1, cols), view),
            Operation::Add => device.add(x, view),
            Operation::SiluMul => device.silu_mul(x, view),
            Operation::ClampedMul => {
                device.clamped_mul(Clamp { limit: 7.0, alpha: 1.702 }, x, view)
            }
            Operation::SigmoidMul => device.sigmoid_mul(x, view),
            Operation::SigmoidMulByRow => device.sigmoid_mul(x.columns(0, 1), view),
        }?;
        read_all(device, &out, rows * stride)
    }
}

fn in_columns<B: Backend>(devices: &[B], operation: Operation) {
    for (rows, cols) in SHAPES {
        InColumns { operation, rows, cols }.check(devices, tolerance::ELEMENTWISE_F32);
    }
}

/// [`Backend::rms_norm`].
pub fn rms_norm<B: Backend>(devices: &[B]) {
    in_columns(devices, Operation::RmsNorm);
}

/// [`Backend::rms_norm_heads`].
pub fn rms_norm_heads<B: Backend>(devices: &[B]) {
    in_columns(devices, Operation::RmsNormHeads);
}

/// [`Backend::gated_norm_heads`].
pub fn gated_norm_heads<B: Backend>(devices: &[B]) {
    in_columns(devices, Operation::GatedNormHeads);
}

/// [`Backend::add_bias`].
pub fn add_bias<B: Backend>(devices: &[B]) {
    in_columns(devices, Operation::AddBias);
}

/// [`Backend::add`].
pub fn add<B: Backend>(devices: &[B]) {
    in_columns(devices, Operation::Add);
}

/// [`Backend::silu_mul`].
pub fn silu_mul<B: Backend>(devices: &[B]) {
    in_columns(devices, Operation::SiluMul);
}

/// [`Backend::clamped_mul`].
pub fn clamped_mul<B: Backend>(devices: &[B]) {
    in_columns(devices, Operation::ClampedMul);
}

/// [`Backend::sigmoid_mul`], element by element and row by row.
pub fn sigmoid_mul<B: Backend>(devices: &[B]) {
    in_columns(devices, Operation::SigmoidMul);
    in_columns(devices, Operation::SigmoidMulByRow);
}

/// Rotation of part of every head.
#[derive(Debug)]
struct Rotate {
    head_dim: usize,
    start: usize,
    pairs: usize,
    layout: RopeLayout,
    rows: usize,
}

impl Case for Rotate {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let &Self { head_dim, start, pairs, layout, rows } = self;
        let inv_freq: Vec<f32> =
            (0..pairs).map(|i| 1e4_f32.powf(-(i as f32) / pairs as f32)).collect();
        let inv_freq = &device.upload(&inv_freq)?;
        let positions: Vec<u32> = (0..rows as u32).map(|i| i * i + 3).collect();
        let (positions, amplitude) = (&positions[..], if start == 0 { 1.0 } else { 1.37 });
        let spec = Rope { head_dim, start, pairs, layout, inv_freq, amplitude, positions };
        let cols = 3 * head_dim;
        let mut x = device.upload(&noise(1, rows * (cols + 5)))?;
        device.rope(&spec, ViewMut::new(&mut x, rows, cols + 5).columns(2, cols))?;
        read_all(device, &x, rows * (cols + 5))
    }
}

/// [`Backend::rope`], whole heads and parts of heads, in both layouts.
pub fn rope<B: Backend>(devices: &[B]) {
    let parts = [
        (128, 0, 64),
        (40, 0, 20),
        (48, 0, 12),
        (48, 16, 16),
        (192, 128, 32),
        (10, 3, 3),
        (5, 1, 1),
    ];
    for (head_dim, start, pairs) in parts {
        for layout in [RopeLayout::HalfSplit, RopeLayout::Interleaved] {
            for rows in [1, 70] {
                let case = Rotate { head_dim, start, pairs, layout, rows };
                case.check(devices, tolerance::ELEMENTWISE_F32);
            }
        }
    }
}

/// Buffers hold what was put into them, view by view, and what was copied between them.
///
/// # Panics
/// If they do not.
pub fn buffers<B: Backend>(devices: &[B]) {
    devices.iter().for_each(buffers_of);
}

fn buffers_of<B: Backend>(device: &B) {
    let values = noise(1, 60);
    let mut buf = device.upload(&values).expect("the device has memory");
    let block: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let view = ViewMut::new(&mut buf, 6, 10).columns(4, 3).rows(1, 2);
    device.write(&block, view).expect("the device runs");
    let mut want = values.clone();
    want[14..17].copy_from_slice(&block[..3]);
    want[24..27].copy_from_slice(&block[3..]);
    assert_eq!(read_all(device, &buf, 60).expect("the device runs"), want);

    let mut corner = [0.0; 4];
    let view = View::new(&buf, 6, 10).rows(1, 2).columns(6, 2);
    device.read(view, &mut corner).expect("the device runs");
    assert_eq!(corner, [want[16], want[17], want[26], want[27]]);

    let mut wide = device.upload(&noise(2, 24)).expect("the device has memory");
    let view = ViewMut::new(&mut wide, 3, 8).columns(2, 3);
    device.copy(View::new(&buf, 6, 10).rows(2, 3).columns(1, 3), view).expect("the device runs");
    let last = ViewMut::new(&mut wide, 3, 8).columns(6, 2).rows(1, 2);
    device.zero(last).expect("the device runs");
    let mut copied = noise(2, 24);
    for i in 0..3 {
        copied[i * 8 + 2..][..3].copy_from_slice(&want[(i + 2) * 10 + 1..][..3]);
        if i > 0 {
            copied[i * 8 + 6..][..2].fill(0.0);
        }
    }
    assert_eq!(read_all(device, &wide, 24).expect("the device runs"), copied);

    let zeros = device.alloc(9).expect("the device has memory");
    assert_eq!(read_all(device, &zeros, 9).expect("the device runs"), [0.0; 9]);
}
