//! Whatever pieces an answer comes in, a client puts together what was said.

use std::sync::{Arc, Mutex};

use fm_engine::{
    generate::{Call, Event, FinishReason},
    schedule::{Job, Refused, Update},
};
use fm_server::{Door, Submit};
use fm_text::{CallPart, Channel};
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};

use crate::{
    client::{Response, post},
    endings::generated,
    harness::start_with,
};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Text(Channel, String),
    /// Name, arguments, and whether they are complete.
    Call(String, String, bool),
}

/// What the next answer is, and after how many letters each of its pieces ends, again and again.
#[derive(Default)]
struct Speaker(Mutex<(Vec<Said>, Vec<usize>)>);

impl Submit for Speaker {
    fn submit(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        let (said, sizes) = self.0.lock().unwrap().clone();
        jobs.into_iter().for_each(|job| speak(job, &said, &sizes));
        Ok(())
    }

    fn waiting(&self) -> usize {
        0
    }

    fn is_open(&self) -> bool {
        true
    }

    fn close(&self) {}
}

fn speak(mut job: Job, said: &[Said], sizes: &[usize]) {
    let mut sizes = sizes.iter().copied().cycle();
    let mut tell = |update: Update<'_>| assert!((job.listener)(update).is_continue());
    tell(Update::Started);
    let (mut calls, mut begun) = (Vec::new(), 0);
    for part in said {
        match part {
            Said::Text(channel, text) => cut(text, &mut sizes, &mut |piece| {
                tell(Update::Event(Event::Text(*channel, piece)));
            }),
            Said::Call(name, arguments, complete) => {
                let mut tell = |part: CallPart<'_>| tell(Update::Event(Event::Call(begun, part)));
                tell(CallPart::Begin(name));
                cut(arguments, &mut sizes, &mut |piece| tell(CallPart::Arguments(piece)));
                tell(if *complete { CallPart::End(None) } else { CallPart::Broken });
                let (name, arguments) = (name.clone(), arguments.clone());
                calls.extend(complete.then_some(Call {
                    index: begun,
                    name,
                    arguments,
                    written: None,
                }));
                begun += 1;
            }
        }
    }
    let _ = (job.listener)(Update::Done(Box::new(generated(FinishReason::Stop, calls))));
}

/// Tells a text in pieces.
fn cut(text: &str, sizes: &mut impl Iterator<Item = usize>, tell: &mut impl FnMut(&str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let size = sizes.next().unwrap();
        let end = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
        tell(&rest[..end]);
        rest = &rest[end..];
    }
}

/// Puts together what is told: text goes to the part that is open, if that is one of its kind.
#[derive(Debug, Default)]
struct Heard(Vec<Said>);

impl Heard {
    fn text(&mut self, channel: Channel, more: &str) {
        match self.0.last_mut() {
            Some(Said::Text(own, text)) if *own == channel => text.push_str(more),
            _ => self.0.push(Said::Text(channel, more.to_owned())),
        }
    }

    fn begin(&mut self, name: &Value) {
        self.0.push(Said::Call(name.as_str().unwrap().to_owned(), String::new(), false));
    }

    fn arguments(&mut self, more: &str) {
        let Some(Said::Call(_, arguments, _)) = self.0.last_mut() else { panic!("{self:?}") };
        arguments.push_str(more);
    }

    /// Calls whose arguments are JSON: no interface but the Responses API says more.
    fn ended(mut self) -> Vec<Said> {
        for part in &mut self.0 {
            if let Said::Call(_, arguments, complete) = part {
                *complete = serde_json::from_str::<Value>(arguments).is_ok();
            }
        }
        self.0
    }
}

