//! Prompt in, tokens out, until the model, a limit or the caller says stop.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use fm_model::{
    Runner,
    runner::{Batch, SessionId, StepTimes},
};
use fm_store::Stats;
use fm_text::{AnswerForm, CallPart, Channel, ThinkingState, Tokenizer};

use crate::{
    error::EngineError,
    grammar::Constraint,
    prefix::Pin,
    sampler::Sampling,
    writing::{self, Mark, Part, Writing},
};

/// What is asked of a model.
#[derive(Clone, Debug)]
pub struct Request {
    /// All tokens of the text so far, those that the session already holds included.
    pub prompt: Vec<u32>,
    /// Where in it turns of the user begin, ascending, which somebody may say again in other words.
    pub turns: Vec<u32>,
    /// How words are chosen.
    pub sampling: Sampling,
    /// Tokens to generate; `None` until the context is full.
    pub max_tokens: Option<usize>,
    /// Tokens that end the text.
    pub eos: Vec<u32>,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Thinking tokens before the block is closed.
    pub think_budget: Option<usize>,
    /// Thinking tokens before the model may close the block itself. A thought that goes round in a circle
    /// is closed all the same.
    pub think_min: usize,
    /// How the prompt ends.
    pub thinking: ThinkingState,
    /// What the answer may consist of.
    pub answer: AnswerForm,
    /// What the prompt has begun the answer with.
    pub opening: String,
    /// Whether the text begins anew, as an answer does, and does not go on with the prompt's.
    pub begins: bool,
    /// Calls that end the text; `None` for as many as the model makes.
    pub calls_max: Option<usize>,
    /// Tokens that the session can hold.
    pub context: u32,
    /// Added to the logits of these tokens before one is chosen. A token that is barred, by minus
    /// infinity, may be one that the model has no logit for: a tokenizer can know more than its model.
    pub bias: Vec<(u32, f32)>,
    /// How many of the likeliest tokens to tell with every token; `None` for no log-probabilities.
    pub top_logprobs: Option<usize>,
    /// How long what it computes is kept for later texts. It never changes an answer.
    pub pin: Pin,
    /// What the answer must be; a thinking block before it is free.
    pub constraint: Option<Constraint>,
    /// What the text is that the constraint allows.
    pub constrained: Constrained,
    /// What becomes of a text that goes round in a circle, or is noise.
    pub loops: Loops,
    /// When the text ends, however far it is.
    pub deadline: Option<Instant>,
    /// Who asks: those who wait for a session take turns. It never changes an answer.
    pub client: u64,
}

/// What becomes of a text that repeats the same tokens again and again, or whose tokens might as well be
/// drawn by lot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loops {
    /// It goes on.
    #[default]
    Allow,
    /// A thinking block is closed, an answer ends. An answer of a given form goes on: half of it would be
    /// nothing.
    End,
}

/// What a text within a grammar is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Constrained {
    /// The answer, whatever it spells: no calls are looked for.
    #[default]
    Answer,
    /// Text with calls.
    Calls,
    /// Calls if it begins like one, else the answer.
    Either,
}

impl Default for Request {
    /// Nothing to start from, the most likely tokens, and nothing that ends it.
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            turns: Vec::new(),
            sampling: Sampling::default(),
            max_tokens: None,
            eos: Vec::new(),
            stop: Vec::new(),
            think_budget: None,
            think_min: 0,
            thinking: ThinkingState::None,
            answer: AnswerForm::default(),
            opening: String::new(),
            begins: false,
            calls_max: None,
            context: u32::MAX,
            bias: Vec::new(),
            top_logprobs: None,
            pin: Pin::None,
            constraint: None,
            constrained: Constrained::default(),
            loops: Loops::default(),
            deadline: None,
            client: 0,
        }
    }
}

impl Request {
    /// Whether its time is over.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Whether a model with `vocab` tokens can be asked this.
    ///
    /// # Errors
    /// If the prompt is empty, too long, or has tokens the model does not know.
    pub fn check(&self, vocab: usize) -> Result<(), EngineError> {
        let (tokens, context) = (self.prompt.len(), self.context);
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens > context as usize {
            return Err(EngineError::PromptTooLong { tokens, context });
        }
        let biased = self.bias.iter().filter(|(_, bias)| *bias != f32::NEG_INFINITY);
        let mut known = self.prompt.iter().chain(biased.map(|(token, _)| token));
        match known.find(|token| **token as usize >= vocab) {
            Some(&token) => Err(EngineError::UnknownToken { token, vocab }),
            None => Ok(()),
        }
    }
}

/// A token that was chosen.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// The token.
    pub token: u32,
    /// What it is for.
    pub channel: Channel,
    /// Its log-probability, if that was asked for and the model chose it.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place with their log-probabilities, likeliest first.
    pub likeliest: &'a [(u32, f32)],
}

