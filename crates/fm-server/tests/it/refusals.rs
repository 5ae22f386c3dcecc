//! What is not answered, and how that is said.

use std::{fmt::Write as _, fs};

use fm_server::Door;
use serde_json::{Value, json};

use crate::{
    client::{get, post, say, send},
    harness::{Running, demo_copy, start, start_reading, start_with},
};

/// More than may have to hold for one text.
const NINE_PATTERNS: &str = r#"{"allOf": [
    {"pattern": "a"}, {"pattern": "b"}, {"pattern": "c"}, {"pattern": "d"}, {"pattern": "e"},
    {"pattern": "f"}, {"pattern": "g"}, {"pattern": "h"}, {"pattern": "i"}
]}"#;

/// Changes of a good request that make it one that is refused.
const OPENAI: &[(&str, &str)] = &[
    ("messages", "null"),
    ("messages", "[]"),
    ("messages", "\"hi\""),
    ("messages", r#"[{"role": "wizard", "content": "hi"}]"#),
    ("messages", r#"[{"role": "user"}]"#),
    (
        "messages",
        r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]"#,
    ),
    ("max_tokens", "-1"),
    ("max_tokens", "1.5"),
    ("max_tokens", "1e300"),
    ("max_completion_tokens", "0"),
    ("temperature", "-0.5"),
    ("temperature", "\"hot\""),
    ("top_p", "1.01"),
    ("n", "0"),
    ("n", "9"),
    ("seed", "0.5"),
    ("seed", "99999999999999999999"),
    ("stop", r#"["a", ""]"#),
    ("stop", "3"),
    ("logit_bias", r#"{"99999": 1}"#),
    ("logit_bias", r#"{"5": 101}"#),
    ("top_logprobs", "3"),
    ("stream", "\"yes\""),
    ("stream_options", r#"{"include_usage": true}"#),
    ("presence_penalty", "3"),
    ("reasoning_effort", "\"some\""),
    ("chat_template_kwargs", r#"{"messages": []}"#),
    ("thinking", "true"),
    ("tools", "{}"),
    ("tools", r#"[{"type": "function", "function": {"name": "a b"}}]"#),
    ("tools", r#"[{"type": "function", "function": {"name": "f", "parameters": []}}]"#),
    ("tools", r#"[{"type": "web_search"}]"#),
    ("tool_choice", "\"always\""),
    ("tool_choice", "\"required\""),
    ("functions", r#"[{"name": "f"}]"#),
    ("messages", r#"[{"role": "tool", "content": "x"}]"#),
    (
        "messages",
        r#"[{"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": 3}}]}]"#,
    ),
    ("messages", r#"[{"role": "user", "content": "x", "tool_calls": [{}]}]"#),
    ("response_format", r#"{"type": "xml"}"#),
    ("response_format", r#"{"type": "json_schema"}"#),
    (
        "response_format",
        r#"{"type": "json_schema", "json_schema": {"schema": {"type": "wizard"}}}"#,
    ),
    ("response_format", r#"{"type": "json_schema", "json_schema": {"schema": {"not": {}}}}"#),
    ("guided_regex", r#""(?=a)b""#),
    ("guided_json", r#""{""#),
    ("json_schema", r##"{"$ref": "#"}"##),
    ("structured_outputs", r#"{"regex": "a", "choice": ["b"]}"#),
    ("structured_outputs", r#"{"grammar": "start: missing"}"#),
    ("structured_outputs", r#"{"grammar": "start: BOTH\nBOTH: /[ab]+/ & /[bc]+/"}"#),
    ("json_schema", NINE_PATTERNS),
    ("structured_outputs", r#"{"xml": "a"}"#),
    ("structured_outputs", r#"{"regex": 5}"#),
    ("tools", r#"[{"type": "function", "function": {"name": "f", "strict": "yes"}}]"#),
    ("grammar", r#""root ::= \"a\"""#),
    ("structured_outputs", r#"{"grammar": "start: <|im_start|>"}"#),
    ("moderation", r#"{"model": "x"}"#),
    ("temprature", "1"),
];

const ANTHROPIC: &[(&str, &str)] = &[
    ("max_tokens", "null"),
    ("max_tokens", "-1"),
    ("messages", r#"[{"role": "narrator", "content": "hi"}]"#),
    ("messages", r#"[{"role": "user", "content": [{"type": "image", "source": {}}]}]"#),
    ("messages", r#"[{"role": "user", "content": [{"type": "tool_result"}]}]"#),
    (
        "messages",
        r#"[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}]}]"#,
    ),
    (
        "messages",
        r#"[{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": "{}"}]}]"#,
    ),
    (
        "messages",
        r#"[{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]}]"#,
    ),
    ("messages", r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#),
    ("thinking", r#"{"type": "enabled"}"#),
    ("thinking", r#"{"type": "enabled", "budget_tokens": "all"}"#),
    ("thinking", r#"{"type": "between_tools"}"#),
    ("messages", r#"[{"role": "user", "content": "a", "id": "msg_1"}]"#),
    ("messages", r#"[{"role": 5, "content": "a"}]"#),
    ("temperature", "1.1"),
    ("tools", r#"[{"input_schema": {}}]"#),
    ("tools", r#"[{"name": "f", "input_schema": {}}, {"name": "f", "input_schema": {}}]"#),
    ("tools", r#"[{"type": "bash_20250124", "name": "bash"}]"#),
    ("tool_choice", r#"{"type": "tool"}"#),
    ("tool_choice", r#"{"type": "any"}"#),
    ("output_config", r#"{"format": {"type": "json_schema"}}"#),
    ("output_config", r#"{"format": {"type": "json_object", "schema": {}}}"#),
    ("output_config", r#"{"format": {"type": "json_schema", "schema": {"type": 5}}}"#),
    ("output_format", r#"{"type": "json_schema", "schema": false}"#),
    ("stop_sequences", r#"[""]"#),
    ("stream", "1"),
    ("colour", "\"red\""),
];

const RESPONSES: &[(&str, &str)] = &[
    ("input", "null"),
    ("input", "[]"),
    ("input", "5"),
    ("input", r#"[{"role": "wizard", "content": "hi"}]"#),
    ("input", r#"[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]"#),
    ("input", r#"[{"type": "item_reference"}]"#),
    ("input", r#"[{"type": "computer_call", "id": "x"}]"#),
    ("input", r#"[{"type": "custom_tool_call", "call_id": "x", "name": "a b", "input": ""}]"#),
    ("moderation", r#"{"model": "x"}"#),
    ("input", r#"[{"type": "function_call", "call_id": "x", "name": "f", "arguments": 3}]"#),
    ("input", r#"[{"type": "function_call", "name": "f", "arguments": "{}"}]"#),
    ("input", r#"[{"type": "function_call_output", "call_id": "x"}]"#),
    ("max_output_tokens", "0"),
    ("store", "true"),
    ("previous_response_id", "\"resp_1\""),
    ("conversation", "\"conv_1\""),
    ("background", "true"),
    ("truncation", "\"auto\""),
    ("prompt", r#"{"id": "pmpt_1"}"#),
    ("reasoning", r#"{"effort": "some"}"#),
    ("reasoning", r#"{"effort": 3}"#),
    ("tools", r#"[{"type": "file_search"}]"#),
    ("tools", r#"[{"type": "namespace"}]"#),
    ("tools", r#"[{"type": "namespace", "name": "a b", "tools": []}]"#),
    ("tools", r#"[{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]"#),
    ("tools", r#"[{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]"#),
    ("tools", r#"[{"type": "function", "function": {"name": "f"}}]"#),
    ("tool_choice", r#"{"type": "function", "name": "f"}"#),
    ("tool_choice", r#"{"type": "web_search"}"#),
    ("text", r#"{"format": {"type": "xml"}}"#),
    ("text", r#"{"format": {"type": "text", "size": 5}}"#),
    ("text", r#"{"format": {"type": "json_schema", "name": "x"}}"#),
    ("text", r#"{"format": {"type": "json_schema", "name": "x", "schema": {"type": "wizard"}}}"#),
    ("n", "2"),
];

#[test]
fn a_name_that_fills_a_body_is_not_told_whole() {
    let server = start(1);
    let hi = json!([{"role": "user", "content": "hi"}]);
    for (path, words) in [
        ("/v1/chat/completions", "messages"),
        ("/v1/messages", "messages"),
        ("/v1/responses", "input"),
    ] {
        let body = json!({words: hi, "max_tokens": 1, "é".repeat(1 << 19): 1});
        let answer = post(server.at, path, &body);
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.body.contains("éé…"), "{path}: {:.300}", answer.body);
        assert!(answer.body.len() < 2048, "{path}: {} bytes", answer.body.len());
    }
}

#[test]
fn no_json_is_hidden_in_a_text() {
    let server = start(1);
    let hidden = |json: &str| json!({"$serde_json::private::RawValue": json});
    let hi = json!([{"role": "user", "content": "hi"}]);
    let schema = hidden(r#"{"type": "integer", "multipleOf": 20000003}"#);
    for body in [
        json!({"messages": [{"role": "user", "content": hidden("\"hi\"")}]}),
        json!({"messages": hi, "guided_json": schema.to_string()}),
        json!({"messages": hi, "guided_grammar": format!("start: %json {schema}")}),
    ] {
        let answer = post(server.at, "/v1/chat/completions", &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
    }
}

#[test]
fn a_field_that_cannot_be_is_named_in_the_interfaces_own_words() {
    let server = start(1);
    let mut answers = String::new();
    let hi = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"messages": hi, "max_tokens": 1});
    for (path, changes, body) in [
        ("/v1/chat/completions", OPENAI, &chat),
        ("/v1/messages", ANTHROPIC, &chat),
        ("/v1/responses", RESPONSES, &json!({"input": hi})),
    ] {
        for (field, value) in changes {
            let mut body = body.clone();
            body[*field] = serde_json::from_str(value).unwrap();
            let refused = post(server.at, path, &body);
            assert_eq!(refused.status, 400, "{field} {value}: {}", refused.body);
            let id = refused.json()["request_id"].as_str().unwrap_or_default().to_owned();
            assert!(id.is_empty() || refused.head.contains(&format!("\r\nrequest-id: {id}")));
            let told = refused.body.replace(&id, "req_…");
            writeln!(
                answers,
                "{field}: {value}\n  {}",
                if id.is_empty() { &refused.body } else { &told }
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!("refusals", answers);
    let log = server.log.lock().unwrap();
    assert!(log.iter().all(|line| line.contains(" refused=400 id=req_")), "{log:?}");
    assert_eq!(log.len(), OPENAI.len() + ANTHROPIC.len() + RESPONSES.len());
}

#[test]
fn tools_have_limits() {
    let server = start(1);
    let ask = |tools: Value| {
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": tools});
        let refused = post(server.at, "/v1/chat/completions", &body);
        (refused.status, refused.json()["error"]["message"].as_str().unwrap().to_owned())
    };
    let tool = |parameters: Value| json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let many = ask(vec![tool(json!({})); 513].into());
    assert_eq!(many, (400, "tools: it may have at most 512 entries".to_owned()));
    let deep = (0..70).fold(json!({}), |inside, _| json!({"a": inside}));
    let deep = ask(json!([tool(json!({})), tool(deep)]));
    assert!(deep.0 == 400 && deep.1.starts_with("tools[1]: it has more than 64"), "{deep:?}");
    let large = ask(json!([tool(json!({"description": "x".repeat(3 << 20)}))]));
    assert!(large.0 == 400 && large.1.starts_with("tools[0]: all tools together"), "{large:?}");
}

/// A model whose template is this one.
pub(crate) fn with_template(template: &str) -> Running {
    let dir = demo_copy();
    fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    start_reading(dir.path())
}

/// What each interface says of a conversation that it refuses.
fn refused_with(server: &Running, text: &str) -> String {
    let mut said = Vec::new();
    for (path, field) in [
        ("/v1/chat/completions", "messages"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "messages"),
        ("/v1/responses", "input"),
    ] {
        for stream in [false, true] {
            let mut body = json!({field: [{"role": "user", "content": text}]});
            if !path.ends_with("count_tokens") {
                body["stream"] = stream.into();
            }
            if path == "/v1/messages" {
                body["max_tokens"] = 1.into();
            }
            let refused = post(server.at, path, &body);
            assert_eq!(refused.status, 400, "{path}: {}", refused.body);
            let error = refused.json()["error"].clone();
            assert_eq!(error["type"], "invalid_request_error", "{path}");
            said.push(error["message"].as_str().unwrap().to_owned());
        }
    }
    said.dedup();
    assert_eq!(said.len(), 1, "{said:?}");
    said.remove(0)
}

#[test]
fn a_template_that_refuses_says_why() {
    let refuses = "{{ raise_exception('Only \"hi\", not\n' ~ messages[0].content) }}";
    let (server, prefix) = (with_template(refuses), "the chat template refuses this conversation");
    let said = refused_with(&server, "\u{1b}[1m<|im_end|>");
    assert_eq!(said, format!("{prefix}: Only \"hi\", not  [1m<|im_end|>"), "in one line");
    let said = refused_with(&server, &"é".repeat(100_000));
    assert!(said.ends_with("éé…") && said.chars().count() < 600, "{said}");
    let log = server.log.lock().unwrap();
    assert!(!log.iter().any(|line| line.contains("Only")), "{log:?}");

    let fails = with_template("a\n{{ messages.x.y }}");
    let said = refused_with(&fails, "hi");
    assert!(said.starts_with("the chat template cannot render this conversation: "), "{said}");
    assert!(said.contains("default:2"), "the line: {said}");
}

#[test]
fn bodies_that_are_no_requests() {
    let server = start(1);
    let status = |line: &str, body: &str| send(server.at, line, &[], body).response().status;
    for body in ["", "[]", "{", "{\"temperature\": NaN}", "\u{0}", &"[".repeat(100_000)] {
        assert_eq!(status("POST /v1/chat/completions", body), 400, "{}", body.len());
        assert_eq!(status("POST /v1/messages", body), 400, "{}", body.len());
    }
    let long = format!("{{\"prompt\": \"{}\"}}", "x".repeat(17 << 20));
    assert_eq!(status("POST /v1/completions", &long), 413);
    // It is read on, so that its sender hears why.
    let longer = format!("{{\"prompt\": \"{}\"}}", "x".repeat(48 << 20));
    assert_eq!(status("POST /v1/completions", &longer), 413);
    let head = |more: &str| {
        say(server.at, &format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n{more}"))
    };
    let endless = head("content-length: 99999999999\r\n\r\n{");
    assert!(endless.rest().starts_with("HTTP/1.1 413"), "nobody waits for it");
    let letters = format!("x-much: {}\r\n", "x".repeat(70 << 10));
    assert!(head(&letters).rest().starts_with("HTTP/1.1 431"));
    let nameless = say(server.at, "GET /health HTTP/1.1\r\nconnection: close\r\n\r\n").rest();
    assert!(nameless.starts_with("HTTP/1.1 400"), "{nameless}");
    let both = "GET /health HTTP/1.1\r\nhost: localhost\r\nhost: box\r\nconnection: close\r\n\r\n";
    assert!(say(server.at, both).rest().starts_with("HTTP/1.1 400"), "two hosts");
    let older = say(server.at, "GET /health HTTP/1.0\r\n\r\n").rest();
    assert!(older.starts_with("HTTP/1.0 200"), "{older}");
    assert_eq!(status("GET /v1/nothing", ""), 404);
    assert_eq!(status("GET /v1/messages", ""), 405);
    let nameless = get(server.at, "/v1/models/%FF");
    let kind = &nameless.json()["error"]["type"];
    assert_eq!((nameless.status, kind.as_str()), (404, Some("invalid_request_error")));
    let prompt = json!({"prompt": "word ".repeat(3000)});
    let refused = post(server.at, "/v1/completions", &prompt);
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(refused.status, 400);
    // Of a text that is far too long, no more is looked at than says so.
    let far = post(server.at, "/v1/completions", &json!({"prompt": "word ".repeat(3_000_000)}));
    let message = far.json()["error"]["message"].as_str().unwrap().to_owned();
    let tokens = message.split(' ').find_map(|word| word.parse::<usize>().ok()).unwrap();
    assert!((1024..100_000).contains(&tokens), "{message}");
    let text = json!({"content": "word ".repeat(300_000)});
    assert_eq!(post(server.at, "/tokenize", &text).status, 400);
}

#[test]
fn stop_strings_have_a_length() {
    let server = start(1);
    let messages = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
    let prompt = json!({"prompt": "Hi", "max_tokens": 1});
    for (path, body, field) in [
        ("/v1/chat/completions", &messages, "stop"),
        ("/v1/completions", &prompt, "stop"),
        ("/v1/messages", &messages, "stop_sequences"),
    ] {
        let ask = |bytes: usize| {
            let mut body = body.clone();
            body[field] = json!(["a", "x".repeat(bytes)]);
            post(server.at, path, &body)
        };
        assert_eq!(ask(1024).status, 200, "{path}");
        let refused = ask(1025);
        assert_eq!(refused.status, 400, "{path}");
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(message, format!("{field}: a text of it may have at most 1024 bytes"));
    }
}

#[test]
fn without_the_key_and_from_elsewhere() {
    let door = Door { key: Some("secret".to_owned()), loopback: true, ..Door::default() };
    let server = start_with(1, None, door);
    let ask = |line: &str, headers: &[&str]| {
        let body = r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}"#;
        send(server.at, line, headers, body).response()
    };
    let kind = |value: Value| value["error"]["type"].as_str().unwrap().to_owned();
    let refused = ask("POST /v1/chat/completions", &[]);
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (401, Some("invalid_api_key"))
    );
    let refused = ask("POST /v1/messages", &["x-api-key: wrong"]);
    assert_eq!((refused.status, kind(refused.json())), (401, "authentication_error".to_owned()));
    let key = "authorization: Bearer secret";
    let refused = ask("POST /v1/messages", &[key, "origin: http://evil.example"]);
    assert_eq!((refused.status, kind(refused.json())), (403, "permission_error".to_owned()));
    assert_eq!(ask("POST /v1/messages", &[key, "host: evil.example"]).status, 403);
    for (scheme, status) in [("bearer", 200), ("BEARER", 200), ("Basic", 401)] {
        let key = format!("authorization: {scheme} secret");
        assert_eq!(ask("POST /v1/messages", &[&key]).status, status, "{scheme}");
    }
    assert_eq!(ask("GET /health", &[]).status, 200);
    assert_eq!(ask("GET /metrics", &[]).status, 401);
    assert_eq!(ask("POST /v1/chat/completions", &[key]).status, 200);
    assert_eq!(ask("POST /v1/messages", &["x-api-key: secret"]).status, 200);
}

#[test]
fn pages_and_names_that_were_listed_come_in() {
    let door = Door {
        key: Some("secret".to_owned()),
        loopback: true,
        hosts: vec!["box.example".to_owned()],
        origins: vec!["https://app.example:8443".to_owned()],
    };
    let server = start_with(1, None, door);
    let ask = |line: &str, headers: &[&str]| send(server.at, line, headers, "").response();
    let (key, origin) = ("x-api-key: secret", "origin: https://app.example:8443");
    assert_eq!(ask("GET /v1/models", &[key, "host: box.example:80"]).status, 200);
    assert_eq!(ask("GET /v1/models", &[key, "host: other.example"]).status, 403);
    let shown = ask("GET /v1/models", &[key, origin]);
    assert_eq!(shown.status, 200);
    assert!(shown.head.contains("access-control-allow-origin: https://app.example:8443\r\n"));
    assert!(shown.head.contains("retry-after"), "how long to wait is no secret: {}", shown.head);
    // A browser asks first, without the key.
    let asked =
        ["access-control-request-method: POST", "access-control-request-headers: x-api-key"];
    let allowed = ask("OPTIONS /v1/messages", &[origin, asked[0], asked[1]]);
    assert!(
        allowed.status == 200 && allowed.head.contains("access-control-allow-headers: x-api-key")
    );
    let foreign = "origin: https://evil.example";
    let refused = ask("OPTIONS /v1/messages", &[foreign, asked[0], asked[1]]);
    assert!(!refused.head.contains("access-control-allow-origin"), "{}", refused.head);
    assert_eq!(ask("GET /v1/models", &[key, foreign]).status, 403);
}
