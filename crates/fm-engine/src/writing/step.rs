//! Steps and sweeps of a batch: everybody in it is handed what is theirs.

use std::ops::ControlFlow;

use fm_model::{
    Runner,
    runner::{Batch, Halt, Lane, Output, Progress, StepError},
};

use super::{Hear, Part, Writing};
use crate::generate::FinishReason;

/// Computes a batch that `writings` have asked for, and hands everyone what is theirs. A step is
/// broken off if nobody who is in it listens any more.
///
/// # Errors
/// If the whole step failed; the sessions in it have fallen back.
pub(crate) fn step<S: Hear>(
    runner: &mut dyn Runner,
    batch: &Batch,
    (writings, part): (&mut [Writing<'_, S>], Part),
) -> Result<(), StepError> {
    let vocab = runner.vocab();
    let result = runner.step(batch, &mut |progress| tell((&mut *writings, part), progress));
    match result {
        Ok(output) => hand_out(output, vocab, (writings, part)),
        Err(StepError::Cancelled) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Goes on with the sweep of a lane until it has ended, or `rests` says so after a layer. Says whether it
/// has ended; then everyone is handed what is theirs. It ends too if nobody who is in it listens any
/// more.
///
/// # Errors
/// If all of it failed; the sessions in it have fallen back.
pub(crate) fn sweep<S: Hear>(
    runner: &mut dyn Runner,
    (writings, lane): (&mut [Writing<'_, S>], Lane),
    rests: &mut dyn FnMut() -> bool,
) -> Result<bool, StepError> {
    let vocab = runner.vocab();
    let result = runner.sweep(lane, &mut |progress| {
        if tell((&mut *writings, Part::Prompts(lane)), progress).is_break() {
            return ControlFlow::Break(Halt::Cancel);
        }
        if rests() { ControlFlow::Break(Halt::Rest) } else { ControlFlow::Continue(()) }
    });
    match result {
        Ok(None) => return Ok(false),
        Ok(Some(output)) => hand_out(output, vocab, (writings, Part::Prompts(lane))),
        Err(StepError::Cancelled) => {}
        Err(error) => return Err(error),
    }
    Ok(true)
}

/// Tells everybody how far it is; breaks off if nobody listens.
fn tell<S: Hear>(
    (writings, part): (&mut [Writing<'_, S>], Part),
    progress: Progress,
) -> ControlFlow<()> {
    let mut wanted = false;
    for writing in writings.iter_mut().filter(|writing| writing.is_in(part)) {
        if writing.end.is_none() && writing.progress(progress).is_break() {
            writing.end = Some(Ok(FinishReason::Cancelled));
        }
        wanted |= writing.end.is_none();
    }
    if wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

fn hand_out<S: Hear>(
    output: Output<'_>,
    vocab: usize,
    (writings, part): (&mut [Writing<'_, S>], Part),
) {
    for spoiled in output.spoiled {
        let lost = writings.iter_mut().find(|writing| writing.session == spoiled.session);
        let lost = lost.expect("a spoiled session was in the batch");
        lost.end = Some(Err(spoiled.reason.into()));
    }
    let mut logits = output.logits.chunks_exact(vocab);
    for writing in writings.iter_mut().filter(|writing| writing.is_in(part)) {
        let own = if writing.asked.logits { logits.next() } else { None };
        if writing.end.is_none() {
            writing.take(own.unwrap_or_default());
        }
    }
}
