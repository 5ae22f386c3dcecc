//! Why a checkpoint cannot be run.

use std::path::PathBuf;

use fm_format::{
    FormatError,
    source::{Dtype, gguf::GgufError},
};
use fm_kernels::DeviceError;

use crate::arch::{self, MODEL_TYPES};

/// Why a checkpoint cannot be run. Messages name the tensor or the field, what was expected and
/// what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The bytes on disk are not a checkpoint.
    #[error(transparent)]
    Format(#[from] FormatError),

    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// The system does not keep so much in memory.
    #[error(
        "cannot lock {bytes} bytes of weights in memory, this process may lock {}",
        limit.map_or_else(|| "any number".to_owned(), |limit| limit.to_string())
    )]
    Lock {
        /// Bytes of all matrices.
        bytes: u64,
        /// The limit of the process.
        limit: Option<u64>,
        /// What the system said.
        source: std::io::Error,
    },

    /// A family this build does not have.
    #[error(
        "model type `{model_type}` is not supported; {}known: {}",
        arch::nearest(model_type).map(|known| format!("its nearest relative is `{known}`; ")).unwrap_or_default(),
        MODEL_TYPES.join(", ")
    )]
    UnknownModel {
        /// What `config.json` says.
        model_type: String,
    },

    /// An architecture of GGUF that is none of our families.
    #[error("GGUF architecture `{architecture}` is not supported; known: {}", known.join(", "))]
    UnknownArchitecture {
        /// What the file says.
        architecture: String,
        /// What this build runs.
        known: Vec<&'static str>,
    },

    /// A key of a GGUF file is of the wrong type.
    #[error("the GGUF metadata does not describe a model")]
    Metadata(#[source] GgufError),

    /// A GGUF file of something else.
    #[error("this GGUF file is no model: its `general.type` is `{kind}`")]
    NoModel {
        /// What it says that it is: an adapter, the part of a model that sees, statistics.
        kind: String,
    },

    /// A model without experts.
    #[error("this is a dense model (`{key}` is missing or 0): only Mixture-of-Experts models run")]
    Dense {
        /// What one with experts has.
        key: String,
    },

    /// A GGUF file lacks a key.
    #[error("the GGUF metadata lacks `{key}`")]
    MissingKey {
        /// The key.
        key: String,
    },

    /// A model whose positions are scaled otherwise than its family's default says, in a file that does not say how.
    #[error(
        "the GGUF metadata lacks `{key}`, and this model was not trained with the default of its architecture; a file \
         that today's llama.cpp converts has it"
    )]
    MissingRamp {
        /// The key.
        key: String,
    },

    /// A key that may change the arithmetic in a way we do not know.
    #[error("the GGUF metadata has the unknown key `{key}`; nothing is ignored silently")]
    UnknownKey {
        /// The key.
        key: String,
    },

    /// Layers that differ where all layers of the family are alike.
    #[error("the GGUF metadata has different values per layer for `{key}`")]
    PerLayer {
        /// The key.
        key: String,
    },

    /// A key without a value that can be computed with.
    #[error("the GGUF metadata has `{key}` = {found}, expected a finite number")]
    NotFinite {
        /// The key.
        key: String,
        /// Its value.
        found: f64,
    },

    /// A key has a value the family has no meaning for.
    #[error("the GGUF metadata has `{key}` = {found}, expected {expected}")]
    KeyValue {
        /// The key.
        key: String,
        /// Its value.
        found: u64,
        /// What it has to be.
        expected: u64,
    },

    /// Numbers of layers that no model has.
    #[error(
        "the GGUF metadata has `{key}` = {blocks}, {ahead} of them behind the decoder; at most 65535 make sense"
    )]
    Layers {
        /// The key.
        key: String,
        /// All layers.
        blocks: u64,
        /// Those that predict further tokens.
        ahead: u64,
    },

    /// `config.json` lacks a field or has it in another type.
    #[error("the configuration does not describe a {model_type} model")]
    Config {
        /// The family that tried to read it.
        model_type: &'static str,
        /// Which field, and why.
        source: serde_json::Error,
    },

    /// A field has a value the family has no meaning for.
    #[error("`{field}` in the configuration is {found}; {expected}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: FieldValue,
        /// What it may be.
        expected: &'static str,
    },

    /// Two fields that mean the same and are not the same.
    #[error(
        "`{field}` in the configuration is {said} and `{other}` is {found}: which of them is right \
         cannot be told; leave only that one"
    )]
    Contradiction {
        /// The one.
        field: String,
        /// Its value.
        said: FieldValue,
        /// The other.
        other: String,
        /// Its value.
        found: FieldValue,
    },

    /// A field that may change the arithmetic in a way we do not know.
    #[error(
        "the configuration has the unknown `{key}`; nothing is ignored silently: if it has no effect on \
         the model, remove it"
    )]
    UnknownField {
        /// Where it is, with dots.
        key: String,
    },

    /// A field by which another program would compute something else.
    #[error("`{field}` in the configuration is {found}: {reason}")]
    Foreign {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// Why it cannot be passed over.
        reason: &'static str,
    },

    /// Rotary positions that differ from layer to layer.
    #[error(
        "`{key}` in the configuration has values of its own; the layers of all families that this build \
         runs turn positions alike: put what is common to all layers one level further up"
    )]
    RopePerLayerType {
        /// Where they are, with dots.
        key: String,
    },

    /// A tensor is not there.
    #[error("tensor `{tensor}` is missing; the checkpoint is incomplete or of another family")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },

    /// A tensor nobody asked for.
    #[error("tensor `{tensor}` has no place in a {model_type} model; nothing is ignored silently")]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// The family.
        model_type: &'static str,
    },

    /// A head where the embedding serves as one, and not the same.
    #[error(
        "`{tensor}` is not a copy of the embedding's, and `tie_word_embeddings` says that the embedding \
         serves as head: which of them the model was trained with cannot be told; set \
         `tie_word_embeddings` to false if it is the head, or remove the tensor"
    )]
    TiedHead {
        /// The tensor.
        tensor: String,
    },

    /// A layer that a GGUF file counts to those behind the decoder, and that looks like one of it.
    #[error(
        "the GGUF metadata counts layer {layer} to those behind the decoder (`{key}`), but the file has \
         no `blk.{layer}.nextn` tensors and others of that layer; nothing is ignored silently"
    )]
    LayerAhead {
        /// The key.
        key: String,
        /// The layer.
        layer: u64,
    },

    /// A list with a value per layer that has more or fewer.
    #[error("the GGUF metadata has `{key}` for {found} layers, the file has {blocks}")]
    PerLayerCount {
        /// The key.
        key: String,
        /// Values.
        found: usize,
        /// Layers, those behind the decoder included.
        blocks: u64,
    },

    /// A tensor has another shape than the configuration asks for.
    #[error("tensor `{tensor}` has shape {found:?}, the configuration asks for {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// What the configuration asks for.
        expected: Vec<usize>,
        /// What is there.
        found: Vec<usize>,
    },

    /// A tensor has an element type that makes no sense for it.
    #[error("tensor `{tensor}` has dtype {found:?}, expected {expected}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: Dtype,
    },

    /// The shapes of a quantised module belong to no known format.
    #[error(
        "`{module}`: {packed} words and {groups} scales per row of {cols} weights \
         are no affine format (2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128) and no mxfp4"
    )]
    Packing {
        /// The module.
        module: String,
        /// Words of 32 bits per row.
        packed: usize,
        /// Scales per row.
        groups: usize,
        /// Weights per row, from the configuration.
        cols: usize,
    },

    /// The shapes say one thing, `quantization` in `config.json` another.
    #[error(
        "`{module}`: its shapes mean {found_bits} bits in groups of {found_group}, \
         config.json says {bits} bits in groups of {group}"
    )]
    Quantization {
        /// The module.
        module: String,
        /// Width of a code, from the shapes.
        found_bits: u64,
        /// Weights per group, from the shapes.
        found_group: u64,
        /// Width of a code, from the configuration.
        bits: u64,
        /// Weights per group, from the configuration.
        group: u64,
    },

    /// A word about packing that cannot be read.
    #[error("`{key}` in config.json is {found}, expected {expected}")]
    QuantizationType {
        /// Where it is, with dots.
        key: String,
        /// What it says.
        found: String,
        /// What it may be.
        expected: &'static str,
    },

    /// Rows that no block of fp8 tiles.
    #[error("`{module}`: rows of {cols} weights in fp8; this build reads multiples of 32")]
    Fp8Columns {
        /// The module.
        module: String,
        /// Weights per row.
        cols: usize,
    },

    /// Scales that belong to other tiles of a matrix.
    #[error("`{module}`: `weight_block_size` is {found}; this build reads [128,128]")]
    Fp8Tile {
        /// The module.
        module: String,
        /// What the configuration says.
        found: String,
    },

    /// A quantisation mode this build does not read, or not of these tensors.
    #[error(
        "`{module}` is quantised in mode `{mode}` according to config.json, its scales are those of \
         `{found}`; this build reads `affine`, `mxfp4`, `nvfp4` and `mxfp8`"
    )]
    QuantizationMode {
        /// The module.
        module: String,
        /// The mode.
        mode: String,
        /// The mode that the tensors are in, if it is one that this build reads.
        found: &'static str,
    },

    /// The records in a container or in packed files are not those of the configuration.
    #[error("the experts of layer {layer} in {} do not match the configuration", dir.display())]
    Container {
        /// The layer.
        layer: usize,
        /// The container.
        dir: PathBuf,
    },

    /// A container whose tensors follow conventions that this build does not know.
    #[error("the container's manifest names the unknown publisher `{publisher}`")]
    Publisher {
        /// What it says.
        publisher: String,
    },
}

/// A value of `config.json` as an error shows it.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// A count.
    Number(u64),
    /// Any other number.
    Real(f64),
    /// A word.
    Word(String),
}

impl std::fmt::Display for FieldValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Real(number) => write!(f, "{number}"),
            Self::Word(word) => write!(f, "`{word}`"),
        }
    }
}

impl From<usize> for FieldValue {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<f64> for FieldValue {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl From<&str> for FieldValue {
    fn from(word: &str) -> Self {
        Self::Word(word.to_owned())
    }
}
