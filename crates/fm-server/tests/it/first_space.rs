//! The space that a tokenizer puts before a text is not part of an answer.

use fm_testkit::tiny_checkpoint::{QUESTIONS_TO_PIECES, write_model_of_pieces};
use serde_json::json;

use crate::{client::post, harness::start_copy};

#[test]
fn an_answer_begins_without_the_space_of_its_tokenizer_and_a_completion_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    write_model_of_pieces(dir.path());
    let server = start_copy(dir.path());
    let said = |path: &str, more: serde_json::Value| {
        let mut body = json!({"max_tokens": 3, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.at, path, &body).json()["choices"][0].clone()
    };
    let spaced = QUESTIONS_TO_PIECES.iter().find_map(|prompt| {
        let text = said("/v1/completions", json!({"prompt": prompt}))["text"].clone();
        let text = text.as_str().unwrap().to_owned();
        text.starts_with(' ').then_some((prompt, text))
    });
    let (prompt, text) = spaced.unwrap();
    let messages = json!([{"role": "user", "content": prompt}]);
    let answer = said("/v1/chat/completions", json!({"messages": messages}));
    assert_eq!(answer["message"]["content"], text[1..], "{answer}");
}
