//! The packed files of the first flash-moe: an MLX checkpoint taken apart for one program.
//!
//! ```text
//! model_weights.bin    the trunk's tensors, each at a multiple of 64 bytes
//! model_weights.json   {"tensors": {name: {offset, size, shape, dtype}}, "config": {…}}
//! packed_experts/      layer_00.bin …: the experts of a layer, back to back; layout.json says how
//! packed_experts_2bit/ the same, packed anew
//!
//! expert = gate codes | scales | biases | up codes | scales | biases | down codes | scales | biases
//! ```
//!
//! Names have lost `language_model.`. Codes are MLX's words, scales and biases bf16. Nothing says how
//! wide codes are: the length of a layer's file leaves one possibility for given dimensions. All of
//! it is read as hostile input. See `docs/packed.md`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    error::FormatError,
    quant::{self, FormatKind, QuantFormat, ScaleKind},
    record::{
        DIM_MAX, Extent, FileIndex, LayerRecords, MatrixRole, MatrixShape, Piece, Place,
        PlanarPart, Record, RecordLayout, ScaleSource,
    },
    source::{Checkpoint, is_safetensors, read_json},
};

mod error;
mod layout;
mod plausible;
mod trunk;

pub use error::PackedError;

use layout::LayoutFile;
use trunk::Trunk;

const TRUNK: &str = "model_weights.bin";
const TRUNK_INDEX: &str = "model_weights.json";
const COMPRESSED: &str = "packed_experts_lz4";
/// Directories of experts in the order of preference, each with the format it was made for.
const SETS: [(&str, &str); 2] =
    [("packed_experts", "affine4_g64"), ("packed_experts_2bit", "affine2_g64")];

const ROLES: [(MatrixRole, &str); 3] =
    [(MatrixRole::Gate, "gate_proj"), (MatrixRole::Up, "up_proj"), (MatrixRole::Down, "down_proj")];
const PARTS: [(PlanarPart, &str); 3] =
    [(PlanarPart::Codes, "weight"), (PlanarPart::Scales, "scales"), (PlanarPart::Biases, "biases")];

/// Most layers, and most experts of a layer: what their indices hold.
const COUNT_MAX: u64 = u16::MAX as u64;

/// Whether `dir` holds packed files, and not the checkpoint that they were made of.
pub(super) fn is_packed(dir: &Path) -> bool {
    let marks = [TRUNK_INDEX, SETS[0].0, SETS[1].0, COMPRESSED];
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    marks.iter().any(|mark| dir.join(mark).exists())
        && !entries.map(|entry| entry.path()).any(|path| is_safetensors(&path))
}

/// Opens the packed files in `dir`.
///
/// # Errors
/// If a file is missing or has the wrong length, if configuration, index and files contradict each
/// other, or if what stands where scales and biases should be is nothing of the kind.
pub(super) fn open(dir: &Path) -> Result<Checkpoint, FormatError> {
    let refused = |source| FormatError::Packed { path: dir.into(), source };
    let set = SETS.iter().find(|(name, _)| dir.join(name).is_dir());
    let (name, nominal) = match set {
        Some(set) => *set,
        None if dir.join(COMPRESSED).exists() => return Err(refused(PackedError::Compressed)),
        None => return Err(refused(PackedError::NoExperts)),
    };
    let Trunk { mut tensors, config } = Trunk::read(dir)?;
    let beside = dir.join("config.json");
    let config = if beside.is_file() { read_json(&beside)? } else { config };
    let dims = Dims::of(&config).map_err(refused)?;
    let experts = Experts {
        dir: dir.join(name),
        nominal: quant::by_name(nominal).expect("a format of the table"),
        layout: LayoutFile::read(&dir.join(name))?,
        dims,
    };
    let mut files = vec![dir.join(TRUNK)];
    let mut layers = Vec::new();
    for layer in 0..dims.layers {
        let routes = tensors.contains_key(&format!("model.layers.{layer}.mlp.gate.weight"));
        let path = experts.file(layer);
        layers.push(if routes {
            files.push(path);
            Some(experts.records(layer, &files)?)
        } else if path.exists() {
            return Err(FormatError::Packed { path, source: PackedError::ExtraLayer { layer } });
        } else {
            None
        });
    }
    let path = experts.file(dims.layers);
    if path.exists() {
        let source = PackedError::ExtraLayer { layer: dims.layers };
        return Err(FormatError::Packed { path, source });
    }
    plausible::check(&files, &layers)?;
    if config.get("text_config").is_some() {
        tensors = trunk::with_published_names(tensors);
    }
    let path = dir.to_path_buf();
    let (metadata, container, records) = (None, None, Some(layers));
    Ok(Checkpoint { path, config, metadata, files, tensors, container, records })
}

/// What stands for a header: the index of the trunk, and the length of a layer's file.
///
/// # Errors
/// If it cannot be read.
pub(super) fn header_bytes(path: &Path) -> Result<Vec<u8>, FormatError> {
    if path.file_name().is_some_and(|name| name == TRUNK) {
        let path = path.with_file_name(TRUNK_INDEX);
        return fs::read(&path).map_err(|source| FormatError::Io { path, source });
    }
    Ok(file_bytes(path)?.to_le_bytes().to_vec())
}

