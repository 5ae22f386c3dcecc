//! What ends an answer before the model does, and who is answered next.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fm_engine::{
    EngineError,
    generate::Loops,
    schedule::{Job, Update},
};
use fm_server::{Bounds, Door, Patience};
use serde_json::{Value, json};

use crate::{
    client::{Pending, get, post, send},
    endings::{Script, scripted},
    harness::{Running, start, start_within, until},
};

const CHAT: &str = "/v1/chat/completions";

fn bounded(sessions: usize, bounds: Bounds) -> Running {
    let door = Door { loopback: true, ..Door::default() };
    start_within(sessions, None, (door, Patience::default(), bounds))
}

/// A request whose answer is the same word again and again, until something ends it.
fn round_and_round(at: std::net::SocketAddr, word: &str, more: &Value) -> Value {
    let token = |text: &str| {
        let spell = json!({"content": text, "parse_special": true});
        post(at, "/tokenize", &spell).json()["tokens"][0].to_string()
    };
    let never = ["<|im_end|>", "<|endoftext|>"].map(token);
    let mut body = json!({
        "messages": [{"role": "user", "content": "What is 7 plus 5?"}],
        "temperature": 0, "enable_thinking": false,
        "logit_bias": {token(word): 100, &never[0]: -100, &never[1]: -100},
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn an_answer_that_goes_round_ends_and_says_why() {
    let server = bounded(1, Bounds { loops: Loops::End, ..Bounds::default() });
    let ask = |more: Value| {
        let whole = post(server.at, CHAT, &round_and_round(server.at, " Tom", &more)).json();
        let finish = &whole["choices"][0]["finish_reason"];
        assert_eq!(finish, "length", "{whole}");
        let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
        (
            whole["timings"]["finish"].as_str().unwrap().to_owned(),
            tokens,
            whole["choices"][0]["message"].clone(),
        )
    };
    let (why, tokens, _) = ask(json!({}));
    assert_eq!((why.as_str(), tokens), ("repetition", 401));
    let (why, tokens, _) = ask(json!({"max_tokens": 400}));
    assert_eq!((why.as_str(), tokens), ("length", 400), "a word may stand there often");
    // A thought is closed first, and the answer is another chance.
    let (why, tokens, message) = ask(json!({"enable_thinking": true}));
    assert_eq!(why, "repetition");
    assert!(tokens > 802 && !message["content"].as_str().unwrap().is_empty(), "{tokens}");
    assert!(get(server.at, "/metrics").body.contains("requests_total{finish=\"repetition\"} 2\n"));
    // An answer of a given form ends where it could have left the circle: a string that could be closed,
    // a text that could end.
    let format = |schema: Value| {
        let named = json!({"name": "a", "schema": schema});
        json!({"response_format": {"type": "json_schema", "json_schema": named}})
    };
    let names = json!({
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
    });
    let (why, tokens, message) = ask(format(names));
    assert!(why == "repetition" && tokens < 420, "{why} after {tokens}");
    assert!(message["content"].as_str().unwrap().ends_with(" Tom Tom"), "{message}");
    assert_eq!(ask(json!({"structured_outputs": {"regex": "( Tom)*"}})).0, "repetition");
    // Where it has to go round, it does: until something else ends it, or it is done.
    assert_eq!(ask(json!({"structured_outputs": {"regex": "( Tom)*!"}})).0, "context");
    let ones = json!({"type": "array", "items": {"const": 1}, "minItems": 300, "maxItems": 300});
    let whole = post(server.at, CHAT, &round_and_round(server.at, " Tom", &format(ones))).json();
    assert_eq!(whole["timings"]["finish"], "stop", "{whole}");
    let list = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Vec<u8>>(list).unwrap(), [1; 300]);
    assert!(whole["usage"]["completion_tokens"].as_u64() > Some(500), "{whole}");

    let server = bounded(1, Bounds::default());
    let body = round_and_round(server.at, " Tom", &json!({"max_tokens": 500}));
    assert_eq!(post(server.at, CHAT, &body).json()["timings"]["finish"], "length");
}

#[test]
fn a_number_that_a_comma_could_end_goes_round_no_longer_than_a_text() {
    let server = bounded(1, Bounds { loops: Loops::End, ..Bounds::default() });
    let value = |schema: Value| {
        let schema = json!({
            "type": "object", "required": ["value", "certain"], "additionalProperties": false,
            "properties": {"value": schema, "certain": {"type": "boolean"}},
        });
        let named = json!({"name": "a", "schema": schema});
        let format = json!({"response_format": {"type": "json_schema", "json_schema": named}});
        let whole = post(server.at, CHAT, &round_and_round(server.at, "0", &format)).json();
        whole["timings"]["finish"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(value(json!({"type": "number"})), "repetition");
}

/// An object with a string of at most so many letters.
fn names(length: Option<u32>) -> Value {
    let mut name = json!({"type": "string"});
    name["maxLength"] = length.into();
    name.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    json!({
        "type": "object", "properties": {"name": name}, "required": ["name"],
        "additionalProperties": false,
    })
}

#[test]
fn a_circle_that_the_form_itself_ends_is_none() {
    let server = bounded(1, Bounds { loops: Loops::End, ..Bounds::default() });
    let ask = |word: &str, form: Value| {
        let whole = post(server.at, CHAT, &round_and_round(server.at, word, &form)).json();
        let why = whole["timings"]["finish"].as_str().unwrap_or_default().to_owned();
        let tokens = whole["usage"]["completion_tokens"].as_u64();
        assert!(tokens > Some(400), "longer than any circle may be: {whole}");
        (why, whole["choices"][0]["message"].clone())
    };
    let json = |schema: Value| {
        let named = json!({"name": "a", "schema": schema});
        json!({"response_format": {"type": "json_schema", "json_schema": named}})
    };
    let call = |length: Option<u32>| {
        let function = json!({"name": "f", "parameters": names(length), "strict": true});
        let tools = json!([{"type": "function", "function": function}]);
        json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false})
    };
    let text = |message: &Value| message["content"].as_str().unwrap().to_owned();
    let toms = " Tom".repeat(425);
    let is_toms = |json: &str| serde_json::from_str::<Value>(json).unwrap()["name"] == toms;

    let (why, message) = ask(" Tom", json(names(Some(1700))));
    assert!(why == "stop" && is_toms(&text(&message)), "{why}");
    let ones = |most: u32| json!({"type": "array", "items": {"const": 1}, "maxItems": most});
    let (why, message) = ask(",", json(ones(300)));
    assert_eq!(why, "stop");
    assert_eq!(serde_json::from_str::<Vec<u8>>(&text(&message)).unwrap(), [1; 300]);
    let (why, message) = ask(" Tom", json!({"structured_outputs": {"regex": "( Tom){0,425}"}}));
    assert!(why == "stop" && text(&message) == toms, "{why}");
    let (why, message) = ask(" Tom", call(Some(1700)));
    let arguments = message["tool_calls"][0]["function"]["arguments"].as_str();
    assert!(why == "stop" && arguments.is_some_and(is_toms), "{why}");

    // No end, or one that is too far away to wait for.
    for length in [None, Some(100_000)] {
        assert_eq!(ask(" Tom", json(names(length))).0, "repetition", "{length:?}");
        assert_eq!(ask(" Tom", call(length)).0, "repetition", "{length:?}");
    }
    assert_eq!(ask(",", json(ones(100_000))).0, "repetition");
    assert_eq!(ask(" Tom", json!({"structured_outputs": {"regex": "( Tom)*"}})).0, "repetition");
}

#[test]
fn an_answer_that_is_noise_ends_and_says_why() {
    let noisy = |at: std::net::SocketAddr, temperature: f64, seed: u64| {
        // " Tom" at its own likelihood, and nothing that ends the text.
        let more = json!({"temperature": temperature, "seed": seed, "top_p": 1, "top_k": 0});
        let mut body = round_and_round(at, " Tom", &more);
        body["logit_bias"].as_object_mut().unwrap().retain(|_, bias| *bias != 100);
        body["messages"][0]["content"] = "写一个很长的故事。".into();
        post(at, CHAT, &body).json()
    };
    let finish = |whole: &Value| whole["timings"]["finish"].as_str().unwrap().to_owned();
    let server = bounded(1, Bounds { loops: Loops::End, ..Bounds::default() });
    let hot: Vec<Value> = (0..6).map(|seed| noisy(server.at, 2.0, seed)).collect();
    let found: Vec<&Value> = hot.iter().filter(|whole| finish(whole) == "noise").collect();
    assert!(found.len() >= 2, "{:?}", hot.iter().map(finish).collect::<Vec<_>>());
    for whole in found {
        assert_eq!(whole["choices"][0]["finish_reason"], "length");
        assert!(whole["usage"]["completion_tokens"].as_u64().unwrap() >= 256);
    }
    assert!(!get(server.at, "/metrics").body.contains("requests_total{finish=\"noise\"} 0\n"));
    for seed in 0..3 {
        let warm = noisy(server.at, 1.0, seed);
        assert_ne!(finish(&warm), "noise", "{warm}");
    }
    let server = bounded(1, Bounds::default());
    assert!((0..3).all(|seed| finish(&noisy(server.at, 2.0, seed)) == "context"));
}

#[test]
fn a_request_has_its_time_and_says_who_asks() {
    let kept = Arc::<Mutex<Vec<Job>>>::default();
    let door = Door { loopback: true, ..Door::default() };
    let time = Duration::from_mins(5);
    let bounds = Bounds { time: Some(time), ..Bounds::default() };
    let script = Arc::new(Script::Keep(Arc::clone(&kept)));
    let server = start_within(1, Some(script), (door, Patience::default(), bounds));
    let ask = |path: &str, more: &Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let before = Instant::now();
        let pending = send(server.at, &format!("POST {path}"), &[], &body.to_string());
        until(|| !kept.lock().unwrap().is_empty());
        let mut job = kept.lock().unwrap().pop().unwrap();
        let left = job.request.deadline.unwrap() - before;
        assert!(left >= time && left < time + Duration::from_mins(1), "{left:?}");
        let _ = (job.listener)(Update::Failed(EngineError::Late));
        let client = job.request.client;
        drop(job);
        let late = pending.response();
        assert!(late.status == 503 && late.head.contains("retry-after"), "{late:?}");
        let said = late.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(said.contains("time"), "{said}");
        client
    };
    let nobody = ask(CHAT, &json!({}));
    assert_eq!(ask(CHAT, &json!({"temperature": 0})), nobody);
    let one = ask(CHAT, &json!({"user": "one"}));
    let two = ask(CHAT, &json!({"user": "two"}));
    assert!(one != nobody && one != two);
    assert_eq!(ask("/v1/messages", &json!({"metadata": {"user_id": "one"}})), one);
    assert_eq!(ask("/v1/messages", &json!({"session_id": "two"})), two);
}

#[test]
fn names_and_what_is_repeated_are_short() {
    let server = start(1);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
    let paths = [
        (CHAT, chat.clone()),
        ("/v1/messages", chat),
        ("/v1/completions", json!({"prompt": "hi", "max_tokens": 1})),
        ("/v1/responses", json!({"input": "hi", "max_output_tokens": 1})),
    ];
    for (path, body) in paths {
        let ask = |field: &str, value: Value| {
            let mut body = body.clone();
            body[field] = value;
            let answer = post(server.at, path, &body);
            (
                answer.status,
                answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned(),
            )
        };
        for field in ["model", "session_id"] {
            assert_eq!(ask(field, "x".repeat(1024).into()).0, 200, "{path} {field}");
            let told = format!("{field}: a text of it may have at most 1024 bytes");
            assert_eq!(ask(field, "x".repeat(1025).into()), (400, told), "{path}");
        }
        let session = format!("x-session-id: {}", "x".repeat(1025));
        let line = format!("POST {path}");
        assert_eq!(send(server.at, &line, &[&session], &body.to_string()).response().status, 400);
        if path != "/v1/responses" {
            continue;
        }
        for (field, value) in [
            ("user", "x".repeat(1025).into()),
            ("metadata", json!({"x": "x".repeat(64 << 10)})),
            ("reasoning", json!({"summary": "x".repeat(1030)})),
            ("text", json!({"verbosity": "x".repeat(130 << 10)})),
        ] {
            let (status, said) = ask(field, value);
            assert!(status == 400 && said.contains("it may have at most"), "{field}: {said}");
        }
        // Tools that the model is not told of, what else a tool says, and what the prompt has too.
        let tool =
            |kind: &str, bytes: usize| json!([{"type": kind, "name": "f", "x": "x".repeat(bytes)}]);
        for (field, value) in [
            ("tools", tool("web_search", 2 << 20)),
            ("tools", tool("function", 2 << 20)),
            ("instructions", "x".repeat((2 << 20) + 1).into()),
        ] {
            let told = format!("{field}: it may have at most 2097152 bytes");
            assert_eq!(ask(field, value), (400, told));
        }
        let (status, said) = ask("tools", tool("web_search", 2_097_100));
        assert!(status == 200, "{said}");
        let mut both = body.clone();
        both["instructions"] = "x".repeat(1 << 20).into();
        both["tools"] = tool("web_search", 1 << 20);
        let both = post(server.at, path, &both);
        let error = &both.json()["error"];
        assert_eq!((both.status, &error["param"]), (400, &json!("tools")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("more than 2 MiB"), "{error}");
        assert_eq!(ask("user", "x".repeat(1024).into()).0, 200);
        // As much as the original takes, whatever the letters.
        let metadata = (0..16).map(|n| (n.to_string(), "東".repeat(512).into()));
        assert_eq!(ask("metadata", Value::Object(metadata.collect())).0, 200);
    }
}

#[test]
fn as_many_tokens_are_written_out_as_a_body_may_have_values() {
    let server = start(1);
    let status =
        |tokens: usize| post(server.at, "/detokenize", &json!({"tokens": vec![5; tokens]})).status;
    assert_eq!([262_142, 262_143].map(status), [200, 400]);
}

#[test]
fn an_answer_has_as_many_log_probabilities_as_a_response_can_hold() {
    let kept = Arc::<Mutex<Vec<Job>>>::default();
    let server = scripted(Script::Keep(Arc::clone(&kept)));
    let ask = |path: &str, more: Value| {
        let mut body = json!({"n": 8});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        send(server.at, &format!("POST {path}"), &[], &body.to_string())
    };
    let asked = |pending: Pending| {
        until(|| !kept.lock().unwrap().is_empty());
        drop(pending);
        let jobs = std::mem::take(&mut *kept.lock().unwrap());
        let max = jobs[0].request.max_tokens;
        assert!(jobs.len() == 8 && jobs.iter().all(|job| job.request.max_tokens == max));
        max
    };
    // 262,144 / (21 · 8), if nobody says how many.
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"messages": messages, "logprobs": true, "top_logprobs": 20});
    assert_eq!(asked(ask(CHAT, chat)), Some(1560));
    assert_eq!(asked(ask(CHAT, json!({"messages": messages}))), None);
    let texts = |max: usize, top: usize| {
        let more = json!({"prompt": "hi", "logprobs": top, "max_tokens": max});
        ask("/v1/completions", more)
    };
    // 65,536 / (21 · 8)
    assert_eq!(asked(texts(390, 20)), Some(390));
    // No text of a context of 1,024 tokens is as long.
    assert_eq!(asked(texts(100_000, 6)), Some(100_000));
    let refused = texts(391, 20).response();
    let said = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(refused.status == 400 && said.contains("up to 390 tokens"), "{said}");
}

