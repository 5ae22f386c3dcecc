//! One step of a batch: everybody in it is handed what is theirs.

use std::ops::ControlFlow;

use fm_model::{
    Runner,
    runner::{Batch, StepError},
};

use super::{Hear, Writing};
use crate::generate::FinishReason;

/// Computes a batch that `writings` have asked for, and hands everyone what is theirs. A step is
/// broken off if nobody who is in it listens any more.
///
/// # Errors
/// If the whole step failed; the sessions in it have fallen back.
pub(crate) fn step<S: Hear>(
    runner: &mut dyn Runner,
    batch: &Batch,
    writings: &mut [Writing<'_, S>],
) -> Result<(), StepError> {
    let vocab = runner.vocab();
    let result = runner.step(batch, &mut |progress| {
        let mut wanted = false;
        for writing in writings.iter_mut().filter(|writing| writing.is_in_step()) {
            if writing.end.is_none() && writing.progress(progress).is_break() {
                writing.end = Some(Ok(FinishReason::Cancelled));
            }
            wanted |= writing.end.is_none();
        }
        if wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let output = match result {
        Ok(output) => output,
        Err(StepError::Cancelled) => return Ok(()),
        Err(error) => return Err(error),
    };
    for spoiled in output.spoiled {
        let lost = writings.iter_mut().find(|writing| writing.session == spoiled.session);
        let lost = lost.expect("a spoiled session was in the batch");
        lost.end = Some(Err(spoiled.reason.into()));
    }
    let mut logits = output.logits.chunks_exact(vocab);
    for writing in writings.iter_mut().filter(|writing| writing.is_in_step()) {
        let own = if writing.asked.logits { logits.next() } else { None };
        if writing.end.is_none() {
            writing.take(own.unwrap_or_default());
        }
    }
    Ok(())
}
