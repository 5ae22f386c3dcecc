//! Refusals say what is wrong in words that lead to what has to be changed.

use serde_json::{Value, json};

use crate::{client::post, harness::start};

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
