//! A queue that is full, an engine that fails, a server that is told to end.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fm_engine::{
    EngineError,
    generate::{Call, Event, FinishReason, Generated},
    schedule::{Job, Refused, Update},
};
use fm_server::{Door, Patience, Submit};
use fm_text::{CallPart, Channel};
use serde_json::{Value, json};

use crate::{
    client::{get, post, say, send},
    harness::{Running, start, start_with, until},
};

/// Answers every job as it is told to.
pub(crate) enum Script {
    Refuse(Refused),
    Play(fn(Job)),
    Keep(Arc<Mutex<Vec<Job>>>),
}

impl Submit for Script {
    fn submit(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        match self {
            Self::Refuse(refused) => Err(*refused),
            Self::Play(play) => {
                jobs.into_iter().for_each(play);
                Ok(())
            }
            Self::Keep(kept) => {
                kept.lock().unwrap().extend(jobs);
                Ok(())
            }
        }
    }

    fn waiting(&self) -> usize {
        0
    }

    fn is_open(&self) -> bool {
        true
    }

    fn close(&self) {}
}

/// What an answer of three tokens came to.
pub(crate) fn generated(finish: FinishReason, calls: Vec<Call>) -> Generated {
    Generated { tokens: vec![1, 2, 3], text: None, calls, ..Generated::nothing(finish) }
}

pub(crate) fn scripted(script: Script) -> Running {
    start_with(1, Some(Arc::new(script)), Door { loopback: true, ..Door::default() })
}

fn hello(stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": stream})
}

const PATHS: [&str; 2] = ["/v1/chat/completions", "/v1/messages"];

#[test]
fn a_full_queue_says_when_to_come_again() {
    let server = scripted(Script::Refuse(Refused::Full { waiting: 64 }));
    for path in PATHS {
        for stream in [false, true] {
            let refused = post(server.at, path, &hello(stream));
            assert_eq!(refused.status, 429);
            assert!(refused.head.contains("retry-after: 5"), "{}", refused.head);
            assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
        }
    }
    let metrics = get(server.at, "/metrics").body;
    assert!(metrics.contains("requests_refused_total{code=\"429\"} 4\n"), "{metrics}");
    let server = scripted(Script::Refuse(Refused::Closed));
    assert_eq!(post(server.at, PATHS[0], &hello(false)).status, 503);
    assert_eq!(
        post(server.at, PATHS[1], &hello(false)).json()["error"]["type"],
        "overloaded_error"
    );
}

#[test]
fn the_engine_hears_that_a_client_has_gone() {
    let kept = Arc::<Mutex<Vec<Job>>>::default();
    let server = scripted(Script::Keep(Arc::clone(&kept)));
    for path in PATHS {
        for stream in [false, true] {
            let line = format!("POST {path}");
            let mut pending = send(server.at, &line, &[], &hello(stream).to_string());
            until(|| !kept.lock().unwrap().is_empty());
            let mut job = kept.lock().unwrap().pop().unwrap();
            let _ = (job.listener)(Update::Started);
            if stream {
                pending.until("HTTP/1.1 200");
            }
            // Between two tokens, and between two layers of its prompt.
            let layer = || Update::Event(Event::Prefill { done: 1, total: 2 });
            assert!((job.listener)(Update::Waiting).is_continue(), "{path} {stream}: it is there");
            assert!((job.listener)(layer()).is_continue(), "{path} {stream}: it is there");
            drop(pending);
            let mut gone = || {
                let gone = (job.listener)(layer()).is_break();
                assert!(!gone || (job.listener)(Update::Waiting).is_break());
                gone
            };
            assert!((0..20_000).any(|_| {
                thread::park_timeout(Duration::from_millis(1));
                gone()
            }));
        }
    }
    until(|| server.log.lock().unwrap().len() == 4);
    assert!(server.log.lock().unwrap().iter().all(|line| line.ends_with("finish=gone")));
}

fn call(mut job: Job) {
    let _ = (job.listener)(Update::Started);
    let call = Call { name: "look".to_owned(), arguments: "{}".to_owned(), ..Call::default() };
    let called = generated(FinishReason::StopString(0), vec![call]);
    let _ = (job.listener)(Update::Done(Box::new(called)));
}

