//! Brings described tensors into memory, piece by piece: no second copy of a large tensor exists.

mod identity;
mod matrix;
mod staging;

use std::cell::RefCell;

use fm_format::{
    record::{Extent, MatrixShape},
    source::{Dtype, Files},
};
use fm_kernels::{
    Backend,
    backend::{DeviceResult, Product, QMatrix, View, ViewMut},
};
use half::{bf16, f16};
use xxhash_rust::xxh3::Xxh3Default;

use self::staging::Staged;
pub use self::{identity::identity, matrix::read_matrix};
use crate::{
    error::LoadError,
    spec::{
        MatrixRef, MatrixSource, ModelSpec, Projection, TiedTensor, VectorRef, VectorTransform,
        for_each_tensor,
    },
};

/// Bytes of a tensor that are read at once: they are still in the cache of the core when they are
/// checked and interleaved.
const READ_BYTES: usize = 1 << 18;

/// Reads what a spec describes and hands it to a device.
#[derive(Debug)]
pub struct Loader<'a, B> {
    device: &'a B,
    files: &'a Files,
    threads: usize,
    memory: WeightMemory,
    staged: RefCell<Option<Staged>>,
}

/// What the system may do with the memory of matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightMemory {
    /// Write it to swap space when memory is short.
    #[default]
    Pageable,
    /// Nothing: it stays.
    Locked,
}

impl WeightMemory {
    /// Its name, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pageable => "pageable",
            Self::Locked => "locked",
        }
    }
}

/// A weight matrix on a device.
#[derive(Debug)]
pub(crate) struct Matrix<B: Backend> {
    packed: B::Packed,
    pub(crate) shape: MatrixShape,
    arranged: bool,
}

impl<B: Backend> Matrix<B> {
    /// The matrix as operations take it.
    pub(crate) fn view(&self) -> QMatrix<'_, B::Bytes> {
        QMatrix { bytes: self.packed.as_ref(), shape: self.shape, arranged: self.arranged }
    }
}

/// A matrix with an optional bias, on a device.
#[derive(Debug)]
pub(crate) struct Linear<B: Backend> {
    pub(crate) weight: Matrix<B>,
    pub(crate) bias: Option<B::Buf>,
}

