//! DeepSeek-V3: latent attention over `YaRN` positions, groups of routed experts and a shared one.

use fm_format::source::Checkpoint;
use serde_json::Value;

use crate::{error::LoadError, spec::ModelSpec};

use super::deepseek::{self, DenseDefault};

/// See [`super::describe`].
pub(super) fn describe(checkpoint: &Checkpoint, config: &Value) -> Result<ModelSpec, LoadError> {
    deepseek::describe((checkpoint, config), "deepseek_v3", DenseDefault(3))
}
