//! Tokens on their way to text: whole characters, thinking and calls apart from the answer, nothing of a
//! stop string. Where log-probabilities are wanted, every piece of the answer says which tokens begin in it.

use std::ops::ControlFlow;

use fm_text::{
    AnswerSplitter, CallPart, Channel, Channels, Detokenizer, Dialect, Part, Segment, SpecialText,
    Spelled, StopPush, StopStrings, ThinkingState, ThinkingTags, Tokenizer, thinking,
};

use self::places::Places;
use crate::{
    error::EngineError,
    generate::{Call, Constrained, Event, FinishReason, Request},
    writing::Hear,
};

mod places;

/// See the module.
#[derive(Debug)]
pub(crate) struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// Tokens of the model: those of the tokenizer may be more.
    vocab: usize,
    detokenizer: Detokenizer<'t>,
    splitter: AnswerSplitter,
    channels: Option<&'static Channels>,
    /// Whether the model may call, and has not been left to choose yet what comes behind a thought that was closed.
    chooses: bool,
    /// What the prompt has begun the answer with, until it has been read.
    opening: Option<String>,
    /// What marks calls.
    marks: Vec<&'static str>,
    /// What comes through [`push_constrained`](Self::push_constrained). Where that is no calls, nothing
    /// else is the answer: what else the token that closes a thinking block spells belongs to neither.
    constrained: Option<Constrained>,
    /// Text that may become calls or the answer.
    undecided: String,
    /// Whether the answer has begun that way.
    is_answer: bool,
    /// The tokens that close a thinking block.
    close: Vec<u32>,
    /// Whether they were written in the model's place.
    closed: bool,
    pub(crate) told: Told,
}

/// What was told so far.
#[derive(Debug)]
pub(crate) struct Told {
    /// Bytes of text that have come, of all tokens and of what the prompt has begun.
    bytes: usize,
    stop: StopStrings,
    /// Calls that end the text.
    calls_max: usize,
    pub(crate) answer: String,
    /// Of the tokens, if somebody wants to know.
    places: Option<Places>,
    pub(crate) thinking: String,
    /// Calls that are complete.
    pub(crate) calls: Vec<Call>,
    /// The call that is being written.
    call: Call,
}

impl<'t> TextStream<'t> {
    /// The stream of a text that a model with `vocab` rows of logits writes.
    pub(crate) fn new(
        tokenizer: &'t Tokenizer,
        request: &Request,
        vocab: usize,
    ) -> Result<Self, EngineError> {
        let tags = ThinkingTags::new(thinking::OPEN, thinking::CLOSE)?;
        let channels = request.answer.dialect.and_then(Dialect::channels);
        let close = channels.map_or(thinking::CLOSE, |channels| channels.end);
        let close = tokenizer.encode(close, fm_text::SpecialTokens::Parse)?;
        let mut marks = request.answer.dialect.map_or_else(Vec::new, |own| own.marks().to_vec());
        if channels.is_none() && request.thinking != ThinkingState::Absent {
            marks.extend([thinking::OPEN, thinking::CLOSE]);
        }
        let detokenizer = Detokenizer::new(tokenizer, SpecialText::Skip).keeping(&marks);
        Ok(Self {
            tokenizer,
            vocab,
            detokenizer: if request.begins { detokenizer.from_start() } else { detokenizer },
            splitter: AnswerSplitter::new(tags, request.thinking, &request.answer),
            channels,
            chooses: request.answer.calls.is_some(),
            opening: Some(request.opening.clone()).filter(|opening| !opening.is_empty()),
            marks: request.answer.dialect.map_or_else(Vec::new, Dialect::first_marks),
            constrained: request.constraint.as_ref().map(|_| request.constrained),
            undecided: String::new(),
            is_answer: false,
            close,
            closed: false,
            told: Told {
                bytes: 0,
                stop: StopStrings::new(request.stop.iter().cloned())?,
                calls_max: request.calls_max.unwrap_or(usize::MAX),
                answer: String::new(),
                places: request.top_logprobs.map(|_| Places::default()),
                thinking: String::new(),
                calls: Vec::new(),
                call: Call::default(),
            },
        })
    }

    /// What the next token is for.
    pub(crate) fn channel(&self) -> Channel {
        if self.splitter.is_thinking() { Channel::Thinking } else { Channel::Answer }
    }

