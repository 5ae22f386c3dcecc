//! What can be wrong with bytes on disk.

use std::{io, path::PathBuf};

use crate::{
    container::manifest::Checksum,
    source::{gguf::GgufError, packed::PackedError},
};

/// Why a checkpoint cannot be read. Messages name the file and, where there is one, the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file system failed.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The bytes of a tensor are not those that were written.
    #[error(
        "tensor {tensor} in {} is corrupt: checksum {found:016x}, expected {expected:016x}",
        path.display()
    )]
    TensorCorrupt {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Checksum that was written down.
        expected: u64,
        /// Checksum of its bytes.
        found: u64,
    },

    /// Nothing is there.
    #[error("{} does not exist", path.display())]
    NotThere {
        /// The path.
        path: PathBuf,
    },

    /// A file, or a pipe or device, that is no model by itself.
    #[error("{} is neither a directory nor a GGUF file", path.display())]
    PlainFile {
        /// The file.
        path: PathBuf,
    },

    /// The directory holds no weights.
    #[error(
        "no model found: {} has neither config.json with safetensors beside it nor a GGUF file",
        path.display()
    )]
    NoModel {
        /// The directory.
        path: PathBuf,
    },

    /// An adapter, which changes what weights say.
    #[error("{} describes an adapter, and this build applies none to the weights", path.display())]
    Adapter {
        /// The file.
        path: PathBuf,
    },

    /// A directory with the files of several models.
    #[error("{} holds several models: {}", dir.display(), files.join(", "))]
    SeveralModels {
        /// The directory.
        dir: PathBuf,
        /// The first file of each.
        files: Vec<String>,
    },

    /// A GGUF header is wrong.
    #[error("cannot read the GGUF file {}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: GgufError,
    },

    /// Packed files are wrong.
    #[error("cannot read the packed files at {}", path.display())]
    Packed {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        source: PackedError,
    },

    /// A JSON file does not parse.
    #[error("{} is not valid JSON", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where the parser stopped.
        source: serde_json::Error,
    },

    /// What git-lfs leaves in the place of a file that it has not fetched.
    #[error(
        "{}: this is a pointer of git-lfs, not the file itself, which `git lfs pull` brings",
        path.display()
    )]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },

    /// The header claims more bytes than there are.
    #[error(
        "{}: the header is said to take {header} bytes, but the file has {file}; \
         the download is probably incomplete", path.display()
    )]
    HeaderLength {
        /// The file.
        path: PathBuf,
        /// Length the file's first eight bytes give.
        header: u64,
        /// Length of the file.
        file: u64,
    },

    /// A tensor reaches beyond the end of its file.
    #[error(
        "{}: tensor `{tensor}` ends at byte {end}, but the file has {file} bytes; \
         the download is probably incomplete", path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// First byte after the tensor.
        end: u64,
        /// Length of the file.
        file: u64,
    },

    /// Offsets of a tensor make no sense: reversed, overlapping, or not what its shape needs.
    #[error(
        "{}: tensor `{tensor}` has bytes {begin}..{end}, but its shape and dtype need {needed} bytes",
        path.display()
    )]
    Extent {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// First byte, counted from the end of the header.
        begin: u64,
        /// First byte after it.
        end: u64,
        /// What shape and dtype ask for.
        needed: u64,
    },

    /// Two tensors share bytes.
    #[error("{}: tensors `{first}` and `{second}` overlap", path.display())]
    Overlap {
        /// The file.
        path: PathBuf,
        /// The tensor that begins first.
        first: String,
        /// The other.
        second: String,
    },

    /// Bytes that belong to no tensor: those behind them do not lie where the header says.
    #[error(
        "{}: {bytes} bytes at offset {offset}, {}, belong to no tensor: the file is damaged",
        path.display(), place(before.as_deref())
    )]
    Gap {
        /// The file.
        path: PathBuf,
        /// Where they are.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The tensor behind them, if there is one.
        before: Option<String>,
    },

    /// An element type this build does not know.
    #[error("{}: tensor `{tensor}` has the unknown dtype `{dtype}`", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the header says.
        dtype: String,
    },

    /// The same tensor in two files.
    #[error("tensor `{tensor}` is in {} and in {}", first.display(), second.display())]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// The file it was found in first.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },

    /// The index promises a tensor that its shard does not have.
    #[error("tensor `{tensor}` should be in {} according to the index, but is not", shard.display())]
    MissingFromShard {
        /// The tensor.
        tensor: String,
        /// The file.
        shard: PathBuf,
    },

    /// A shard file name that leads out of the directory.
    #[error("{}: the index names the shard `{shard}`, which is not a plain file name", index.display())]
    ShardName {
        /// The index file.
        index: PathBuf,
        /// What it says.
        shard: String,
    },

    /// A conversion was interrupted.
    #[error(
        "{}: the conversion was not finished; run convert again to resume it", path.display()
    )]
    Unfinished {
        /// The directory.
        path: PathBuf,
    },

    /// A container of another time.
    #[error(
        "{}: the container has format version {found}, this build reads version {known}; \
         convert the checkpoint again", path.display()
    )]
    ContainerVersion {
        /// The manifest.
        path: PathBuf,
        /// What it says.
        found: u64,
        /// What this build reads.
        known: u32,
    },

    /// A manifest of absurd length.
    #[error("{}: longer than {most} bytes, which no manifest is", path.display())]
    ManifestLength {
        /// The manifest.
        path: PathBuf,
        /// What we accept.
        most: u64,
    },

    /// A file that no container has under this name.
    #[error("{}: names the file `{file}`, which belongs elsewhere", path.display())]
    ManifestFile {
        /// The manifest.
        path: PathBuf,
        /// What it says.
        file: String,
    },

    /// A quant format this build does not know.
    #[error("{}: layer {layer} has the unknown format `{format}`", path.display())]
    UnknownFormat {
        /// The manifest.
        path: PathBuf,
        /// The layer.
        layer: usize,
        /// What it says.
        format: String,
    },

    /// A trunk tensor that cannot be of the format the manifest names.
    #[error("{}: tensor `{tensor}` cannot be `{format}`", path.display())]
    ManifestFormat {
        /// The manifest.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the manifest says.
        format: String,
    },

    /// A number of a layer that does not fit the others.
    #[error("{}: layer {layer}: `{field}` is {found}, which contradicts the rest", path.display())]
    ManifestNumber {
        /// The manifest.
        path: PathBuf,
        /// The layer.
        layer: usize,
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },

    /// Manifest and trunk disagree on which tensors there are.
    #[error("{}: tensor `{tensor}` is in the manifest or in the trunk, not in both", path.display())]
    ManifestTensor {
        /// The manifest.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },

    /// A file of a container is not as long as its manifest says.
    #[error("{}: has {found} bytes, the manifest says {expected}", path.display())]
    FileLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// What the manifest says.
        expected: u64,
    },

    /// A small file of a container is not the one that was converted.
    #[error(
        "{} is not what was converted: checksum {found}, the manifest says {expected}",
        path.display()
    )]
    FileCorrupt {
        /// The file.
        path: PathBuf,
        /// Checksum of its bytes.
        found: Checksum,
        /// What the manifest says.
        expected: Checksum,
    },

    /// A small file of a checkpoint is not the one that was recorded.
    #[error("{} {change} when the checksums of the model were recorded", path.display())]
    RecordedFile {
        /// The file.
        path: PathBuf,
        /// What has become of it.
        change: FileChange,
    },

    /// The header of a container's trunk is not the one that was written.
    #[error(
        "the header of {} is not what was written: checksum {found}, the manifest says {expected}",
        path.display()
    )]
    HeaderCorrupt {
        /// The trunk.
        path: PathBuf,
        /// Checksum of its header.
        found: Checksum,
        /// What the manifest says.
        expected: Checksum,
    },
}

