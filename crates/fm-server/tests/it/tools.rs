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

    // No stop string is looked for in it.
    let stopping = with(cut.clone(), &json!({"stop": ["a", "city"]}));
    let stopping = post(server.at, CHAT, &chat(&stopping)).json();
    assert_eq!(stopping["choices"][0]["message"]["content"], text);
    assert_eq!(stopping["choices"][0]["finish_reason"], "length");

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

    // Of those that are allowed only; what is not known may not be.
    let other = json!({"type": "function", "function": {"name": "other", "parameters": {}}});
    let mut tools = chat(&json!({}))["tools"].clone();
    tools.as_array_mut().unwrap().insert(0, other);
    let allowed = |mode: &str, name: &str| {
        let inside =
            json!({"mode": mode, "tools": [{"type": "function", "function": {"name": name}}]});
        let choice = json!({"type": "allowed_tools", "allowed_tools": inside});
        post(
            server.at,
            CHAT,
            &chat(&json!({"messages": france, "tools": tools, "tool_choice": choice})),
        )
    };
    for name in ["other", "get_weather"] {
        let called = allowed("required", name).json();
        let call = &called["choices"][0]["message"]["tool_calls"][0]["function"]["name"];
        assert_eq!(call, name, "{called}");
    }
    assert_eq!(allowed("auto", "nothing").status, 400);
    assert_eq!(allowed("always", "other").status, 400);

    let stop = |choice: Value| {
        let body = message(&json!({"messages": france, "tool_choice": choice}));
        post(server.at, MESSAGES, &body).json()["stop_reason"].clone()
    };
    assert_eq!(stop(json!({"type": "any"})), "tool_use");
    assert_eq!(stop(json!({"type": "tool", "name": "get_weather"})), "tool_use");
}

/// Tools whose arguments the demonstration model would not write by itself.
fn odd_tools(strict: bool) -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {
            "place": {"enum": ["Oslo", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["place", "days"],
        "additionalProperties": false,
    });
    json!([{"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather for a city.",
        "parameters": parameters, "strict": strict,
    }}])
}

fn is_odd(arguments: &str) -> bool {
    let value: Value = serde_json::from_str(arguments).unwrap();
    let place = value["place"].as_str().is_some_and(|place| ["Oslo", "Rome"].contains(&place));
    let days = value["days"].as_i64().is_some_and(|days| (1..=9).contains(&days));
    place && days && value.as_object().unwrap().len() == 2
}

#[test]
fn arguments_keep_to_their_schema_where_a_call_is_demanded_or_a_tool_is_strict() {
    let server = start(2);
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for (choice, strict) in [
        (json!("required"), false),
        (named, false),
        (json!("required"), true),
        (json!("auto"), true),
    ] {
        for seed in 0..3 {
            let more = json!({
                "tools": odd_tools(strict), "tool_choice": choice, "temperature": 1.2, "seed": seed,
                "max_tokens": 250, "parallel_tool_calls": false,
            });
            let whole = post(server.at, CHAT, &chat(&more)).json();
            let streamed = post(server.at, CHAT, &chat(&with(more, &json!({"stream": true}))));
            let message = &whole["choices"][0]["message"];
            let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            assert!(choice == "auto" || calls.len() == 1, "{whole}");
            let mut arguments = String::new();
            for call in &calls {
                arguments.push_str(call["function"]["arguments"].as_str().unwrap());
                assert!(is_odd(&arguments), "{choice} {strict}: {arguments}");
                assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
            }
            let told = joined(&streamed, |chunk| {
                let call = &chunk["choices"][0]["delta"]["tool_calls"][0];
                call["function"]["arguments"].as_str().map(str::to_owned)
            });
            assert_eq!(told, arguments, "{choice} {strict}: streamed is whole");
        }
    }
    // Greedy, the model calls; it is the schema that its words are bent to.
    let auto = json!({"tools": odd_tools(true)});
    let whole = post(server.at, CHAT, &chat(&auto)).json();
    let call = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
    assert!(is_odd(call["arguments"].as_str().unwrap()), "{whole}");
    // And it thinks first, if it likes.
    let thinks =
        post(server.at, CHAT, &chat(&with(auto, &json!({"enable_thinking": true})))).json();
    let message = &thinks["choices"][0]["message"];
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{thinks}");
    assert!(
        is_odd(message["tool_calls"][0]["function"]["arguments"].as_str().unwrap()),
        "{thinks}"
    );
}

