//! Functions that take nothing.

use serde_json::{Value, json};

use crate::{client::post, harness::start};

fn arguments(calls: &Value) -> Value {
    serde_json::from_str(calls.as_str().unwrap()).unwrap()
}

#[test]
fn a_function_without_parameters_is_called_with_none() {
    let server = start(1);
    let chat = |function: Value, seed: u64| {
        json!({
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}], "seed": seed,
            "temperature": 1.5, "max_tokens": 200, "tool_choice": "required", "parallel_tool_calls": false,
            "tools": [{"type": "function", "function": function}],
        })
    };
    for seed in 0..3 {
        for function in [
            json!({"name": "get_weather"}),
            json!({"name": "get_weather", "parameters": null, "strict": true}),
        ] {
            let answer = post(server.at, "/v1/chat/completions", &chat(function, seed)).json();
            let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
            assert_eq!(arguments(&call["arguments"]), json!({}), "{answer}");
        }
        let mut body = chat(Value::Null, seed);
        let own = body.as_object_mut().unwrap();
        own.insert("input".to_owned(), own["messages"].clone());
        own.remove("messages");
        own.remove("max_tokens");
        own.insert(
            "tools".to_owned(),
            json!([{"type": "function", "name": "get_weather", "strict": true}]),
        );
        let answer = post(server.at, "/v1/responses", &body).json();
        let outputs = answer["output"].as_array().unwrap();
        let call = outputs.iter().find(|item| item["type"] == "function_call").unwrap();
        assert_eq!(arguments(&call["arguments"]), json!({}), "{answer}");
    }
}
