//! flash-moe's own files: a directory in which every record can be read straight into a slot.
//!
//! ```text
//! manifest.json            what everything is, and its checksums; written last
//! config.json, …           copies of the small files, so that a container runs by itself; one made
//!                          from GGUF has metadata.gguf instead
//! trunk.safetensors        every tensor that is no routed expert
//! experts/layer-000.bin    the records of a layer, back to back, each a multiple of 4096 bytes
//! ```
//!
//! Byte by byte in `docs/container.md`. A manifest is read as hostile input: every count, size and
//! offset is checked against the files before anything is allocated for it.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::{
    error::FormatError,
    quant,
    record::{
        DIM_MAX, Extent, FileIndex, LayerRecords, MatrixShape, PART_ALIGN, Piece, Place, Record,
        RecordLayout,
    },
    source::{Checkpoint, Dtype, Tensor, gguf, read_json, safetensors},
};

pub mod manifest;
pub mod recorded;

use manifest::{Checksum, LayerEntry, Manifest, MatrixEntry, TrunkEntry};

/// The file that makes a directory a container; written last.
pub const MANIFEST: &str = "manifest.json";
/// Present while a conversion is under way: what is finished.
pub const JOURNAL: &str = "convert.journal";
/// Every tensor that is no routed expert.
pub const TRUNK: &str = "trunk.safetensors";
/// The directory of the layer files.
pub const EXPERTS: &str = "experts";
/// The metadata of the GGUF file that a container was made from: a GGUF file without tensors. It
/// stands for the configuration, the tokenizer and the chat template.
pub const METADATA: &str = "metadata.gguf";
/// What the model is, unless [`METADATA`] says it.
pub const CONFIG: &str = "config.json";
/// The directory of chat templates beside the usual one.
pub const TEMPLATES: &str = "additional_chat_templates";
/// The template among them that is read: for conversations with tools.
pub const TOOL_USE_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";
/// Small files of a checkpoint that a container carries along, where they exist.
pub const COPIED: [&str; 10] = [
    "added_tokens.json",
    TOOL_USE_TEMPLATE,
    "chat_template.jinja",
    CONFIG,
    "generation_config.json",
    METADATA,
    "special_tokens_map.json",
    "tokenizer.bin",
    "tokenizer.json",
    "tokenizer_config.json",
];
/// Longest manifest we accept: forty times that of the largest published model.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a file that are in memory at once while its checksum is computed.
const CHECK_BYTES: usize = 1 << 18;

/// An opened container; its records are those of [`Checkpoint::records`].
#[derive(Debug)]
pub struct Container {
    /// What the manifest says; checked against the files.
    pub manifest: Manifest,
}

/// Name of a layer's file inside [`EXPERTS`].
pub fn layer_file(layer: usize) -> String {
    format!("layer-{layer:03}.bin")
}

/// Opens `dir` if it is a container; `None` if it has nothing of one. What decides about arithmetic and
/// tokens without being a tensor (small files, the header of the trunk) is held against its checksums:
/// what opens is what was converted.
///
/// # Errors
/// If a conversion into `dir` was not finished, if the manifest is of another version, or if it
/// contradicts itself or the files.
pub fn open(dir: &Path) -> Result<Option<Checkpoint>, FormatError> {
    open_with(dir, check_contents)
}

/// As [`open`], for those who will compare every checksum themselves and go on where one is wrong.
///
/// # Errors
/// As [`open`], but for checksums.
pub fn open_unchecked(dir: &Path) -> Result<Option<Checkpoint>, FormatError> {
    open_with(dir, |_, _| Ok(()))
}

