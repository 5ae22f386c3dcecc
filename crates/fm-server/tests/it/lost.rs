//! What a model does not come by, behind HTTP: experts that the disk does not give, keys that f16 cannot hold.

use std::{
    fs::{self, OpenOptions},
    thread,
};

use fm_testkit::golden::{copy_filled, demo_dir};

use serde_json::{Value, json};

use crate::{
    client::post,
    harness::{demo_copy, start_halving, start_reading},
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

#[test]
fn keys_that_f16_cannot_hold_fail_the_request_that_has_them_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    // About half of the tokens have keys beyond f16 then.
    let norm = "language_model.model.layers.3.self_attn.k_norm.weight";
    copy_filled(&demo_dir(), dir.path(), norm, 2e4);
    let server = start_halving(dir.path());
    let hash = |token: u32| {
        let body = json!({"prompt": [token, token + 900, token + 400], "max_tokens": 1, "seed": 1, "temperature": 0});
        let answer = post(server.at, "/v1/completions", &body);
        let (status, said) = (answer.status, answer.json());
        match status {
            200 => Ok(said["timings"]["logits_hash"].clone()),
            500 => Err(said["error"]["message"].as_str().unwrap().to_owned()),
            _ => panic!("{said}"),
        }
    };
    let tokens = 100..116;
    let alone: Vec<_> = tokens.clone().map(hash).collect();
    let lost: Vec<_> = alone.iter().filter_map(|said| said.as_ref().err()).collect();
    assert!((3..=13).contains(&lost.len()), "{} of 16", lost.len());
    for said in lost {
        assert!(said.contains("layer 3") && said.contains("beyond f16"), "{said}");
    }
    let among: Vec<_> = thread::scope(|scope| {
        let asked: Vec<_> = tokens.map(|token| scope.spawn(move || hash(token))).collect();
        asked.into_iter().map(|said| said.join().unwrap()).collect()
    });
    assert_eq!(among, alone);
}
