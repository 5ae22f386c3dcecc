//! Checkpoints as they are published: a directory with `config.json` and safetensors files, or a
//! GGUF file. Packed files of the first flash-moe and containers are opened as one, too.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    ops::Bound,
    path::{Path, PathBuf},
};

use crate::{
    container::{self, Container},
    error::FormatError,
    record::{FileIndex, LayerRecords},
};

mod files;
pub mod gguf;
pub mod packed;
pub mod safetensors;
mod tensor;

pub use files::{Files, TensorCheck, TensorChecksum};
use tensor::check_places;
pub use tensor::{Dtype, Tensor};

/// An opened checkpoint: its configuration and where every tensor lies. Holds no weights.
#[derive(Debug)]
pub struct Checkpoint {
    /// The directory, or the GGUF file: the first of them if there are several.
    pub path: PathBuf,
    /// `config.json`, unparsed: a model family reads what it knows. Null if there is metadata.
    pub config: serde_json::Value,
    /// What a GGUF file has instead of `config.json` and tokenizer files.
    pub metadata: Option<gguf::Metadata>,
    /// Weight files, addressed by [`FileIndex`].
    pub files: Vec<PathBuf>,
    /// Every tensor of every file, by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// What its manifest says, if this is a container.
    pub container: Option<Container>,
    /// Where the routed experts are, if files of their own say so, as in a container: `tensors` are
    /// then the trunk's. One entry per decoder layer; `None` for layers without routed experts.
    pub records: Option<Vec<Option<LayerRecords>>>,
}

/// How what git-lfs leaves in the place of a file begins: a line of text.
const LFS_POINTER: [u8; 4] = *b"vers";

/// What makes a directory hold changes to weights.
const ADAPTER: &str = "adapter_config.json";

/// Opens a directory if it is a container.
type OpenContainer = fn(&Path) -> Result<Option<Checkpoint>, FormatError>;

impl Checkpoint {
    /// Tensors whose names begin like this, by name.
    pub fn tensors_of(&self, prefix: &str) -> impl Iterator<Item = (&String, &Tensor)> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        self.tensors.range::<str, _>(from).take_while(move |(name, _)| name.starts_with(prefix))
    }

    /// Reads configuration and headers of the checkpoint or container at `path`: a directory, or
    /// any GGUF file of a model.
    ///
    /// # Errors
    /// If a file is missing, unreadable, truncated or contradicts itself. Every count and offset
    /// is checked against the file before anything is allocated for it.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        Self::open_with(path, container::open)
    }

    /// As [`Checkpoint::open`], but of a container's checksums none is looked at: for those who will
    /// compare them all.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_unchecked(path: &Path) -> Result<Self, FormatError> {
        Self::open_with(path, container::open_unchecked)
    }

    fn open_with(path: &Path, open_container: OpenContainer) -> Result<Self, FormatError> {
        match fs::metadata(path) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Err(FormatError::NotThere { path: path.into() })
            }
            Err(source) => Err(FormatError::Io { path: path.into(), source }),
            Ok(found) if found.is_dir() => Self::open_dir(path, open_container),
            Ok(found) if found.is_file() && (gguf::is_gguf(path) || gguf::has_magic(path)) => {
                gguf::open(path)
            }
            // Nor a pipe, which would be waited for.
            Ok(_) => Err(FormatError::PlainFile { path: path.into() }),
        }
    }

    fn open_dir(dir: &Path, open_container: OpenContainer) -> Result<Self, FormatError> {
        if let Some(container) = open_container(dir)? {
            return Ok(container);
        }
        // Other programs add it to the weights when they load them.
        let adapter = dir.join(ADAPTER);
        if adapter.exists() {
            return Err(FormatError::Adapter { path: adapter });
        }
        if packed::is_packed(dir) {
            return packed::open(dir);
        }
        let config_path = dir.join("config.json");
        if !config_path.is_file() {
            if dir.is_dir()
                && let Some(file) = gguf::find(dir)?
            {
                return gguf::open(&file);
            }
            return Err(FormatError::NoModel { path: dir.to_path_buf() });
        }
        let config = read_json(&config_path)?;
        let index_path = dir.join("model.safetensors.index.json");
        let promised =
            if index_path.is_file() { read_index(&index_path)? } else { BTreeMap::new() };
        let files = weight_files(dir, &promised)?;
        let mut tensors = BTreeMap::<String, Tensor>::new();
        for (index, path) in files.iter().enumerate() {
            for tensor in safetensors::read_header(path, FileIndex(index as u32))? {
                if let Some(first) = tensors.get(&tensor.name) {
                    return Err(FormatError::Duplicate {
                        first: files[first.extent.file.0 as usize].clone(),
                        second: path.clone(),
                        tensor: tensor.name,
                    });
                }
                tensors.insert(tensor.name.clone(), tensor);
            }
        }
        for (tensor, shard) in promised {
            let found = tensors.get(&tensor).map(|t| &files[t.extent.file.0 as usize]);
            let shard = dir.join(shard);
            if found != Some(&shard) {
                return Err(FormatError::MissingFromShard { tensor, shard });
            }
        }
        let path = dir.to_path_buf();
        let (metadata, container, records) = (None, None, None);
        Ok(Self { path, config, metadata, files, tensors, container, records })
    }

    /// Bytes of all tensors together; of a container, those of its trunk.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.extent.bytes).sum()
    }
}

