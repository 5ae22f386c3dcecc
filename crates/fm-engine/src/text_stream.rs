//! Tokens on their way to text: whole characters, thinking apart from the answer, nothing of a stop
//! string.

use fm_text::{
    Channel, Detokenizer, SpecialText, StopStrings, ThinkingSplitter, ThinkingTags, Tokenizer,
};

use crate::{
    error::EngineError,
    generate::{Event, FinishReason, Request},
    writing::Hear,
};

/// The end of a thinking block, as the templates of thinking models write it.
const THINK_END: &str = "\n</think>\n\n";

/// See the module.
#[derive(Debug)]
pub(crate) struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    detokenizer: Detokenizer<'t>,
    splitter: ThinkingSplitter,
    stop: StopStrings,
    pub(crate) answer: String,
    pub(crate) thinking: String,
}

impl<'t> TextStream<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer, request: &Request) -> Result<Self, EngineError> {
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

    /// What the next token is for.
    pub(crate) fn channel(&self) -> Channel {
        if self.splitter.is_thinking() { Channel::Thinking } else { Channel::Answer }
    }

    /// The tokens that close a thinking block.
    pub(crate) fn think_end(&self) -> Result<Vec<u32>, EngineError> {
        Ok(self.tokenizer.encode(THINK_END, fm_text::SpecialTokens::Parse)?)
    }

    /// Adds a token; breaks off if a stop string is complete or the caller says so.
    pub(crate) fn push(
        &mut self,
        token: u32,
        sink: &mut impl Hear,
    ) -> Result<Option<FinishReason>, EngineError> {
        let text = self.detokenizer.push(token)?;
        let mut finish = None;
        for segment in self.splitter.push(token, text) {
            let (kept, emit) = match segment.channel {
                Channel::Thinking => (&mut self.thinking, segment.text),
                Channel::Answer => {
                    let pushed = self.stop.push(segment.text);
                    finish = pushed.stopped.map(FinishReason::StopString).or(finish);
                    (&mut self.answer, pushed.emit)
                }
            };
            kept.push_str(emit);
            if !emit.is_empty() && sink.hear(Event::Text(segment.channel, emit)).is_break() {
                return Ok(Some(FinishReason::Cancelled));
            }
        }
        Ok(finish)
    }

    /// What was held back, now that nothing follows. Says whether a stop string was in it.
    pub(crate) fn finish(&mut self, sink: &mut impl Hear) -> Option<FinishReason> {
        let rest = self.detokenizer.finish().to_owned();
        let mut segments: Vec<(Channel, String)> = Vec::new();
        for segment in self.splitter.push_text(&rest) {
            segments.push((segment.channel, segment.text.to_owned()));
        }
        for segment in self.splitter.finish() {
            segments.push((segment.channel, segment.text.to_owned()));
        }
        // Nobody is left to break off for: what is said here is the end.
        let mut emit = |kept: &mut String, channel, text: &str| {
            kept.push_str(text);
            if !text.is_empty() {
                let _ = sink.hear(Event::Text(channel, text));
            }
        };
        for (channel, text) in segments {
            match channel {
                Channel::Thinking => emit(&mut self.thinking, channel, &text),
                Channel::Answer => emit(&mut self.answer, channel, self.stop.push(&text).emit),
            }
        }
        let last = self.stop.finish();
        emit(&mut self.answer, Channel::Answer, last.emit);
        last.stopped.map(FinishReason::StopString)
    }
}