fn open_with(
    dir: &Path,
    check: impl FnOnce(&Path, &Manifest) -> Result<(), FormatError>,
) -> Result<Option<Checkpoint>, FormatError> {
    let path = dir.join(MANIFEST);
    let Some(manifest) = manifest(dir)? else {
        let begun = [JOURNAL, TRUNK].iter().any(|name| dir.join(name).exists());
        return if begun { Err(FormatError::Unfinished { path: dir.into() }) } else { Ok(None) };
    };
    check_lengths(dir, &manifest)?;
    check(dir, &manifest)?;
    let (config, metadata) = if manifest.files.contains_key(METADATA) {
        let header = gguf::read_header(&dir.join(METADATA), FileIndex(0))?;
        (serde_json::Value::Null, Some(header.metadata))
    } else {
        (read_json(&dir.join(CONFIG))?, None)
    };
    let mut files = vec![dir.join(TRUNK)];
    let mut trunk = safetensors::read_header(&files[0], FileIndex(0))?;
    trunk.iter_mut().try_for_each(|tensor| restore_format(&path, &manifest.trunk, tensor))?;
    let named: BTreeSet<&str> = trunk.iter().map(|tensor| tensor.name.as_str()).collect();
    let listed = manifest.trunk.tensors.keys().map(String::as_str).collect();
    if let Some(tensor) = named.symmetric_difference(&listed).next() {
        return Err(FormatError::ManifestTensor { path, tensor: (*tensor).to_owned() });
    }
    let mut layers = Vec::new();
    for (index, entry) in manifest.layers.iter().enumerate() {
        let records = entry.as_ref().map(|entry| {
            files.push(dir.join(EXPERTS).join(layer_file(index)));
            ListedLayer { path: &path, index, entry }.records(&files)
        });
        layers.push(records.transpose()?);
    }
    let tensors = trunk.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let (container, records) = (Some(Container { manifest }), Some(layers));
    let path = dir.to_path_buf();
    Ok(Some(Checkpoint { path, config, metadata, files, tensors, container, records }))
}

/// Small files and the trunk are as long as the manifest says, and there is no file that has no meaning.
fn check_lengths(dir: &Path, manifest: &Manifest) -> Result<(), FormatError> {
    for (name, entry) in &manifest.files {
        if !COPIED.contains(&name.as_str()) {
            return Err(FormatError::ManifestFile { path: dir.join(MANIFEST), file: name.clone() });
        }
        check_file(&dir.join(name), entry.bytes)?;
    }
    check_file(&dir.join(TRUNK), manifest.trunk.bytes)
}

/// Compares what is small enough to be read at every start: megabytes, most of them the tokenizer's.
fn check_contents(dir: &Path, manifest: &Manifest) -> Result<(), FormatError> {
    for (name, entry) in &manifest.files {
        let path = dir.join(name);
        let found = file_checksum(&path)?;
        if found != entry.xxh3 {
            return Err(FormatError::FileCorrupt { path, found, expected: entry.xxh3 });
        }
    }
    let path = dir.join(TRUNK);
    let found = Checksum(xxh3_64(&safetensors::header_text(&path)?));
    let expected = manifest.trunk.header;
    if found == expected {
        Ok(())
    } else {
        Err(FormatError::HeaderCorrupt { path, found, expected })
    }
}

