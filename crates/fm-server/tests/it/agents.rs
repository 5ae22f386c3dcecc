//! Requests of the shapes that coding agents were seen to send.

use serde_json::{Value, json};

use crate::{
    client::post,
    harness::{start, start_of},
};

const MESSAGES: &str = "/v1/messages";

fn tool(name: &str, schema: &Value) -> Value {
    json!({"name": name, "description": "A tool of an agent.", "input_schema": schema})
}

/// Schemas with the words that those of an agent have.
fn tools() -> Value {
    let draft = "https://json-schema.org/draft/2020-12/schema";
    let read = json!({
        "$schema": draft, "type": "object", "additionalProperties": false, "required": ["path"],
        "properties": {
            "path": {"type": "string", "description": "Where it is."},
            "offset": {"type": "integer", "minimum": 0, "maximum": 9_007_199_254_740_991_u64},
            "limit": {"type": "integer", "exclusiveMinimum": 0},
            "pages": {"type": "string"},
        },
    });
    let list = json!({
        "$schema": draft, "type": "object", "additionalProperties": false, "required": ["items"],
        "properties": {
            "items": {"type": "array", "maxItems": 32, "items": {
                "type": "object", "required": ["text"], "additionalProperties": false,
                "properties": {"text": {"type": "string", "minLength": 1}, "done": {"const": true}},
            }},
            "status": {"anyOf": [
                {"type": "string", "enum": ["open", "done"]}, {"type": "string", "const": "gone"},
            ]},
            "metadata": {
                "type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {},
            },
        },
    });
    let none = json!({"$schema": draft, "type": "object", "properties": {}});
    json!([tool("Read", &read), tool("List", &list), tool("Stop", &none)])
}

/// The first request of a conversation.
fn first() -> Value {
    let kept = json!({"type": "ephemeral"});
    json!({
        "model": "some-model-4-8",
        "max_tokens": 64_000,
        "stream": true,
        "system": [
            {"type": "text", "text": "agent-header: a=1; b=2;"},
            {"type": "text", "text": "You are an agent.", "cache_control": kept},
            {"type": "text", "text": "You read files.", "cache_control": kept},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nIt is Monday.\n</system-reminder>\n"},
                {"type": "text", "text": "What is 7 plus 5?", "cache_control": kept},
            ]},
            {"role": "system", "content": "There are helpers:\n- one that reads"},
        ],
        "tools": tools(),
        "metadata": {"user_id": "{\"device_id\":\"d\",\"session_id\":\"s\"}"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "temperature": 0,
    })
}

/// The messages of the next one.
fn next() -> Value {
    let mut messages = first()["messages"].as_array().unwrap().clone();
    messages.push(json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I read.", "signature": "unsigned"},
        {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}},
    ]}));
    let result = json!({
        "type": "tool_result", "tool_use_id": "toolu_1", "is_error": true,
        "content": [{"type": "text", "text": "no such file"}],
        "cache_control": {"type": "ephemeral"},
    });
    messages.push(json!({"role": "user", "content": [result]}));
    messages.push(json!({"role": "system", "content": [{"type": "text", "text": "Go on."}]}));
    messages.into()
}

#[test]
fn the_turns_of_an_agent_are_answered() {
    let server = start_of(1, 2048);
    let mut turn = first();
    for messages in [turn["messages"].clone(), next()] {
        turn["messages"] = messages;
        let streamed = post(server.at, "/v1/messages?beta=true", &turn);
        assert_eq!(streamed.status, 200, "{}", streamed.body);
        let end = streamed.chunks().into_iter().find(|chunk| chunk["type"] == "message_delta");
        let usage = &end.unwrap()["usage"];
        let count = |of: &Value| of.as_u64().unwrap();
        let thought = count(&usage["output_tokens_details"]["thinking_tokens"]);
        assert!(thought > 0 && thought < count(&usage["output_tokens"]), "{usage}");
    }
    let counted = json!({
        "model": "m", "tools": tools(), "messages": [{"role": "user", "content": "foo"}],
    });
    let counted = post(server.at, "/v1/messages/count_tokens?beta=true", &counted).json();
    assert!(counted["input_tokens"].as_u64().unwrap() > 100, "{counted}");
}