    /// What a token spells.
    pub(crate) fn bytes(&self, token: u32) -> &'t [u8] {
        self.tokenizer.token_bytes(token).unwrap_or_default()
    }

    /// Sequences of bytes so far that are no characters.
    pub(crate) fn ill_formed(&self) -> usize {
        self.detokenizer.ill_formed()
    }

    /// The tokens that close a thinking block. In channels a call is a message beside the answer's: a model that may
    /// call chooses which comes, but once, as it may choose to think on.
    pub(crate) fn think_end(&mut self) -> Result<Vec<u32>, EngineError> {
        let Some(Channels { end, again, answer, .. }) = self.channels else {
            self.closed = true;
            return self.tokens(&[thinking::CLOSE_LINES]);
        };
        let chooses = std::mem::take(&mut self.chooses);
        match self.constrained {
            // What follows is the grammar's.
            Some(Constrained::Calls | Constrained::Either) => self.tokens(&[end]),
            None if chooses => self.tokens(&[end, again]),
            _ => self.tokens(&[end, again, answer]),
        }
    }

    /// The token that a thinking block was closed with in the model's place. It may not know that it has ended, and
    /// is not to end it again, in the answer.
    pub(crate) fn closed_with(&self) -> Option<u32> {
        if let ([token], true) = (&*self.close, self.closed) { Some(*token) } else { None }
    }

    /// The token that a thinking block is closed with; where that is spelled with several, their first.
    pub(crate) fn closer(&self) -> Option<u32> {
        self.close.first().copied()
    }

    /// The tokens before a text that a grammar knows nothing of, where it has a channel of its own;
    /// and those that close a thinking block that the prompt has opened, where none is wanted.
    pub(crate) fn start(&mut self, request: &Request) -> Result<Vec<u32>, EngineError> {
        let thoughtless = request.think_budget == Some(0);
        let closed = thoughtless || request.thinking == ThinkingState::Closed;
        // An opening is that of the answer's channel.
        let starts = self.constrained == Some(Constrained::Answer) && self.opening.is_none();
        match self.channels.filter(|_| starts) {
            None if thoughtless && self.splitter.is_thinking() => self.think_end(),
            None => Ok(Vec::new()),
            Some(channels) if closed => self.tokens(&[channels.answer]),
            Some(channels) => self.tokens(&[channels.think]),
        }
    }

    /// The tokens between a thought that the model has ended itself and such a text.
    pub(crate) fn after_thought(&self) -> Result<Vec<u32>, EngineError> {
        match self.channels.filter(|_| self.constrained == Some(Constrained::Answer)) {
            None => Ok(Vec::new()),
            Some(channels) => self.tokens(&[channels.again, channels.answer]),
        }
    }

    /// What is put into the text in the model's place. A tokenizer may know tokens that the model has no rows for.
    fn tokens(&self, texts: &[&str]) -> Result<Vec<u32>, EngineError> {
        let (text, vocab) = (texts.concat(), self.vocab);
        let tokens = self.tokenizer.encode(&text, fm_text::SpecialTokens::Parse)?;
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(&token) => Err(EngineError::NoRow { text, token, vocab }),
            None => Ok(tokens),
        }
    }

    /// Adds a token; breaks off if a stop string or the last call is complete, or the caller says so.
    pub(crate) fn push(
        &mut self,
        token: u32,
        sink: &mut impl Hear,
    ) -> Result<Option<FinishReason>, EngineError> {
        if let Some(opening) = self.opening.take() {
            self.told.bytes += opening.len();
            let finish = self.told.tell_all(self.splitter.push(&opening), sink);
            if finish.is_some() {
                return Ok(finish);
            }
        }
        let apart = self.is_apart();
        let (_, text) = self.told.spell(token, &mut self.detokenizer)?;
        let parts = self.splitter.push(text).filter(|part| !apart || is_thinking(part));
        Ok(self.told.tell_all(parts, sink))
    }

    /// Adds a token that the grammar allowed. In an answer no tags and no calls are looked for.
    pub(crate) fn push_constrained(
        &mut self,
        token: u32,
        sink: &mut impl Hear,
    ) -> Result<Option<FinishReason>, EngineError> {
        match self.constrained {
            None | Some(Constrained::Calls) => return self.push(token, sink),
            Some(Constrained::Answer) => {
                self.is_answer = true;
                let answer = self.told.spell(token, &mut self.detokenizer)?;
                return Ok(self.told.answer(answer, sink).break_value());
            }
            Some(Constrained::Either) if self.channels.is_some() => {
                return self.push_either_channel(token, sink);
            }
            Some(Constrained::Either) => {}
        }
        self.undecided.push_str(self.told.spell(token, &mut self.detokenizer)?.1);
        let begun = self.undecided.trim_start();
        let calls = self.marks.iter().any(|mark| begun.starts_with(mark));
        if !calls && self.marks.iter().any(|mark| mark.starts_with(begun)) {
            return Ok(None);
        }
        let text = std::mem::take(&mut self.undecided);
        if !calls {
            self.constrained = Some(Constrained::Answer);
            self.is_answer = true;
            let at = self.told.bytes - text.len();
            return Ok(self.told.answer((at, &text), sink).break_value());
        }
        self.constrained = Some(Constrained::Calls);
        Ok(self.told.tell_all(self.splitter.push(&text), sink))
    }

    /// Adds a token of calls or an answer whose headers tell which it is. What follows the header of an answer is
    /// the answer, whatever it spells.
    fn push_either_channel(
        &mut self,
        token: u32,
        sink: &mut impl Hear,
    ) -> Result<Option<FinishReason>, EngineError> {
        let finish = self.push(token, sink)?;
        if finish.is_some() || !self.splitter.is_in_answer_channel() {
            return Ok(finish);
        }
        self.constrained = Some(Constrained::Answer);
        self.is_answer = true;
        Ok(self.told.tell_all(self.splitter.finish(""), sink))
    }

    /// Whether what the grammar allows is told without the splitter.
    fn is_apart(&self) -> bool {
        match self.constrained {
            Some(Constrained::Answer) => true,
            Some(Constrained::Either) => self.channels.is_none(),
            Some(Constrained::Calls) | None => false,
        }
    }

    /// What was held back, now that nothing follows. Says whether a stop string was in it. Where the model has ended
    /// its turn itself, it may have called in a thought.
    pub(crate) fn finish(
        &mut self,
        reason: FinishReason,
        sink: &mut impl Hear,
    ) -> Option<FinishReason> {
        let mut finish = None;
        let apart = self.is_apart();
        let last = self.detokenizer.finish();
        let mut held = std::mem::take(&mut self.undecided);
        let is_answer = self.is_answer || !held.is_empty();
        let at = self.told.bytes - held.len();
        held.push_str(last);
        let answer = Segment { channel: Channel::Answer, at, text: &held };
        let answer = is_answer.then_some(Part::Text(answer));
        let rest = if is_answer { "" } else { last };
        let parts = self.splitter.finish(rest).filter(|part| !apart || is_thinking(part));
        let (marks, mut is_call) = (&self.marks, false);
        for part in parts.chain(answer) {
            // A call that was cut is told as text, but no stop string is looked for in calls.
            is_call |= match &part {
                Part::Text(Segment { text, .. }) => marks.iter().any(|mark| text.starts_with(mark)),
                Part::Call(_, part) => matches!(part, CallPart::Broken),
                Part::LineEnd(_) => false,
            };
            let told = match part {
                Part::Text(Segment { channel: Channel::Answer, at, text }) if is_call => {
                    self.told.whole((at, text), sink)
                }
                part => self.told.tell(part, sink),
            };
            // Nobody is left to break off for: what is said here is the end.
            if let ControlFlow::Break(reason @ FinishReason::StopString(_)) = told {
                finish = finish.or(Some(reason));
            }
        }
        if reason == FinishReason::Stop && !apart {
            let mut parts = self.splitter.called_as_thought();
            // Until there are as many as are wanted.
            let _ = parts.try_for_each(|part| self.told.tell(part, sink));
        }
        match self.told.flush(sink) {
            ControlFlow::Break(reason @ FinishReason::StopString(_)) => finish.or(Some(reason)),
            _ => finish,
        }
    }
}

