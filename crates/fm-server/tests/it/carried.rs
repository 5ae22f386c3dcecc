//! What a request says beside its text, and what the engine hears of it.

use std::sync::{Arc, Mutex};

use fm_engine::schedule::{Job, Pin};
use serde_json::{Value, json};

use crate::{
    client::send,
    endings::{Script, scripted},
    harness::{start, until},
};

const CHAT: &str = "/v1/chat/completions";

/// The paths that answer, each with a body of theirs.
fn bodies() -> [(&'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    [
        (CHAT, json!({"messages": messages})),
        ("/v1/completions", json!({"prompt": "Hi"})),
        ("/v1/responses", json!({"input": "Hi"})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 5})),
    ]
}

#[test]
fn a_conversation_has_a_name_in_the_head_or_in_the_body_and_thinks_for_so_long_at_least() {
    let jobs = Arc::<Mutex<Vec<Job>>>::default();
    let server = scripted(Script::Keep(Arc::clone(&jobs)));
    let named = |name: &str| Pin::Conversation(name.to_owned());
    let head = ["x-session-id: in the head"].as_slice();
    for (path, body) in bodies() {
        for (headers, session, pin) in [
            ([].as_slice(), Value::Null, Pin::None),
            (head, Value::Null, named("in the head")),
            (&[], json!("in the body"), named("in the body")),
            (head, json!("in the body"), named("in the body")),
        ] {
            let mut body = body.clone();
            body["session_id"] = session;
            body["thinking_min"] = 7.into();
            let asked = send(server.at, &format!("POST {path}"), headers, &body.to_string());
            until(|| !jobs.lock().unwrap().is_empty());
            let request = jobs.lock().unwrap().pop().unwrap().request;
            assert_eq!((request.pin, request.think_min), (pin, 7), "{path} {body}");
            drop(asked);
        }
    }
}

#[test]
fn a_name_changes_no_answer_and_a_minimum_keeps_the_thinking_open() {
    let server = start(1);
    let ask = |headers: &[&str], least: usize| {
        let body = json!({
            "messages": [{"role": "user", "content": "What is 7 plus 5?"}], "temperature": 0,
            "enable_thinking": true, "max_tokens": 200, "thinking_min": least,
        });
        send(server.at, &format!("POST {CHAT}"), headers, &body.to_string()).response().json()
    };
    let thought = |answer: &Value| {
        answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap()
    };
    let hash = |answer: &Value| answer["timings"]["logits_hash"].clone();
    let (plain, named) = (ask(&[], 0), ask(&["x-session-id: mine"], 0));
    assert_eq!(hash(&named), hash(&plain));
    let least = thought(&plain) + 20;
    let longer = ask(&[], least as usize);
    assert!(thought(&longer) >= least, "{} of {least}: {longer}", thought(&longer));
}