#[test]
fn a_stop_string_behind_a_call_does_not_hide_it() {
    let server = scripted(Script::Play(call));
    let (mut chat, mut message) = (hello(false), hello(false));
    (chat["stop"], message["stop_sequences"]) = (json!(["x"]), json!(["x"]));
    let called = post(server.at, PATHS[0], &chat).json();
    assert_eq!(called["choices"][0]["finish_reason"], "tool_calls", "{called}");
    let called = post(server.at, PATHS[1], &message).json();
    assert_eq!(called["stop_reason"], "tool_use", "{called}");
    assert_eq!(called["stop_sequence"], Value::Null, "{called}");
}

/// A call between two texts.
fn speak_and_call(mut job: Job) {
    let _ = (job.listener)(Update::Started);
    let events = [
        Event::Text(Channel::Thinking, "so"),
        Event::Text(Channel::Answer, "I "),
        Event::Text(Channel::Answer, "look."),
        Event::Call(0, CallPart::Begin("look")),
        Event::Call(0, CallPart::Arguments("{}")),
        Event::Call(0, CallPart::End(None)),
        Event::Text(Channel::Answer, "And wait."),
    ];
    for event in events {
        let _ = (job.listener)(Update::Event(event));
    }
    let call = Call { name: "look".to_owned(), arguments: "{}".to_owned(), ..Call::default() };
    let _ = (job.listener)(Update::Done(Box::new(generated(FinishReason::Stop, vec![call]))));
}

#[test]
fn a_message_has_the_blocks_of_its_stream_in_their_order() {
    let server = scripted(Script::Play(speak_and_call));
    let whole = post(server.at, PATHS[1], &hello(false)).json();
    let kinds: Vec<&Value> =
        whole["content"].as_array().unwrap().iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "text"]);
    let texts = [1, 3].map(|at| &whole["content"][at]["text"]);
    assert_eq!(texts, ["I look.", "And wait."]);
    let streamed = post(server.at, PATHS[1], &hello(true)).chunks();
    let starts = streamed.iter().filter(|event| event["type"] == "content_block_start");
    let starts: Vec<&Value> = starts.map(|event| &event["content_block"]["type"]).collect();
    assert_eq!(starts, kinds);
}

/// Five tokens of its prompt were there.
fn reuse(mut job: Job) {
    let _ = (job.listener)(Update::Started);
    let known = Generated { reused: 5, ..generated(FinishReason::Stop, Vec::new()) };
    let _ = (job.listener)(Update::Done(Box::new(known)));
}

