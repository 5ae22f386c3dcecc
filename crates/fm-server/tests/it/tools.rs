//! Calls of tools through both interfaces. The demonstration model was made to call `get_weather`.

use serde_json::{Value, json};

use crate::{
    client::{Response, post},
    harness::{start, steady},
};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const WEATHER: &str = r#"{"condition": "sunny", "temperature": 21}"#;

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The name of the city."}},
        "required": ["city"],
    })
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn chat(more: &Value) -> Value {
    let function = json!({
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": schema(),
    });
    let body = json!({
        "temperature": 0,
        "enable_thinking": false,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": function}],
    });
    with(body, more)
}

fn message(more: &Value) -> Value {
    let body = json!({
        "max_tokens": 200,
        "temperature": 0,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{
            "name": "get_weather",
            "description": "Get the current weather for a city.",
            "input_schema": schema(),
            "cache_control": {"type": "ephemeral"},
        }],
    });
    with(body, more)
}

/// Joins what the deltas of a streamed answer say.
fn joined(streamed: &Response, of: impl Fn(&Value) -> Option<String>) -> String {
    streamed.chunks().iter().filter_map(of).collect()
}

#[test]
fn a_call_and_its_result_in_openais_words() {
    let server = start(1);
    let whole = post(server.at, CHAT, &chat(&json!({}))).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(
        call["function"],
        json!({"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"})
    );

    let streamed = post(server.at, CHAT, &chat(&json!({"stream": true})));
    let call_of = |chunk: &Value| chunk["choices"][0]["delta"]["tool_calls"][0].clone();
    let begin = streamed.chunks().iter().map(call_of).find(|call| !call.is_null()).unwrap();
    assert_eq!((&begin["index"], &begin["type"]), (&json!(0), &json!("function")));
    assert_eq!(begin["function"], json!({"name": "get_weather", "arguments": ""}));
    let arguments = joined(&streamed, |chunk| {
        call_of(chunk)["function"]["arguments"].as_str().map(str::to_owned)
    });
    assert_eq!(arguments, "{\"city\": \"Paris\"}");
    let last = streamed.chunks().pop().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");

    let result = json!({"role": "tool", "tool_call_id": call["id"], "content": WEATHER});
    let mut messages = chat(&json!({}))["messages"].as_array().unwrap().clone();
    messages.extend([choice["message"].clone(), result]);
    let answer =
        post(server.at, CHAT, &chat(&json!({"messages": messages, "enable_thinking": true})));
    let answer = &answer.json()["choices"][0];
    assert_eq!(answer["finish_reason"], "stop");
    assert!(answer["message"]["content"].as_str().unwrap().contains("sunny in Paris"), "{answer}");
}

#[test]
fn a_call_and_its_result_in_anthropics_words() {
    let server = start(1);
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    let whole = post(server.at, MESSAGES, &message(&thinking)).json();
    assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
    let blocks = whole["content"].as_array().unwrap();
    assert_eq!((blocks.len(), &blocks[0]["type"]), (2, &json!("thinking")));
    let call = &blocks[1];
    assert_eq!((&call["name"], &call["input"]), (&json!("get_weather"), &json!({"city": "Paris"})));

    let streamed =
        post(server.at, MESSAGES, &message(&with(thinking.clone(), &json!({"stream": true}))));
    insta::assert_snapshot!("tool_use_stream", steady(&streamed.body));
    let input =
        joined(&streamed, |chunk| chunk["delta"]["partial_json"].as_str().map(str::to_owned));
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), json!({"city": "Paris"}));

    let turn = |results: Value| {
        let messages = json!([
            message(&json!({}))["messages"][0],
            {"role": "assistant", "content": whole["content"]},
            {"role": "user", "content": results},
        ]);
        let body = message(&with(thinking.clone(), &json!({"messages": messages})));
        post(server.at, MESSAGES, &body).json()
    };
    let text = json!([{"type": "text", "text": WEATHER}]);
    let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": text});
    let answer = turn(json!([result]));
    let said = answer["content"].as_array().unwrap().last().unwrap();
    assert!(said["text"].as_str().unwrap().contains("sunny in Paris"), "{answer}");
    // What was computed, and what an earlier prompt left.
    let tokens = |results: Value| {
        let usage = &turn(results)["usage"];
        ["input_tokens", "cache_read_input_tokens"]
            .map(|of| usage[of].as_u64().unwrap())
            .iter()
            .sum::<u64>()
    };
    let alone = tokens(json!([result]));
    let failed = with(result.clone(), &json!({"is_error": true}));
    assert!(tokens(json!([failed])) > alone, "an error says that it is one");
    let more = json!({"type": "text", "text": "And in Rome? ".repeat(20)});
    assert!(tokens(json!([result, more])) > alone);
    let empty = json!({"type": "tool_result", "tool_use_id": call["id"]});
    assert!(tokens(json!([empty])) < alone);
}

#[test]
fn several_calls_or_one() {
    let server = start(1);
    let two = json!({"messages": [{"role": "user", "content": "What is the weather in Paris and in Rome?"}]});
    let calls = |body: &Value| -> Vec<Value> {
        let whole = post(server.at, CHAT, body).json();
        assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls", "{whole}");
        let calls = whole["choices"][0]["message"]["tool_calls"].as_array().unwrap().clone();
        calls.iter().map(|call| call["function"]["arguments"].clone()).collect()
    };
    assert_eq!(calls(&chat(&two)), [r#"{"city": "Paris"}"#, r#"{"city": "Rome"}"#]);
    let one = with(two, &json!({"parallel_tool_calls": false}));
    assert_eq!(calls(&chat(&one)), [r#"{"city": "Paris"}"#]);
}

#[test]
fn a_call_that_is_cut_is_text() {
    let server = start(1);
    let cut = json!({"max_completion_tokens": 18});
    let whole = post(server.at, CHAT, &chat(&cut)).json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], choice["message"].get("tool_calls")),
        (&json!("length"), None)
    );
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(
        text.starts_with("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\""),
        "{text}"
    );

    let streamed = post(server.at, CHAT, &chat(&with(cut, &json!({"stream": true}))));
    let content = joined(&streamed, |chunk| {
        chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
    });
    assert_eq!(content, text);
    assert_eq!(streamed.chunks().pop().unwrap()["choices"][0]["finish_reason"], "length");

    let whole = post(server.at, MESSAGES, &message(&json!({"max_tokens": 18}))).json();
    assert_eq!(whole["stop_reason"], "max_tokens");
    assert_eq!(whole["content"][0], json!({"type": "text", "text": text}));
}

#[test]
fn a_choice_is_kept() {
    let server = start(1);
    let france = json!([{"role": "user", "content": "What is the capital of France?"}]);
    let finish = |choice: Value| {
        let body = chat(&json!({"messages": france, "tool_choice": choice}));
        post(server.at, CHAT, &body).json()["choices"][0]["finish_reason"].clone()
    };
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    assert_eq!(finish(json!("required")), "tool_calls");
    assert_eq!(finish(named), "tool_calls");
    let none = post(server.at, CHAT, &chat(&json!({"tool_choice": "none"}))).json();
    let text = none["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!text.contains("<tool_call>"), "{text}");
    assert_eq!(none["choices"][0]["finish_reason"], "stop");

    let stop = |choice: Value| {
        let body = message(&json!({"messages": france, "tool_choice": choice}));
        post(server.at, MESSAGES, &body).json()["stop_reason"].clone()
    };
    assert_eq!(stop(json!({"type": "any"})), "tool_use");
    assert_eq!(stop(json!({"type": "tool", "name": "get_weather"})), "tool_use");
}
