//! Watches a text for what no model writes that is well: circles, and noise.

use super::{loops::Loops, noise::Noise};
use crate::generate::FinishReason;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    loops: Loops,
    /// None where who asked has made tokens likelier than the model thinks they are.
    noise: Option<Noise>,
}

impl Guard {
    pub(super) fn new(vocab: usize, bias: &[(u32, f32)]) -> Self {
        let own = bias.iter().all(|(_, bias)| *bias <= 0.0);
        Self { loops: Loops::new(), noise: own.then(|| Noise::new(vocab)) }
    }

    /// Looks at what the model thought of a token that was chosen freely.
    pub(super) fn look(&mut self, logits: &[f32], token: u32) {
        self.noise.iter_mut().for_each(|noise| noise.look(logits, token));
    }

    /// Why the text should end at its latest token, if it should.
    pub(super) fn found(&mut self, tokens: &[u32], ill_formed: usize) -> Option<FinishReason> {
        let loops = self.loops.found(tokens);
        let noise = self.noise.as_mut().is_some_and(|noise| noise.found(ill_formed));
        match (loops, noise) {
            (true, _) => Some(FinishReason::Repetition),
            (_, true) => Some(FinishReason::Noise),
            _ => None,
        }
    }

    /// Begins anew behind `tokens`.
    pub(super) fn forget(&mut self, tokens: &[u32]) {
        self.loops.forget(tokens);
        self.noise.iter_mut().for_each(Noise::forget);
    }
}
