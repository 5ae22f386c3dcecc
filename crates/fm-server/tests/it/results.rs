//! Results of calls that were made at once: whose they are does not hang on the order that they are sent in.

use serde_json::{Value, json};

use crate::{
    client::post,
    harness::{Running, start},
};

const CITIES: [&str; 2] = ["Paris", "Rome"];
const SAID: [&str; 2] = ["sunny", "rain"];

/// The hash of the first logits of an answer.
fn hash(server: &Running, path: &str, mut body: Value) -> String {
    body["temperature"] = 0.into();
    let whole = post(server.at, path, &body);
    assert_eq!(whole.status, 200, "{path}: {}", whole.body);
    whole.json()["timings"]["logits_hash"].as_str().unwrap().to_owned()
}

/// Results of two calls, by the places of ids and of texts, with `make` of each.
fn results(order: [(usize, usize); 2], make: fn(&str, &str) -> Value) -> [Value; 2] {
    order.map(|(id, text)| make(["p", "r"][id], SAID[text]))
}

fn chat(order: [(usize, usize); 2]) -> Value {
    let call = |id: &str, city: &str| {
        let arguments = json!({"city": city}).to_string();
        json!({"id": id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}})
    };
    let calls = json!([call("p", CITIES[0]), call("r", CITIES[1])]);
    let results =
        results(order, |id, text| json!({"role": "tool", "tool_call_id": id, "content": text}));
    let mut messages = vec![
        json!({"role": "user", "content": "What is the weather?"}),
        json!({"role": "assistant", "content": null, "tool_calls": calls}),
    ];
    messages.extend(results);
    json!({"messages": messages, "max_tokens": 1})
}

fn messages(order: [(usize, usize); 2]) -> Value {
    let call = |id: &str, city: &str| json!({"type": "tool_use", "id": id, "name": "get_weather", "input": {"city": city}});
    let calls = json!([call("p", CITIES[0]), call("r", CITIES[1])]);
    let results = results(
        order,
        |id, text| json!({"type": "tool_result", "tool_use_id": id, "content": text}),
    );
    let messages = json!([
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]);
    json!({"messages": messages, "max_tokens": 1})
}

fn responses(order: [(usize, usize); 2]) -> Value {
    let call = |id: &str, city: &str| {
        let arguments = json!({"city": city}).to_string();
        json!({"type": "function_call", "call_id": id, "name": "get_weather", "arguments": arguments})
    };
    let mut input = vec![
        json!({"role": "user", "content": "What is the weather?"}),
        call("p", CITIES[0]),
        call("r", CITIES[1]),
    ];
    input.extend(results(
        order,
        |id, text| json!({"type": "function_call_output", "call_id": id, "output": text}),
    ));
    json!({"input": input, "max_output_tokens": 1})
}

#[test]
fn results_are_those_of_their_calls_in_any_order() {
    let server = start(1);
    for (path, body) in [
        ("/v1/chat/completions", chat as fn(_) -> Value),
        ("/v1/messages", messages),
        ("/v1/responses", responses),
    ] {
        let in_order = hash(&server, path, body([(0, 0), (1, 1)]));
        assert_eq!(hash(&server, path, body([(1, 1), (0, 0)])), in_order, "{path}");
        let swapped = hash(&server, path, body([(0, 1), (1, 0)]));
        assert_ne!(swapped, in_order, "{path}: other results are told otherwise");
    }
}