#[test]
fn tokens_that_were_there_are_those_of_all_prompts() {
    let server = scripted(Script::Play(reuse));
    let body = json!({"prompt": ["some of it", "and more"], "n": 2, "max_tokens": 5});
    let usage = &post(server.at, "/v1/completions", &body).json()["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 10, "{usage}");
}

fn fail(mut job: Job) {
    let _ = (job.listener)(Update::Started);
    let _ = (job.listener)(Update::Event(Event::Text(Channel::Answer, "half")));
    let path = PathBuf::from("/models/that/broke");
    let _ = (job.listener)(Update::Failed(EngineError::NoExperts { path }));
}

#[test]
fn an_engine_that_fails_is_an_error_with_the_address_before_and_in_a_stream() {
    for (play, word) in [
        (fail as fn(Job), "/models/that/broke"),
        (|job| drop(job), "the engine ended before the answer was complete"),
    ] {
        let server = scripted(Script::Play(play));
        for (path, kind) in PATHS.into_iter().zip(["server_error", "api_error"]) {
            let whole = post(server.at, path, &hello(false));
            assert_eq!(whole.status, 500);
            let streamed = post(server.at, path, &hello(true));
            let last = streamed.chunks().pop().unwrap();
            for error in [&whole.json()["error"], &last["error"]] {
                assert_eq!(error["type"], kind);
                assert!(error["message"].as_str().unwrap().contains(word), "{error}");
            }
            assert!(!streamed.body.contains("[DONE]") && !streamed.body.contains("message_stop"));
        }
        assert!(server.log.lock().unwrap().iter().all(|line| line.ends_with("finish=error")));
    }
}

#[test]
fn a_server_that_ends_finishes_what_it_is_saying() {
    let mut server = start(1);
    let mut body = hello(true);
    body["messages"][0]["content"] = "Write a story about a robot who loves music.".into();
    body["max_tokens"] = 200.into();
    let mut pending = send(server.at, "POST /v1/chat/completions", &[], &body.to_string());
    pending.until("HTTP/1.1 200");
    server.stopper.stop();
    let told = Arc::new(Mutex::new(String::new()));
    let reader = {
        let told = Arc::clone(&told);
        thread::spawn(move || {
            pending.until("[DONE]");
            told.lock().unwrap().push_str("all of it");
        })
    };
    server.end();
    reader.join().unwrap();
    assert_eq!(*told.lock().unwrap(), "all of it");
}

#[test]
fn who_comes_to_a_server_that_ends_is_told_and_half_requests_are_not_waited_for() {
    let mut server = start(1);
    let long = json!({"messages": [{"role": "user", "content": "Write a story."}], "stream": true, "max_tokens": 400});
    let mut answer = send(server.at, "POST /v1/chat/completions", &[], &long.to_string());
    answer.until("\"content\":\"");
    let half = say(
        server.at,
        "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"mess",
    );
    let (idle, half_a_head) = (say(server.at, ""), say(server.at, "GET /health HTTP/1.1\r\nho"));
    assert_eq!(get(server.at, "/health").status, 200, "they have been let in");
    server.stopper.stop();
    assert!(half.rest().starts_with("HTTP/1.1 503"));
    let told = get(server.at, "/health");
    assert_eq!((told.status, &told.json()["status"]), (503, &json!("draining")));
    assert!(told.head.contains("\r\nretry-after: 5"), "{}", told.head);
    let refused = post(server.at, "/v1/messages", &hello(false));
    assert!(refused.status == 503 && refused.head.contains("retry-after"), "{}", refused.head);
    assert!(answer.rest().contains("[DONE]"), "what was begun is finished");
    drop(idle);
    let waited = Instant::now();
    server.end();
    assert!(waited.elapsed() < Patience::default().head / 2, "{:?}", waited.elapsed());
    drop(half_a_head);
    assert!(!server.log.lock().unwrap().iter().any(|line| line.starts_with("/health")));
}

#[test]
fn a_supervisor_that_is_turned_away_is_told_of() {
    let server = start(1);
    let refused = say(server.at, "GET /health HTTP/1.1\r\nhost: up\r\nconnection: close\r\n\r\n");
    assert_eq!(refused.response().status, 403);
    let log = server.log.lock().unwrap().clone();
    assert!(
        log[0].starts_with("/health refused=403 id=req_") && log[0].contains("--allow-host up"),
        "{log:?}"
    );
}

#[test]
fn every_chunk_of_an_answer_was_created_when_it_began() {
    let kept = Arc::<Mutex<Vec<Job>>>::default();
    let server = scripted(Script::Keep(Arc::clone(&kept)));
    for (path, mut body) in
        [(PATHS[0], hello(true)), ("/v1/completions", json!({"prompt": "hi", "echo": true}))]
    {
        body["stream"] = true.into();
        let mut pending = send(server.at, &format!("POST {path}"), &[], &body.to_string());
        let mut created = || -> u64 {
            let rest = pending.line_after("\"created\":");
            rest.split(',').next().unwrap().parse().unwrap()
        };
        let first = created();
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        until(|| now() > first);
        let mut job = kept.lock().unwrap().pop().unwrap();
        let _ = (job.listener)(Update::Event(Event::Text(Channel::Answer, "later")));
        assert_eq!(created(), first, "{path}");
    }
}

/// The time of a request ends while some of its choices wait behind the others.
#[test]
fn choices_that_had_no_turn_take_nothing_from_those_that_had() {
    let play = |mut job: Job| {
        let update = if job.request.sampling.seed.is_multiple_of(2) {
            let _ = (job.listener)(Update::Event(Event::Text(Channel::Answer, "so far")));
            let text = Some("so far".to_owned());
            let generated = generated(FinishReason::Deadline, Vec::new());
            Update::Done(Box::new(Generated { text, ..generated }))
        } else {
            Update::Failed(EngineError::Late)
        };
        let _ = (job.listener)(update);
    };
    let server = scripted(Script::Play(play));
    let asked = |seed: u64, stream: bool| {
        let mut body = hello(stream);
        (body["n"], body["seed"]) = (2.into(), seed.into());
        post(server.at, PATHS[0], &body)
    };
    let whole = asked(0, false).json();
    let choices: Vec<_> = whole["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| {
            (choice["message"]["content"].as_str().unwrap_or_default(), &choice["finish_reason"])
        })
        .collect();
    assert_eq!(choices, [("so far", &json!("length")), ("", &json!("length"))]);
    let streamed = asked(0, true).body;
    assert_eq!(streamed.matches("\"finish_reason\":\"length\"").count(), 2, "{streamed}");
    assert!(streamed.trim_end().ends_with("[DONE]"), "{streamed}");
    assert_eq!(asked(1, false).status, 503, "nothing had been told when the first one failed");
}
