//! `layout.json`, which may lie beside the layer files and must then agree with them.

use std::path::Path;

use serde::Deserialize;

use super::{PackedError, parts};
use crate::{error::FormatError, record::RecordLayout, source::read_json};

pub(super) const NAME: &str = "layout.json";

#[derive(Deserialize)]
pub(super) struct LayoutFile {
    expert_size: u64,
    num_layers: usize,
    num_experts: usize,
    components: Vec<Component>,
}

#[derive(Deserialize)]
struct Component {
    name: String,
    offset: u64,
    size: u64,
}

impl LayoutFile {
    /// The file in `dir`, if there is one.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, FormatError> {
        let path = dir.join(NAME);
        if !path.is_file() {
            return Ok(None);
        }
        let layout = serde_json::from_value(read_json(&path)?);
        layout.map(Some).map_err(|source| FormatError::Json { path, source })
    }

    /// Whether experts lie as it says.
    pub(super) fn check(
        &self,
        layout: &RecordLayout,
        layers: usize,
        experts: usize,
    ) -> Result<(), PackedError> {
        let mut fields = vec![
            ("expert_size".to_owned(), self.expert_size, layout.weight_bytes() as u64),
            ("num_layers".to_owned(), self.num_layers as u64, layers as u64),
            ("num_experts".to_owned(), self.num_experts as u64, experts as u64),
            ("components".to_owned(), self.components.len() as u64, 9),
        ];
        let mut begin = 0;
        for (component, part) in self.components.iter().zip(parts(layout)) {
            let name = format!("{}.{}", part.projection, part.tensor);
            if component.name != name {
                let (field, found) = ("components".to_owned(), component.name.clone());
                return Err(PackedError::Layout { field, found, expected: name });
            }
            fields.push((format!("{name} offset"), component.offset, begin));
            fields.push((format!("{name} size"), component.size, part.bytes));
            begin += part.bytes;
        }
        match fields.into_iter().find(|(_, found, expected)| found != expected) {
            None => Ok(()),
            Some((field, found, expected)) => Err(PackedError::Layout {
                field,
                found: found.to_string(),
                expected: expected.to_string(),
            }),
        }
    }
}
