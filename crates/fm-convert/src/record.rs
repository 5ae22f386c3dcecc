//! Makes checksums for a checkpoint that was published without, and keeps them in the cache
//! directory: see [`fm_format::container::recorded`].

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use fm_format::{
    container::{manifest::PartChecksums, recorded::Recorded},
    key::LayerIndex,
    source::{Checkpoint, Files},
};
use fm_model::arch;

use crate::{
    BUFFER_BYTES,
    disk::{Disk, RealDisk},
    error::ConvertError,
    progress::{Meter, OnProgress, Phase},
    records::each_batch,
    staged::{self, refusal},
    trunk::each_chunk,
};

/// What was recorded, and where.
#[derive(Clone, Debug)]
pub struct Written {
    /// The file in the cache directory.
    pub path: PathBuf,
    /// Small files.
    pub files: u64,
    /// Tensors of the trunk.
    pub tensors: u64,
    /// Routed experts.
    pub records: u64,
}

/// Reads the whole checkpoint in `dir` and records its checksums below `cache_dir`.
///
/// # Errors
/// If the checkpoint cannot be read or is a container, which has checksums of its own; if the cache
/// cannot be written, or if `report` asks to stop.
pub fn record(
    dir: &Path,
    cache_dir: &Path,
    report: &mut OnProgress<'_>,
) -> Result<Written, ConvertError> {
    let checkpoint = Checkpoint::open(dir)?;
    if checkpoint.container.is_some() {
        return Err(ConvertError::ContainerSource { path: dir.into() });
    }
    let spec = arch::describe(&checkpoint)?;
    // Before the bytes are read: a file that is replaced meanwhile makes the record stale.
    let mut recorded = Recorded::new(&checkpoint)?;
    let files = Files::new(checkpoint.files.clone());
    let trunk = spec.trunk_tensors.iter().map(|name| &checkpoint.tensors[name]);
    let bytes = trunk.clone().map(|tensor| tensor.extent.bytes).sum::<u64>();
    let mut meter = Meter::new(bytes + spec.catalog.bytes(), report);
    meter.enter(Phase::Trunk)?;
    for tensor in trunk {
        let checksum =
            each_chunk(&files, tensor.extent, |chunk| meter.advance(chunk.len() as u64))?;
        recorded.tensors.insert(tensor.name.clone(), checksum);
    }
    let mut records = 0;
    for (index, layer) in (0..).zip(&spec.catalog.layers) {
        let Some(layer) = layer else {
            recorded.layers.push(None);
            continue;
        };
        meter.enter(Phase::Experts(LayerIndex(index)))?;
        let mut checksums = Vec::with_capacity(layer.records.len());
        each_batch(&files, layer, BUFFER_BYTES, |_, batch| {
            let each = batch.chunks_exact(layer.layout.bytes());
            checksums.extend(each.map(|record| PartChecksums(layer.layout.checksums(record))));
            meter.advance(batch.len() as u64)
        })?;
        records += checksums.len() as u64;
        recorded.layers.push(Some(checksums));
    }
    let path = keep(&recorded, cache_dir, dir)?;
    let files = recorded.small_files.as_ref().map_or(0, BTreeMap::len) as u64;
    Ok(Written { path, files, tensors: spec.trunk_tensors.len() as u64, records })
}

/// Writes what was recorded of `dir` below `cache_dir`. Says where.
pub(crate) fn keep(
    recorded: &Recorded,
    cache_dir: &Path,
    dir: &Path,
) -> Result<PathBuf, ConvertError> {
    let path = Recorded::path(cache_dir, dir)?;
    if let Some(parent) = path.parent() {
        RealDisk.create_dir(parent).map_err(|source| refusal(parent, 0, source))?;
    }
    staged::write_file(&RealDisk, &path, |to| to.write(&recorded.to_text()))?;
    Ok(path)
}
