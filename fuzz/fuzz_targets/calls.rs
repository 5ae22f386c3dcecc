//! An answer of any text, in every dialect of calls: the first byte says which, the second where the text
//! is cut in two.

#![no_main]

use std::sync::Arc;

use fm_text::{
    AnswerForm, AnswerSplitter, CallPart, Channel, Definitions, Part, Segment, ThinkingState,
    ThinkingTags, tools::DIALECTS,
};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

/// What was said and called, however it came.
fn hear(dialect: usize, pieces: &[&str]) -> (String, Vec<(String, String)>) {
    let parameters = json!({"type": "object", "properties": {
        "a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "object"},
        "d": {"type": ["integer", "string"]}, "e": {"type": "boolean"},
    }});
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
    let tags = ThinkingTags::new("<think>", "</think>").expect("they are not empty");
    let calls = Some(Arc::new(Definitions::new(&tools)));
    let form = AnswerForm { dialect: Some(&DIALECTS[dialect]), calls };
    let mut splitter = AnswerSplitter::new(tags, ThinkingState::None, &form);
    let (mut said, mut calls, mut open) = (String::new(), Vec::new(), None);
    let mut hear = |part: Part<'_>| match part {
        Part::Text(Segment { channel: Channel::Answer, text, .. }) => said.push_str(text),
        Part::LineEnd(Channel::Answer) => said.push('\n'),
        Part::Text(_) | Part::LineEnd(_) => {}
        Part::Call(_, CallPart::Begin(name)) => open = Some((name.to_owned(), String::new())),
        Part::Call(_, CallPart::Arguments(json)) => {
            open.as_mut().expect("a call has begun").1.push_str(json);
        }
        Part::Call(_, CallPart::Broken) => open = None,
        Part::Call(_, CallPart::End(_)) => {
            let call: (String, String) = open.take().expect("a call has begun");
            serde_json::from_str::<Map<String, Value>>(&call.1).expect("arguments are an object");
            calls.push(call);
        }
    };
    for piece in pieces {
        splitter.push(piece).for_each(&mut hear);
    }
    splitter.finish("").for_each(hear);
    (said, calls)
}

fuzz_target!(|data: &[u8]| {
    let [dialect, cut, text @ ..] = data else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let dialect = usize::from(*dialect) % DIALECTS.len();
    let cut = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).nth(usize::from(*cut));
    let (first, rest) = text.split_at(cut.unwrap_or(0));
    assert_eq!(hear(dialect, &[first, rest]), hear(dialect, &[text]));
});
