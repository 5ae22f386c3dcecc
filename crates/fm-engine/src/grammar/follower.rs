//! A thread that follows one text through its grammar, so that its next mask is ready when the
//! model's logits are. Nobody waits for it longer than they choose to.
//!
//! ```text
//! accept(token) ──► parsed ──► is_complete?        while the scheduler composes a batch
//!                     └──────► mask                while the model computes it
//! ```

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    time::Duration,
};

use llguidance::api::StopReason;
use toktrie::SimpleVob;

use super::{
    Constraint, GrammarError,
    matcher::{Matcher, stuck},
    spawn,
    trie::{Closers, Letters, Words},
};

/// What the thread says, after each token and at the start.
pub(super) enum Heard {
    /// The text has been parsed and can go on.
    Open,
    /// What may come next.
    Mask(Mask),
    /// Nothing can come next, and nothing is missing.
    Complete,
    Stuck(GrammarError),
}

/// What the thread is told.
pub(super) enum Told {
    /// The text goes on with this token.
    Token(u32),
    /// It goes round, these tokens again and again.
    Circle(Vec<u32>),
}

/// Messages that wait: those of one token, in either direction.
const MESSAGES_MAX: usize = 2;

/// A grammar that ends a circle within so many tokens is left to end it. That is a quarter of an hour
/// of a model that writes five a second; who bounds a text by more does not mean to read it.
const CIRCLE_TOKENS_MAX: usize = 4096;

/// See the module.
pub(crate) struct Follower {
    tell: SyncSender<Told>,
    heard: Receiver<Heard>,
    /// The latest message after the latest token.
    latest: Option<Heard>,
    /// Whether there was no room for a message: what the thread says is about another text then.
    unheard: bool,
    pub(crate) newlines: Vec<u32>,
    pub(crate) think: Option<u32>,
    /// Of a text that is JSON.
    closers: Closers,
}

/// How a text could leave what it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WayOut {
    /// It may end.
    End,
    /// A string, list or object of it may, with this byte.
    Close(u8),
    /// A number of it may, and something has to follow.
    Comma,
}

/// Tokens that may come next.
pub(crate) struct Mask {
    bits: SimpleVob,
    /// Whether the text may end here.
    ends: bool,
    /// Whether the circle that the thread was told of may go on.
    endless: bool,
}

impl Mask {
    /// Lets through what may come next: tokens of the grammar, `others`, and those that end the text
    /// where it may end.
    pub(crate) fn apply(&self, logits: &mut [f32], eos: &[u32], others: &[u32]) {
        // Whatever the model thinks of it, a token that is allowed is above one that is not.
        let allowed = |logit: f32| logit.max(f32::MIN);
        let others = others.iter().filter(|token| !eos.contains(token));
        let ends = eos.iter().filter(|_| self.ends);
        let kept = others.chain(ends).filter_map(|token| {
            logits.get(*token as usize).map(|logit| (*token as usize, allowed(*logit)))
        });
        let kept: Vec<(usize, f32)> = kept.collect();
        // A grammar allows few tokens, most of the time: words of none take no look at each.
        let words = self.bits.as_slice().iter().copied().chain(std::iter::repeat(0));
        for (word, logits) in words.zip(logits.chunks_mut(u32::BITS as usize)) {
            if word == 0 {
                logits.fill(f32::NEG_INFINITY);
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                *logit = if word >> bit & 1 == 1 { allowed(*logit) } else { f32::NEG_INFINITY };
            }
        }
        for token in eos {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        for (token, logit) in kept {
            logits[token] = logit;
        }
    }

    /// Whether the grammar itself has the token.
    pub(crate) fn has(&self, token: u32) -> bool {
        self.bits.is_allowed(token)
    }
}

impl Follower {
    /// Starts the thread. What fails is heard with the first mask.
    pub(crate) fn start(constraint: Constraint) -> Result<Self, GrammarError> {
        let words = constraint.grammars.words()?;
        let (newlines, think) = (words.newlines.clone(), words.think);
        let closers =
            if constraint.grammar().is_json() { words.closers.clone() } else { Closers::default() };
        let (tell, told) = mpsc::sync_channel(MESSAGES_MAX);
        let (say, heard) = mpsc::sync_channel(MESSAGES_MAX);
        spawn(move || follow(&constraint, &told, &say)).map_err(|_| GrammarError::Gone)?;
        Ok(Self { newlines, think, closers, ..Self::of(tell, heard) })
    }

    pub(super) fn of(tell: SyncSender<Told>, heard: Receiver<Heard>) -> Self {
        let closers = Closers::default();
        let (latest, unheard) = (None, false);
        Self { tell, heard, latest, unheard, newlines: Vec::new(), think: None, closers }
    }

    /// The text goes on with a token of the latest mask.
    pub(crate) fn accept(&mut self, token: u32) {
        self.latest = None;
        self.tell(Told::Token(token));
    }

    /// The text goes round in this circle: the mask after the next one says whether the grammar lets it.
    pub(crate) fn ask(&mut self, circle: &[u32]) {
        self.tell(Told::Circle(circle.to_vec()));
    }