/// What happens on the way.
#[derive(Debug)]
pub enum Event<'a> {
    /// A layer of the prompt has been computed.
    Prefill {
        /// Tokens times layers that are done.
        done: u64,
        /// Tokens times layers in all.
        total: u64,
    },
    /// A token was chosen, before its text is known to be complete.
    Token(Chosen<'a>),
    /// A token begins in the text of the answer that is told next. Only where log-probabilities are wanted.
    Said {
        /// Which of the tokens that were chosen, the first being 0.
        token: usize,
        /// Bytes of the answer before it.
        at: usize,
    },
    /// Text that is complete.
    Text(Channel, &'a str),
    /// A part of a call, with the call's place among those that began.
    Call(usize, CallPart<'a>),
}

/// A call that is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Its place among those that began.
    pub index: usize,
    /// The function.
    pub name: String,
    /// Its arguments: a JSON object.
    pub arguments: String,
    /// The arguments as the model wrote them, if that is one stretch of text.
    pub written: Option<String>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model said so.
    Stop,
    /// This one of the stop strings was found.
    StopString(usize),
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// It repeated the same tokens again and again.
    Repetition,
    /// It was no text any more, but tokens as if drawn by lot.
    Noise,
    /// Its time was over.
    Deadline,
    /// Its grammar could be followed no further: it is the beginning of a text of it.
    Grammar,
    /// The caller broke off.
    Cancelled,
}

impl FinishReason {
    /// All of [`FinishReason::name`].
    pub const NAMES: [&'static str; 8] =
        ["stop", "length", "context", "repetition", "noise", "deadline", "grammar", "cancelled"];

    /// Whether there would have been more: nobody has chosen this end.
    pub fn is_cut(self) -> bool {
        match self {
            Self::Stop | Self::StopString(_) | Self::Cancelled => false,
            Self::Length
            | Self::Context
            | Self::Repetition
            | Self::Noise
            | Self::Deadline
            | Self::Grammar => true,
        }
    }

    /// The word of the report: one of [`FinishReason::NAMES`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Repetition => "repetition",
            Self::Noise => "noise",
            Self::Deadline => "deadline",
            Self::Grammar => "grammar",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a phase took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Phase {
    /// Tokens that were computed.
    pub tokens: usize,
    /// Wall-clock time.
    pub elapsed: Duration,
    /// What the expert store did meanwhile.
    pub store: Stats,
    /// Where the time went.
    pub times: StepTimes,
}

/// A generated text.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Tokens, a final end-of-text token not included.
    pub tokens: Vec<u32>,
    /// The answer; `None` without a tokenizer.
    pub text: Option<String>,
    /// What the model thought before it, if it did.
    pub thinking: Option<String>,
    /// What it calls.
    pub calls: Vec<Call>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens of the prompt that the session already held.
    pub reused: usize,
    /// Of these, tokens that were read from disk.
    pub restored: usize,
    /// Generated tokens that are no part of the answer.
    pub thinking_tokens: usize,
    /// From the start to the first token.
    pub first_token: Option<Duration>,
    /// The prompt, until the first token.
    pub prefill: Phase,
    /// Everything after it.
    pub decode: Phase,
    /// The longest time between two tokens.
    pub longest_wait: Duration,
    /// XXH3-128 over the f32 bits of every row of logits that was sampled from, in order.
    pub logits_hash: u128,
}

impl Generated {
    /// Nothing, and why.
    pub fn nothing(finish: FinishReason) -> Self {
        Self {
            tokens: Vec::new(),
            text: Some(String::new()),
            thinking: None,
            calls: Vec::new(),
            finish,
            reused: 0,
            restored: 0,
            thinking_tokens: 0,
            first_token: None,
            prefill: Phase::default(),
            decode: Phase::default(),
            longest_wait: Duration::ZERO,
            logits_hash: 0,
        }
    }
}

/// Runs one request on one session.
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct Generation<'a> {
    runner: &'a mut dyn Runner,
    session: SessionId,
    request: Request,
    tokenizer: Option<&'a Tokenizer>,
    store_stats: &'a dyn Fn() -> Stats,
}

impl<'a> Generation<'a> {
    /// Checks a request against its model.
    ///
    /// # Errors
    /// If the prompt is empty, too long, or has tokens the model does not know.
    pub fn new(
        runner: &'a mut dyn Runner,
        session: SessionId,
        request: Request,
        tokenizer: Option<&'a Tokenizer>,
        store_stats: &'a dyn Fn() -> Stats,
    ) -> Result<Self, EngineError> {
        request.check(runner.vocab())?;
        Ok(Self { runner, session, request, tokenizer, store_stats })
    }

    /// Runs to the end. The session then holds the prompt and all but the last token.
    ///
    /// # Errors
    /// If a step fails, or an expert that it needs cannot be read.
    pub fn run(
        self,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generated, EngineError> {
        let Self { runner, session, request, tokenizer, store_stats } = self;
        let started = Mark::now(runner, store_stats);
        let mut writing =
            [Writing::new((&*runner, session), request, tokenizer, on_event, started)];
        let mut batch = Batch::default();
        while !writing[0].has_ended() {
            batch.rows.clear();
            if writing[0].ask(runner.rows_max(), &mut batch) > 0 {
                writing::step(runner, &batch, (&mut writing, Part::All))?;
            } else {
                writing[0].wait();
            }
            writing[0].mark(|| Mark::now(runner, store_stats));
        }
        let [writing] = writing;
        writing.finish(Mark::now(runner, store_stats)).0
    }
}
