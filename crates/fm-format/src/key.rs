//! Identity of an expert: which layer, which expert in it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Position of a decoder layer, counted from the embedding. Zero-based.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LayerIndex(pub u16);

/// Position of a routed expert inside its layer. Zero-based; shared experts have none.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ExpertIndex(pub u16);

/// One routed expert of one layer: the unit of reading, caching and eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// The layer it belongs to.
    pub layer: LayerIndex,
    /// Its position in that layer.
    pub expert: ExpertIndex,
}

impl LayerIndex {
    /// The position as an index into a list of layers.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl ExpertIndex {
    /// The position as an index into a list of experts.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for ExpertKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} expert {}", self.layer.0, self.expert.0)
    }
}
