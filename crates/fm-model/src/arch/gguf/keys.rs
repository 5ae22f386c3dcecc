//! Metadata of one architecture, and which of its keys have been asked for.

use std::{cell::RefCell, collections::BTreeSet, ops::Range};

use fm_format::source::gguf::{GgufError, Metadata, Value};

use crate::error::LoadError;

/// Keys that change nothing for us: descriptions, and what follows from others.
const SILENT: &[&str] = &[
    // Multimodal rope is plain rope for text.
    "rope.dimension_sections",
    // The embedding has as many rows.
    "vocab_size",
];

/// How many layers come behind the decoder.
pub(super) const LAYERS_AHEAD: &str = "nextn_predict_layers";

/// All layers, those behind the decoder included.
const BLOCKS: &str = "block_count";

const EXPERTS: &str = "expert_count";

/// See the module.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'static str,
    used: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(metadata: &'a Metadata, architecture: &'static str) -> Self {
        Self { metadata, architecture, used: RefCell::default() }
    }

    /// The whole name of a key, which from now on counts as known.
    pub(super) fn key(&self, key: &'static str) -> String {
        self.used.borrow_mut().insert(key);
        format!("{}.{key}", self.architecture)
    }

    fn value<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&'a Metadata, &str) -> Result<T, GgufError>,
    ) -> Result<T, LoadError> {
        read(self.metadata, &self.key(key)).map_err(LoadError::Metadata)
    }

    /// A count; where a file has one per layer, those that are not zero have to be equal.
    pub(super) fn count(&self, key: &'static str) -> Result<Option<u64>, LoadError> {
        self.count_where(key, |count| count > 0)
    }

    /// A count; where a file has one per layer, all have to be equal.
    pub(super) fn count_everywhere(&self, key: &'static str) -> Result<Option<u64>, LoadError> {
        self.count_where(key, |_| true)
    }

    fn count_where(
        &self,
        key: &'static str,
        counts: impl Fn(u64) -> bool,
    ) -> Result<Option<u64>, LoadError> {
        if key == BLOCKS || !matches!(self.metadata.get(&self.key(key)), Some(Value::Numbers(_))) {
            return self.value(key, Metadata::unsigned);
        }
        let each = self.value(key, Metadata::unsigned_array)?.unwrap_or_default();
        self.check_per_layer(key, each.len())?;
        let mut counts = each.into_iter().filter(|count| counts(*count));
        let first = counts.next();
        if counts.any(|count| Some(count) != first) {
            return Err(LoadError::PerLayer { key: self.key(key) });
        }
        Ok(first)
    }

    /// Refuses a list that does not have a value for every layer.
    fn check_per_layer(&self, key: &'static str, found: usize) -> Result<(), LoadError> {
        let blocks = self.required(BLOCKS)?;
        if found as u64 == blocks {
            return Ok(());
        }
        Err(LoadError::PerLayerCount { key: self.key(key), found, blocks })
    }

    /// Whether the file has the key, which is not asked for by that.
    pub(super) fn has(&self, key: &str) -> bool {
        self.metadata.get(&format!("{}.{key}", self.architecture)).is_some()
    }

    pub(super) fn float(&self, key: &'static str) -> Result<Option<f64>, LoadError> {
        let value = self.value(key, Metadata::float)?;
        match value.filter(|value| !value.is_finite()) {
            Some(found) => Err(LoadError::NotFinite { key: self.key(key), found }),
            None => Ok(value),
        }
    }

    pub(super) fn bool(&self, key: &'static str) -> Result<Option<bool>, LoadError> {
        self.value(key, Metadata::bool)
    }

    pub(super) fn bools(&self, key: &'static str) -> Result<Option<Vec<bool>>, LoadError> {
        let each = self.value(key, Metadata::bool_array)?;
        each.iter().try_for_each(|each| self.check_per_layer(key, each.len()))?;
        Ok(each)
    }

    pub(super) fn text(&self, key: &'static str) -> Result<Option<&'a str>, LoadError> {
        self.value(key, Metadata::text)
    }

    /// What the tokenizer splits text with, which tells models of one architecture apart.
    pub(super) fn pre_tokenizer(&self) -> Result<Option<&'a str>, LoadError> {
        self.metadata.text("tokenizer.ggml.pre").map_err(LoadError::Metadata)
    }

    pub(super) fn required(&self, key: &'static str) -> Result<u64, LoadError> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    /// Experts of a layer.
    pub(super) fn experts(&self) -> Result<u64, LoadError> {
        let dense = || LoadError::Dense { key: self.key(EXPERTS) };
        self.count(EXPERTS)?.filter(|count| *count > 0).ok_or_else(dense)
    }

    pub(super) fn missing(&self, key: &'static str) -> LoadError {
        LoadError::MissingKey { key: self.key(key) }
    }

    /// Layers behind those of the decoder: they predict further tokens.
    pub(super) fn layers(&self) -> Result<Range<u64>, LoadError> {
        let blocks = self.required(BLOCKS)?;
        let ahead = self.count(LAYERS_AHEAD)?.unwrap_or(0);
        let decoder = blocks.checked_sub(ahead).filter(|_| u16::try_from(blocks).is_ok());
        let range = || LoadError::Layers { key: self.key(BLOCKS), blocks, ahead };
        Ok(decoder.ok_or_else(range)?..blocks)
    }

    /// Refuses a key with another value than the family's arithmetic has a meaning for.
    pub(super) fn expect(&self, key: &'static str, expected: u64) -> Result<(), LoadError> {
        match self.count(key)? {
            Some(found) if found != expected => {
                Err(LoadError::KeyValue { key: self.key(key), found, expected })
            }
            _ => Ok(()),
        }
    }

    /// Every key of the architecture has been asked for, or changes nothing.
    pub(super) fn refuse_others(&self) -> Result<(), LoadError> {
        let used = self.used.borrow();
        let own = |key: &&str| {
            let inner = key.strip_prefix(self.architecture).and_then(|key| key.strip_prefix('.'));
            inner.is_some_and(|inner| !used.contains(inner) && !SILENT.contains(&inner))
        };
        match self.metadata.keys().find(own) {
            Some(key) => Err(LoadError::UnknownKey { key: key.to_owned() }),
            None => Ok(()),
        }
    }
}