fn is_thinking(part: &Part<'_>) -> bool {
    let thinking = Channel::Thinking;
    matches!(part, Part::Text(Segment { channel, .. }) | Part::LineEnd(channel) if *channel == thinking)
}

impl Told {
    /// What a token adds to the text of all of them, and where.
    fn spell<'d>(
        &mut self,
        token: u32,
        detokenizer: &'d mut Detokenizer<'_>,
    ) -> Result<(usize, &'d str), EngineError> {
        let Spelled { text, begins } = detokenizer.spell(token)?;
        let at = self.bytes;
        self.places.iter_mut().for_each(|places| places.token(begins.map(|begins| at + begins)));
        self.bytes += text.len();
        Ok((at, text))
    }

    /// Tells parts until somebody breaks off.
    fn tell_all<'p>(
        &mut self,
        mut parts: impl Iterator<Item = Part<'p>>,
        sink: &mut impl Hear,
    ) -> Option<FinishReason> {
        parts.find_map(|part| self.tell(part, sink).break_value())
    }

    fn tell(&mut self, part: Part<'_>, sink: &mut impl Hear) -> ControlFlow<FinishReason> {
        match part {
            Part::Text(Segment { channel: Channel::Thinking, at, text }) => {
                self.thinking.push_str(text);
                self.places.iter_mut().for_each(|places| places.pass(at + text.len()));
                said(sink, Event::Text(Channel::Thinking, text))
            }
            Part::Text(Segment { at, text, .. }) => self.answer((at, text), sink),
            Part::LineEnd(Channel::Thinking) => {
                self.thinking.push('\n');
                said(sink, Event::Text(Channel::Thinking, "\n"))
            }
            Part::LineEnd(Channel::Answer) => {
                // No stop string is looked for in what nobody wrote.
                self.flush(sink)?;
                let Self { answer, places, .. } = self;
                places.iter_mut().for_each(|places| places.unwritten(1));
                say(StopPush { emit: "\n", stopped: None }, (answer, places), sink)
            }
            Part::Call(index, part) => {
                if let CallPart::Begin(name) = part {
                    self.flush(sink)?;
                    self.call = Call { index, name: name.to_owned(), ..Call::default() };
                }
                said(sink, Event::Call(index, part))?;
                self.call(part)
            }
        }
    }

    /// Adds to the answer what no stop string is looked for in.
    fn whole(
        &mut self,
        (at, text): (usize, &str),
        sink: &mut impl Hear,
    ) -> ControlFlow<FinishReason> {
        self.flush(sink)?;
        self.places.iter_mut().for_each(|places| places.answer(at, text.len()));
        let Self { answer, places, .. } = self;
        say(StopPush { emit: text, stopped: None }, (answer, places), sink)
    }

    /// Adds to the answer what stands there in the text of all tokens.
    fn answer(
        &mut self,
        (at, text): (usize, &str),
        sink: &mut impl Hear,
    ) -> ControlFlow<FinishReason> {
        self.places.iter_mut().for_each(|places| places.answer(at, text.len()));
        let Self { stop, answer, places, .. } = self;
        say(stop.push(text), (answer, places), sink)
    }

    fn call(&mut self, part: CallPart<'_>) -> ControlFlow<FinishReason> {
        match part {
            CallPart::Begin(_) => {}
            CallPart::Arguments(json) => self.call.arguments.push_str(json),
            CallPart::Broken => self.call = Call::default(),
            CallPart::End(written) => {
                self.call.written = written.map(str::to_owned);
                self.calls.push(std::mem::take(&mut self.call));
                if self.calls.len() >= self.calls_max {
                    return ControlFlow::Break(FinishReason::Stop);
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Says the text that was held back for a stop string.
    fn flush(&mut self, sink: &mut impl Hear) -> ControlFlow<FinishReason> {
        let Self { stop, answer, places, .. } = self;
        say(stop.finish(), (answer, places), sink)
    }
}

/// Says what no stop string holds back, and before it which tokens begin in it.
fn say(
    more: StopPush<'_>,
    (answer, places): (&mut String, &mut Option<Places>),
    sink: &mut impl Hear,
) -> ControlFlow<FinishReason> {
    answer.push_str(more.emit);
    while let Some((at, token)) = places.as_mut().and_then(|places| places.next(answer.len())) {
        said(sink, Event::Said { token, at })?;
    }
    if !more.emit.is_empty() {
        said(sink, Event::Text(Channel::Answer, more.emit))?;
    }
    stopped(more.stopped)
}

fn said(sink: &mut impl Hear, event: Event<'_>) -> ControlFlow<FinishReason> {
    match sink.hear(event) {
        ControlFlow::Continue(()) => ControlFlow::Continue(()),
        ControlFlow::Break(()) => ControlFlow::Break(FinishReason::Cancelled),
    }
}

fn stopped(stop: Option<usize>) -> ControlFlow<FinishReason> {
    match stop {
        Some(stop) => ControlFlow::Break(FinishReason::StopString(stop)),
        None => ControlFlow::Continue(()),
    }
}

#[cfg(test)]
mod tests;
