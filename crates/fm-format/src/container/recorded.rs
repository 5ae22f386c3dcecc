//! Checksums of a checkpoint as it was published, kept beside it in the cache directory.
//!
//! A published checkpoint has none. Once they are recorded, a flipped bit on the disk is an error
//! instead of a token. They hold for one directory and the files that were in it then: a weight file of
//! another length, header or time of change makes them stale, because it was replaced; one that
//! is the same in all of these and has other bytes is corrupt. Small files decide about arithmetic and
//! tokens just as weights do, and people edit them: one that is another is neither, and the model is refused
//! until it is recorded again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    COPIED, file_checksum,
    manifest::{Checksum, PartChecksums},
};
use crate::{
    error::{FileChange, FormatError},
    record::{Catalog, LayerRecords},
    source::{Checkpoint, header_bytes, is_absent},
};

/// The version this build writes, and the only one it reads.
const VERSION: u32 = 0;

/// What was recorded of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    version: u32,
    /// The directory, for people who look into the cache.
    dir: String,
    files: Vec<RecordedFile>,
    /// Of every small file that a container would carry along, by name; nothing if an older build made the
    /// record, which left them out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub small_files: Option<BTreeMap<String, Checksum>>,
    /// Of every trunk tensor, by name.
    pub tensors: BTreeMap<String, Checksum>,
    /// Per decoder layer, per record; `null` for layers without routed experts.
    pub layers: Vec<Option<Vec<PartChecksums>>>,
}

/// What tells whether a file is still the one that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedFile {
    name: String,
    bytes: u64,
    /// Nanoseconds since 1970; 0 where the file system keeps no times.
    modified_ns: u64,
    header: Checksum,
}

/// What the cache directory has on a checkpoint.
#[derive(Clone, Debug)]
pub enum Found {
    /// Nothing: it was never recorded.
    Absent,
    /// Something of files that have been touched or replaced since; nothing if it is damaged.
    Stale(Option<Recorded>),
    /// Checksums of these very files.
    Current(Recorded),
}

impl Recorded {
    /// Prepares a record of the files of `checkpoint` as they are now.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn new(checkpoint: &Checkpoint) -> Result<Self, FormatError> {
        Ok(Self {
            version: VERSION,
            dir: checkpoint.path.display().to_string(),
            files: identify(checkpoint)?,
            small_files: Some(small_files(&checkpoint.path)?),
            tensors: BTreeMap::new(),
            layers: Vec::new(),
        })
    }

    /// Where the checksums of the checkpoint in `dir` are kept.
    ///
    /// # Errors
    /// If `dir` has no absolute path.
    pub fn path(cache_dir: &Path, dir: &Path) -> Result<PathBuf, FormatError> {
        let absolute =
            fs::canonicalize(dir).map_err(|source| FormatError::Io { path: dir.into(), source })?;
        let key = xxh3_64(absolute.as_os_str().as_encoded_bytes());
        Ok(cache_dir.join("checksums").join(format!("{key:016x}.json")))
    }

    /// Looks up what was recorded of `checkpoint`.
    ///
    /// # Errors
    /// If a file of the checkpoint cannot be read. A record that is damaged, or cannot be read, counts as stale.
    pub fn find(cache_dir: &Path, checkpoint: &Checkpoint) -> Result<Found, FormatError> {
        let path = Self::path(cache_dir, &checkpoint.path)?;
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(_) if is_absent(&path) => return Ok(Found::Absent),
            Err(_) => return Ok(Found::Stale(None)),
        };
        let recorded = serde_json::from_slice::<Self>(&text).ok();
        let Some(recorded) = recorded.filter(|recorded| recorded.version == VERSION) else {
            return Ok(Found::Stale(None));
        };
        let current = recorded.files == identify(checkpoint)?;
        Ok(if current { Found::Current(recorded) } else { Found::Stale(Some(recorded)) })
    }

    /// The name of the first file that is another one `now`: of another name, length or header, not the same file with
    /// another time of change.
    pub fn replaced<'n>(&'n self, now: &'n Self) -> Option<&'n str> {
        let key = |file: &'n RecordedFile| (file.name.as_str(), file.bytes, file.header);
        let same = self.files.iter().zip(&now.files).take_while(|(a, b)| key(a) == key(b)).count();
        let other = now.files.get(same).or_else(|| self.files.get(same))?;
        Some(&other.name)
    }

    /// The same checksums, of the files as they are now.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn renewed(self, checkpoint: &Checkpoint) -> Result<Self, FormatError> {
        Ok(Self { files: identify(checkpoint)?, ..self })
    }

    /// Compares the small files of `checkpoint` with those that were recorded, if they were.
    ///
    /// # Errors
    /// If one is another, is gone or is new, or cannot be read.
    pub fn check_small_files(&self, checkpoint: &Checkpoint) -> Result<(), FormatError> {
        let Some(recorded) = &self.small_files else { return Ok(()) };
        let found = small_files(&checkpoint.path)?;
        let names: BTreeSet<_> = recorded.keys().chain(found.keys()).collect();
        names.into_iter().try_for_each(|name| {
            let change = match (recorded.get(name), found.get(name)) {
                (Some(recorded), Some(found)) if recorded == found => return Ok(()),
                (Some(_), Some(_)) => FileChange::Other,
                (Some(_), None) => FileChange::Gone,
                (None, _) => FileChange::New,
            };
            Err(FormatError::RecordedFile { path: checkpoint.path.join(name), change })
        })
    }

    /// Gives every record of `catalog` its checksums; `false`, and nothing is changed, if they are
    /// of another catalog.
    pub fn fill(&self, catalog: &mut Catalog) -> bool {
        let counts = |layer: &Option<LayerRecords>| layer.as_ref().map(|l| l.records.len());
        let recorded = self.layers.iter().map(|layer| layer.as_ref().map(Vec::len));
        if !recorded.eq(catalog.layers.iter().map(counts)) {
            return false;
        }
        for (layer, checksums) in catalog.layers.iter_mut().zip(&self.layers) {
            let records = layer.iter_mut().flat_map(|layer| &mut layer.records);
            for (record, checksums) in records.zip(checksums.iter().flatten()) {
                record.checksums = Some(checksums.0);
            }
        }
        true
    }

    /// The text of the file.
    ///
    /// # Panics
    /// Never: a record consists of strings and numbers.
    pub fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("strings and numbers have a text")
    }
}

/// What a container would carry along. A GGUF file has all of it in its header.
fn small_files(path: &Path) -> Result<BTreeMap<String, Checksum>, FormatError> {
    let there = COPIED.into_iter().filter(|name| !is_absent(&path.join(name)));
    there.map(|name| Ok((name.to_owned(), file_checksum(&path.join(name))?))).collect()
}

fn identify(checkpoint: &Checkpoint) -> Result<Vec<RecordedFile>, FormatError> {
    let identify = |path: &PathBuf| {
        let metadata =
            fs::metadata(path).map_err(|source| FormatError::Io { path: path.into(), source })?;
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(RecordedFile {
            name,
            bytes: metadata.len(),
            modified_ns: modified.map_or(0, |at| at.as_nanos() as u64),
            header: Checksum(xxh3_64(&header_bytes(path)?)),
        })
    };
    checkpoint.files.iter().map(identify).collect()
}
