//! What dialects have of their own: calls in tags, and messages in channels.

use serde_json::{Value, json};

use crate::{client::post, refusals::with_template};

const CHAT: &str = "/v1/chat/completions";

/// Qwen3-Coder's tags.
const TAGS: &str =
    "{{ messages[-1].content }}{{ tools | tojson }} <tool_call> <function= <parameter=";

/// gpt-oss's channels.
const CHANNELS: &str =
    "{{ messages[-1].content }}{{ tools | tojson }}<|channel|><|start|>assistant";

fn tool(parameters: &Value, strict: bool) -> Value {
    json!({"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}})
}

#[test]
fn a_strict_tool_that_calls_in_tags_cannot_be_held_to_is_refused() {
    let server = with_template(TAGS);
    let ask = |parameters: &Value, strict: bool| {
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1,
            "tools": [tool(parameters, strict)], "tool_choice": "required",
        });
        let answered = post(server.at, CHAT, &body);
        (
            answered.status,
            answered.json()["error"]["message"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let two = json!({"a": {"type": "integer"}, "b": {"type": "string"}});
    for (parameters, why) in [
        (json!({"properties": two, "minProperties": 1}), "minProperties"),
        (json!({"properties": two, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), "anyOf"),
        (json!({"properties": two, "required": ["c"], "additionalProperties": false}), "\"c\""),
        (json!({"properties": {"a>b": {}}}), "a>b"),
        (json!({"properties": {"a": {"enum": [" x"]}}}), "\"a\""),
        (json!({"properties": {"a": {"type": "string", "pattern": "("}}}), "unclosed"),
        (json!({"properties": {"a": {"type": "string", "not": {"const": "x"}}}}), "not"),
    ] {
        let (status, message) = ask(&parameters, true);
        assert_eq!(status, 400, "{parameters}");
        assert!(message.starts_with("tools: ") && message.contains(why), "{message}");
        assert_eq!(ask(&parameters, false).0, 200, "{parameters}");
    }
    let own =
        json!({"$ref": "#/$defs/own", "$defs": {"own": {"type": "object", "properties": two}}});
    assert_eq!(ask(&own, true), (200, String::new()));
}

#[test]
fn who_shall_not_think_has_no_thought_in_a_channel_either() {
    let server = with_template(CHANNELS);
    let ask = |more: &Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "What is 7 plus 5?"}], "max_tokens": 60, "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["twelve"]}}},
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let told = post(server.at, CHAT, &body).json();
        let message = told["choices"][0]["message"].clone();
        (message["content"].clone(), message["reasoning_content"].is_string())
    };
    assert!(ask(&json!({"thinking_budget": 5})).1, "one that nobody has switched off");
    let budget = json!({"thinking_budget": 0});
    for off in [json!({"enable_thinking": false}), json!({"reasoning_effort": "none"}), budget] {
        assert_eq!(ask(&off), (json!("\"twelve\""), false), "{off}");
    }
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9,
        "output_config": {"format": {"type": "json_schema", "schema": {"enum": ["twelve"]}}},
    });
    let told = post(server.at, "/v1/messages", &body).json();
    assert_eq!(told["content"][0]["type"], "text", "{told}");
}
