//! One text in the making: which rows it wants next, and what their logits become.
//!
//! A writing computes nothing. Whoever drives it, for one text ([`crate::generate`]) or for many
//! ([`crate::schedule`]), puts its rows into a batch and hands the logits back:
//!
//! ```text
//! ask ──► rows of the batch ──► Runner::step ──► take ──► events, or an end
//! ```

use std::{ops::ControlFlow, time::Duration};

use fm_model::{
    Runner,
    runner::{Batch, Lane, Progress, Row, RowInput, SessionId, Wants},
};
use fm_text::{Channel, Tokenizer};

use crate::{
    error::EngineError,
    generate::{self, Chosen, Event, FinishReason, Request},
    grammar::GrammarError,
    logits_hash::LogitsHash,
    logprobs::Logprobs,
    prefix,
    sampler::Sampler,
    text_stream::TextStream,
};

mod clock;
mod end;
mod guard;
mod loops;
mod noise;
mod step;
mod within;

pub(crate) use self::{
    clock::Mark,
    step::{step, sweep},
};
use self::{
    clock::Waits,
    guard::{Found, Guard},
    within::{Taken, Within, bar},
};

/// A position to fall back to is kept every so many generated tokens: a lost expert costs no more.
const CHECKPOINT_TOKENS: u32 = 64;

/// Who hears what happens, and may break off.
pub(crate) trait Hear {
    fn hear(&mut self, event: Event<'_>) -> ControlFlow<()>;

    /// Asked between two layers of a token: whether there is somebody still.
    fn listens(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl Hear for &mut dyn FnMut(Event<'_>) -> ControlFlow<()> {
    fn hear(&mut self, event: Event<'_>) -> ControlFlow<()> {
        self(event)
    }
}

/// What a writing wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// So many tokens of its prompt, all but the last, taken in.
    Prompt(usize),
    /// The logits after its latest token.
    Next,
}

/// Who of those that share a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    /// Those whose prompts are taken in by the sweep of a lane.
    Prompts(Lane),
    /// Those who are past their prompts.
    Texts,
}

/// What a writing has in the batch that is computed now.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    rows: usize,
    /// Whether the last row's logits were asked for.
    logits: bool,
    /// Of a sweep: which one.
    lane: Lane,
}

/// See the module.
pub(crate) struct Writing<'t, S> {
    session: SessionId,
    request: Request,
    sampler: Sampler,
    logprobs: Option<Logprobs>,
    text: Option<TextStream<'t>>,
    within: Option<Within>,
    guard: Option<Guard>,
    sink: S,
    hash: LogitsHash,
    tokens: Vec<u32>,
    /// Tokens to feed that were not sampled, latest first: the end of a thinking block.
    forced: Vec<u32>,
    thinking_tokens: usize,
    /// Tokens that would end a thought before its time.
    closers: Vec<u32>,
    /// Tokens of the prompt that the session held at the start.
    reused: usize,
    /// Of these, tokens that were read from disk.
    restored: usize,
    /// Tokens that the session holds.
    held: usize,
    /// Positions ahead in the prompt that later texts may continue from, latest first.
    marks: Vec<u32>,
    /// Those of them that are behind.
    marked: Vec<u32>,
    asked: Asked,
    end: Option<Result<FinishReason, EngineError>>,
    started: Mark,
    first: Option<Mark>,
    waits: Waits,
}

