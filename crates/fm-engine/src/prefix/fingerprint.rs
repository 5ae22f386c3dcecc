//! What must not continue each other.

use std::{
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use fm_kernels::backend::{KvFormat, Numerics};
use fm_model::spec::{FfnSpec, ModelSpec};
use xxhash_rust::xxh3::Xxh3Default;

use crate::{Engine, backends::cpu_features};

/// What of the options changes what a model computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) numerics: Numerics,
    pub(crate) kv: KvFormat,
    /// Experts per token, if not the model's own number.
    pub(crate) top_k: Option<usize>,
}

impl Arithmetic {
    /// Tells apart states of a model with these `weights` that must not continue each other.
    pub(crate) fn identity(self, weights: u128, spec: &ModelSpec) -> u128 {
        let mut hash = Xxh3Default::new();
        hash.update(&weights.to_le_bytes());
        hash.update(format!("{} {}", self.numerics, self.kv).as_bytes());
        for layer in &spec.layers {
            if let FfnSpec::Moe(moe) = &layer.ffn {
                let chosen = self.top_k.unwrap_or(moe.routing.top_k);
                hash.update(&(chosen as u64).to_le_bytes());
            }
        }
        hash.digest128()
    }
}

impl Engine {
    /// Tells apart what must not continue each other: sessions of other files, numerics, devices and
    /// instructions, and of other builds of `program`, whose kernels may round otherwise.
    pub fn state_fingerprint(&self, program: Option<&Path>) -> u128 {
        let mut hash = Xxh3Default::new();
        hash.update(&self.identity.to_le_bytes());
        let (device, numerics) = (self.device.name(), self.numerics.name());
        for word in [self.model_type, device, numerics, cpu_features()] {
            hash.update(word.as_bytes());
            hash.update(&[0]);
        }
        for file in self.files.iter().map(PathBuf::as_path).chain(program) {
            let data = fs::metadata(file).ok();
            let changed = data.as_ref().and_then(|data| data.modified().ok());
            let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let changed = changed.map_or(0, |time| time.as_nanos());
            hash.update(&data.map_or(0, |data| data.len()).to_le_bytes());
            hash.update(&changed.to_le_bytes());
        }
        hash.digest128()
    }
}
