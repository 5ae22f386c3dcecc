//! Steps and sweeps of a batch: everybody in it is handed what is theirs.

use std::ops::ControlFlow;

use fm_model::{
    Runner,
    runner::{Batch, Border, Halt, Lane, Output, StepError},
};

use super::{Asked, Hear, Part, Writing};
use crate::generate::FinishReason;

/// Computes a batch that `writings` have asked for, hands everyone what is theirs, and says how many rows came
/// through. Who does not listen any more leaves at the next layer.
///
/// # Errors
/// If the whole step failed; the sessions in it have fallen back.
pub(crate) fn step<S: Hear>(
    runner: &mut dyn Runner,
    batch: &Batch,
    (writings, part): (&mut [Writing<'_, S>], Part),
) -> Result<usize, StepError> {
    let vocab = runner.vocab();
    let result = runner.step(batch, &mut |border| {
        tell((&mut *writings, part), border);
        ControlFlow::Continue(())
    });
    match result {
        Ok(output) => Ok(hand_out(output, vocab, (writings, part))),
        Err(StepError::Cancelled) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Goes on with the sweep of a lane until it has ended, or `rests` says so after a layer. Once it has
/// ended everyone is handed what is theirs, and it says how many rows came through. Who does not listen
/// any more leaves at the next layer.
///
/// # Errors
/// If all of it failed; the sessions in it have fallen back.
pub(crate) fn sweep<S: Hear>(
    runner: &mut dyn Runner,
    (writings, lane): (&mut [Writing<'_, S>], Lane),
    rests: &mut dyn FnMut() -> bool,
) -> Result<Option<usize>, StepError> {
    let vocab = runner.vocab();
    let result = runner.sweep(lane, &mut |border| {
        tell((&mut *writings, Part::Prompts(lane)), border);
        if rests() { ControlFlow::Break(Halt::Rest) } else { ControlFlow::Continue(()) }
    });
    match result {
        Ok(None) => Ok(None),
        Ok(Some(output)) => Ok(Some(hand_out(output, vocab, (writings, Part::Prompts(lane))))),
        Err(StepError::Cancelled) => Ok(Some(0)),
        Err(error) => Err(error),
    }
}

/// Tells everybody how far it is. Who has ended by that has no rows in it any more.
fn tell<S: Hear>((writings, part): (&mut [Writing<'_, S>], Part), border: &mut Border<'_>) {
    for writing in writings.iter_mut().filter(|writing| writing.is_in(part)) {
        if writing.end.is_none() && writing.progress(border.progress).is_break() {
            writing.end = Some(Ok(FinishReason::Cancelled));
        }
        if writing.has_ended() {
            border.leave(writing.session);
            writing.asked = Asked::default();
        }
    }
}

/// Says how many rows came through.
fn hand_out<S: Hear>(
    output: Output<'_>,
    vocab: usize,
    (writings, part): (&mut [Writing<'_, S>], Part),
) -> usize {
    for spoiled in output.spoiled {
        let lost = writings.iter_mut().find(|writing| writing.session == spoiled.session);
        let lost = lost.expect("a spoiled session was in the batch");
        lost.end = Some(Err(spoiled.reason.into()));
    }
    let mut rows = 0;
    let mut logits = output.logits.chunks_exact(vocab);
    for writing in writings.iter_mut().filter(|writing| writing.is_in(part)) {
        let own = if writing.asked.logits { logits.next() } else { None };
        if writing.end.is_none() {
            rows += writing.asked.rows;
            writing.take(own.unwrap_or_default());
        }
    }
    rows
}
