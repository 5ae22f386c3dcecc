//! Log-probabilities are those of the text that is told, token by token.

use serde_json::{Value, json};

use crate::{
    client::post,
    harness::{Running, start},
};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

/// A request with these fields.
fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn ask(question: &str, more: &Value) -> Value {
    let messages = json!([{"role": "user", "content": question}]);
    let body = json!({"messages": messages, "temperature": 0, "logprobs": true, "top_logprobs": 2});
    with(body, more)
}

fn weather(more: &Value) -> Value {
    let parameters = json!({
        "type": "object", "required": ["city"],
        "properties": {"city": {"type": "string", "description": "The name of the city."}},
    });
    let function = json!({
        "name": "get_weather", "description": "Get the current weather for a city.",
        "parameters": parameters,
    });
    let body = ask(
        "What is the weather in Paris?",
        &json!({"tools": [{"type": "function", "function": function}]}),
    );
    with(body, more)
}

/// The bytes of these tokens.
fn bytes(odds: &Value) -> Vec<u8> {
    let tokens = odds.as_array().unwrap().iter().flat_map(|odds| odds["bytes"].as_array().unwrap());
    tokens.map(|byte| byte.as_u64().unwrap() as u8).collect()
}

/// Adds the tokens of a piece of text to those before it: they begin in it.
fn add(told: &mut (String, Vec<Value>), (text, odds): (&str, &Value)) {
    let begins = bytes(&told.1.clone().into()).len();
    told.0.push_str(text);
    let odds = odds.as_array().unwrap();
    if let Some(last) = odds.last() {
        let ends = begins + bytes(&odds.clone().into()).len();
        let last = ends - bytes(&json!([last])).len();
        let before = told.0.len() - text.len();
        assert!(begins >= before && last < told.0.len(), "{text:?} {odds:?}");
    }
    told.1.extend(odds.iter().cloned());
}

/// The message of a chat and its tokens, which are the same in a stream.
fn chat(server: &Running, body: &Value) -> (Value, Value) {
    let whole = post(server.at, CHAT, body).json()["choices"][0].clone();
    let mut told = (String::new(), Vec::new());
    for chunk in post(server.at, CHAT, &with(body.clone(), &json!({"stream": true}))).chunks() {
        let choice = &chunk["choices"][0];
        let text = choice["delta"]["content"].as_str().filter(|text| !text.is_empty());
        match text {
            Some(text) => add(&mut told, (text, &choice["logprobs"]["content"])),
            None => assert_eq!(choice["logprobs"], Value::Null, "{choice}"),
        }
    }
    assert_eq!(told.0, whole["message"]["content"].as_str().unwrap_or_default());
    assert_eq!(Value::from(told.1), whole["logprobs"]["content"]);
    (whole["message"].clone(), whole["logprobs"]["content"].clone())
}

#[test]
fn what_is_thought_and_called_has_no_odds() {
    let server = start(1);
    for thinks in [true, false] {
        let thinks = json!({"enable_thinking": thinks});
        let (message, odds) = chat(&server, &ask("What is 7 plus 5?", &thinks));
        assert!(!odds.as_array().unwrap().is_empty());
        assert_eq!(bytes(&odds), message["content"].as_str().unwrap().as_bytes(), "{message}");

        let (message, odds) = chat(&server, &weather(&thinks));
        assert_eq!(message["tool_calls"][0]["function"]["name"], "get_weather", "{message}");
        assert_eq!((&message["content"], odds), (&Value::Null, json!([])));
    }
    // A call that breaks off is text, and so are its tokens.
    let cut = json!({"enable_thinking": false, "max_tokens": 18});
    let (message, odds) = chat(&server, &weather(&cut));
    let text = message["content"].as_str().unwrap();
    assert!(text.starts_with("<tool_call>\n"), "{text}");
    assert_eq!(bytes(&odds), text.as_bytes());
}