/// The first bytes of a file, all of them.
fn file_prefix(path: &Path, bytes: u64) -> Result<Vec<u8>, FormatError> {
    use io::Read;
    let io_error = |source| FormatError::Io { path: path.into(), source };
    let mut prefix = vec![0; bytes as usize];
    let mut opened = File::open(path).map_err(io_error)?;
    opened.read_exact(&mut prefix).map_err(io_error)?;
    Ok(prefix)
}

/// The header of a weight file of whatever kind, unparsed but whole.
///
/// # Errors
/// If it cannot be read, or is longer than the file.
pub fn header_bytes(path: &Path) -> Result<Vec<u8>, FormatError> {
    if gguf::is_gguf(path) || gguf::has_magic(path) {
        gguf::header_bytes(path)
    } else if path.extension().is_some_and(|extension| extension == "bin") {
        packed::header_bytes(path)
    } else {
        safetensors::header_text(path)
    }
}

/// Reads the header of a weight file from wherever it comes, and says how long it is. `path` names
/// it; the file has `file_bytes` bytes, or the reader will not give more of it.
///
/// # Errors
/// If the header is longer than that, makes no sense, or cannot be read.
pub fn header_length(
    path: &Path,
    reader: impl io::Read,
    file_bytes: u64,
) -> Result<u64, FormatError> {
    if gguf::is_gguf(path) {
        gguf::header_length(path, reader, file_bytes)
    } else {
        safetensors::header_length(path, reader, file_bytes)
    }
}

/// Reads a JSON file.
///
/// # Errors
/// If it cannot be read or does not parse.
pub fn read_json(path: &Path) -> Result<serde_json::Value, FormatError> {
    let text = fs::read(path).map_err(|source| FormatError::Io { path: path.into(), source })?;
    if text.starts_with(&LFS_POINTER) {
        return Err(FormatError::LfsPointer { path: path.into() });
    }
    serde_json::from_slice(&text).map_err(|source| FormatError::Json { path: path.into(), source })
}

/// Whether nothing of this name is there. A link to nothing is there, and an error when it is read: a model must not
/// do without a file that somebody meant to give it.
pub fn is_absent(path: &Path) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    path.symlink_metadata().is_err_and(|error| matches!(error.kind(), NotFound | NotADirectory))
}

/// Tensor name to shard, from `model.safetensors.index.json`.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>, FormatError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let value = read_json(path)?;
    let index: Index = serde_json::from_value(value)
        .map_err(|source| FormatError::Json { path: path.into(), source })?;
    for shard in index.weight_map.values() {
        let plain = Path::new(shard).file_name().is_some_and(|name| name == shard.as_str());
        if !plain {
            return Err(FormatError::ShardName { index: path.into(), shard: shard.clone() });
        }
    }
    Ok(index.weight_map)
}

/// Whether a file lies hidden beside others, as those do that macOS leaves on foreign disks (`._model.gguf`).
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors") && !is_hidden(path)
}

/// The files an index names, or else every safetensors file of the directory, by name.
fn weight_files(
    dir: &Path,
    promised: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, FormatError> {
    let mut files: Vec<PathBuf> = if promised.is_empty() {
        let entries =
            fs::read_dir(dir).map_err(|source| FormatError::Io { path: dir.into(), source })?;
        entries.flatten().map(|entry| entry.path()).filter(|path| is_safetensors(path)).collect()
    } else {
        promised.values().map(|shard| dir.join(shard)).collect()
    };
    files.sort();
    files.dedup();
    if files.is_empty() {
        return Err(FormatError::NoModel { path: dir.into() });
    }
    Ok(files)
}
