//! Watches a text for what no model writes that is well: circles, and noise.

use super::{loops::LoopFinder, noise::Noise};
use crate::generate::FinishReason;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    loops: LoopFinder,
    /// None where who asked has made tokens likelier than the model thinks they are.
    noise: Option<Noise>,
}

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// So many latest tokens came again and again.
    Circle(usize),
    Noise,
}

impl Found {
    /// Why a text ends that has it.
    pub(super) fn reason(self) -> FinishReason {
        match self {
            Self::Circle(_) => FinishReason::Repetition,
            Self::Noise => FinishReason::Noise,
        }
    }
}

impl Guard {
    pub(super) fn new(vocab: usize, bias: &[(u32, f32)]) -> Self {
        let own = bias.iter().all(|(_, bias)| *bias <= 0.0);
        Self { loops: LoopFinder::new(), noise: own.then(|| Noise::new(vocab)) }
    }

    /// Looks at what the model thought of a token that was chosen freely.
    pub(super) fn look(&mut self, logits: &[f32], token: u32) {
        self.noise.iter_mut().for_each(|noise| noise.look(logits, token));
    }

    /// What is wrong with the text at its latest token.
    pub(super) fn found(&mut self, tokens: &[u32], ill_formed: usize) -> Option<Found> {
        let circle = self.loops.found(tokens).map(Found::Circle);
        let noise = self.noise.as_mut().is_some_and(|noise| noise.found(ill_formed));
        circle.or(noise.then_some(Found::Noise))
    }

    /// Begins anew behind `tokens`.
    pub(super) fn forget(&mut self, tokens: &[u32]) {
        self.loops.forget(tokens);
        self.noise.iter_mut().for_each(Noise::forget);
    }
}
