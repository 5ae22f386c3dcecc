//! Answers that must be JSON, or match a grammar.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{client::post, harness::start};

const CHAT: &str = "/v1/chat/completions";

fn ask(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "What is 7 plus 5?"}],
        "temperature": 1.5, "seed": 3, "max_tokens": 300, "enable_thinking": false,
    });
    let Value::Object(more) = more else { panic!("{more} is no object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"sum": {"type": "integer"}, "how": {"enum": ["guessed", "counted"]}},
        "required": ["sum", "how"],
        "additionalProperties": false,
    })
}

fn format() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "sum", "strict": true, "schema": schema()}})
}

fn is_sum(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap();
    let map = value.as_object().unwrap();
    map.len() == 2
        && value["sum"].is_i64()
        && ["guessed", "counted"].contains(&value["how"].as_str().unwrap())
}

#[test]
fn an_answer_with_a_schema_is_valid_whole_and_streamed_with_choices_and_thinking() {
    let server = start(3);
    let many = json!({
        "response_format": format(), "n": 3, "logprobs": true, "enable_thinking": true,
        "thinking_budget": 5, "frequency_penalty": 1.0, "presence_penalty": -1.0, "seed": 9,
    });
    let whole = post(server.at, CHAT, &ask(many.clone())).json();
    for choice in whole["choices"].as_array().unwrap() {
        assert!(is_sum(choice["message"]["content"].as_str().unwrap()), "{choice}");
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        assert!(!choice["logprobs"]["content"].as_array().unwrap().is_empty(), "{choice}");
    }
    let mut stream = ask(many);
    stream["stream"] = true.into();
    let streamed = post(server.at, CHAT, &stream);
    for (at, want) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let mut text = String::new();
        for chunk in streamed.chunks() {
            let own = chunk["choices"].as_array().unwrap().iter().filter(|it| it["index"] == at);
            own.for_each(|it| text.push_str(it["delta"]["content"].as_str().unwrap_or_default()));
        }
        assert_eq!(want["message"]["content"], text);
    }
}

#[test]
fn every_way_of_asking_is_heard() {
    let server = start(2);
    let text = |more| {
        let response = post(server.at, CHAT, &ask(more)).json();
        response["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
    };
    let object = text(json!({"response_format": {"type": "json_object"}, "temperature": 0.3}));
    assert!(object.starts_with('{'), "{object}");
    for field in ["guided_json", "json_schema"] {
        assert!(is_sum(&text(json!({field: schema()}))), "{field}");
        assert!(is_sum(&text(json!({field: schema().to_string()}))), "{field}");
    }
    assert!(is_sum(&text(json!({"structured_outputs": {"json": schema()}}))));
    for regex in [
        json!({"guided_regex": "[0-9]{3}-é"}),
        json!({"structured_outputs": {"regex": "[0-9]{3}-é"}}),
    ] {
        let number = text(regex);
        assert!(number.ends_with("-é") && number.chars().count() == 5, "{number}");
    }
    let choice = text(json!({"guided_choice": ["twelve", "dozen"]}));
    assert!(["twelve", "dozen"].contains(&choice.as_str()), "{choice}");
    let lark = "start: \"sum:\" /[0-9]/ \"!\"";
    let shout = text(json!({"structured_outputs": {"grammar": lark}}));
    assert!(shout.starts_with("sum:") && shout.ends_with('!') && shout.len() == 6, "{shout}");
    assert_ne!(text(json!({"response_format": {"type": "text"}})), "");
}

#[test]
fn a_schema_beside_the_type_is_heard_too() {
    let server = start(1);
    for kind in ["json_object", "json_schema"] {
        let format = json!({"type": kind, "schema": {"const": {"a": 1}}});
        let answer = post(server.at, CHAT, &ask(json!({"response_format": format}))).json();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let told: Value = serde_json::from_str(text).unwrap();
        assert_eq!(told, json!({"a": 1}), "{kind}: {answer}");
    }
}

#[test]
fn messages_and_completions_have_it_too() {
    let server = start(2);
    let ways = [
        json!({"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema()}}}),
        json!({"output_format": {"type": "json_schema", "schema": schema()}}),
    ];
    for way in ways {
        let mut body = json!({
            "max_tokens": 300, "temperature": 1.0,
            "messages": [{"role": "user", "content": "What is 7 plus 5?"}],
        });
        body.as_object_mut().unwrap().extend(way.as_object().unwrap().clone());
        let message = post(server.at, "/v1/messages", &body).json();
        assert!(is_sum(message["content"][0]["text"].as_str().unwrap()), "{message}");
        assert_eq!(message["stop_reason"], "end_turn");
    }
    let body = json!({
        "prompt": "The sum", "max_tokens": 200, "temperature": 1.5, "response_format": format(),
    });
    let completion = post(server.at, "/v1/completions", &body).json();
    assert!(is_sum(completion["choices"][0]["text"].as_str().unwrap()), "{completion}");
}

#[test]
fn a_cut_answer_says_so_and_a_late_refusal_costs_nobody_anything() {
    let server = start(2);
    let cut = ask(json!({"response_format": format(), "max_tokens": 3}));
    let cut = post(server.at, CHAT, &cut).json();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["completion_tokens"], 3);

    let mut said = String::new();
    let deep = (0..80).fold(json!({}), |inner, _| json!({"type": "array", "items": inner}));
    let wide = json!({"enum": (0..20_000).map(|at| format!("v{at}")).collect::<Vec<_>>()});
    for schema in [deep, wide, json!({"type": "wizard"})] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
        let refused = post(server.at, CHAT, &ask(json!({"response_format": format})));
        let error = refused.json()["error"].clone();
        writeln!(said, "{} {} {}", refused.status, error["param"], error["message"]).unwrap();
    }
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let regex = json!({"regex": "[ a-z]+"});
    let both = json!({"structured_outputs": regex, "tools": [tool], "tool_choice": "auto"});
    let both = post(server.at, CHAT, &ask(both));
    writeln!(said, "{} {}", both.status, both.json()["error"]["message"]).unwrap();
    insta::assert_snapshot!("schemas_refused", said);
    let lost = ask(json!({"structured_outputs": {"grammar": "start: \"a\" <[1]>"}}));
    let lost = post(server.at, CHAT, &lost);
    assert!(lost.status == 200 || lost.status == 400, "{}", lost.status);
    let after = post(server.at, CHAT, &ask(json!({"response_format": format()}))).json();
    assert!(is_sum(after["choices"][0]["message"]["content"].as_str().unwrap()));
}

#[test]
fn the_hash_of_an_answer_with_a_schema_is_the_same_alone_and_among_others() {
    let server = start(3);
    let body = ask(json!({"response_format": format(), "temperature": 0.9}));
    let hash = |response: &Value| response["timings"]["logits_hash"].clone();
    let alone = post(server.at, CHAT, &body).json();
    let among: Vec<Value> = std::thread::scope(|scope| {
        let others: Vec<_> = (0..6)
            .map(|at| {
                let own = (at % 2 == 0).then(|| body.clone());
                let body = own.unwrap_or_else(|| ask(json!({"max_tokens": 40, "seed": at})));
                scope.spawn(move || post(server.at, CHAT, &body).json())
            })
            .collect();
        others.into_iter().map(|other| other.join().unwrap()).collect()
    });
    for same in among.iter().step_by(2) {
        assert_eq!(hash(same), hash(&alone));
        assert_eq!(same["choices"][0]["message"], alone["choices"][0]["message"]);
    }
}
