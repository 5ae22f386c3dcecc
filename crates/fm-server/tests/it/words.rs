//! Refusals say what is wrong in words that lead to what has to be changed.

use serde_json::{Value, json};

use crate::{
    client::{post, send},
    harness::start,
};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_refusal_names_the_field_that_is_missing_or_not_done() {
    let server = start(1);
    let said = |path: &str, more: Value| {
        let mut body = json!({"max_tokens": 1});
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = post(server.at, path, &body);
        assert_eq!(refused.status, 400, "{more}: {}", refused.body);
        refused.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let required = |field: &str| format!("{field}: it is required");
    let tools = |tool: Value| json!({"tools": [tool]});
    assert_eq!(said(CHAT, tools(json!({"type": "function"}))), required("tools[0].function"));
    assert_eq!(said(CHAT, tools(json!({}))), required("tools[0].type"));
    let call = json!({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}});
    let call = said(CHAT, json!({"messages": [call]}));
    assert!(call.starts_with("messages[0].function_call: this server does not do"), "{call}");
    let penalty = said(CHAT, json!({"repetition_penalty": 0}));
    assert_eq!(penalty, "repetition_penalty: it must be between 0.01 and 100");
}

#[test]
fn a_schema_under_another_name_is_refused_with_the_one_that_is_meant() {
    let server = start(1);
    let ask = |path: &str, tool: &Value| {
        let hi = json!([{"role": "user", "content": "hi"}]);
        let body = match path {
            "/v1/responses" => json!({"input": hi, "max_output_tokens": 1, "tools": [tool]}),
            _ => json!({"messages": hi, "max_tokens": 1, "tools": [tool]}),
        };
        post(server.at, path, &body)
    };
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let with = |tool: &Value, place: &str, name: &str, value: &Value| {
        let mut tool = tool.clone();
        tool.pointer_mut(place).unwrap()[name] = value.clone();
        tool
    };
    let flat = json!({"type": "function", "name": "f"});
    let nested = json!({"type": "function", "function": {"name": "f"}});
    let (messages, responses) = ("/v1/messages", "/v1/responses");
    let (here, inside) = ("", "/function");
    for (path, tool, place, name, meant) in [
        (messages, &json!({"name": "f"}), here, "inputSchema", "input_schema"),
        (messages, &json!({"name": "f"}), here, "parameters", "input_schema"),
        (responses, &flat, here, "input_schema", "parameters"),
        (responses, &flat, here, "inputSchema", "parameters"),
        (CHAT, &nested, inside, "input_schema", "parameters"),
        (CHAT, &nested, inside, "inputSchema", "parameters"),
        (CHAT, &nested, here, "parameters", "function.parameters"),
        (CHAT, &nested, here, "inputSchema", "function.parameters"),
        (CHAT, &nested, here, "strict", "function.strict"),
    ] {
        let value = if name == "strict" { &json!(true) } else { &schema };
        let refused = ask(path, &with(tool, place, name, value));
        assert_eq!(refused.status, 400, "{path} {place} {name}: {}", refused.body);
        let said = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        let field = format!("tools[0]{}.{name}", place.replace('/', "."));
        assert_eq!(said, format!("{field}: {meant} is meant"));
        // Who says the same in both places has said it.
        let right = format!("/{}", meant.replace('.', "/"));
        let (before, last) = right.rsplit_once('/').unwrap();
        let before = if before.is_empty() { place } else { before };
        let both = with(&with(tool, place, name, value), before, last, value);
        let taken = ask(path, &both);
        assert_eq!(taken.status, 200, "{both}: {}", taken.body);
    }
    for (name, value) in [("strict", json!(false)), ("parameters", Value::Null)] {
        let taken = ask(CHAT, &with(&nested, here, name, &value));
        assert_eq!(taken.status, 200, "{name}: {}", taken.body);
    }
}

