//! What must not continue each other.

use std::{
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use xxhash_rust::xxh3::Xxh3Default;

use crate::{Engine, backends::cpu_features};

impl Engine {
    /// Tells apart what must not continue each other: sessions of other files, numerics, devices and
    /// instructions, and of other builds of `program`, whose kernels may round otherwise.
    pub fn state_fingerprint(&self, program: Option<&Path>) -> u128 {
        let mut hash = Xxh3Default::new();
        hash.update(&self.identity.to_le_bytes());
        for word in [self.model_type, self.numerics.name(), cpu_features()] {
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
