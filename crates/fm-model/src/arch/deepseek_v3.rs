//! DeepSeek-V3: latent attention over `YaRN` positions, groups of routed experts and a shared one.

use fm_format::source::Checkpoint;

use crate::{error::LoadError, spec::ModelSpec};

use super::deepseek::{self, DenseDefault};

/// See [`super::describe`].
pub(super) fn describe(checkpoint: &Checkpoint) -> Result<ModelSpec, LoadError> {
    deepseek::describe(checkpoint, "deepseek_v3", DenseDefault(3))
}