fn file_checksum(path: &Path) -> Result<Checksum, FormatError> {
    let io_error = |source| FormatError::Io { path: path.into(), source };
    let mut file = fs::File::open(path).map_err(io_error)?;
    let (mut hash, mut buffer) = (Xxh3Default::new(), vec![0; CHECK_BYTES]);
    loop {
        match file.read(&mut buffer).map_err(io_error)? {
            0 => return Ok(Checksum(hash.digest())),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// What the manifest in `dir` says, if there is one of ours; nobody looks at the files it names.
///
/// # Errors
/// If it cannot be read, is of another version or does not parse.
pub fn manifest(dir: &Path) -> Result<Option<Manifest>, FormatError> {
    let path = dir.join(MANIFEST);
    match read_manifest(&path) {
        Err(FormatError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        text => Manifest::parse(&path, &text?),
    }
}

/// Gives a tensor that the trunk has as bytes the format that the manifest names.
fn restore_format(
    manifest: &Path,
    trunk: &TrunkEntry,
    tensor: &mut Tensor,
) -> Result<(), FormatError> {
    let Some(name) = trunk.formats.get(&tensor.name) else { return Ok(()) };
    let wrong = || FormatError::ManifestFormat {
        path: manifest.into(),
        tensor: tensor.name.clone(),
        format: name.clone(),
    };
    let format = quant::by_name(name).ok_or_else(wrong)?;
    let bytes = tensor.shape.last().copied().unwrap_or(0);
    if tensor.dtype != Dtype::Unsigned(1) || !bytes.is_multiple_of(format.block_bytes) {
        return Err(wrong());
    }
    let cols = (bytes / format.block_bytes).checked_mul(format.block_len).ok_or_else(wrong)?;
    tensor.shape.pop();
    tensor.shape.push(cols);
    tensor.dtype = Dtype::Packed(format);
    Ok(())
}

fn read_manifest(path: &Path) -> Result<Vec<u8>, FormatError> {
    let io_error = |source| FormatError::Io { path: path.into(), source };
    let file = fs::File::open(path).map_err(io_error)?;
    let mut text = Vec::new();
    file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut text).map_err(io_error)?;
    if text.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(FormatError::ManifestLength { path: path.into(), most: MANIFEST_BYTES_MAX });
    }
    Ok(text)
}

/// A file of a container has exactly the length its manifest gives.
fn check_file(path: &Path, expected: u64) -> Result<(), FormatError> {
    let metadata =
        fs::metadata(path).map_err(|source| FormatError::Io { path: path.into(), source })?;
    let found = metadata.len();
    if !metadata.is_file() || found != expected {
        return Err(FormatError::FileLength { path: path.into(), found, expected });
    }
    Ok(())
}

/// A layer of a manifest on its way into a catalog.
struct ListedLayer<'a> {
    path: &'a Path,
    index: usize,
    entry: &'a LayerEntry,
}

impl ListedLayer<'_> {
    /// `files` ends with this layer's file.
    fn records(&self, files: &[PathBuf]) -> Result<LayerRecords, FormatError> {
        let LayerEntry { file, bytes, experts, record_bytes, gate, up, down, checksums } =
            self.entry;
        if *file != layer_file(self.index) {
            let (path, file) = (self.path.into(), file.clone());
            return Err(FormatError::ManifestFile { path, file });
        }
        let layout =
            RecordLayout { gate: self.shape(gate)?, up: self.shape(up)?, down: self.shape(down)? };
        self.require(*record_bytes == layout.bytes() as u64, "record_bytes", *record_bytes)?;
        let possible = (1..=u64::from(u16::MAX)).contains(experts);
        self.require(possible && checksums.len() as u64 == *experts, "experts", *experts)?;
        self.require(record_bytes.checked_mul(*experts) == Some(*bytes), "bytes", *bytes)?;
        let file = FileIndex(files.len() as u32 - 1);
        check_file(&files[files.len() - 1], *bytes)?;
        let extent = Extent { file, offset: 0, bytes: *record_bytes };
        let record = |(expert, checksums): (u64, &manifest::PartChecksums)| Record {
            pieces: vec![Piece {
                extent: Extent { offset: expert * record_bytes, ..extent },
                place: Place::Copy { at: 0 },
            }],
            checksums: Some(checksums.0),
        };
        Ok(LayerRecords { layout, records: (0..).zip(checksums).map(record).collect() })
    }

    fn shape(&self, matrix: &MatrixEntry) -> Result<MatrixShape, FormatError> {
        let MatrixEntry { rows, cols, format } = matrix;
        let Some(format) = quant::by_name(format) else {
            let (path, layer, format) = (self.path.into(), self.index, format.clone());
            return Err(FormatError::UnknownFormat { path, layer, format });
        };
        self.require((1..=DIM_MAX).contains(rows), "rows", *rows)?;
        let tiles = format.row_bytes(*cols as usize).is_some();
        self.require((1..=DIM_MAX).contains(cols) && tiles, "cols", *cols)?;
        Ok(MatrixShape { rows: *rows as usize, cols: *cols as usize, format })
    }

    fn require(&self, holds: bool, field: &'static str, found: u64) -> Result<(), FormatError> {
        let (path, layer) = (self.path.into(), self.index);
        if holds { Ok(()) } else { Err(FormatError::ManifestNumber { path, layer, field, found }) }
    }
}

// A record starts where `O_DIRECT` can read it because everything before it is a multiple of this.
const _: () = assert!(PART_ALIGN.is_multiple_of(4096));