#[test]
fn what_the_system_adds_is_told_where_it_was_said() {
    let server = start(1);
    let tokens = |messages: Value| {
        let body = json!({"system": "Be brief.", "messages": messages});
        post(server.at, "/v1/messages/count_tokens", &body).json()["input_tokens"].as_u64().unwrap()
    };
    let said = json!({"role": "user", "content": "hi"});
    let added = json!({"role": "system", "content": "and kind"});
    let alone = tokens(json!([said]));
    let within = tokens(json!([said, added]));
    assert!(within > alone, "{within} {alone}");
    // At the start it belongs to what the system says anyway.
    let before = tokens(json!([added, said]));
    assert!(before > alone && before < within, "{before} {within}");
}

#[test]
fn a_conversation_that_is_too_long_is_refused_in_words_that_agents_know() {
    let server = start(1);
    let mut long = first();
    long["messages"][0]["content"] = "word ".repeat(3000).into();
    let refused = post(server.at, MESSAGES, &long);
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["type"]), (400, &json!("invalid_request_error")));
    let message = error["message"].as_str().unwrap();
    let numbers = message.strip_prefix("prompt is too long: ").unwrap();
    let (tokens, rest) = numbers.split_once(" tokens > ").unwrap();
    assert!(tokens.parse::<u32>().unwrap() > 3000 && rest.starts_with("1024 maximum"), "{message}");
}

#[test]
fn a_thread_is_refused_so_that_the_client_sends_the_whole_conversation() {
    let server = start(1);
    let mut thread = first();
    thread["thread"] = json!({"type": "create"});
    let refused = post(server.at, MESSAGES, &thread);
    assert_eq!(refused.status, 400);
    let details = &refused.json()["error"]["details"];
    assert_eq!(details["error_code"], "thread_unsupported_request", "{details}");
}

#[test]
fn an_agent_of_the_responses_api_is_answered() {
    let server = start_of(1, 2048);
    let text = |text: &str| json!({"type": "input_text", "text": text});
    let said = |role: &str, parts: &[Value]| json!({"type": "message", "id": "msg_1", "role": role, "content": parts});
    let parameters = json!({
        "type": "object", "required": ["cmd"], "additionalProperties": false,
        "properties": {"cmd": {"type": "string"}, "timeout_ms": {"type": "number"}},
    });
    let run = json!({
        "type": "function", "name": "exec_command", "description": "Runs a command.",
        "strict": false, "parameters": parameters,
    });
    let body = json!({
        "model": "local", "stream": true, "temperature": 0, "max_output_tokens": 300,
        "input": [
            said("developer", &[text("You are an agent.")]),
            said("developer", &[text("Rules"), text("More rules")]),
            said("user", &[text("<environment_context>\nhere\n</environment_context>")]),
            said("user", &[text("What is 7 plus 5?")]),
        ],
        "tools": [run],
        "tool_choice": "auto", "parallel_tool_calls": true,
        "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"],
        "store": false, "prompt_cache_key": "k", "client_metadata": {"thread_id": "t"},
    });
    let streamed = post(server.at, "/v1/responses", &body);
    let last = streamed.chunks().pop().unwrap();
    assert_eq!(last["type"], "response.completed", "{}", streamed.body);
}

/// A function of an MCP server, and tools that run where the original is served.
fn served() -> (Value, [Value; 3]) {
    let weather = json!({
        "type": "function", "name": "get_weather", "strict": false, "description": "The weather.",
        "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"], "additionalProperties": false,
        },
    });
    let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: /.+/"});
    let patch =
        json!({"type": "custom", "name": "apply_patch", "description": "d", "format": format});
    let search = json!({"type": "web_search", "external_web_access": false});
    let find =
        json!({"type": "tool_search", "execution": "client", "description": "d", "parameters": {}});
    (weather, [patch, search, find])
}

