//! GLM-4.7-Flash: latent attention, routed experts in one group and a shared one.

use fm_format::source::Checkpoint;
use serde_json::Value;

use crate::{error::LoadError, spec::ModelSpec};

use super::deepseek::{self, DenseDefault};

/// See [`super::describe`].
pub(super) fn describe(checkpoint: &Checkpoint, config: &Value) -> Result<ModelSpec, LoadError> {
    deepseek::describe((checkpoint, config), "glm4_moe_lite", DenseDefault(1))
}