impl<B: Backend> Linear<B> {
    /// [`Linear::forward`] of several that read the same rows.
    pub(crate) fn forward_each<const N: usize>(
        device: &B,
        x: &B::Acts,
        mut each: [(&Self, ViewMut<'_, B::Buf>); N],
    ) -> DeviceResult {
        let products =
            each.each_mut().map(|(linear, y)| Product { w: linear.weight.view(), y: y.reborrow() });
        device.matmul_each(x, products)?;
        for (linear, y) in each {
            linear.add_bias(device, y)?;
        }
        Ok(())
    }

    /// `y = W x + bias`.
    pub(crate) fn forward(&self, device: &B, x: &B::Acts, y: ViewMut<'_, B::Buf>) -> DeviceResult {
        Self::forward_each(device, x, [(self, y)])
    }

    /// `y += bias`, if there is one.
    fn add_bias(&self, device: &B, y: ViewMut<'_, B::Buf>) -> DeviceResult {
        match &self.bias {
            Some(bias) => device.add_bias(View::new(bias, 1, y.cols), y),
            None => Ok(()),
        }
    }
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Reads from `files` with so many threads.
    pub fn new(device: &'a B, files: &'a Files, threads: usize) -> Self {
        let (memory, staged) = (WeightMemory::default(), RefCell::default());
        Self { device, files, threads, memory, staged }
    }

    /// The same loader for memory of this kind.
    #[must_use]
    pub fn into_memory(self, memory: WeightMemory) -> Self {
        Self { memory, ..self }
    }

    /// The device.
    pub(crate) fn device(&self) -> &'a B {
        self.device
    }

    /// See [`check_tied_head`].
    pub(crate) fn check_tied_head(&self, spec: &ModelSpec) -> Result<(), LoadError> {
        check_tied_head(self.files, spec)
    }

    /// Reads all matrices ahead. Tensors with a checksum have been checked then.
    pub(crate) fn stage(&self, spec: &ModelSpec) -> Result<(), LoadError> {
        let staged = Staged::read(self.files, spec, self.threads)?;
        if self.memory == WeightMemory::Locked {
            staged.lock()?;
        }
        self.staged.replace(Some(staged));
        Ok(())
    }

    /// A matrix whose rows stay rows: products with it are f32 in all numerics.
    pub(crate) fn exact(&self, matrix: &MatrixRef) -> Result<Matrix<B>, LoadError> {
        let bytes = match &mut *self.staged.borrow_mut() {
            Some(staged) => staged.take(matrix).expect("`for_each_tensor` names all that is read"),
            None => read_matrix(self.files, matrix)?,
        };
        let packed = self.device.upload_packed(bytes)?;
        Ok(Matrix { packed, shape: matrix.shape, arranged: false })
    }

    /// A matrix in the order that the device multiplies fastest, in the numerics in force.
    pub(crate) fn matrix(&self, matrix: &MatrixRef) -> Result<Matrix<B>, LoadError> {
        let mut loaded = self.exact(matrix)?;
        if self.device.arranges(loaded.shape) {
            self.device.arrange(loaded.shape, loaded.packed.as_mut())?;
            loaded.arranged = true;
        }
        Ok(loaded)
    }

    /// A projection, see [`Loader::matrix`].
    pub(crate) fn linear(&self, projection: &Projection) -> Result<Linear<B>, LoadError> {
        self.with_bias(self.matrix(&projection.weight)?, projection)
    }

    /// A projection that chooses or gates, see [`Loader::exact`].
    pub(crate) fn exact_linear(&self, projection: &Projection) -> Result<Linear<B>, LoadError> {
        self.with_bias(self.exact(&projection.weight)?, projection)
    }

    fn with_bias(
        &self,
        weight: Matrix<B>,
        projection: &Projection,
    ) -> Result<Linear<B>, LoadError> {
        let bias = projection.bias.as_ref().map(|bias| self.vector(bias)).transpose()?;
        Ok(Linear { weight, bias })
    }

    pub(crate) fn vector(&self, vector: &VectorRef) -> Result<B::Buf, LoadError> {
        Ok(self.device.upload(&read_vector(self.files, vector)?)?)
    }
}

/// A small tensor as f32, transformed.
///
/// # Errors
/// If a read fails or comes up short.
pub fn read_vector(files: &Files, vector: &VectorRef) -> Result<Vec<f32>, LoadError> {
    let bytes = files.read_extent(vector.extent)?;
    let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    let values: Vec<f32> = match vector.dtype {
        Dtype::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        Dtype::F16 => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
        Dtype::Bf16 => pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        found => {
            let tensor = vector.name.clone();
            return Err(LoadError::Dtype { tensor, expected: "F32, F16 or BF16", found });
        }
    };
    let values: Vec<f32> = match vector.transform {
        VectorTransform::Plain => values,
        VectorTransform::PlusOne => values.into_iter().map(|w| 1.0 + w).collect(),
        VectorTransform::EverySecond { from } => values.into_iter().skip(from).step_by(2).collect(),
        VectorTransform::NegExp => values.into_iter().map(|w| -w.exp()).collect(),
        VectorTransform::Transposed { cols } => (0..cols)
            .flat_map(|col| values.iter().skip(col).step_by(cols).copied().collect::<Vec<_>>())
            .collect(),
    };
    Ok(vector.rows.iter().flat_map(|rows| values[rows.clone()].iter().copied()).collect())
}

/// Compares what the files have for a head with the embedding that serves as one.
///
/// # Errors
/// If they differ, or a read fails.
pub fn check_tied_head(files: &Files, spec: &ModelSpec) -> Result<(), LoadError> {
    for TiedTensor { name, head, embed } in &spec.tied_head {
        for start in (0..head.bytes).step_by(READ_BYTES) {
            let bytes = (head.bytes - start).min(READ_BYTES as u64);
            let part = |all: Extent| Extent { offset: all.offset + start, bytes, ..all };
            if files.read_extent(part(*head))? != files.read_extent(part(*embed))? {
                return Err(LoadError::TiedHead { tensor: name.clone() });
            }
        }
    }
    Ok(())
}

/// Bytes of every matrix that go into [`fingerprint`] and [`identity()`].
const SAMPLE_BYTES: u64 = 4096;

/// Tells weights apart: all small tensors, and the beginning of every matrix of the trunk. Two
/// checkpoints of one model with other weights differ in it, a container and what it was made of do
/// not: what is known of the use of experts holds for both. States are told apart by [`identity()`].
///
/// # Errors
/// If a read fails or comes up short.
pub fn fingerprint(files: &Files, spec: &ModelSpec) -> Result<u128, LoadError> {
    let mut extents = Vec::new();
    let mut hash = Xxh3Default::new();
    hash.update(spec.model_type.as_bytes());
    for_each_tensor(
        spec,
        &mut |matrix| {
            let first = match matrix.source {
                MatrixSource::Plain(extent) => extent,
                MatrixSource::Planar { codes, .. } => codes,
            };
            extents.push(Extent { bytes: first.bytes.min(SAMPLE_BYTES), ..first });
        },
        &mut |_| {},
    );
    for_each_tensor(spec, &mut |_| {}, &mut |vector| extents.push(vector.extent));
    for extent in extents {
        hash.update(&files.read_extent(extent)?);
    }
    Ok(hash.digest128())
}
