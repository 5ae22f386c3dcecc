//! What dialects have of their own: messages in channels.

use serde_json::{Value, json};

use crate::{client::post, refusals::with_template};

const CHAT: &str = "/v1/chat/completions";

/// gpt-oss's channels.
const CHANNELS: &str =
    "{{ messages[-1].content }}{{ tools | tojson }}<|channel|><|start|>assistant";

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
    for off in [json!({"enable_thinking": false}), json!({"reasoning_effort": "none"})] {
        assert_eq!(ask(&off), (json!("\"twelve\""), false), "{off}");
    }
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9,
        "output_config": {"format": {"type": "json_schema", "schema": {"enum": ["twelve"]}}},
    });
    let told = post(server.at, "/v1/messages", &body).json();
    assert_eq!(told["content"][0]["type"], "text", "{told}");
}