fn file_bytes(path: &Path) -> Result<u64, FormatError> {
    let metadata = fs::metadata(path);
    Ok(metadata.map_err(|source| FormatError::Io { path: path.into(), source })?.len())
}

/// What the configuration says about the experts.
#[derive(Clone, Copy)]
struct Dims {
    layers: usize,
    experts: usize,
    hidden: usize,
    ffn: usize,
}

impl Dims {
    fn of(config: &Value) -> Result<Self, PackedError> {
        let text = config.get("text_config").unwrap_or(config);
        let number = |key: &'static str, most: u64| {
            let value = text.get(key).ok_or(PackedError::MissingKey { key })?;
            let fits = value.as_u64().filter(|number| (1..=most).contains(number));
            let number = fits.ok_or_else(|| PackedError::Key { key, found: value.to_string() })?;
            Ok(number as usize)
        };
        Ok(Self {
            layers: number("num_hidden_layers", COUNT_MAX)?,
            experts: number("num_experts", COUNT_MAX)?,
            hidden: number("hidden_size", DIM_MAX)?,
            ffn: number("moe_intermediate_size", DIM_MAX)?,
        })
    }

    /// An expert in this format; `None` if rows are no whole blocks.
    fn record(self, format: &'static QuantFormat) -> Option<RecordLayout> {
        let Self { hidden, ffn, .. } = self;
        let shape = |rows, cols| {
            format.row_bytes(cols).is_some().then_some(MatrixShape { rows, cols, format })
        };
        let (upper, lower) = (shape(ffn, hidden)?, shape(hidden, ffn)?);
        Some(RecordLayout { gate: upper, up: upper, down: lower })
    }

    /// Bytes of a layer's file; `None` if they cannot be counted.
    fn layer_bytes(self, layout: &RecordLayout) -> Option<u64> {
        (layout.weight_bytes() as u64).checked_mul(self.experts as u64)
    }

    /// The one format in which the experts take up so many bytes: a weight takes `bits + 32 / group`
    /// bits, which is different for every format.
    fn by_length(self, bytes: u64) -> Option<RecordLayout> {
        let bf16 = |kind| matches!(kind, FormatKind::Affine { scale: ScaleKind::Bf16, .. });
        let possible = quant::FORMATS.iter().filter(|format| bf16(format.kind));
        let mut layouts = possible.filter_map(|format| self.record(format));
        layouts.find(|layout| self.layer_bytes(layout) == Some(bytes))
    }
}

/// A directory of layer files.
struct Experts {
    dir: PathBuf,
    nominal: &'static QuantFormat,
    layout: Option<LayoutFile>,
    dims: Dims,
}

impl Experts {
    fn file(&self, layer: usize) -> PathBuf {
        self.dir.join(format!("layer_{layer:02}.bin"))
    }

    /// `files` ends with this layer's file.
    fn records(&self, layer: usize, files: &[PathBuf]) -> Result<LayerRecords, FormatError> {
        let path = &files[files.len() - 1];
        let found = file_bytes(path)?;
        let layout = self.dims.by_length(found).ok_or_else(|| {
            let expected = self.dims.record(self.nominal);
            let expected = expected.and_then(|layout| self.dims.layer_bytes(&layout));
            let (experts, format) = (self.dims.experts, self.nominal.name);
            let source = PackedError::Length { layer, found, expected, experts, format };
            FormatError::Packed { path: path.clone(), source }
        })?;
        if let Some(file) = &self.layout {
            file.check(&layout, self.dims.layers, self.dims.experts).map_err(|source| {
                FormatError::Packed { path: self.dir.join(layout::NAME), source }
            })?;
        }
        let parts: Vec<Part> = parts(&layout).collect();
        let file = FileIndex(files.len() as u32 - 1);
        let mut offset = 0;
        let mut piece = |part: &Part| {
            let extent = Extent { file, offset, bytes: part.bytes };
            offset += part.bytes;
            Piece { extent, place: part.place }
        };
        let mut record =
            |_| Record { pieces: parts.iter().map(&mut piece).collect(), checksums: None };
        Ok(LayerRecords { layout, records: (0..self.dims.experts).map(&mut record).collect() })
    }
}

/// A ninth of an expert.
struct Part {
    projection: &'static str,
    /// What the checkpoint calls it.
    tensor: &'static str,
    bytes: u64,
    place: Place,
}

/// The parts of an expert, in the order of the file.
fn parts(layout: &RecordLayout) -> impl Iterator<Item = Part> {
    let layout = *layout;
    ROLES.into_iter().flat_map(move |(role, projection)| {
        PARTS.into_iter().map(move |(part, tensor)| {
            let MatrixShape { rows, cols, format } = layout.shape(role);
            let blocks = (rows * (cols / format.block_len)) as u64;
            let bytes = match part {
                PlanarPart::Codes => blocks * (format.block_bytes as u64 - 4),
                PlanarPart::Scales | PlanarPart::Biases => blocks * 2,
            };
            let place = Place::Interleave { role, part, source: ScaleSource::Bf16 };
            Part { projection, tensor, bytes, place }
        })
    })
}
