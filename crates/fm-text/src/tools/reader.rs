//! What reads the calls of an answer, whatever their dialect.

use std::fmt::Debug;

use super::{Definitions, parts::Parts};

/// Bytes of a name.
const NAME_MAX: usize = 128;

/// What became of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More text is needed.
    More,
    /// So many bytes are read; there may be more to do.
    Took(usize),
    /// A call ends before these bytes, which are read.
    Call(usize),
    /// The same, but its arguments are not written as the dialect's templates write them.
    Odd(usize),
    /// The calls are over behind these bytes.
    Close(usize),
    /// This is no call; if one has begun, it is text up to behind these bytes.
    Broken(usize),
}

/// Reads calls, from the mark that opens them on. What it decides depends on the text alone, not on
/// the pieces it comes in: as long as more text could change a step, the step is [`Step::More`].
pub(super) trait Read: Debug + Send {
    /// Reads on; `rest` begins where the last step ended. Behind the `last` piece nothing comes.
    fn read(
        &mut self,
        rest: &str,
        last: bool,
        definitions: &Definitions,
        parts: &mut Parts,
    ) -> Step;
}

/// Whether a function can have this name in every dialect.
pub fn valid_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':');
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(good)
}
