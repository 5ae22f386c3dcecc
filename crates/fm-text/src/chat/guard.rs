//! Messages whose text is text: what they spell never becomes a control token.

use serde_json::Value;

use super::Message;
use crate::{
    thinking::{CLOSE, OPEN},
    tokenizer::Tokenizer,
};

impl Message {
    /// Guards all that the message says, and who says it, for a prompt that is encoded with
    /// [`SpecialTokens::ParseTemplate`](crate::SpecialTokens::ParseTemplate).
    pub fn guard(&mut self, tokenizer: &Tokenizer) {
        let texts = [&mut self.role].into_iter();
        let texts = texts.chain(&mut self.reasoning_content).chain(&mut self.name);
        for text in texts.chain(&mut self.tool_call_id) {
            *text = tokenizer.guard(text).into_owned();
        }
        let has_thought = self.reasoning_content.is_some();
        match &mut self.content {
            Some(Value::String(text)) if self.role == "assistant" => {
                *text = guard_answer(tokenizer, text, has_thought);
            }
            content => content.iter_mut().for_each(|content| tokenizer.guard_value(content)),
        }
        let values = self.tool_calls.iter_mut().chain(self.extra.values_mut());
        values.for_each(|value| tokenizer.guard_value(value));
    }
}

/// An earlier answer. A thought that it begins with keeps its tags: templates look for them, to cut
/// the thought or to write it their own way. Where the prompt opened the thought, the answer has the
/// closing tag alone; behind an opening tag in its midst, or where the message has its thought apart, it speaks of tags.
fn guard_answer(tokenizer: &Tokenizer, text: &str, has_thought: bool) -> String {
    let guard = |text| tokenizer.guard(text);
    let inside = text.trim_start();
    let lead = &text[..text.len() - inside.len()];
    let (open, inside) = inside.strip_prefix(OPEN).map_or(("", inside), |inside| (OPEN, inside));
    match inside.split_once(CLOSE) {
        Some((thought, answer)) if !open.is_empty() || !(has_thought || thought.contains(OPEN)) => {
            [lead, open, &guard(thought), CLOSE, &guard(answer)].concat()
        }
        _ => guard(text).into_owned(),
    }
}
