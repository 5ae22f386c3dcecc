//! Thirty-two clients for a while, some of which leave, read slowly or say nonsense: no session is lost,
//! nothing grows, and every answer is the one that it is alone.
//!
//! A minute of it in CI. `FLASH_MOE_SOAK_SECONDS` says how long; `cargo xtask soak` does it for half an hour.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[allow(dead_code)] // what the other tests need too
#[path = "it/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "it/harness.rs"]
mod harness;

use std::{
    env,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use fm_testkit::counting_alloc::{CountingAlloc, live_bytes};
use serde_json::{Value, json};

use self::{
    client::{get, post, say, send},
    harness::{Running, start_on_two_threads, until},
};

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

const CLIENTS: usize = 32;
const ROUNDS: u32 = 3;
const SECONDS: u64 = 24;
const CI_SECONDS: u64 = 60;

/// What may be there after the last round that was not there after the first, beside calls that are kept
/// for their clients: what lists of them grow by, and connections that are being closed.
const GROWTH_MAX: u64 = 2 << 20;

/// Paths and requests, which are asked whole and streamed.
fn requests() -> Vec<(&'static str, Value)> {
    let user = |text: &str| json!([{"role": "user", "content": text}]);
    let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": false});
    let weather = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false});
    let asked = "What is the weather in Paris?";
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": user("Write a story about a fox."), "seed": 1, "temperature": 1, "max_tokens": 60, "enable_thinking": false, "stream_options": {"include_usage": true}}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user("What is 7 plus 5?"), "seed": 2, "temperature": 1.2, "max_tokens": 80, "thinking_budget": 30,
                "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "stream_options": {"include_usage": true}}),
        ),
        (
            "/v1/messages",
            json!({"messages": user(asked), "seed": 3, "temperature": 1, "max_tokens": 60,
                "tools": [{"name": "get_weather", "input_schema": weather, "strict": true}]}),
        ),
        (
            "/v1/responses",
            json!({"input": asked, "seed": 4, "temperature": 1, "max_output_tokens": 60,
                "tools": [{"type": "function", "name": "get_weather", "parameters": weather}], "tool_choice": "required"}),
        ),
        ("/v1/responses", json!({"input": "Hello!", "seed": 5, "max_output_tokens": 30})),
    ]
}

/// The request, as it is streamed or not; what streams have beside it only they take.
fn variant(body: &Value, stream: bool) -> Value {
    let mut body = body.clone();
    if stream {
        body["stream"] = true.into();
    } else {
        body.as_object_mut().unwrap().remove("stream_options");
    }
    body
}

/// The hash of an answer's logits, wherever an interface tells it.
fn hash(body: &str) -> String {
    let (_, rest) = body.rsplit_once("\"logits_hash\":\"").unwrap_or_else(|| panic!("{body}"));
    rest.split('"').next().unwrap().to_owned()
}

/// What a client does, by its number; `turn` counts what it has done.
fn act(at: SocketAddr, client: usize, turn: usize, alone: &[String]) {
    let requests = requests();
    let which = (client + turn) % requests.len();
    let (path, body) = &requests[which];
    let line = format!("POST {path}");
    match client {
        // One says half a request, another nonsense.
        0 => drop(say(
            at,
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{",
        )),
        1 => {
            let refused = send(at, &line, &[], "{\"messages\": [{]}").response();
            assert_eq!(refused.status, 400);
        }
        // Some leave: before the first word, or behind a few.
        2..8 => {
            let mut pending = send(at, &line, &[], &variant(body, true).to_string());
            if !turn.is_multiple_of(3) {
                pending.until("HTTP/1.1 ");
                (0..turn % 7).for_each(|_| drop(pending.line()));
            }
        }
        // Some read slowly.
        8..12 => {
            let mut pending = send(at, &line, &[], &variant(body, true).to_string());
            for _ in 0..8 {
                pending.line();
                thread::park_timeout(Duration::from_millis(60));
            }
            assert_eq!(hash(&pending.rest()), alone[which], "{path}, read slowly");
        }
        _ => {
            // Whoever is told to come again comes again.
            let body = variant(body, turn.is_multiple_of(2));
            let mut answer = post(at, path, &body);
            while answer.status == 429 {
                thread::park_timeout(Duration::from_millis(100));
                answer = post(at, path, &body);
            }
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(hash(&answer.body), alone[which], "{path} among others");
        }
    }
}

/// Bytes of calls that the server keeps as they were written, up to a bound of its own.
fn kept_calls(at: SocketAddr) -> u64 {
    let metrics = get(at, "/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix("flash_moe_calls_kept_bytes "));
    line.unwrap().parse().unwrap()
}

/// Lets all clients act for a while, and waits until the last has been let go.
fn round(server: &Running, alone: &[String], time: Duration, done: &AtomicUsize) {
    let (at, end) = (server.at, Instant::now() + time);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut turn = 0;
                while turn == 0 || Instant::now() < end {
                    act(at, client, turn, alone);
                    turn += 1;
                }
                done.fetch_add(turn, Ordering::Relaxed);
            });
        }
    });
    until(|| server.sessions() == 0 && get(at, "/metrics").body.contains("queue_waiting 0\n"));
}

#[test]
fn thirty_two_clients_lose_no_session_and_leave_nothing_behind() {
    // It takes its time however much it gets done in it: what runs beside it in CI waits for cores. Threads
    // take after the one that starts them.
    #[cfg(unix)]
    rustix::process::nice(5).unwrap();
    let seconds = env::var("FLASH_MOE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let usual = if env::var_os("CI").is_some() { CI_SECONDS } else { SECONDS };
    let time = Duration::from_secs(seconds.unwrap_or(usual)) / ROUNDS;
    let mut server = start_on_two_threads(4);
    let alone: Vec<String> = requests()
        .iter()
        .map(|(path, body)| hash(&post(server.at, path, &variant(body, false)).body))
        .collect();
    let done = AtomicUsize::new(0);
    let mut live = Vec::new();
    for _ in 0..ROUNDS {
        round(&server, &alone, time, &done);
        // What was said of requests is the harness's, and grows with them.
        drop(std::mem::take(&mut *server.log.lock().unwrap()));
        live.push(live_bytes().saturating_sub(kept_calls(server.at)));
    }
    let growth = live[live.len() - 1].saturating_sub(live[0]);
    assert!(
        growth <= GROWTH_MAX,
        "{growth} bytes more after {} requests: {live:?}",
        done.into_inner()
    );
    // All four sessions are there: four stories are written at once.
    let story = variant(&requests()[0].1, true).to_string();
    let mut four: Vec<_> =
        (0..4).map(|_| send(server.at, "POST /v1/chat/completions", &[], &story)).collect();
    four.iter_mut().for_each(|pending| pending.until("\"content\":\""));
    four.into_iter().for_each(|pending| assert_eq!(hash(&pending.rest()), alone[0]));
    server.end();
}
