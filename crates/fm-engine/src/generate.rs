//! Prompt in, tokens out, until the model, a limit or the caller says stop.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use fm_model::{
    Runner,
    runner::{Batch, Row, RowInput, SessionId, StepTimes, Wants},
};
use fm_store::Stats;
use fm_text::{
    Channel, Detokenizer, SpecialText, StopStrings, ThinkingSplitter, ThinkingState, ThinkingTags,
    Tokenizer,
};
use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    error::EngineError,
    sampler::{Sampler, Sampling},
};

/// A position to fall back to is kept every so many generated tokens: a lost expert costs no more.
const CHECKPOINT_TOKENS: u32 = 64;

/// What is asked of a model.
#[derive(Clone, Debug)]
pub struct Request {
    /// All tokens of the text so far, those that the session already holds included.
    pub prompt: Vec<u32>,
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
    /// How the prompt ends.
    pub thinking: ThinkingState,
    /// Tokens that the session can hold.
    pub context: u32,
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
    Token(u32),
    /// Text that is complete.
    Text(Channel, &'a str),
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model said so, or a stop string was found.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller broke off.
    Cancelled,
}

impl FinishReason {
    /// The word of the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
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
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens of the prompt that the session already held.
    pub reused: usize,
    /// From the start to the first token.
    pub first_token: Option<Duration>,
    /// The prompt, until the first token.
    pub prefill: Phase,
    /// Everything after it.
    pub decode: Phase,
    /// XXH3-128 over the f32 bits of every row of logits that was sampled from, in order.
    pub logits_hash: u128,
}

/// Runs one request on one session.
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct Generation<'a> {
    runner: &'a mut dyn Runner,
    session: SessionId,
    request: Request,
    sampler: Sampler,
    text: Option<TextStream<'a>>,
    store_stats: &'a dyn Fn() -> Stats,
    hash: Xxh3Default,
    tokens: Vec<u32>,
    /// Tokens to feed that were not sampled: the end of a thinking block.
    forced: Vec<u32>,
    thinking_tokens: usize,
    batch: Batch,
}

/// Tokens on their way to text.
#[derive(Debug)]
struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    detokenizer: Detokenizer<'a>,
    splitter: ThinkingSplitter,
    stop: StopStrings,
    answer: String,
    thinking: String,
}

/// The end of a thinking block, as the templates of thinking models write it.
const THINK_END: &str = "\n</think>\n\n";

impl<'a> TextStream<'a> {
    fn new(tokenizer: &'a Tokenizer, request: &Request) -> Result<Self, EngineError> {
        let tags = ThinkingTags::new("<think>", "</think>")?.with_tokens_of(tokenizer);
        Ok(Self {
            tokenizer,
            detokenizer: Detokenizer::new(tokenizer, SpecialText::Skip),
            splitter: ThinkingSplitter::new(tags, request.thinking),
            stop: StopStrings::new(request.stop.iter().cloned())?,
            answer: String::new(),
            thinking: String::new(),
        })
    }

