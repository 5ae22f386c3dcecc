//! A text within a grammar: which tokens it may take, and what it does until that is known.
//!
//! The grammar begins with the answer. A thinking block before it is free, but for its end: the text
//! cannot end there.

use std::time::Duration;

use fm_text::ThinkingState;

use super::{guard::Found, loops::PERIOD_MAX};
use crate::{
    error::EngineError,
    generate::Constrained,
    grammar::{Constraint, Follower, GrammarError, WayOut},
    sampler::Sampler,
};

/// How long a step waits for a mask that is nearly there. A text whose mask is not sits the next
/// step out, so that the others never wait for it.
pub(super) const STEP_WAIT: Duration = Duration::from_millis(2);

/// How long nobody is asked whether they still listen, where nothing else is to be done.
pub(super) const IDLE_WAIT: Duration = Duration::from_millis(10);

/// What became of a row of logits.
pub(super) enum Taken {
    /// A token, and its log-probability if that is wanted.
    Token(u32, Option<f32>),
    /// Nothing yet: what the grammar allows is not known.
    Later,
    /// Nothing: the text was complete already.
    End,
}

/// See the module.
pub(super) struct Within {
    follower: Follower,
    /// Logits whose mask has not come yet.
    late: Option<Vec<f32>>,
    /// Tokens that may stand here without being part of the answer: what opens a thinking block, and
    /// the newlines behind one. They are taken once.
    before: Vec<u32>,
    /// Whether the latest token is the grammar's.
    of_grammar: bool,
    /// How the text could have left what it was in, instead of the latest token.
    way_out: Option<WayOut>,
    /// Tokens of the grammar since it last could have, and did not.
    left_none: usize,
    /// Whether the grammar lets the circle that the text is in go on, once it has been asked.
    endless: Option<bool>,
}

impl Within {
    pub(super) fn start(
        constraint: Constraint,
        thinking: ThinkingState,
    ) -> Result<Self, GrammarError> {
        let follower = Follower::start(constraint)?;
        let may_open = thinking == ThinkingState::None;
        let before = follower.think.filter(|_| may_open).into_iter().collect();
        let (of_grammar, way_out, left_none, endless) = (false, None, usize::MAX, None);
        Ok(Self { follower, late: None, before, of_grammar, way_out, left_none, endless })
    }

    /// Chooses a token for logits; `place` says whether it is in a thinking block, and which tokens
    /// end a text.
    pub(super) fn sample(
        &mut self,
        (sampler, logits): (&mut Sampler, &[f32]),
        (thinks, eos): (bool, &[u32]),
        wait: Duration,
    ) -> Result<Taken, EngineError> {
        if thinks {
            let token = sampler.sample_within(logits, |logits| {
                bar(logits, eos);
            })?;
            self.of_grammar = false;
            return Ok(Taken::Token(token, None));
        }
        let Some(mask) = self.follower.mask(wait)? else {
            if self.follower.is_complete(Duration::ZERO)? {
                return Ok(Taken::End);
            }
            self.late = Some(logits.to_vec());
            return Ok(Taken::Later);
        };
        let before = std::mem::take(&mut self.before);
        let token = sampler.sample_within(logits, |logits| mask.apply(logits, eos, &before))?;
        self.of_grammar = mask.has(token);
        self.way_out = self.follower.way_out();
        self.endless.iter_mut().for_each(|endless| *endless |= self.follower.is_endless());
        Ok(Taken::Token(token, None))
    }

    /// Logits that have waited, if what the grammar allows is known after `wait`; and whether none
    /// wait now.
    pub(super) fn late(
        &mut self,
        wait: Duration,
    ) -> Result<(Option<Vec<f32>>, bool), GrammarError> {
        if self.late.is_none() {
            return Ok((None, true));
        }
        let ready = self.follower.mask(wait)?.is_some() || self.is_complete()?;
        Ok((self.late.take_if(|_| ready), ready))
    }

    /// Follows a token that was chosen, and what it spells; says whether it is part of the answer.
    pub(super) fn accept(&mut self, token: u32, spelled: &[u8]) -> bool {
        if self.of_grammar {
            self.follower.accept(token);
            let stays = match self.way_out {
                None => false,
                Some(WayOut::End) => true,
                Some(WayOut::Close(byte)) => spelled.first() != Some(&byte),
                // A token may be a digit and the comma behind it.
                Some(WayOut::Comma) => !spelled.contains(&b','),
            };
            self.left_none = if stays { 0 } else { self.left_none.saturating_add(1) };
        }
        self.of_grammar
    }

    /// Whether a text with what was found in it should end at the latest of its tokens. Half a call is
    /// told as text; half an answer of a given form is nothing, unless it could have left its circle in
    /// every round. A circle that the grammar ends by itself is none.
    pub(super) fn gives_up(
        &mut self,
        found: Option<Found>,
        tokens: &[u32],
        constrained: Constrained,
    ) -> bool {
        let calls = constrained == Constrained::Calls;
        match found {
            Some(Found::Circle(length)) => {
                let circle = &tokens[tokens.len() - length..];
                self.may_go_round(circle) && (calls || self.could_leave(PERIOD_MAX))
            }
            found => {
                self.endless = None;
                calls && found.is_some()
            }
        }
    }

    /// Whether the grammar lets the text go round for ever; not before it has been asked.
    fn may_go_round(&mut self, circle: &[u32]) -> bool {
        *self.endless.get_or_insert_with(|| {
            self.follower.ask(circle);
            false
        })
    }

    /// Whether one of so many latest tokens stands where the grammar let the text leave what it was in:
    /// its end, or that of a string, a number, a list or an object of it. Elsewhere it goes round because it has to.
    fn could_leave(&self, latest: usize) -> bool {
        self.left_none < latest
    }

    /// Whether the latest token is the grammar's.
    pub(super) fn is_of_grammar(&self) -> bool {
        self.of_grammar
    }

    /// A token was not chosen but put there.
    pub(super) fn pass(&mut self) {
        self.of_grammar = false;
    }

    /// The model has closed a thinking block itself, and may write newlines behind it.
    pub(super) fn thought(&mut self) {
        self.before.clone_from(&self.follower.newlines);
    }

    /// Whether nothing may follow the latest token.
    pub(super) fn is_complete(&mut self) -> Result<bool, GrammarError> {
        Ok(self.of_grammar && self.follower.is_complete(STEP_WAIT)?)
    }
}

/// Takes tokens from what may be chosen. A tokenizer may know some that the model has no logits for.
pub(super) fn bar(logits: &mut [f32], tokens: &[u32]) {
    for token in tokens {
        logits.get_mut(*token as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
    }
}
