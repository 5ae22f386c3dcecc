//! Clients that say nothing, say it slowly, or do not read.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fm_engine::{generate::Event, schedule::Update};
use fm_server::{Door, Patience, Submit};
use fm_text::Channel;
use serde_json::{Value, json};

use crate::{
    client::{get, post, say, send},
    endings::Script,
    harness::{Running, start, start_for, until},
};

const SOON: Duration = Duration::from_millis(300);

fn impatient(submit: Option<Arc<dyn Submit>>) -> Running {
    let patience = Patience { head: SOON, body: SOON, reader: SOON, ..Patience::default() };
    start_for(1, submit, Door { loopback: true, ..Door::default() }, patience)
}

const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n";

#[test]
fn a_request_that_does_not_come_is_not_waited_for() {
    let server = impatient(None);
    let silent: Vec<_> = (0..300).map(|_| say(server.at, "")).collect();
    let slow: Vec<_> = (0..300).map(|_| say(server.at, HEAD)).collect();
    assert_eq!(get(server.at, "/health").status, 200, "there is room again");
    for pending in silent.into_iter().chain(slow) {
        assert_eq!(pending.rest(), "");
    }
    let half = say(server.at, &format!("{HEAD}content-length: 100\r\n\r\n{{\"mess"));
    assert!(half.rest().starts_with("HTTP/1.1 408"));
}

#[test]
fn who_says_nothing_keeps_nobody_out_for_long() {
    let patience = Patience { head: Duration::from_hours(1), ..Patience::default() };
    let server = start_for(1, None, Door { loopback: true, ..Door::default() }, patience);
    let silent: Vec<_> = (0..257).map(|_| say(server.at, "")).collect();
    assert_eq!(get(server.at, "/health").status, 200, "the last ones have had their time");
    drop(silent);
}

#[test]
fn a_body_that_does_not_come_is_waited_for_less_where_places_are_rare() {
    // A minute, where there is room.
    let server = start(1);
    let head = format!("{HEAD}content-length: 13\r\n\r\n{{");
    let mut first = say(server.at, &head);
    let others: Vec<_> = (0..253).map(|_| say(server.at, &head)).collect();
    let start = Instant::now();
    assert_eq!(say(server.at, &head).response().status, 408);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    drop(others);
    first.more("\"prompt\": 5}");
    assert_eq!(first.response().status, 400, "who came early is listened to still");
}

#[test]
fn bodies_have_room_together_and_small_ones_always() {
    let server = start(1);
    let head = format!("{HEAD}content-length: {}\r\n\r\n{{\"user\": \"", 16 << 20);
    // Four that nearly fill their limit and do not end.
    let almost = "x".repeat((16 << 20) - 4096);
    let mut held: Vec<_> = (0..4).map(|_| say(server.at, &head)).collect();
    held.iter_mut().for_each(|pending| pending.more(&almost));
    let large = json!({"content": "x".repeat(1 << 20)});
    let crowded = (0..200).any(|_| post(server.at, "/tokenize", &large).status == 503);
    assert!(crowded, "there was room for all of them");
    let refused = post(server.at, "/tokenize", &large);
    assert!(refused.head.contains("retry-after: 5"), "{}", refused.head);
    assert!(refused.body.contains("fill the 64 MiB"), "{}", refused.body);
    assert_eq!(post(server.at, "/tokenize", &json!({"content": "hi"})).status, 200);
    drop(held);
    until(|| post(server.at, "/tokenize", &large).status == 200);
}

#[test]
fn who_does_not_read_is_not_written_to_for_ever() {
    let kept = Arc::<Mutex<Vec<_>>>::default();
    let server = impatient(Some(Arc::new(Script::Keep(Arc::clone(&kept)))));
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    let _pending = send(server.at, "POST /v1/chat/completions", &[], &body.to_string());
    until(|| !kept.lock().unwrap().is_empty());
    let mut job = kept.lock().unwrap().pop().unwrap();
    let text = "x".repeat(1 << 20);
    for _ in 0..64 {
        // More than the system holds for a reader; the writer itself never waits.
        let _ = (job.listener)(Update::Event(Event::Text(Channel::Answer, &text)));
    }
    let job = Mutex::new(job);
    until(|| (job.lock().unwrap().listener)(Update::Waiting).is_break());
    let answered = post(server.at, "/tokenize", &json!({"content": "hi"}));
    assert_eq!(answered.status, 200);
}

#[test]
fn a_server_that_ends_does_not_wait_for_who_says_nothing() {
    let mut server = impatient(None);
    let _idle = [say(server.at, ""), say(server.at, HEAD)];
    assert_eq!(get(server.at, "/health").status, 200, "the others have been let in before");
    server.end();
}

/// Somebody who waits for an answer that does not come, until it breaks off.
fn kept_waiting(path: &str, mut body: Value, sign: &str) -> String {
    let kept = Arc::<Mutex<Vec<_>>>::default();
    let patience = Patience { silence: Duration::from_millis(2), ..Patience::default() };
    let submit: Arc<dyn Submit> = Arc::new(Script::Keep(Arc::clone(&kept)));
    let door = Door { loopback: true, ..Door::default() };
    let server = start_for(1, Some(submit), door, patience);
    body["stream"] = true.into();
    let mut pending = send(server.at, &format!("POST {path}"), &[], &body.to_string());
    let mut told = String::new();
    for _ in 0..200 {
        told.push_str(&pending.line());
        if told.matches(sign).count() == 4 {
            break;
        }
    }
    kept.lock().unwrap().clear();
    told + &pending.rest()
}

#[test]
fn a_stream_that_has_nothing_to_tell_says_so_in_the_words_of_its_interface() {
    let said = json!([{"role": "user", "content": "hi"}]);
    for (path, body, sign) in [
        ("/v1/chat/completions", json!({"messages": said}), ": keep-alive"),
        ("/v1/completions", json!({"prompt": "hi"}), ": keep-alive"),
        ("/v1/messages", json!({"messages": said, "max_tokens": 5}), "event: ping"),
        ("/v1/responses", json!({"input": "hi"}), "event: response.in_progress"),
    ] {
        let told = kept_waiting(path, body, sign);
        assert!(told.contains("x-accel-buffering: no\r\n"), "{told}");
        let end = told.rfind("the engine ended before").unwrap_or_else(|| panic!("{told}"));
        assert!(told[..end].matches(sign).count() >= 4, "{told}");
        let numbers = told.split("\"sequence_number\":").skip(1);
        let numbers = numbers.map(|rest| rest.split(',').next().unwrap().parse().unwrap());
        assert!(numbers.enumerate().all(|(at, number): (usize, usize)| at == number), "{told}");
    }
}