impl<'t, S: Hear> Writing<'t, S> {
    /// A text that continues what its session holds. One that cannot be written has ended.
    pub(crate) fn new(
        (runner, session): (&dyn Runner, SessionId),
        request: Request,
        tokenizer: Option<&'t Tokenizer>,
        sink: S,
        started: Mark,
    ) -> Self {
        let vocab = runner.vocab();
        let checked = request.check(vocab).and_then(|()| {
            let mut text = tokenizer
                .map(|tokenizer| TextStream::new(tokenizer, &request, vocab))
                .transpose()?;
            let start = text.as_mut().map(|text| text.start(&request)).transpose()?;
            let forced = start.unwrap_or_default().into_iter().rev().collect();
            let closer = text.as_ref().and_then(TextStream::closer);
            let closers = request.eos.iter().copied().chain(closer).collect();
            Ok((text, (forced, closers), runner.position(session)? as usize))
        });
        let known = if checked.is_ok() { request.prompt.as_slice() } else { &[] };
        let sampler = Sampler::new(request.sampling, vocab, known).with_bias(request.bias.clone());
        let within = request
            .constraint
            .as_ref()
            .map(|constraint| Within::start(constraint.clone(), request.thinking));
        let checked = checked.and_then(|checked| Ok((checked, within.transpose()?)));
        let ((text, (forced, closers), position), within, end) = match checked {
            Ok((checked, within)) => (checked, within, None),
            Err(error) => ((None, Default::default(), 0), None, Some(Err(error))),
        };
        let held = position.min(request.prompt.len().saturating_sub(1));
        Self {
            session,
            sampler,
            logprobs: request.top_logprobs.map(Logprobs::new),
            guard: (request.loops == generate::Loops::End)
                .then(|| Guard::new(vocab, &request.bias)),
            request,
            text,
            within,
            sink,
            hash: LogitsHash::default(),
            tokens: Vec::new(),
            forced,
            thinking_tokens: 0,
            closers,
            reused: held,
            restored: 0,
            held,
            marks: Vec::new(),
            marked: Vec::new(),
            asked: Asked::default(),
            end,
            started,
            first: None,
            waits: Waits::default(),
        }
    }

    /// Tells how much of what the session held was read from disk.
    pub(crate) fn restored(self, tokens: usize) -> Self {
        Self { restored: tokens, ..self }
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// Marks its session at each of these positions, if they are ahead.
    pub(crate) fn mark_at(&mut self, positions: &[u32]) {
        let ahead = self.will_hold().max(self.held + 1) as u32..self.request.prompt.len() as u32;
        self.marks.extend(positions.iter().filter(|position| ahead.contains(position)));
        self.marks.sort_unstable_by(|a, b| b.cmp(a));
        self.marks.dedup();
    }

    /// Where its prompt is marked on purpose, ahead and behind.
    pub(crate) fn borders(&self) -> impl Iterator<Item = u32> {
        self.marked.iter().chain(&self.marks).copied()
    }

    /// Tokens that its session holds.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// All its tokens so far; the session may not hold the last one yet.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = u32> {
        self.request.prompt.iter().chain(&self.tokens).copied()
    }

    /// How many of them another text begins with.
    pub(crate) fn common(&self, other: &[u32]) -> usize {
        let prompt = &self.request.prompt;
        match prefix::common(prompt, other) {
            all if all == prompt.len() => all + prefix::common(&self.tokens, &other[all..]),
            some => some,
        }
    }

    /// Whether what its session holds is what a text with these tokens comes to: not if arithmetic or
    /// device failed. One whose time is over has what it has computed; who asks again goes on there.
    pub(crate) fn is_sound(&self) -> bool {
        matches!(self.end, None | Some(Ok(_) | Err(EngineError::Spoiled(_) | EngineError::Late)))
    }

