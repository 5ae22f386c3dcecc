//! Where bodies are read, beside the thread of the network: so many at once, as they share cores with the model.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::count::SHORT_MAX;

/// Requests that are rendered and encoded at once. Two of them may wait for a grammar that takes long.
const PREPARING_MAX: usize = 4;

/// Conversations that are counted at once, beside those, of the short ones and of the long ones: a count of megabytes
/// keeps out no request, and no count of what somebody could answer.
const COUNTING_MAX: usize = 1;

/// See the module.
#[derive(Debug)]
pub(crate) struct Places {
    preparing: Arc<Semaphore>,
    counting: Arc<Semaphore>,
    counting_long: Arc<Semaphore>,
}

/// What a body is read for.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Answer,
    Count,
}

impl Default for Places {
    fn default() -> Self {
        let places = |max| Arc::new(Semaphore::new(max));
        Self {
            preparing: places(PREPARING_MAX),
            counting: places(COUNTING_MAX),
            counting_long: places(COUNTING_MAX),
        }
    }
}

impl Places {
    /// How many there are.
    pub(crate) const ALL: usize = PREPARING_MAX + 2 * COUNTING_MAX;

    /// Those for a body of so many bytes.
    pub(crate) fn of(&self, work: Work, bytes: usize) -> &Arc<Semaphore> {
        match work {
            Work::Answer => &self.preparing,
            Work::Count if bytes <= SHORT_MAX => &self.counting,
            Work::Count => &self.counting_long,
        }
    }
}