    fn tell(&mut self, message: Told) {
        // Whether the thread is there is heard from it, or rather not.
        let sent = self.tell.try_send(message);
        self.unheard |= matches!(sent, Err(TrySendError::Full(_)));
    }

    /// Whether it does, by the latest mask.
    pub(crate) fn is_endless(&self) -> bool {
        matches!(&self.latest, Some(Heard::Mask(mask)) if mask.endless)
    }

    /// Whether the text is complete, as far as that is known after `wait`.
    pub(crate) fn is_complete(&mut self, wait: Duration) -> Result<bool, GrammarError> {
        if self.latest.is_none() {
            self.hear(wait)?;
        }
        Ok(matches!(self.latest, Some(Heard::Complete)))
    }

    /// What may come next, if that is known after `wait`; nothing after a text that is complete.
    pub(crate) fn mask(&mut self, wait: Duration) -> Result<Option<&Mask>, GrammarError> {
        while matches!(self.latest, None | Some(Heard::Open)) {
            if !self.hear(wait)? {
                break;
            }
        }
        Ok(match &self.latest {
            Some(Heard::Mask(mask)) => Some(mask),
            _ => None,
        })
    }

    /// How the text could leave what it is in, by the latest mask.
    pub(crate) fn way_out(&self) -> Option<WayOut> {
        let Some(Heard::Mask(mask)) = &self.latest else { return None };
        let Closers { brackets, quote, letter, digit, comma, .. } = &self.closers;
        let has = |token: &u32| mask.has(*token);
        let may = |token: &Option<u32>| token.as_ref().is_some_and(has);
        let bracket = brackets.iter().find(|(token, _)| has(token)).map(|(_, byte)| *byte);
        let close = match (may(letter), bracket) {
            // Within a string brackets and commas are letters, and it may have to go on.
            (true, _) => may(quote).then_some(WayOut::Close(b'"')),
            (false, Some(byte)) => Some(WayOut::Close(byte)),
            (false, None) => (may(digit) && may(comma) && !may(quote)).then_some(WayOut::Comma),
        };
        if mask.ends { Some(WayOut::End) } else { close }
    }

    fn hear(&mut self, wait: Duration) -> Result<bool, GrammarError> {
        if self.unheard {
            return Err(GrammarError::Unheard);
        }
        match self.heard.recv_timeout(wait) {
            Ok(Heard::Stuck(error)) => Err(error),
            Ok(heard) => {
                self.latest = Some(heard);
                Ok(true)
            }
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(GrammarError::Gone),
        }
    }
}

/// The thread's work; it ends with the text.
fn follow(constraint: &Constraint, told: &Receiver<Told>, say: &SyncSender<Heard>) {
    let words = match constraint.grammars.words() {
        Ok(words) => words,
        Err(error) => return drop(say.send(Heard::Stuck(error))),
    };
    let mut matcher = constraint.matcher();
    let mut endless = false;
    loop {
        let mut heard = next_mask(&mut matcher, words, constraint.letters());
        if let Heard::Mask(mask) = &mut heard {
            mask.endless = std::mem::take(&mut endless);
        }
        let goes_on = matches!(heard, Heard::Mask(_));
        if say.send(heard).is_err() || !goes_on {
            return;
        }
        let token = loop {
            match told.recv() {
                Ok(Told::Token(token)) => break token,
                Ok(Told::Circle(circle)) => {
                    endless = may_go_round(&matcher, &circle, &constraint.grammars.copying);
                }
                Err(_) => return,
            }
        };
        let heard = match matcher.consume_token(token) {
            Err(error) => Heard::Stuck(error),
            Ok(()) if matcher.is_stopped() => Heard::Complete,
            Ok(()) => Heard::Open,
        };
        let goes_on = matches!(heard, Heard::Open);
        if say.send(heard).is_err() || !goes_on {
            return;
        }
    }
}

/// What may come next, as far as tokens of the model can spell it.
pub(super) fn next_mask(matcher: &mut Matcher, words: &Words, letters: Letters) -> Heard {
    let mut bits = match matcher.compute_mask() {
        Ok(bits) => bits,
        Err(error) => return Heard::Stuck(error),
    };
    bits.and(words.letters(letters));
    let ends = bits.is_allowed(words.end);
    bits.disallow_token(words.end);
    match (bits.is_zero(), ends) {
        (false, _) => Heard::Mask(Mask { bits, ends, endless: false }),
        (true, true) => Heard::Complete,
        (true, false) => Heard::Stuck(stuck(&StopReason::NoExtensionBias)),
    }
}

/// Whether the text may go round for longer than anybody would want a text of a given form to, or than
/// the grammar can be followed. A copy goes there: the states that it needs would be missing later. There is room for
/// one such copy.
fn may_go_round(matcher: &Matcher, circle: &[u32], copying: &Mutex<()>) -> bool {
    let _turn = copying.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ahead = matcher.deep_clone();
    for token in circle.iter().copied().cycle().take(CIRCLE_TOKENS_MAX) {
        match ahead.count_allowed(&[token]) {
            Ok(0) => return ahead.is_lost(),
            Ok(_) => {}
            Err(_) => return true,
        }
        if ahead.consume_token(token).is_err() || ahead.is_full() {
            return true;
        }
    }
    true
}
