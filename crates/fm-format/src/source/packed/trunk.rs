//! `model_weights.json`: names to places in `model_weights.bin`, and a configuration.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::Value;

use super::{TRUNK, TRUNK_INDEX, file_bytes};
use crate::{
    error::FormatError,
    record::{Extent, FileIndex},
    source::{Dtype, Tensor, check_places, read_json},
};

/// What the index says, held against the file.
pub(super) struct Trunk {
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) config: Value,
}

#[derive(Deserialize)]
struct Index {
    tensors: BTreeMap<String, Entry>,
    #[serde(default)]
    config: Value,
}

#[derive(Deserialize)]
struct Entry {
    offset: u64,
    size: u64,
    shape: Vec<usize>,
    dtype: String,
}

impl Trunk {
    /// Reads the index in `dir`.
    ///
    /// # Errors
    /// If a tensor's size is not that of its shape, or it lies outside the file or in another.
    pub(super) fn read(dir: &Path) -> Result<Self, FormatError> {
        let (index, path) = (dir.join(TRUNK_INDEX), dir.join(TRUNK));
        let value = read_json(&index)?;
        let Index { tensors, config } = serde_json::from_value(value)
            .map_err(|source| FormatError::Json { path: index.clone(), source })?;
        let file = file_bytes(&path)?;
        let placed = tensors.into_iter().map(|(name, entry)| entry.tensor(name, &path, file));
        let tensors: Vec<Tensor> = placed.collect::<Result<_, _>>()?;
        // Whoever packs it pads as he pleases.
        check_places(&path, &tensors, 0..file, u64::MAX)?;
        let named = tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor));
        Ok(Self { tensors: named.collect(), config })
    }
}

impl Entry {
    fn tensor(self, name: String, path: &Path, file: u64) -> Result<Tensor, FormatError> {
        let Self { offset, size, shape, dtype } = self;
        let Some(known) = Dtype::parse(&dtype) else {
            return Err(FormatError::Dtype { path: path.into(), tensor: name, dtype });
        };
        let needed = known.tensor_bytes(&shape).unwrap_or(u64::MAX);
        let end = offset.saturating_add(size);
        if size != needed {
            let (path, tensor, begin) = (path.into(), name, offset);
            return Err(FormatError::Extent { path, tensor, begin, end, needed });
        }
        if end > file {
            return Err(FormatError::Truncated { path: path.into(), tensor: name, end, file });
        }
        let extent = Extent { file: FileIndex(0), offset, bytes: size };
        Ok(Tensor { name, dtype: known, shape, extent })
    }
}

/// Gives the tensors of a multimodal model the names back that they were published with, so that
/// what its configuration says of a module is found, and a container has the same names.
pub(super) fn with_published_names(tensors: BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    let published = |(name, tensor): (String, Tensor)| {
        let inner = ["model.", "lm_head."].iter().any(|prefix| name.starts_with(prefix));
        let name = if inner { format!("language_model.{name}") } else { name };
        (name.clone(), Tensor { name, ..tensor })
    };
    tensors.into_iter().map(published).collect()
}