    /// Adds a token; breaks off if a stop string is complete or the caller says so.
    fn push(
        &mut self,
        token: u32,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Option<FinishReason>, EngineError> {
        let text = self.detokenizer.push(token)?;
        let mut finish = None;
        for segment in self.splitter.push(token, text) {
            let emit = match segment.channel {
                Channel::Thinking => segment.text,
                Channel::Answer => {
                    let pushed = self.stop.push(segment.text);
                    finish = pushed.stopped.then_some(FinishReason::Stop).or(finish);
                    pushed.emit
                }
            };
            let kept = match segment.channel {
                Channel::Thinking => &mut self.thinking,
                Channel::Answer => &mut self.answer,
            };
            kept.push_str(emit);
            if !emit.is_empty() && on_event(Event::Text(segment.channel, emit)).is_break() {
                return Ok(Some(FinishReason::Cancelled));
            }
        }
        Ok(finish)
    }

    /// What was held back, now that nothing follows. `None` if the text ended by a stop string.
    fn finish(&mut self, on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>) {
        let rest = self.detokenizer.finish().to_owned();
        let mut segments: Vec<(Channel, String)> = Vec::new();
        for segment in self.splitter.push_text(&rest) {
            segments.push((segment.channel, segment.text.to_owned()));
        }
        for segment in self.splitter.finish() {
            segments.push((segment.channel, segment.text.to_owned()));
        }
        for (channel, text) in segments {
            match channel {
                Channel::Thinking => self.thinking.push_str(&text),
                Channel::Answer => {
                    let emit = self.stop.push(&text).emit;
                    self.answer.push_str(emit);
                    if !emit.is_empty() {
                        let _ = on_event(Event::Text(channel, emit));
                    }
                    continue;
                }
            }
            let _ = on_event(Event::Text(channel, &text));
        }
        let emit = self.stop.finish().emit;
        self.answer.push_str(emit);
        if !emit.is_empty() {
            let _ = on_event(Event::Text(Channel::Answer, emit));
        }
    }
}

impl<'a> Generation<'a> {
    /// Checks a request against its session.
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
        let vocab = runner.vocab();
        let (tokens, context) = (request.prompt.len(), request.context);
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens > context as usize {
            return Err(EngineError::PromptTooLong { tokens, context });
        }
        if let Some(&token) = request.prompt.iter().find(|token| **token as usize >= vocab) {
            return Err(EngineError::UnknownToken { token, vocab });
        }
        let text = tokenizer.map(|tokenizer| TextStream::new(tokenizer, &request)).transpose()?;
        Ok(Self {
            sampler: Sampler::new(request.sampling, vocab, &request.prompt),
            runner,
            session,
            request,
            text,
            store_stats,
            hash: Xxh3Default::new(),
            tokens: Vec::new(),
            forced: Vec::new(),
            thinking_tokens: 0,
            batch: Batch::default(),
        })
    }

