//! Embeddings have rows that no token stands for, and nothing keeps a model from choosing one: it says nothing.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    client::post,
    harness::{demo_copy, start_copy},
};

/// A row of the demonstration model; from here on it has no tokens but those that are added.
const ROW: u64 = 1500;

/// The demonstration model with fewer tokens than rows: in the middle, and in the end.
fn pad(dir: &Path) {
    let path = dir.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json["added_tokens"].as_array_mut().unwrap().retain(|token| token["id"] != 2047);
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|_, id| id.as_u64() < Some(ROW));
    let vocab = vocab.clone();
    let merged = |pair: &Value| match pair {
        Value::String(pair) => pair.replacen(' ', "", 1),
        pair => pair[0].as_str().unwrap().to_owned() + pair[1].as_str().unwrap(),
    };
    let merges = json["model"]["merges"].as_array_mut().unwrap();
    merges.retain(|pair| vocab.contains_key(&merged(pair)));
    fs::write(path, json.to_string()).unwrap();
}

#[test]
fn rows_without_a_token_are_answers_of_no_letters() {
    let dir = demo_copy();
    pad(dir.path());
    let server = start_copy(dir.path());
    for row in [ROW, 2047] {
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}], "enable_thinking": false,
            "logit_bias": {row.to_string(): 100}, "max_tokens": 4, "logprobs": true, "top_logprobs": 2,
        });
        let answer = post(server.at, "/v1/chat/completions", &body).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["content"], "", "{answer}");
        assert_eq!(
            (&choice["finish_reason"], &choice["logprobs"]["content"]),
            (&json!("length"), &json!([]))
        );
        assert_eq!(answer["usage"]["completion_tokens"], 4);

        let mut stream = body.clone();
        stream["stream"] = true.into();
        let chunks = post(server.at, "/v1/chat/completions", &stream).chunks();
        let last = chunks.last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length", "{last}");
        let said = |chunk: &&Value| chunk["choices"][0]["delta"]["content"].as_str() > Some("");
        assert_eq!(chunks.iter().find(said), None);
    }
}

#[test]
fn rows_without_a_token_are_tokens_of_a_prompt_and_other_ids_are_not() {
    let dir = demo_copy();
    pad(dir.path());
    let server = start_copy(dir.path());
    let prompt = |tokens: &Value| {
        let body = json!({
            "prompt": tokens, "echo": true, "max_tokens": 2, "logit_bias": {"2047": 100},
        });
        post(server.at, "/v1/completions", &body)
    };
    let spell = |tokens: &Value| post(server.at, "/detokenize", &json!({"tokens": tokens}));
    let padded = json!([64, ROW, 65, 2047]);
    let answer = prompt(&padded).json();
    assert_eq!(answer["choices"][0]["text"], "ab", "{answer}");
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(4), &json!(2)));
    assert_eq!(spell(&padded).json(), json!({"content": "ab"}));
    for beyond in [json!([64, 2048]), json!([u32::MAX])] {
        assert_eq!(prompt(&beyond).status, 400, "{beyond}");
        assert_eq!(spell(&beyond).status, 400, "{beyond}");
    }
}