#[test]
fn candidates_may_be_unbounded_as_in_other_servers_and_tokens_may_not() {
    let server = start(1);
    let hi = json!([{"role": "user", "content": "hi"}]);
    let body = |top_k: i32, tokens: i32| json!({"messages": hi, "max_tokens": tokens, "top_k": top_k, "seed": 1});
    let ask = |path: &str, body: &Value| post(server.at, path, body);
    let [all, none] = [-1, 0].map(|top_k| ask(CHAT, &body(top_k, 8)).json());
    assert_eq!(all["timings"]["logits_hash"], none["timings"]["logits_hash"], "{all}");
    assert!(all["timings"]["logits_hash"].is_string());
    assert_eq!(ask(CHAT, &body(-2, 8)).status, 400);
    assert_eq!(ask(CHAT, &body(0, -1)).status, 400);
    assert_eq!(ask("/v1/messages", &body(-1, 8)).status, 400, "Anthropic has it, and no -1");
    assert_eq!(ask("/v1/responses", &json!({"input": hi, "top_k": -1})).status, 200);
}

#[test]
fn a_body_may_begin_with_the_mark_of_its_encoding() {
    let server = start(1);
    let body = r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}"#;
    let body = format!("\u{feff}{body}");
    assert_eq!(send(server.at, "POST /v1/chat/completions", &[], &body).response().status, 200);
}

#[test]
fn a_message_that_is_to_be_continued_is_refused() {
    let server = start(1);
    let ask =
        |messages: Value| post(server.at, CHAT, &json!({"messages": messages, "max_tokens": 1}));
    let user = json!({"role": "user", "content": "hi"});
    for name in ["prefix", "partial"] {
        let said = |value: Value| json!({"role": "assistant", "content": "Well, ", name: value});
        let refused = ask(json!([user, said(json!(true))]));
        assert_eq!(refused.status, 400, "{}", refused.body);
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        let does_not = "this server does not do the continuation of an assistant's message";
        assert_eq!(message, format!("messages[1].{name}: {does_not}"));
        for taken in [json!([user, said(json!(false))]), json!([user, said(json!(true)), user])] {
            let answered = ask(taken);
            assert_eq!(answered.status, 200, "{}", answered.body);
        }
    }
}

#[test]
fn a_body_that_is_nested_too_deeply_is_told_so() {
    let server = start(1);
    let body = format!("{{\"a\": {}1{}}}", "[".repeat(200), "]".repeat(200));
    let refused = crate::client::send(server.at, &format!("POST {CHAT}"), &[], &body).response();
    assert_eq!(refused.status, 400);
    let said = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(said, "the body has more than 127 lists and objects in each other");
}

#[test]
fn a_strict_tool_that_cannot_be_kept_to_is_named_with_the_reason() {
    let server = start(1);
    let schemas = [
        (json!({"not": {}}), "not"),
        (json!({"type": "string", "format": "phone"}), "phone"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "look"),
    ];
    for (schema, reason) in schemas {
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
        let good = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let tool = |name: &str, parameters: &Value| json!({"type": "function", "function": {"name": name, "strict": true, "parameters": parameters}});
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1,
            "tools": [tool("fine", &good), tool("wrong_one", &parameters)],
        });
        let refused = post(server.at, CHAT, &body);
        assert_eq!(refused.status, 400, "{}", refused.body);
        let said = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(said.starts_with("tools: the parameters of wrong_one: "), "{said}");
        assert!(
            said.contains(reason) && !said.contains("start:") && !said.contains('\n'),
            "{said}"
        );
        assert!(said.len() < 400, "{said}");
    }
}

#[test]
fn an_id_alone_is_a_reference() {
    let server = start(1);
    let input = json!([{"role": "user", "content": "hi"}, {"id": "fc_gone"}]);
    let refused = post(server.at, "/v1/responses", &json!({"input": input}));
    assert_eq!(refused.status, 404, "{}", refused.body);
    let said = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.starts_with("Item with id 'fc_gone' not found."), "{said}");
}

#[test]
fn a_path_that_is_not_there_is_told_with_one_that_is() {
    let server = start(1);
    for (path, meant) in [
        ("/messages", "/v1/messages"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
    ] {
        let refused = post(server.at, path, &json!({}));
        assert_eq!(refused.status, 404);
        let said = format!("there is nothing at {path}; {meant} may be meant");
        assert_eq!(refused.json()["error"]["message"], said);
    }
    let nothing = post(server.at, "/v1/embeddings", &json!({}));
    assert_eq!(nothing.json()["error"]["message"], "there is nothing at /v1/embeddings");
}