#[test]
fn a_stop_string_has_no_odds_but_for_what_a_token_shares_with_the_text() {
    let server = start(1);
    let story = json!({"enable_thinking": false, "max_tokens": 40});
    let story = ask("Write a story about a robot who loves music.", &story);
    let (message, all) = chat(&server, &story);
    let text = message["content"].as_str().unwrap();
    assert_eq!(bytes(&all), text.as_bytes());
    let all = all.as_array().unwrap();
    // Beginning with a token, and inside of one.
    let first = bytes(&all[..12].to_vec().into()).len();
    let long = (12..all.len()).find(|token| bytes(&json!([all[*token]])).len() > 2).unwrap();
    let inside = bytes(&all[..long].to_vec().into()).len() + 1;
    for (at, tokens) in [(first, 12), (inside, long + 1)] {
        let stop = &text[at..at + 6];
        assert_eq!(text.find(stop), Some(at), "{stop} is there once");
        let (message, odds) = chat(&server, &with(story.clone(), &json!({"stop": stop})));
        assert_eq!(message["content"], text[..at]);
        assert_eq!(odds.as_array().unwrap()[..], all[..tokens]);
    }
}

#[test]
fn the_odds_of_a_response_are_those_of_its_text() {
    let server = start(1);
    let tool = weather(&json!({}))["tools"][0]["function"].clone();
    let tool = with(tool, &json!({"type": "function", "strict": false}));
    let plain = json!({"input": "What is 7 plus 5?"});
    let call = json!({"input": "What is the weather in Paris?", "tools": [tool]});
    let cut = json!({"enable_thinking": false, "max_output_tokens": 18});
    for (body, messages) in [(&plain, 1), (&call, 0), (&with(call.clone(), &cut), 1)] {
        let body = with(body.clone(), &json!({"temperature": 0, "top_logprobs": 1}));
        let mut told = (String::new(), Vec::new());
        let stream = with(body.clone(), &json!({"stream": true}));
        for event in post(server.at, RESPONSES, &stream).chunks() {
            if event["type"] == "response.output_text.delta" {
                add(&mut told, (event["delta"].as_str().unwrap(), &event["logprobs"]));
            }
        }
        let whole = post(server.at, RESPONSES, &body).json();
        let output = whole["output"].as_array().unwrap();
        let parts = output.iter().filter(|item| item["type"] == "message");
        let parts: Vec<&Value> = parts.map(|message| &message["content"][0]).collect();
        assert_eq!(parts.len(), messages, "{whole}");
        for part in parts {
            let text = part["text"].as_str().unwrap();
            assert_eq!(bytes(&part["logprobs"]), text.as_bytes(), "{part}");
            assert_eq!((text, &part["logprobs"]), (told.0.as_str(), &json!(told.1)));
        }
    }
}

#[test]
fn the_token_that_was_chosen_is_among_the_likeliest() {
    let server = start(1);
    let mut beside = 0;
    for (top, seed) in [(0, 1), (1, 2), (3, 3)] {
        let body = json!({
            "prompt": "Once upon a time", "temperature": 2, "seed": seed, "max_tokens": 30, "logprobs": top,
        });
        let answer = post(server.at, "/v1/completions", &body).json();
        let odds = &answer["choices"][0]["logprobs"];
        let list = |name: &str| odds[name].as_array().unwrap().clone();
        let tokens = list("tokens").into_iter().zip(list("token_logprobs"));
        for ((token, logprob), likeliest) in tokens.zip(list("top_logprobs")) {
            assert_eq!(likeliest[token.as_str().unwrap()], logprob, "{top}: {token} {likeliest}");
            let told = likeliest.as_object().unwrap().len();
            assert!(told.max(1) <= top + 1, "{top}: {likeliest}");
            beside += usize::from(told > top);
        }
    }
    assert!(beside > 30, "{beside}");
}

#[test]
fn every_chunk_of_a_stream_with_usage_has_one() {
    let server = start(1);
    for (path, ask) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hi"}]})),
        ("/v1/completions", json!({"prompt": "Once upon", "echo": true})),
    ] {
        for wanted in [true, false] {
            let mut body = ask.clone();
            body["max_tokens"] = 4.into();
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": wanted});
            let mut chunks = post(server.at, path, &body).chunks();
            if wanted {
                let last = chunks.pop().unwrap();
                assert!(last["usage"]["total_tokens"].as_u64() > Some(4), "{last}");
            }
            for chunk in chunks {
                assert_eq!(chunk.get("usage").is_some(), wanted, "{path} {chunk}");
                assert_eq!(chunk["usage"], Value::Null, "{path}");
            }
        }
    }
}
