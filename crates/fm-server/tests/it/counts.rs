//! Counting tokens: one who counts much keeps nobody waiting.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use serde_json::{Value, json};

use crate::{
    client::{post, send},
    harness::start,
};

const COUNT: &str = "/v1/messages/count_tokens";

const LONG: usize = 6_000_000;

fn said(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

#[test]
fn a_count_that_takes_long_keeps_no_short_one_waiting() {
    let server = start(1);
    let long = said(&"1".repeat(LONG)).to_string();
    // When the second one has been sent, the first one is there.
    let long = [(); 2].map(|()| send(server.at, &format!("POST {COUNT}"), &[], &long));
    let counted = AtomicBool::new(false);
    thread::scope(|scope| {
        for long in long {
            scope.spawn(|| {
                let answer = long.response();
                counted.store(true, Ordering::Relaxed);
                assert_eq!(answer.status, 200, "{}", answer.body);
                let tokens = answer.json()["input_tokens"].as_u64().unwrap();
                assert!(tokens > LONG as u64 / 8, "{tokens}");
            });
        }
        for _ in 0..3 {
            assert_eq!(post(server.at, COUNT, &said("hi")).status, 200);
        }
        assert!(!counted.load(Ordering::Relaxed), "the short ones waited");
    });
}

#[test]
fn a_long_text_is_as_many_tokens_as_its_parts() {
    let server = start(1);
    let count = |text: &str| {
        let answer = post(server.at, COUNT, &said(text)).json();
        answer["input_tokens"].as_u64().unwrap()
    };
    // Each part is one that no token reaches over.
    for part in ["A fox and a boat.\n", "fn main() {\n    let x = 1_000;\n}\n\n", "word, 東京 12 "]
    {
        let many = 4 << 10;
        let (one, two) = (count(&part.repeat(many)), count(&part.repeat(2 * many)));
        let times = (3 << 20) / (part.len() * many) as u64;
        let long = count(&part.repeat(many * times as usize));
        assert_eq!(long, one + (times - 1) * (two - one), "{part:?}");
    }
}