    /// Runs to the end. The session then holds the prompt and all but the last token.
    ///
    /// # Errors
    /// If a step fails, or an expert that it needs cannot be read.
    ///
    /// # Panics
    /// Never: the loop ends with a reason.
    pub fn run(
        mut self,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generated, EngineError> {
        let started = Instant::now();
        let reused =
            (self.runner.position(self.session)? as usize).min(self.request.prompt.len() - 1);
        let before = self.mark();
        let mut finish = match self.prefill(reused, on_event)? {
            ControlFlow::Continue(()) => None,
            ControlFlow::Break(()) => Some(FinishReason::Cancelled),
        };
        let mut first_token = None;
        if finish.is_none() {
            finish = self.next(on_event)?;
            first_token = Some(started.elapsed());
        }
        let prefill = self.phase(self.request.prompt.len() - reused, before);
        let before = self.mark();
        while finish.is_none() {
            finish = self.next(on_event)?;
        }
        let decode = self.phase(self.tokens.len().saturating_sub(1), before);
        if let (Some(text), false) = (&mut self.text, finish == Some(FinishReason::Cancelled)) {
            text.finish(on_event);
        }
        let (answer, thinking) = match self.text {
            Some(text) => (Some(text.answer), Some(text.thinking)),
            None => (None, None),
        };
        Ok(Generated {
            tokens: self.tokens,
            text: answer,
            thinking: thinking.filter(|thinking| !thinking.is_empty()),
            finish: finish.expect("the loop ends with a reason"),
            reused,
            first_token,
            prefill,
            decode,
            logits_hash: self.hash.digest128(),
        })
    }

    fn mark(&self) -> (Instant, Stats, StepTimes) {
        (Instant::now(), (self.store_stats)(), self.runner.times())
    }

    fn phase(&self, tokens: usize, before: (Instant, Stats, StepTimes)) -> Phase {
        let (started, stats, times) = before;
        Phase {
            tokens,
            elapsed: started.elapsed(),
            store: (self.store_stats)() - stats,
            times: self.runner.times() - times,
        }
    }

    /// Takes in the prompt but for its last token, in chunks.
    fn prefill(
        &mut self,
        reused: usize,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, EngineError> {
        let last = self.request.prompt.len() - 1;
        let chunk_max = self.runner.rows_max();
        let mut at = reused;
        while at < last {
            let end = (at + chunk_max).min(last);
            let tokens = self.request.prompt[at..end].iter();
            self.batch.rows.clear();
            self.batch.rows.extend((at as u32..).zip(tokens).map(|(position, token)| {
                let input = RowInput::Token(*token);
                Row { session: self.session, input, position, wants: Wants::default() }
            }));
            let tail = self.batch.rows.last_mut().expect("a chunk is not empty");
            tail.wants.checkpoint = true;
            let (chunk, before) = ((end - at) as u64, (at - reused) as u64);
            let output = self.runner.step(&self.batch, &mut |progress| {
                let layers = u64::from(progress.layers);
                let done = before * layers + chunk * (u64::from(progress.layer.0) + 1);
                on_event(Event::Prefill { done, total: (last - reused) as u64 * layers })
            });
            match output {
                Ok(mut output) => {
                    if let Some(spoiled) = output.spoiled.pop() {
                        return Err(spoiled.reason.into());
                    }
                }
                Err(fm_model::runner::StepError::Cancelled) => return Ok(ControlFlow::Break(())),
                Err(error) => return Err(error.into()),
            }
            at = end;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Feeds the latest token and chooses the next one.
    fn next(
        &mut self,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Option<FinishReason>, EngineError> {
        if self.request.max_tokens.is_some_and(|max| self.tokens.len() >= max) {
            return Ok(Some(FinishReason::Length));
        }
        let position = (self.request.prompt.len() + self.tokens.len()) as u32 - 1;
        if position >= self.request.context {
            return Ok(Some(FinishReason::Context));
        }
        let latest = self.tokens.last().or(self.request.prompt.last());
        let token = *latest.expect("the prompt is not empty");
        let forced = self.forced.pop();
        self.batch.rows.clear();
        self.batch.rows.push(Row {
            session: self.session,
            input: RowInput::Token(token),
            position,
            wants: Wants {
                logits: forced.is_none(),
                hidden: false,
                checkpoint: position.is_multiple_of(CHECKPOINT_TOKENS),
            },
        });
        let output = self.runner.step(&self.batch, &mut |_| ControlFlow::Continue(()))?;
        if let Some(spoiled) = output.spoiled.into_iter().next() {
            return Err(spoiled.reason.into());
        }
        let token = if let Some(token) = forced {
            self.sampler.note(token);
            token
        } else {
            output.logits.iter().for_each(|logit| self.hash.update(&logit.to_le_bytes()));
            self.sampler.sample(output.logits)?
        };
        self.take(token, on_event)
    }

    /// Adds a token to the text.
    fn take(
        &mut self,
        token: u32,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Option<FinishReason>, EngineError> {
        if self.request.eos.contains(&token) {
            return Ok(Some(FinishReason::Stop));
        }
        self.tokens.push(token);
        if on_event(Event::Token(token)).is_break() {
            return Ok(Some(FinishReason::Cancelled));
        }
        let Some(text) = &mut self.text else { return Ok(None) };
        if let Some(finish) = text.push(token, on_event)? {
            return Ok(Some(finish));
        }
        if text.splitter.is_thinking() && self.forced.is_empty() {
            self.thinking_tokens += 1;
            if self.request.think_budget.is_some_and(|budget| self.thinking_tokens >= budget) {
                let end = text.tokenizer.encode(THINK_END, fm_text::SpecialTokens::Parse)?;
                self.forced = end.into_iter().rev().collect();
            }
        }
        Ok(None)
    }
}