    /// Whether it wants no more rows.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    pub(crate) fn fail(&mut self, error: EngineError) {
        self.end = Some(Err(error));
    }

    /// Whether it has rows in what is computed of this part, or has just been.
    pub(crate) fn is_in(&self, part: Part) -> bool {
        let own = match part {
            Part::All => true,
            Part::Prompts(lane) => self.need() != Need::Next && self.asked.lane == lane,
            Part::Texts => self.need() == Need::Next,
        };
        own && self.asked.rows > 0
    }

    /// Tokens that its session will hold after what is computed now.
    pub(crate) fn will_hold(&self) -> usize {
        self.held + self.asked.rows
    }

    /// The longest time between two of its tokens.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.waits.longest
    }

    pub(crate) fn need(&self) -> Need {
        match self.request.prompt.len().saturating_sub(self.held + 1) {
            0 => Need::Next,
            tokens => Need::Prompt(tokens),
        }
    }

    /// Adds the rows it wants to a batch, of its prompt at most `rows_max`; none if it ends here.
    pub(crate) fn ask(&mut self, rows_max: usize, batch: &mut Batch) -> usize {
        self.asked = Asked::default();
        self.look_at_the_clock();
        if self.end.is_some() || rows_max == 0 || !self.catch_up(Duration::ZERO) {
            return 0;
        }
        match self.need() {
            Need::Prompt(tokens) => self.ask_prompt(tokens.min(rows_max), batch),
            Need::Next => self.ask_next(batch),
        }
        self.asked.rows
    }

    /// The same for the sweep of a lane.
    pub(crate) fn ask_in(&mut self, lane: Lane, rows_max: usize, batch: &mut Batch) -> usize {
        let rows = self.ask(rows_max, batch);
        self.asked.lane = lane;
        rows
    }

    fn ask_prompt(&mut self, rows: usize, batch: &mut Batch) {
        let tokens = self.request.prompt[self.held..self.held + rows].iter();
        batch.rows.extend((self.held as u32..).zip(tokens).map(|(position, token)| Row {
            session: self.session,
            input: RowInput::Token(*token),
            position,
            wants: Wants { mark: self.marks.contains(&(position + 1)), ..Wants::default() },
        }));
        let tail = batch.rows.last_mut().expect("a prompt wants at least one row");
        tail.wants.checkpoint = true;
        self.asked = Asked { rows, ..Asked::default() };
    }

    fn ask_next(&mut self, batch: &mut Batch) {
        match self.within.as_mut().map_or(Ok(false), Within::is_complete) {
            Ok(false) => {}
            Ok(true) => return self.end = Some(Ok(FinishReason::Stop)),
            Err(error) => return self.end = Some(self.broken(error.into())),
        }
        if self.request.max_tokens.is_some_and(|max| self.tokens.len() >= max) {
            self.end = Some(Ok(FinishReason::Length));
            return;
        }
        let position = self.held as u32;
        if position >= self.request.context {
            self.end = Some(Ok(FinishReason::Context));
            return;
        }
        let latest = self.tokens.last().or(self.request.prompt.last());
        let token = *latest.expect("the prompt is not empty");
        let logits = self.forced.is_empty();
        let checkpoint = position.is_multiple_of(CHECKPOINT_TOKENS);
        let wants = Wants { logits, checkpoint, ..Wants::default() };
        let input = RowInput::Token(token);
        batch.rows.push(Row { session: self.session, input, position, wants });
        self.asked = Asked { rows: 1, logits, ..Asked::default() };
    }

    /// Hears how far the step is that computes its rows; may break off.
    fn progress(&mut self, progress: Progress) -> ControlFlow<()> {
        self.look_at_the_clock();
        if self.end.is_some() {
            return ControlFlow::Continue(());
        }
        if self.need() == Need::Next {
            return self.sink.listens();
        }
        let layers = u64::from(progress.layers);
        let (before, last) = (self.held - self.reused, self.request.prompt.len() - 1);
        let done =
            before as u64 * layers + self.asked.rows as u64 * (u64::from(progress.layer.0) + 1);
        self.sink.hear(Event::Prefill { done, total: (last - self.reused) as u64 * layers })
    }

    /// Takes what its rows gave: the logits of the last one, if it asked for them.
    fn take(&mut self, logits: &[f32]) {
        let rows = std::mem::take(&mut self.asked).rows;
        let prompt = self.need() != Need::Next;
        self.held += rows;
        if prompt {
            let behind = self.marks.iter().filter(|mark| **mark <= self.held as u32);
            self.marked.extend(behind);
            self.marks.retain(|mark| *mark > self.held as u32);
            return;
        }
        self.go_on(logits, within::STEP_WAIT);
    }

    /// Makes a token of the logits, unless it is not known yet which ones the grammar allows.
    fn go_on(&mut self, logits: &[f32], wait: Duration) {
        self.end = match self.choose(logits, wait) {
            Ok(Taken::Token(token, logprob)) => self.add((token, logprob)).transpose(),
            Ok(Taken::Later) => None,
            Ok(Taken::End) => Some(Ok(FinishReason::Stop)),
            Err(error) => Some(self.broken(error)),
        };
    }

    /// Whether nothing is left of the step before: logits that have waited for their mask.
    fn catch_up(&mut self, wait: Duration) -> bool {
        let late = self.within.as_mut().map_or(Ok((None, true)), |within| within.late(wait));
        match late {
            Ok((None, ready)) => return ready,
            Ok((Some(logits), _)) => self.go_on(&logits, Duration::ZERO),
            Err(error) => self.end = Some(self.broken(error.into())),
        }
        self.end.is_none()
    }

    /// Gives a text time that has wanted no row: somebody must listen, and a mask may come.
    pub(crate) fn wait(&mut self) {
        self.catch_up(within::IDLE_WAIT);
        if self.end.is_none() && self.sink.listens().is_break() {
            self.end = Some(Ok(FinishReason::Cancelled));
        }
    }

    /// The next token, and its log-probability if that is wanted.
    fn choose(&mut self, logits: &[f32], wait: Duration) -> Result<Taken, EngineError> {
        if let Some(token) = self.forced.pop() {
            self.sampler.note(token);
            self.within.iter_mut().for_each(Within::pass);
            return Ok(Taken::Token(token, None));
        }
        let thinks = self.text.as_ref().map(TextStream::channel) == Some(Channel::Thinking);
        let must_go_on = thinks && self.thinking_tokens < self.request.think_min;
        let closed = self.text.as_ref().and_then(TextStream::closed_with);
        let token = match &mut self.within {
            None => {
                let barred = if must_go_on { &self.closers } else { closed.as_slice() };
                self.sampler.sample_within(logits, |logits| bar(logits, barred))?
            }
            Some(within) => {
                let barred = if must_go_on { &self.closers } else { &self.request.eos };
                let place = (thinks, barred.as_slice());
                match within.sample((&mut self.sampler, logits), place, wait)? {
                    Taken::Token(token, _) => token,
                    taken => return Ok(taken),
                }
            }
        };
        let of_grammar = self.within.as_ref().is_some_and(Within::is_of_grammar);
        if let Some(guard) = self.guard.as_mut().filter(|_| !of_grammar) {
            guard.look(logits, token);
        }
        self.hash.row(logits);
        let logprob = self.logprobs.as_mut().map(|logprobs| logprobs.look(logits, token));
        Ok(Taken::Token(token, logprob))
    }

    /// Adds a token to the text.
    fn add(
        &mut self,
        (token, logprob): (u32, Option<f32>),
    ) -> Result<Option<FinishReason>, EngineError> {
        if self.request.eos.contains(&token) {
            return Ok(Some(FinishReason::Stop));
        }
        self.tokens.push(token);
        self.waits.token();
        let channel = self.text.as_ref().map_or(Channel::Answer, TextStream::channel);
        self.thinking_tokens += usize::from(channel == Channel::Thinking);
        let likeliest = match (&self.logprobs, logprob) {
            (Some(logprobs), Some(_)) => logprobs.likeliest(),
            _ => &[],
        };
        if self.sink.hear(Event::Token(Chosen { token, channel, logprob, likeliest })).is_break() {
            return Ok(Some(FinishReason::Cancelled));
        }
        let Some(text) = &mut self.text else { return Ok(None) };
        let spelled = text.bytes(token);
        let of_grammar = self.within.as_mut().is_some_and(|within| within.accept(token, spelled));
        let finish = if of_grammar {
            text.push_constrained(token, &mut self.sink)?
        } else {
            text.push(token, &mut self.sink)?
        };
        if finish.is_some() {
            return Ok(finish);
        }
        let has_thought = channel == Channel::Thinking && text.channel() == Channel::Answer;
        if let (Some(within), true) = (&mut self.within, has_thought && self.forced.is_empty()) {
            within.thought();
            self.forced = text.after_thought()?.into_iter().rev().collect();
        }
        let guard = self.guard.as_mut();
        let found = guard.and_then(|guard| guard.found(&self.tokens, text.ill_formed()));
        let thinks = text.channel() == Channel::Thinking;
        let ends = match self.within.as_mut().filter(|_| of_grammar) {
            None => found.is_some(),
            Some(within) => within.gives_up(found, &self.tokens, self.request.constrained),
        };
        if ends && !thinks {
            return Ok(found.map(Found::reason));
        }
        let budget = self.request.think_budget;
        let enough = found.is_some() || budget.is_some_and(|budget| self.thinking_tokens >= budget);
        if thinks && self.forced.is_empty() && enough {
            self.forced = text.think_end()?.into_iter().rev().collect();
            self.guard.iter_mut().for_each(|guard| guard.forget(&self.tokens));
        }
        Ok(None)
    }

    /// Tells the time of the first token apart from that of the others.
    pub(crate) fn mark(&mut self, now: impl FnOnce() -> Mark) {
        if self.first.is_none() && (!self.tokens.is_empty() || self.end.is_some()) {
            self.first = Some(now());
        }
    }

    /// How it ends that met this. What its grammar can be followed no further in begins a text of it.
    fn broken(&self, error: EngineError) -> Result<FinishReason, EngineError> {
        match error {
            EngineError::Grammar(GrammarError::Exhausted) if !self.tokens.is_empty() => {
                Ok(FinishReason::Grammar)
            }
            error => Err(error),
        }
    }
}