/// A request with functions of the same name in two namespaces.
fn spaced(input: &Value, more: &Value) -> Value {
    let (weather, [patch, search, find]) = served();
    let mut body = json!({
        "input": input, "temperature": 0, "enable_thinking": false, "max_output_tokens": 200,
        "tools": [
            {"type": "namespace", "name": "mcp__sky__", "description": "The sky.", "tools": [weather, patch]},
            {"type": "namespace", "name": "mcp__sky", "description": "The other.", "tools": [weather]},
            patch, search, find,
        ],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn functions_in_namespaces_are_called_by_both_names() {
    let server = start_of(1, 2048);
    let question = json!({"role": "user", "content": "What is the weather in Paris?"});
    for namespace in ["mcp__sky__", "mcp__sky"] {
        let named = json!({"type": "function", "namespace": namespace, "name": "get_weather"});
        let choice = json!({"tool_choice": named});
        let whole = post(server.at, "/v1/responses", &spaced(&json!([question]), &choice));
        let output = whole.json()["output"].clone();
        let call = &output[0];
        assert_eq!(call["type"], "function_call", "{}", whole.body);
        let names = (&call["namespace"], &call["name"]);
        assert_eq!(names, (&json!(namespace), &json!("get_weather")));

        let mut stream = spaced(&json!([question]), &choice);
        stream["stream"] = true.into();
        let streamed = post(server.at, "/v1/responses", &stream);
        let items = streamed.chunks().into_iter().filter(|chunk| chunk["item"].is_object());
        let items: Vec<Value> = items.map(|chunk| chunk["item"].clone()).collect();
        assert_eq!(items.len(), 2, "{}", streamed.body);
        for item in items {
            assert_eq!((&item["namespace"], &item["name"]), names, "{item}");
        }

        let result =
            json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"});
        let next = spaced(&json!([question, call, result]), &json!({}));
        let next = post(server.at, "/v1/responses", &next);
        assert_eq!(next.status, 200, "{}", next.body);
        // The model's own words are there already: the call stands in the prompt as it was written.
        let usage = &next.json()["usage"];
        let cached = &usage["input_tokens_details"]["cached_tokens"];
        let fresh = usage["input_tokens"].as_u64().unwrap() - cached.as_u64().unwrap();
        assert!(fresh < 30, "{usage}");
    }
    let long = json!({"type": "function", "name": "x".repeat(125)});
    let long = json!([{"type": "namespace", "name": "n", "tools": [long]}]);
    let long = post(server.at, "/v1/responses", &spaced(&json!("hi"), &json!({"tools": long})));
    assert_eq!((long.status, &long.json()["error"]["param"]), (200, &Value::Null), "{}", long.body);
    let long = json!({"type": "function", "name": "x".repeat(126)});
    let long = json!([{"type": "namespace", "name": "n", "tools": [long]}]);
    let long = post(server.at, "/v1/responses", &spaced(&json!("hi"), &json!({"tools": long})));
    assert_eq!((long.status, &long.json()["error"]["param"]), (400, &json!("tools[0].tools[0]")));
}

#[test]
fn tools_that_the_original_runs_are_left_out_unless_they_are_asked_for() {
    let server = start(1);
    let (weather, others) = served();
    let ask = |tools: Vec<Value>, choice: Value| {
        let body = json!({
            "input": "hi", "max_output_tokens": 1, "tools": tools, "tool_choice": choice,
        });
        post(server.at, "/v1/responses", &body)
    };
    let all: Vec<Value> = others.iter().cloned().chain([weather.clone()]).collect();
    let (with, without) = (ask(all.clone(), json!("auto")), ask(vec![weather], json!("auto")));
    assert_eq!(with.status, 200, "{}", with.body);
    let tokens = |answer: &crate::client::Response| answer.json()["usage"]["input_tokens"].clone();
    assert_eq!(tokens(&with), tokens(&without), "the model is not told of them");
    assert_eq!(with.json()["tools"].as_array().unwrap().len(), 4, "the request is repeated");
    let log = server.log.lock().unwrap().clone();
    assert!(log[0].contains(" left_out=custom,tool_search,web_search finish=length"), "{log:?}");
    assert!(!log[1].contains("left_out"), "{log:?}");
    for choice in [json!({"type": "web_search"}), json!({"type": "custom", "name": "apply_patch"})]
    {
        assert_eq!(ask(all.clone(), choice).status, 400);
    }
    assert_eq!(ask(others.to_vec(), json!("required")).status, 400);
    assert_eq!(ask(others.to_vec(), json!("auto")).status, 200);
}

#[test]
fn what_is_text_in_other_blocks_is_read_and_what_the_original_did_is_left_out() {
    let server = start(1);
    let tokens = |messages: Value, tools: &Value| {
        let body = json!({"max_tokens": 1, "messages": messages, "tools": tools});
        let answer = post(server.at, MESSAGES, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let usage = &answer.json()["usage"];
        ["input_tokens", "cache_read_input_tokens"]
            .map(|name| usage[name].as_u64().unwrap())
            .iter()
            .sum::<u64>()
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    let with = |block: Value, result: Value| {
        let call = json!({"type": "tool_use", "id": "t", "name": "Read", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [result]});
        json!([
            {"role": "user", "content": [text("Look."), block]},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ])
    };
    let tools = tools();
    let plain = tokens(with(text("A\nB"), text("The tool Stop is there now.")), &tools);
    let reference = json!({"type": "tool_reference", "tool_name": "Stop"});
    for block in [
        json!({"type": "document", "title": "A", "source": {"type": "text", "media_type": "text/plain", "data": "B"}}),
        json!({"type": "document", "source": {"type": "content", "content": [text("A"), text("B")]}}),
        json!({"type": "search_result", "title": "A", "content": [text("B")], "citations": {"enabled": true}}),
    ] {
        assert_eq!(tokens(with(block.clone(), reference.clone()), &tools), plain, "{block}");
    }
    let mut all = tools.as_array().unwrap().clone();
    all.extend([
        json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 5}),
        json!({"type": "web_fetch_20250910", "name": "web_fetch"}),
        json!({"type": "advisor_20260301", "name": "advisor"}),
    ]);
    let searched = json!([
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "x", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": false, "content": []},
            text("It is there."),
        ]},
        {"role": "user", "content": "And?"},
    ]);
    let said = json!([
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "It is there."},
        {"role": "user", "content": "And?"},
    ]);
    assert_eq!(tokens(searched, &all.into()), tokens(said, &tools));
    let log = server.log.lock().unwrap().clone();
    assert!(
        log.iter().any(|line| line.contains(" left_out=web_search,web_fetch,advisor ")),
        "{log:?}"
    );
}

