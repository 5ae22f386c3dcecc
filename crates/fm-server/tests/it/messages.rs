//! Anthropic's messages.

use serde_json::{Value, json};

use crate::{
    client::{Response, post},
    harness::{start, steady},
};

const MESSAGES: &str = "/v1/messages";

fn ask(more: &Value) -> Value {
    let mut body = json!({
        "model": "any-name",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is 7 plus 5?"}]}],
        "metadata": {"user_id": "u"},
        "temperature": 0,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn the_bytes_of_a_short_answer() {
    let server = start(1);
    let short = json!({"max_tokens": 2});
    insta::assert_snapshot!("message_whole", steady(&post(server.at, MESSAGES, &ask(&short)).body));
    let stream = json!({"max_tokens": 2, "stream": true});
    insta::assert_snapshot!(
        "message_stream",
        steady(&post(server.at, MESSAGES, &ask(&stream)).body)
    );
}

#[test]
fn an_answer_of_no_tokens_takes_the_prompt_in() {
    let server = start(1);
    let none = json!({"max_tokens": 0, "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let whole = post(server.at, MESSAGES, &ask(&none)).json();
    assert_eq!((&whole["content"], &whole["stop_reason"]), (&json!([]), &json!("max_tokens")));
    assert_eq!(whole["usage"]["output_tokens"], 0, "{whole}");
    let mut stream = none;
    stream["stream"] = true.into();
    let streamed = post(server.at, MESSAGES, &ask(&stream));
    assert_eq!(sequence(&streamed), ["message_start", "ping", "message_delta", "message_stop"]);
    let next = post(server.at, MESSAGES, &ask(&json!({"max_tokens": 1}))).json();
    assert!(next["usage"]["cache_read_input_tokens"].as_u64() > Some(10), "{next}");
}

/// Claude Code begins with a line for the original's accounts, another one in each conversation.
#[test]
fn what_is_for_the_accounts_is_no_part_of_the_prompt() {
    let server = start(1);
    let asked = |version: &str| {
        let system = json!([
            {"type": "text", "text": format!("x-anthropic-billing-header: cc_version={version};")},
            {"type": "text", "text": "You are a careful agent. ".repeat(20)},
        ]);
        post(server.at, MESSAGES, &ask(&json!({"max_tokens": 1, "system": system}))).json()
    };
    let (first, next) = (asked("2.1.197.73f"), asked("2.1.197.fed"));
    let read = |answer: &Value, name: &str| answer["usage"][name].as_u64().unwrap();
    assert!(read(&next, "cache_read_input_tokens") > 100, "{next}");
    let all = |answer| read(answer, "input_tokens") + read(answer, "cache_read_input_tokens");
    assert_eq!(all(&first), all(&next));
}

#[test]
fn what_clients_of_today_send_and_changes_no_answer_is_taken() {
    let server = start(1);
    for more in [
        json!({"output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 50_000}}}),
        json!({"thinking": {"type": "disabled", "block_binding": {}}}),
        json!({"thinking": {"type": "adaptive", "block_binding": {"type": "message"}}}),
    ] {
        let mut body = ask(&more);
        body["max_tokens"] = 1.into();
        let taken = post(server.at, MESSAGES, &body);
        assert_eq!(taken.status, 200, "{more}: {}", taken.body);
    }
}

/// Types of the events with those of their blocks and deltas, without repetitions.
fn sequence(streamed: &Response) -> Vec<String> {
    let mut sequence: Vec<String> = Vec::new();
    for (name, data) in streamed.events() {
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name, data["type"].as_str(), "an event is named after its type");
        let inner = data["content_block"]["type"].as_str().or(data["delta"]["type"].as_str());
        sequence.push([name.unwrap(), inner.unwrap_or_default()].join(" ").trim_end().to_owned());
    }
    sequence.dedup();
    sequence
}

#[test]
fn thinking_and_answer_are_blocks_of_their_own_streamed_or_whole() {
    let server = start(1);
    let manner = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    let whole = post(server.at, MESSAGES, &ask(&manner)).json();
    let [thinking, text] = whole["content"].as_array().unwrap().as_slice() else {
        panic!("{whole}")
    };
    assert_eq!((&thinking["type"], &text["type"]), (&json!("thinking"), &json!("text")));
    let mut stream = manner;
    stream["stream"] = true.into();
    let streamed = post(server.at, MESSAGES, &ask(&stream));
    let want = [
        "message_start",
        "ping",
        "content_block_start thinking",
        "content_block_delta thinking_delta",
        "content_block_delta signature_delta",
        "content_block_stop",
        "content_block_start text",
        "content_block_delta text_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(sequence(&streamed), want);
    let chunks = streamed.chunks();
    let of = |kind: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["delta"][kind].as_str()).collect()
    };
    assert_eq!(of("thinking"), thinking["thinking"].as_str().unwrap());
    assert_eq!(of("text"), text["text"].as_str().unwrap());
    let end = chunks.iter().find(|chunk| chunk["type"] == "message_delta").unwrap();
    let count = |usage: &Value, field: &str| usage[field].as_u64().unwrap();
    let (usage, want) = (&end["usage"], &whole["usage"]);
    let cached = count(usage, "cache_read_input_tokens");
    assert!(cached > 0, "the prompt was there already");
    assert_eq!(count(usage, "input_tokens") + cached, count(want, "input_tokens"));
    assert_eq!(usage["output_tokens"], want["output_tokens"]);
    assert_eq!(end["delta"]["stop_reason"], "end_turn");
    assert_eq!(whole["stop_reason"], "end_turn");
}

#[test]
fn a_budget_closes_the_thinking_and_without_the_field_there_is_none() {
    let server = start(1);
    let short = json!({"thinking": {"type": "enabled", "budget_tokens": 4}});
    let short = post(server.at, MESSAGES, &ask(&short)).json();
    let long = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    let long = post(server.at, MESSAGES, &ask(&long)).json();
    let thought = |whole: &Value| whole["content"][0]["thinking"].as_str().unwrap().len();
    assert!(thought(&short) < thought(&long), "{short} {long}");
    assert_eq!(short["content"][1]["type"], "text");
    let none = post(server.at, MESSAGES, &ask(&json!({}))).json();
    assert_eq!(none["content"][0]["type"], "text", "{none}");
    assert_eq!(none["content"].as_array().unwrap().len(), 1);
}

#[test]
fn a_stop_sequence_is_named() {
    let server = start(1);
    let whole = post(server.at, MESSAGES, &ask(&json!({}))).json();
    let text = whole["content"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(1).take(3).collect();
    let stopped = json!({"stop_sequences": ["no such text", stop]});
    let stopped = post(server.at, MESSAGES, &ask(&stopped)).json();
    assert_eq!(stopped["stop_reason"], "stop_sequence");
    assert_eq!(stopped["stop_sequence"], stop.as_str());
    assert_eq!(stopped["content"][0]["text"], text[..text.find(&stop).unwrap()]);
}

#[test]
fn turns_of_one_role_are_one_turn() {
    let server = start(1);
    let count = |messages: Value| {
        let body = json!({"messages": messages});
        post(server.at, "/v1/messages/count_tokens", &body).json()["input_tokens"].clone()
    };
    let apart = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    let together = json!([{"role": "user", "content": "a\nb"}]);
    assert_eq!(count(apart), count(together));
}

#[test]
fn conversations_that_cannot_be_answered_are_counted() {
    let server = start(1);
    let said = json!({"role": "user", "content": "a"});
    let both = |messages: Value| {
        let counted = post(server.at, "/v1/messages/count_tokens", &json!({"messages": messages}));
        assert_eq!(counted.status, 200, "{}", counted.body);
        let answered = post(server.at, MESSAGES, &json!({"messages": messages, "max_tokens": 1}));
        (counted.json()["input_tokens"].as_u64().unwrap(), answered.status)
    };
    let (alone, status) = both(json!([said]));
    assert_eq!(status, 200);
    let (begun, status) = both(json!([said, {"role": "assistant", "content": "b"}]));
    assert!(begun > alone && status == 400, "{begun} {alone} {status}");
    // Longer than the context, and so long that no more than that is looked at when it is answered.
    for words in [3000, 100_000] {
        let (long, status) = both(json!([{"role": "user", "content": "word ".repeat(words)}]));
        assert!(long > words as u64 && status == 400, "{long} {status}");
    }
}