fn str_of(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

fn of_chat(response: &Response) -> Vec<Said> {
    let mut heard = Heard::default();
    let mut calls = 0;
    for chunk in response.chunks() {
        let delta = &chunk["choices"][0]["delta"];
        if let Some(text) = delta["reasoning_content"].as_str() {
            heard.text(Channel::Thinking, text);
        }
        if let Some(text) = delta["content"].as_str().filter(|text| !text.is_empty()) {
            heard.text(Channel::Answer, text);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if call.get("id").is_some() {
                assert_eq!((&call["index"], &call["type"]), (&json!(calls), &json!("function")));
                calls += 1;
                heard.begin(&call["function"]["name"]);
            }
            assert_eq!(call["index"], calls - 1, "the call that is open");
            heard.arguments(str_of(&call["function"]["arguments"]));
        }
    }
    let events = response.events();
    assert_eq!(events.last().unwrap(), &(None, "[DONE]"));
    heard.ended()
}

fn of_messages(response: &Response) -> Vec<Said> {
    let mut heard = Heard::default();
    let (mut blocks, mut open) = (0, None);
    for (name, data) in response.events() {
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name, event["type"].as_str());
        match str_of(&event["type"]) {
            "content_block_start" => {
                assert_eq!((&event["index"], open), (&json!(blocks), None));
                open = Some(blocks);
                blocks += 1;
                let block = &event["content_block"];
                match str_of(&block["type"]) {
                    "tool_use" => heard.begin(&block["name"]),
                    // A block of its own, even behind one of its kind.
                    "thinking" => heard.0.push(Said::Text(Channel::Thinking, String::new())),
                    _ => heard.0.push(Said::Text(Channel::Answer, String::new())),
                }
            }
            "content_block_delta" => {
                assert_eq!(event["index"].as_u64(), open);
                let delta = &event["delta"];
                match str_of(&delta["type"]) {
                    "text_delta" => heard.text(Channel::Answer, str_of(&delta["text"])),
                    "thinking_delta" => heard.text(Channel::Thinking, str_of(&delta["thinking"])),
                    "input_json_delta" => heard.arguments(str_of(&delta["partial_json"])),
                    "signature_delta" => {}
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => assert_eq!(event["index"].as_u64(), open.take()),
            "message_start" | "ping" | "message_delta" => assert_eq!(open, None),
            "message_stop" => return heard.ended(),
            other => panic!("{other}"),
        }
    }
    panic!("no end");
}

/// What the output of a response says; of calls those that are complete.
fn of_output(output: &Value) -> Vec<Said> {
    let part = |item: &Value| match str_of(&item["type"]) {
        "function_call" => Said::Call(
            str_of(&item["name"]).to_owned(),
            str_of(&item["arguments"]).to_owned(),
            true,
        ),
        "reasoning" => {
            Said::Text(Channel::Thinking, str_of(&item["content"][0]["text"]).to_owned())
        }
        _ => Said::Text(Channel::Answer, str_of(&item["content"][0]["text"]).to_owned()),
    };
    output.as_array().unwrap().iter().map(part).collect()
}

/// The items of a streamed response, and its output at the end.
fn of_responses(response: &Response) -> (Vec<Said>, Vec<Said>) {
    let mut items = Vec::new();
    let (mut deltas, mut last) = (String::new(), Value::Null);
    for (at, (name, data)) in response.events().into_iter().enumerate() {
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!((name, &event["sequence_number"]), (event["type"].as_str(), &json!(at)));
        let kind = str_of(&event["type"]).strip_prefix("response.").unwrap();
        match kind {
            "output_item.added" => assert_eq!(event["output_index"], items.len()),
            "output_item.done" => {
                assert_eq!(event["output_index"], items.len());
                items.extend(of_output(&json!([event["item"]])));
                let whole = event["item"]["status"] == "completed";
                if let Some(Said::Call(_, _, complete)) = items.last_mut() {
                    *complete = whole;
                }
                deltas.clear();
            }
            _ if kind.rsplit_once('.').is_some_and(|(_, end)| end == "delta") => {
                deltas.push_str(str_of(&event["delta"]));
            }
            "output_text.done" | "reasoning_text.done" => assert_eq!(event["text"], deltas),
            "function_call_arguments.done" => assert_eq!(event["arguments"], deltas),
            _ => last = event,
        }
    }
    assert_eq!(last["type"], "response.completed");
    (items, of_output(&last["response"]["output"]))
}

fn answers() -> impl Strategy<Value = Vec<Said>> {
    // What could break a line, an event or a string of JSON.
    let text = "[a\n\r\"\\\\é🚀\u{2028}\u{0}: ]{1,12}|data: x\n\nevent: y\n|\\[DONE\\]";
    let channels = prop::sample::select(vec![Channel::Thinking, Channel::Answer]);
    let texts = (channels, text).prop_map(|(channel, text)| Said::Text(channel, text));
    let calls = ("[a-z]{1,5}", text, any::<bool>()).prop_map(|(name, text, complete)| {
        let arguments = json!({"a": text}).to_string();
        // Without its end, arguments are no JSON.
        let cut = arguments.len() - usize::from(!complete);
        Said::Call(name, arguments[..cut].to_owned(), complete)
    });
    let parts = prop::collection::vec(prop_oneof![texts, calls], 0..6);
    parts.prop_map(|parts| {
        let mut heard = Heard::default();
        for part in parts {
            match part {
                Said::Text(channel, text) => heard.text(channel, &text),
                call @ Said::Call(..) => heard.0.push(call),
            }
        }
        heard.0
    })
}

#[test]
fn an_answer_is_what_was_said_in_whatever_pieces() {
    let speaker = Arc::new(Speaker::default());
    let door = Door { loopback: true, ..Door::default() };
    let server = start_with(1, Some(Arc::clone(&speaker) as Arc<dyn Submit>), door);
    let ask = |path: &str, stream: bool| {
        let said = json!([{"role": "user", "content": "hi"}]);
        let field = if path == "/v1/responses" { "input" } else { "messages" };
        let mut body = json!({field: said, "stream": stream});
        if path == "/v1/messages" {
            body["max_tokens"] = 5.into();
        }
        let response = post(server.at, path, &body);
        assert_eq!(response.status, 200, "{response:?}");
        response
    };
    let sizes = prop::collection::vec(1_usize..5, 1..4);
    let config =
        ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    let ran = TestRunner::new(config).run(&(answers(), sizes), |(said, sizes)| {
        *speaker.0.lock().unwrap() = (said.clone(), sizes);
        prop_assert_eq!(&of_chat(&ask("/v1/chat/completions", true)), &said);
        prop_assert_eq!(&of_messages(&ask("/v1/messages", true)), &said);
        let (items, output) = of_responses(&ask("/v1/responses", true));
        prop_assert_eq!(&items, &said);
        // Whoever does not stream is not told of what turned out to be no call.
        let whole: Vec<Said> =
            said.into_iter().filter(|part| !matches!(part, Said::Call(.., false))).collect();
        prop_assert_eq!(&output, &whole);
        prop_assert_eq!(of_output(&ask("/v1/responses", false).json()["output"]), whole);
        Ok(())
    });
    ran.unwrap();
}
