//! The space that a tokenizer puts before a text is not part of an answer.

use std::fs;

use fm_testkit::{
    golden::workspace_dir,
    tiny_checkpoint::{Family, Layout, TinyModel},
};
use serde_json::json;

use crate::{client::post, harness::start_copy};

#[test]
fn an_answer_begins_without_the_space_of_its_tokenizer_and_a_completion_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let model = TinyModel { vocab: 900, ..TinyModel::new(Family::Mixtral) };
    model.write(dir.path(), &Layout::Hf, 1);
    let pieces = workspace_dir().join("golden/pieces/tokenizer.json");
    fs::copy(pieces, dir.path().join("tokenizer.json")).unwrap();
    let template = "<s>{{ messages[0].content }}";
    fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    let server = start_copy(dir.path());
    let said = |path: &str, more: serde_json::Value| {
        let mut body = json!({"max_tokens": 3, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.at, path, &body).json()["choices"][0].clone()
    };
    // Noise says anything; some of it begins with a space.
    let spaced = ["a", "the", "b", "is", "of", "to", "in", "you", "that", "it", "he", "was"];
    let spaced = spaced.iter().find_map(|prompt| {
        let text = said("/v1/completions", json!({"prompt": prompt}))["text"].clone();
        let text = text.as_str().unwrap().to_owned();
        text.starts_with(' ').then_some((prompt, text))
    });
    let (prompt, text) = spaced.unwrap();
    let messages = json!([{"role": "user", "content": prompt}]);
    let answer = said("/v1/chat/completions", json!({"messages": messages}));
    assert_eq!(answer["message"]["content"], text[1..], "{answer}");
}