#[test]
fn an_answer_that_its_grammar_cannot_be_followed_to_the_end_of_is_cut_there() {
    let server = bounded(1, Bounds { loops: Loops::Allow, ..Bounds::default() });
    let ask = |longest: usize, stream: bool| {
        let schema = json!({"type": "string", "maxLength": longest});
        let more = json!({"json_schema": schema, "stream": stream, "max_tokens": 900});
        post(server.at, CHAT, &round_and_round(server.at, " wooden", &more))
    };
    let cut = ask(60_000, false).json();
    assert_eq!(cut["choices"][0]["finish_reason"], "length", "{cut}");
    assert_eq!(cut["timings"]["finish"], "grammar", "{cut}");
    let text = cut["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains(" wooden wooden") && text.len() > 4500, "{}", text.len());
    let streamed = ask(60_000, true).chunks();
    assert_eq!(streamed.last().unwrap()["timings"]["finish"], "grammar");
    // What can be counted comes to its end.
    let whole = ask(4400, false).json();
    assert_eq!(whole["timings"]["finish"], "stop", "{whole}");
    let text: String =
        serde_json::from_str(whole["choices"][0]["message"]["content"].as_str().unwrap()).unwrap();
    assert_eq!(text.len(), 4400);
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_again() {
    let server = start(1);
    // A hundred tokens, which nothing ends.
    let body = round_and_round(server.at, " wooden", &json!({"max_tokens": 100}));
    // One is answered, 64 wait, and some are done meanwhile.
    let ask = |_| send(server.at, "POST /v1/chat/completions", &[], &body.to_string());
    let asked: Vec<_> = (0..96).map(ask).collect();
    let answers: Vec<_> = asked.into_iter().map(Pending::response).collect();
    let full: Vec<_> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert!(!full.is_empty() && answers.len() - full.len() >= 65, "{} of 96", full.len());
    for refused in full {
        assert_eq!(refused.status, 429, "{}", refused.body);
        assert!(refused.head.contains("retry-after: 5\r\n"), "{}", refused.head);
        assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    }
}

#[test]
fn counts_of_long_conversations_keep_no_question_out() {
    let server = start(1);
    let long = "A fox and a boat. ".repeat(250_000);
    let count = json!({"messages": [{"role": "user", "content": long}]}).to_string();
    let counted = AtomicUsize::new(0);
    thread::scope(|scope| {
        let counts: Vec<_> = (0..8)
            .map(|_| send(server.at, "POST /v1/messages/count_tokens", &[], &count))
            .collect();
        for pending in counts {
            scope.spawn(|| {
                let answer = pending.response();
                counted.fetch_add(1, Ordering::Relaxed);
                assert_eq!(answer.status, 200, "{}", answer.body);
            });
        }
        let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
        assert_eq!(post(server.at, CHAT, &chat).status, 200);
        let before = counted.load(Ordering::Relaxed);
        assert!(before < 4, "{before} of 8 were counted first");
    });
}

#[test]
fn one_who_asks_much_does_not_keep_another_waiting() {
    let server = start(1);
    let at = server.at;
    let story = |user: &str, seed: u64| {
        json!({
            "messages": [{"role": "user", "content": "Write a story about a fox."}],
            "seed": seed, "temperature": 1, "max_tokens": 40, "enable_thinking": false, "user": user,
        })
    };
    thread::scope(|scope| {
        let many: Vec<_> = (0..12)
            .map(|seed| {
                send(at, "POST /v1/chat/completions", &[], &story("many", seed).to_string())
            })
            .collect();
        until(|| get(at, "/metrics").body.contains("queue_waiting 11\n"));
        let one = scope.spawn(move || post(at, CHAT, &story("one", 99)));
        let one = one.join().unwrap();
        assert_eq!(one.status, 200);
        // Of the others, one was being answered, one more may have been before; the rest wait still.
        let metrics = get(at, "/metrics").body;
        let waiting =
            metrics.lines().find_map(|line| line.strip_prefix("flash_moe_queue_waiting "));
        let waiting: usize = waiting.unwrap().parse().unwrap();
        assert!(waiting >= 7, "{waiting} of 12 wait");
        many.into_iter().for_each(|pending| assert_eq!(pending.response().status, 200));
    });
}
