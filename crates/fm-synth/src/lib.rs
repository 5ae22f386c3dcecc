//! Noise checkpoints of true geometries, so that real shapes can be measured without the weights.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use fm_synth::{Bits, Geometry, Synth};
//!
//! let geometry = Geometry::by_name("qwen3.5-397b").expect("a listed geometry");
//! let synth = Synth::new(geometry, 4, Bits::new(4)?, 1)?;
//! synth.write("/data/noise".as_ref(), &mut |_| ControlFlow::Continue(()))?;
//! # Ok::<(), fm_synth::SynthError>(())
//! ```
//!
//! What is written is a checkpoint as mlx-lm publishes it (or, with 16 bits, as Hugging Face does;
//! without the vision tower and the multi-token head of the Qwen3.5 originals), except for a
//! tokenizer. Its router has the skew and repetition of a trained one: see [`tape`].

#![forbid(unsafe_code)]

use std::{ops::ControlFlow, path::Path};

mod affine;
mod config_json;
mod error;
mod geometry;
mod layout;
mod matrix;
mod noise;
mod shard;
pub mod tape;
mod write;

use self::tape::Tape;
pub use self::{
    affine::Bits,
    error::SynthError,
    geometry::{Family, GEOMETRIES, Geometry, LinearShape},
};

/// A checkpoint to be written.
#[derive(Clone, Debug)]
pub struct Synth<'a> {
    geometry: &'a Geometry,
    layers: usize,
    bits: Bits,
    seed: u64,
}

/// How far a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tensors written so far.
    pub bytes_done: u64,
    /// Bytes of all tensors.
    pub bytes_total: u64,
}

impl<'a> Synth<'a> {
    /// The first `layers` layers of a geometry.
    ///
    /// # Errors
    /// If the geometry has fewer layers, or none were asked for.
    pub fn new(
        geometry: &'a Geometry,
        layers: usize,
        bits: Bits,
        seed: u64,
    ) -> Result<Self, SynthError> {
        if !(1..=geometry.layers).contains(&layers) {
            let (geometry, max) = (geometry.name, geometry.layers);
            return Err(SynthError::Layers { geometry, layers, max });
        }
        Ok(Self { geometry, layers, bits, seed })
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        layout::Layout::of(self).0.iter().map(layout::Tensor::bytes).sum()
    }

    /// What the routers will choose.
    pub fn tape(&self) -> Tape {
        Tape::new(self.geometry, self.bits, self.seed)
    }

    /// Writes the checkpoint into `dir`, which is empty or absent. The same description writes
    /// the same bytes. Holds a few megabytes beside the names of the tensors.
    ///
    /// `progress` is called after every few megabytes; if it breaks, or anything fails, all that
    /// was written is removed. Files are flushed to the disk and dropped from the page cache.
    ///
    /// # Errors
    /// If `dir` is occupied, its file system too small, a write fails, or `progress` breaks.
    pub fn write(
        &self,
        dir: &Path,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), SynthError> {
        write::write(self, dir, progress)
    }
}