/// Claude Code looks for these words, and takes what they are said of out of its conversation.
#[test]
fn images_and_documents_that_are_no_text_are_refused_in_words_that_an_agent_knows() {
    let server = start(1);
    let source = json!({"type": "base64", "media_type": "image/png", "data": "aaaa"});
    for (kind, words) in
        [("image", "Could not process image"), ("document", "Could not process PDF")]
    {
        let block = json!({"type": kind, "source": source});
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [block]});
        for content in [block, result] {
            let body =
                json!({"max_tokens": 1, "messages": [{"role": "user", "content": [content]}]});
            let refused = post(server.at, MESSAGES, &body);
            assert_eq!(refused.status, 400);
            assert!(refused.body.contains(words), "{}", refused.body);
        }
    }
}

#[test]
fn thinking_and_calls_are_asked_for_in_the_words_of_other_vendors() {
    let server = start(1);
    let ask = |more: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "What is 7 plus 5?"}], "temperature": 0,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = post(server.at, "/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["choices"][0]["message"].clone()
    };
    for (more, thinks) in [
        (json!({"thinking": {"type": "enabled"}}), true),
        (json!({"thinking": {"type": "disabled"}}), false),
        (json!({"reasoning": {"enabled": false}}), false),
        (json!({"reasoning": {"effort": "high"}}), true),
        (json!({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}), false),
    ] {
        assert_eq!(ask(more.clone())["reasoning_content"].is_string(), thinks, "{more}");
    }
    let function = json!({"name": "look", "parameters": {"type": "object", "properties": {}}});
    let tools = json!([{"type": "function", "function": function}]);
    let called = ask(json!({"tools": tools, "tool_choice": "any", "enable_thinking": false}));
    assert_eq!(called["tool_calls"][0]["function"]["name"], "look", "{called}");
}
