//! Several clients at once.

use std::{sync::atomic::Ordering, thread};

use serde_json::{Value, json};

use crate::{
    client::{post, send},
    harness::{start, start_on_two_threads, until},
};

const CHAT: &str = "/v1/chat/completions";

fn story(who: &str, seed: u64) -> Value {
    json!({
        "messages": [{"role": "user", "content": format!("Write a story about {who}.")}],
        "enable_thinking": false, "temperature": 1.0, "seed": seed, "max_tokens": 120,
    })
}

const WHO: [&str; 4] = ["a fox who sings", "a robot who loves music", "two old friends", "a boat"];

fn hash_and_text(answer: &Value) -> (String, String) {
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    (answer["timings"]["logits_hash"].as_str().unwrap().to_owned(), text.to_owned())
}

#[test]
fn an_answer_among_four_is_the_answer_alone_while_others_come_and_go() {
    let server = start_on_two_threads(4);
    let at = server.at;
    let alone: Vec<_> = (0..4)
        .map(|seed| hash_and_text(&post(at, CHAT, &story(WHO[seed as usize], seed)).json()))
        .collect();
    thread::scope(|scope| {
        // Clients that leave in the middle.
        scope.spawn(move || {
            for seed in 10..30 {
                let mut body = story("a leaf", seed);
                body["stream"] = true.into();
                let mut pending = send(at, "POST /v1/chat/completions", &[], &body.to_string());
                pending.until("\"content\":\" ");
            }
        });
        for round in 0..3 {
            let clients: Vec<_> = (0..4_usize)
                .map(|seed| {
                    scope.spawn(move || {
                        hash_and_text(&post(at, CHAT, &story(WHO[seed], seed as u64)).json())
                    })
                })
                .collect();
            for (client, alone) in clients.into_iter().zip(&alone) {
                assert_eq!(client.join().unwrap(), *alone, "round {round}");
            }
        }
    });
    until(|| server.sessions() == 0);
    let rests = server.activity.rests.load(Ordering::Relaxed);
    // How often depends on who comes when.
    assert!(rests > 0, "prompts have made way");
    let log = server.log.lock().unwrap();
    assert!(log.iter().any(|line| line.ends_with("finish=gone")), "{log:?}");
}

#[test]
fn a_client_that_goes_gives_its_session_back() {
    let server = start(1);
    let mut body = story("a fox", 1);
    body["max_tokens"] = 900.into();
    // Nothing ends the text but its length.
    let eos = ["<|im_end|>", "<|endoftext|>"].map(|text| {
        let spell = json!({"content": text, "parse_special": true});
        post(server.at, "/tokenize", &spell).json()["tokens"][0].to_string()
    });
    body["logit_bias"] = json!({&eos[0]: -100, &eos[1]: -100});
    body["stream"] = true.into();
    let mut pending = send(server.at, "POST /v1/chat/completions", &[], &body.to_string());
    pending.until("\"content\":\" ");
    drop(pending);
    until(|| server.sessions() == 0 && !server.log.lock().unwrap().is_empty());
    let told = server.log.lock().unwrap().clone();
    assert!(told[0].ends_with("finish=gone"), "{told:?}");
    let answer = post(server.at, CHAT, &story("a boat", 3));
    assert_eq!(answer.status, 200);
}
