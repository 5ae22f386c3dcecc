//! What the bytes of a model are held against.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use fm_format::{
    container::{
        manifest::Checksum,
        recorded::{Found, Recorded},
    },
    source::{Checkpoint, TensorChecksum},
};
use fm_model::spec::ModelSpec;

use crate::error::EngineError;

/// How bytes are checked when they arrive: those of experts whenever they are read, those of the
/// trunk once, before there is a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// Against the container's checksums.
    Container,
    /// Against checksums that `verify --record` made.
    Recorded,
    /// Only that all of them arrive.
    Lengths,
    /// The same, though `verify --record` made checksums: they are of other files, or damaged.
    Stale,
}

impl Checks {
    /// The words of the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Container => "checksums of the container",
            Self::Recorded => "recorded checksums",
            Self::Lengths => "lengths only",
            Self::Stale => "lengths only, as the recorded checksums are of other files",
        }
    }
}

/// Checksums of the trunk, if there are any. A published checkpoint gets those that were recorded of
/// it, if these are its files; its experts get theirs on the way.
pub(super) fn checksums(
    checkpoint: &Checkpoint,
    spec: &mut ModelSpec,
    cache_dir: Option<&Path>,
) -> Result<(Checks, Vec<TensorChecksum>), EngineError> {
    let of = |tensors: &BTreeMap<String, Checksum>| {
        let known = tensors.iter().filter_map(|(name, checksum)| {
            let extent = checkpoint.tensors.get(name)?.extent;
            Some(TensorChecksum { name: name.clone(), extent, checksum: checksum.0 })
        });
        known.collect()
    };
    if let Some(container) = &checkpoint.container {
        return Ok((Checks::Container, of(&container.manifest.trunk.tensors)));
    }
    let Some(cache_dir) = cache_dir else { return Ok((Checks::Lengths, Vec::new())) };
    let recorded = match Recorded::find(cache_dir, checkpoint)? {
        Found::Current(recorded) => recorded,
        Found::Stale(_) => return Ok((Checks::Stale, Vec::new())),
        Found::Absent => return Ok((Checks::Lengths, Vec::new())),
    };
    recorded.check_small_files(checkpoint)?;
    Ok(if recorded.fill(Arc::make_mut(&mut spec.catalog)) {
        (Checks::Recorded, of(&recorded.tensors))
    } else {
        (Checks::Stale, Vec::new())
    })
}