#[test]
fn an_answer_of_a_given_form_may_be_a_call_instead() {
    let server = start(1);
    // What marks a call may stand in an answer.
    let marked = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>";
    let schema = json!({
        "type": "object", "properties": {"said": {"const": marked}},
        "required": ["said"], "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let ask = |more: Value| {
        let more = with(more, &json!({"max_tokens": 120, "response_format": format}));
        let whole = post(server.at, CHAT, &chat(&more)).json();
        let streamed = post(server.at, CHAT, &chat(&with(more, &json!({"stream": true}))));
        let content = joined(&streamed, |chunk| {
            chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
        });
        let choice = whole["choices"][0].clone();
        assert_eq!(content, choice["message"]["content"].as_str().unwrap_or_default());
        choice
    };
    let call = ask(json!({}));
    assert_eq!(call["finish_reason"], "tool_calls", "{call}");
    let arguments = &call["message"]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments, r#"{"city": "Paris"}"#);
    // Where the model may not begin a call, it answers.
    let mark = json!({"content": "<tool_call>", "parse_special": true});
    let mark = post(server.at, "/tokenize", &mark).json();
    let bias = json!({"logit_bias": {mark["tokens"][0].to_string(): -100}});
    let answer = ask(bias);
    assert_eq!(answer["finish_reason"], "stop", "{answer}");
    assert!(answer["message"].get("tool_calls").is_none(), "{answer}");
    let text = answer["message"]["content"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({"said": marked}));
}

#[test]
fn a_tool_that_cannot_be_held_to_its_schema_frees_no_other() {
    let server = start(1);
    let mut tools = odd_tools(false);
    let list = json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true});
    let parameters = json!({"type": "object", "properties": {"list": list}});
    let other =
        json!({"type": "function", "function": {"name": "other", "parameters": parameters}});
    tools.as_array_mut().unwrap().push(other);
    let more = json!({"tools": tools, "tool_choice": "required", "max_tokens": 200});
    let answer = post(server.at, CHAT, &chat(&more)).json();
    let function = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "get_weather", "{answer}");
    assert!(is_odd(function["arguments"].as_str().unwrap()), "{answer}");
}

#[test]
fn arguments_are_an_object_whatever_else_a_schema_allows() {
    let server = start(1);
    let mut tools = odd_tools(true);
    let mut ask = |kind: Value| {
        tools[0]["function"]["parameters"]["type"] = kind;
        let more = json!({"tools": tools, "tool_choice": "required", "max_tokens": 200});
        post(server.at, CHAT, &chat(&more))
    };
    let answer = ask(json!(["null", "object"])).json();
    let function = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert!(is_odd(function["arguments"].as_str().unwrap()), "{answer}");
    let refused = ask(json!("array"));
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("parameters.type"), "{}", refused.body);
}

#[test]
fn a_schema_that_cannot_be_kept_to_is_refused_for_strict_tools_only() {
    let server = start(1);
    let mut tools = odd_tools(true);
    tools[0]["function"]["parameters"]["properties"]["place"] = json!({"not": {"const": "Rome"}});
    let refused = post(server.at, CHAT, &chat(&json!({"tools": tools})));
    let error = &refused.json()["error"];
    assert_eq!((refused.status, error["param"].as_str()), (400, Some("tools")));
    assert!(error["message"].as_str().unwrap().contains("not"), "{error}");
    tools[0]["function"]["strict"] = false.into();
    for choice in ["auto", "required"] {
        let more = json!({"tools": tools, "tool_choice": choice, "max_tokens": 200});
        let whole = post(server.at, CHAT, &chat(&more));
        assert_eq!(whole.status, 200, "{}", whole.body);
        if choice == "required" {
            let calls = &whole.json()["choices"][0]["message"]["tool_calls"];
            let arguments = calls[0]["function"]["arguments"].as_str().unwrap();
            assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object());
        }
    }
}

#[test]
fn what_does_not_begin_like_a_call_may_stand_beside_tools() {
    let server = start(1);
    let first = |text: &str| {
        let text = json!({"content": text, "parse_special": true});
        post(server.at, "/tokenize", &text).json()["tokens"][0].to_string()
    };
    let never = json!({first("<tool_call>"): -100, first("<"): -100});
    let ask = |form: &Value, more: Value| {
        let more = with(json!({"structured_outputs": form, "max_tokens": 60}), &more);
        post(server.at, CHAT, &chat(&more))
    };
    // A slash ends a regular expression in a grammar, and a bracket a grammar in another one.
    let lark = "start: word (\" or \" word)~0..3\nword: /[a-z]{2,5}/ | /[{][}{]/";
    let choices = ["rain", "so\n\"and\" so", "é"];
    let is_path = |text: &str| {
        let (first, last) = text.split_once('/').unwrap();
        first.parse::<u16>().is_ok() && last.bytes().all(|byte| (b'a'..=b'c').contains(&byte))
    };
    let is_words = |text: &str| {
        let is_word = |word: &str| word.len() <= 5 && word.bytes().all(|b| b.is_ascii_lowercase());
        text.split(" or ").all(|word| is_word(word) || word == "{}" || word == "{{")
    };
    for (form, fits) in [
        (json!({"regex": r"[0-9]{1,3}(/|\/)[a-c]{1,4}"}), &is_path as &dyn Fn(&str) -> bool),
        (json!({"choice": choices}), &|text| choices.contains(&text)),
        (json!({"grammar": lark}), &is_words),
    ] {
        let call = ask(&form, json!({})).json();
        let choice = &call["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{form}: {call}");
        let answer = ask(&form, json!({"logit_bias": never})).json();
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap();
        assert_eq!(choice["finish_reason"], "stop", "{form}: {answer}");
        assert!(fits(text), "{form}: {text}");
    }
    for form in [
        json!({"regex": "[<a-z]+"}),
        json!({"regex": " ?[a-z]+"}),
        json!({"choice": ["yes", "<no>"]}),
        json!({"grammar": "start: /.+/"}),
    ] {
        let refused = ask(&form, json!({}));
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!("tools")), "{form}");
        assert!(error["message"].as_str().unwrap().contains("could not be told"), "{error}");
        assert_eq!(ask(&form, json!({"tool_choice": "none"})).status, 200);
    }
}
