//! All matrices of a trunk, read by several threads before the decoder asks for them one by one.
//!
//! One thread spends as long on page faults, on copying out of the page cache and on interleaving as
//! several do; matrices go to whoever is free, the largest first, so that none is left alone at the
//! end. Every matrix is read by one thread from its beginning to its end, which can check it on the
//! way. They lie side by side, see [`WeightSlab`].

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use fm_format::{source::Files, together::together};
use fm_kernels::{WeightBytes, WeightSlab};

use super::matrix::read_into;
use crate::{
    error::LoadError,
    ffi,
    spec::{MatrixRef, ModelSpec, for_each_tensor},
};

/// More threads than this read no faster from any disk or memory we met.
const THREADS_MAX: usize = 8;

/// Matrices that have been read and not been asked for yet, by name. Selections of rows of one
/// tensor share it.
#[derive(Debug, Default)]
pub(super) struct Staged {
    waiting: HashMap<String, Vec<(MatrixRef, WeightBytes)>>,
}

impl Staged {
    /// Reads every matrix of `spec`, and again what could not be checked on the way.
    pub(super) fn read(files: &Files, spec: &ModelSpec, threads: usize) -> Result<Self, LoadError> {
        let mut wanted = Vec::new();
        for_each_tensor(spec, &mut |matrix| wanted.push(matrix.clone()), &mut |_| {});
        wanted.sort_by_key(|matrix| Reverse(matrix.shape.bytes()));
        let threads = threads.clamp(1, THREADS_MAX.min(wanted.len().max(1)));
        let sizes = || wanted.iter().map(|matrix| matrix.shape.bytes());
        let mut slab = WeightSlab::zeroed(sizes().map(WeightSlab::needed).sum());
        let places: Vec<_> = sizes().map(|bytes| slab.take(bytes)).collect();
        let left = Mutex::new(wanted.iter().zip(places).enumerate());
        let queue = Queue { files, left, failed: AtomicBool::new(false) };
        let parts = together(threads, || queue.work()).into_iter();
        let parts = parts.collect::<Result<Vec<_>, LoadError>>()?;
        files.check_rest(threads)?;
        let mut waiting: HashMap<String, Vec<_>> = HashMap::new();
        for (index, bytes) in parts.into_iter().flatten() {
            let matrix = wanted[index].clone();
            waiting.entry(matrix.name.clone()).or_default().push((matrix, bytes));
        }
        Ok(Self { waiting })
    }

    /// Keeps everything in memory that has been read.
    pub(super) fn lock(&self) -> Result<(), LoadError> {
        let matrices = || self.waiting.values().flatten().map(|(_, bytes)| bytes);
        let bytes = matrices().map(|bytes| bytes.len() as u64).sum();
        let refused = |source| LoadError::Lock { bytes, limit: ffi::lock_limit(), source };
        matrices().try_for_each(|bytes| ffi::lock(bytes)).map_err(refused)
    }

    /// Hands over a matrix, once.
    pub(super) fn take(&mut self, matrix: &MatrixRef) -> Option<WeightBytes> {
        let waiting = self.waiting.get_mut(&matrix.name)?;
        let at = waiting.iter().position(|(staged, _)| staged == matrix)?;
        Some(waiting.swap_remove(at).1)
    }
}

/// What is to be read, and how far it is.
struct Queue<'a, I> {
    files: &'a Files,
    left: Mutex<I>,
    failed: AtomicBool,
}

/// A matrix, and where it goes to.
type Wanted<'a> = (usize, (&'a MatrixRef, WeightBytes));

impl<'a, I: Iterator<Item = Wanted<'a>>> Queue<'a, I> {
    /// Reads one matrix after the other until none is left or somebody has failed.
    fn work(&self) -> Result<Vec<(usize, WeightBytes)>, LoadError> {
        let mut done = Vec::new();
        while !self.failed.load(Ordering::Relaxed) {
            let next = self.left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, (matrix, mut bytes))) = next else { break };
            let read = read_into(self.files, matrix, &mut bytes);
            read.inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
            done.push((index, bytes));
        }
        Ok(done)
    }
}
