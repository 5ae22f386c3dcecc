//! Matrix times vector, for every format that a model has, from memory that no cache holds.

use std::time::Instant;

use fm_format::record::{MatrixRole, MatrixShape};
use fm_kernels::{
    Backend, WeightBytes,
    backend::{Numerics, QMatrix, View, ViewMut},
    conformance::noise_weights,
};
use fm_model::spec::{ModelSpec, for_each_tensor};

use super::{Rate, Rated, activations};
use crate::{backends::on_device, engine::Planned, error::EngineError};

/// Bytes of weights that a round walks through, far more than a cache holds.
const SET_BYTES: usize = 1 << 28;

/// Rows of noise that a matrix repeats: the larger ones of a model would take seconds to make.
const NOISE_ROWS: usize = 64;

/// Every format of a model, in the shape that most of its bytes have, most bytes first.
pub fn shapes(spec: &ModelSpec) -> Vec<MatrixShape> {
    let mut counted: Vec<(MatrixShape, u64)> = Vec::new();
    let mut count = |shape: MatrixShape, times: usize| {
        let bytes = (shape.bytes() * times) as u64;
        match counted.iter_mut().find(|(known, _)| *known == shape) {
            Some((_, sum)) => *sum += bytes,
            None => counted.push((shape, bytes)),
        }
    };
    for_each_tensor(spec, &mut |matrix| count(matrix.shape, 1), &mut |_| {});
    for layer in spec.catalog.layers.iter().flatten() {
        for role in [MatrixRole::Gate, MatrixRole::Up, MatrixRole::Down] {
            count(layer.layout.shape(role), layer.records.len());
        }
    }
    counted.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut shapes: Vec<MatrixShape> = Vec::new();
    for (shape, _) in counted {
        if shapes.iter().all(|known| known.format != shape.format) {
            shapes.push(shape);
        }
    }
    shapes
}

/// A round of products with matrices of `shape` on the device that the model would run on.
///
/// # Errors
/// If the device fails.
pub fn matvec(planned: &Planned, shape: MatrixShape) -> Result<Rated, EngineError> {
    on_device!(planned, device => on(device, shape))
}

fn on<B: Backend<Bytes = [u8]>>(device: B, shape: MatrixShape) -> Result<Rated, EngineError> {
    let noise = noise_weights(MatrixShape { rows: shape.rows.min(NOISE_ROWS), ..shape }, 1);
    let bytes: Vec<u8> = noise.iter().copied().cycle().take(shape.bytes()).collect();
    let count = (SET_BYTES / shape.bytes()).max(1);
    let arranged = device.arranges(shape);
    let set = (0..count).map(|_| {
        let mut packed = device.upload_packed(WeightBytes::from(&bytes[..]))?;
        if arranged {
            device.arrange(shape, packed.as_mut())?;
        }
        Ok::<_, EngineError>(packed)
    });
    let set: Vec<B::Packed> = set.collect::<Result<_, _>>()?;
    let x = device.upload(&activations(shape.cols))?;
    let mut acts = device.acts(1, shape.cols)?;
    device.prepare(View::new(&x, 1, shape.cols), &mut acts)?;
    let mut y = device.alloc(shape.rows)?;
    let mut result = vec![0.0; shape.rows];
    let numerics = match device.numerics() {
        // What is not arranged is multiplied in floats.
        Numerics::Int15 | Numerics::Int8 if !arranged => Numerics::F32,
        own => own,
    };
    let round = move || {
        let started = Instant::now();
        for matrix in &set {
            let matrix = QMatrix { bytes: matrix.as_ref(), shape, arranged };
            device.matmul(matrix, &acts, ViewMut::new(&mut y, 1, shape.rows))?;
        }
        // Waits for all of it, on devices that run behind.
        device.read(View::new(&y, 1, shape.rows), &mut result)?;
        Ok(Rate { bytes: (set.len() * shape.bytes()) as u64, elapsed: started.elapsed() })
    };
    Ok(Rated { numerics, round: Box::new(round) })
}