/// What has become of a file since it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// It has other bytes.
    Other,
    /// It is there no more.
    Gone,
    /// It is there for the first time.
    New,
}

impl std::fmt::Display for FileChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Other => "had other bytes",
            Self::Gone => "is gone, and was there",
            Self::New => "was not there",
        })
    }
}

fn place(before: Option<&str>) -> String {
    before.map_or_else(|| "at its end".to_owned(), |tensor| format!("before `{tensor}`"))
}

/// What helps against wrong bytes.
pub const MEND: &str = "check the disk (`flash-moe verify` re-reads the whole model), then delete this \
                        file and convert again into the same directory, or download it again: a pulled \
                        model with `rm` and `pull`";

impl FormatError {
    /// What the user could do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::NotThere { .. } | Self::PlainFile { .. } | Self::NoModel { .. } => {
                "give the directory that holds config.json and the *.safetensors files, a converted \
                 model, or a GGUF file"
            }
            Self::Truncated { .. }
            | Self::Gap { .. }
            | Self::HeaderLength { .. }
            | Self::Gguf { source: GgufError::Short { .. }, .. } => "download the file again",
            Self::FileLength { .. } => {
                "download the file again, or convert again into the same directory: that writes what \
                 is missing"
            }
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "a file of the model is missing: download it, or convert again into the same directory"
            }
            Self::TensorCorrupt { .. } | Self::FileCorrupt { .. } | Self::HeaderCorrupt { .. } => {
                MEND
            }
            Self::RecordedFile { .. } => {
                "if the change is meant, `flash-moe verify --record MODEL` records it; if not, restore the \
                 file: download it again"
            }
            Self::Adapter { .. } => {
                "merge the adapter into the weights first (peft's `merge_and_unload`), or remove the file to \
                 run the model without it"
            }
            Self::SeveralModels { .. } => "name one of the files",
            _ => return None,
        })
    }
}
