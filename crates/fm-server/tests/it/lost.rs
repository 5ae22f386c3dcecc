//! A disk that does not give what it is asked for, behind HTTP.

use std::fs::{self, OpenOptions};

use serde_json::{Value, json};

use crate::{
    client::post,
    harness::{demo_copy, start_reading},
};

const PATHS: [(&str, &str); 2] =
    [("/v1/chat/completions", "server_error"), ("/v1/messages", "api_error")];

fn ask(question: &str, stream: bool) -> Value {
    let messages = [json!({"role": "user", "content": question})];
    json!({"messages": messages, "max_tokens": 8, "temperature": 0, "seed": 1, "stream": stream})
}

#[test]
fn an_expert_that_cannot_be_read_is_an_error_with_its_address_and_the_server_goes_on() {
    let dir = demo_copy();
    let server = start_reading(dir.path());
    let hash = |path| {
        let answer = post(server.at, path, &ask("Tell me of a fox.", false));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["timings"]["logits_hash"].clone()
    };
    let want = PATHS.map(|(path, _)| hash(path));

    let file = dir.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    OpenOptions::new().write(true).open(&file).unwrap().set_len(0).unwrap();
    for (path, kind) in PATHS {
        let whole = post(server.at, path, &ask("And of a boat?", false));
        assert_eq!(whole.status, 500, "{}", whole.body);
        let streamed = post(server.at, path, &ask("And of a leaf?", true));
        let last = streamed.chunks().pop().unwrap();
        for error in [&whole.json()["error"], &last["error"]] {
            assert_eq!(error["type"], kind, "{error}");
            let said = error["message"].as_str().unwrap();
            for part in ["layer ", "expert ", "model.safetensors", "offset "] {
                assert!(said.contains(part), "`{part}` in: {said}");
            }
        }
    }
    // The same file, whole again.
    fs::write(&file, &bytes).unwrap();
    assert_eq!(PATHS.map(|(path, _)| hash(path)), want);
}
