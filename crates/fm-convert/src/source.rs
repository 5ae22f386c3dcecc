//! The checkpoint a container is made from, and what the container will consist of.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use fm_format::{
    FormatError,
    container::{
        CONFIG, COPIED, METADATA,
        manifest::{Checksum, FileEntry, Fingerprint},
    },
    record::LayerRecords,
    source::{Checkpoint, Files, gguf, is_absent},
};
use fm_model::{arch, load::check_tied_head, spec::ModelSpec};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{error::ConvertError, fingerprint};

/// A published checkpoint, opened.
pub(crate) struct Source {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) spec: ModelSpec,
    pub(crate) files: Files,
    /// The small files that exist, ascending.
    pub(crate) copied: Vec<Copied>,
    pub(crate) fingerprint: Fingerprint,
}

/// A small file of the container.
pub(crate) struct Copied {
    pub(crate) name: &'static str,
    origin: Origin,
    pub(crate) entry: FileEntry,
}

/// Where the bytes of a small file come from.
enum Origin {
    /// A file that is copied as it is.
    File(PathBuf),
    /// What is there in another form: what a GGUF file says before its tensors, or the configuration
    /// of packed files.
    Made(Vec<u8>),
}

impl Copied {
    fn new(name: &'static str, origin: Origin) -> Result<Self, ConvertError> {
        let entry = FileEntry { bytes: 0, xxh3: Checksum(0) };
        let mut copied = Self { name, origin, entry };
        copied.entry = copied.each_chunk(|_| Ok(()))?;
        Ok(copied)
    }

    /// Hands over the bytes piece by piece and says what they were.
    pub(crate) fn each_chunk(
        &self,
        mut take: impl FnMut(&[u8]) -> Result<(), ConvertError>,
    ) -> Result<FileEntry, ConvertError> {
        match &self.origin {
            Origin::File(path) => each_file_chunk(path, take),
            Origin::Made(bytes) => {
                take(bytes)?;
                Ok(FileEntry { bytes: bytes.len() as u64, xxh3: Checksum(xxh3_64(bytes)) })
            }
        }
    }
}

/// The small files of a checkpoint, ascending by name.
fn copied(checkpoint: &Checkpoint) -> Result<Vec<Copied>, ConvertError> {
    if checkpoint.metadata.is_some() {
        let bytes = gguf::without_tensors(&checkpoint.path)?;
        return Ok(vec![Copied::new(METADATA, Origin::Made(bytes))?]);
    }
    let mut copied = Vec::new();
    for name in COPIED {
        let path = checkpoint.path.join(name);
        if !is_absent(&path) {
            copied.push(Copied::new(name, Origin::File(path))?);
        } else if name == CONFIG {
            let text = serde_json::to_vec_pretty(&*arch::config(checkpoint)?);
            let text = text.expect("a JSON value has a text");
            copied.push(Copied::new(name, Origin::Made(text))?);
        }
    }
    Ok(copied)
}

impl Source {
    pub(crate) fn open(dir: &Path) -> Result<Self, ConvertError> {
        let checkpoint = Checkpoint::open(dir)?;
        if checkpoint.container.is_some() {
            return Err(ConvertError::ContainerSource { path: dir.into() });
        }
        let spec = arch::describe(&checkpoint)?;
        let files = Files::new(checkpoint.files.clone());
        check_tied_head(&files, &spec)?;
        let copied = copied(&checkpoint)?;
        let fingerprint = fingerprint::of(&checkpoint, &spec, &files, &copied)?;
        Ok(Self { checkpoint, spec, files, copied, fingerprint })
    }

    /// Layers with routed experts.
    pub(crate) fn layers(&self) -> impl Iterator<Item = (usize, &LayerRecords)> {
        let layers = self.spec.catalog.layers.iter().enumerate();
        layers.filter_map(|(index, layer)| Some((index, layer.as_ref()?)))
    }
}

/// Reads a file piece by piece and says what it was.
pub(crate) fn each_file_chunk(
    path: &Path,
    mut take: impl FnMut(&[u8]) -> Result<(), ConvertError>,
) -> Result<FileEntry, ConvertError> {
    use std::io::Read;
    let io_error = |source| FormatError::Io { path: path.into(), source };
    let mut file = File::open(path).map_err(io_error)?;
    let (mut hash, mut bytes) = (Xxh3::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer).map_err(io_error)?;
        if read == 0 {
            return Ok(FileEntry { bytes, xxh3: Checksum(hash.digest()) });
        }
        hash.update(&buffer[..read]);
        take(&buffer[..read])?;
        bytes += read as u64;
    }
}

/// Whether `out` is the source's directory or lies in it. `out` need not exist.
pub(crate) fn is_inside(out: &Path, dir: &Path) -> bool {
    let Ok(dir) = fs::canonicalize(dir) else { return false };
    let existing = existing_ancestor(out);
    fs::canonicalize(existing).is_ok_and(|existing| existing.starts_with(dir))
}

/// The path itself, or the closest directory above it that exists.
pub(crate) fn existing_ancestor(path: &Path) -> &Path {
    let exists = |path: &&Path| path.exists();
    let above = path.ancestors().filter(|path| !path.as_os_str().is_empty());
    above.into_iter().find(exists).unwrap_or(Path::new("."))
}
