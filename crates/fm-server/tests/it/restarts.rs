//! A conversation goes on where it was, also with a server that has been started again.

use serde_json::{Value, json};

use crate::{
    client::post,
    harness::{Running, start, start_keeping, start_of},
};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// As much as a small agent says before the first word.
fn system() -> String {
    let rules = (0..40).map(|at| format!("Rule {at}: be kind to foxes, boats and leaves.\n"));
    rules.collect()
}

fn chat(turns: &[(&str, &str)]) -> Value {
    let mut messages = vec![json!({"role": "system", "content": system()})];
    messages.extend(turns.iter().map(|(role, text)| json!({"role": role, "content": text})));
    json!({"messages": messages, "enable_thinking": false, "seed": 5, "max_tokens": 20})
}

fn messages(turns: &[(&str, &str)]) -> Value {
    let turns = turns.iter().map(|(role, text)| json!({"role": role, "content": text}));
    json!({"system": system(), "messages": turns.collect::<Vec<_>>(), "seed": 5, "max_tokens": 20})
}

#[test]
fn fresh_continued_and_restarted_are_one_answer() {
    let dir = tempfile::tempdir().unwrap();
    let asked = [("user", "Tell me of a fox.")];
    let keeping = start_keeping(2, dir.path());
    let first = post(keeping.at, CHAT, &chat(&asked)).json();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let said = first["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let turns = [asked[0], ("assistant", said.as_str()), ("user", "And of a boat?")];

    let fresh = start(2);
    let want = post(fresh.at, CHAT, &chat(&turns)).json()["timings"]["logits_hash"].clone();
    let continued = post(keeping.at, CHAT, &chat(&turns)).json();
    drop(keeping);
    let restarted = start_keeping(2, dir.path());
    let again = post(restarted.at, CHAT, &chat(&turns)).json();
    let prompt = again["usage"]["prompt_tokens"].as_u64().unwrap();
    let restored = again["timings"]["restored_tokens"].as_u64().unwrap();
    for (answer, tokens) in [(&continued, 0), (&again, restored)] {
        assert_eq!(answer["timings"]["logits_hash"], want);
        assert_eq!(answer["timings"]["restored_tokens"], tokens);
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert!(cached > prompt * 9 / 10, "{cached} of {prompt}");
    }
    assert!(restored > prompt * 9 / 10, "{restored} of {prompt}");

    // The same words through the other interface are the same prompt.
    let answer = post(restarted.at, MESSAGES, &messages(&turns)).json();
    assert_eq!(answer["timings"]["logits_hash"], want);
    assert_eq!(answer["usage"]["cache_read_input_tokens"], restored);
    assert_eq!(answer["timings"]["restored_tokens"], 0, "it is in memory now");
    let log = restarted.log.lock().unwrap().join("\n");
    assert!(log.contains(&format!("cached={restored} restored={restored} ")), "{log}");
}

/// The model has recurrent memories, which are marked in few places: before turns of the user too.
#[test]
fn a_conversation_that_comes_at_once_is_asked_again_in_other_words_from_a_turn_of_it_on() {
    let server = start_of(1, 4096);
    let said = |at: usize| {
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        let content = format!("{at} is what was said of foxes, boats and leaves. ").repeat(8);
        json!({"role": role, "content": content})
    };
    let said: Vec<Value> = (0..22).map(said).collect();
    let ask = |server: &Running, of: &[Value], last: &str| {
        let messages = [of, &[json!({"role": "user", "content": last})]].concat();
        let body = json!({"messages": messages, "max_tokens": 3, "temperature": 0});
        let answer = post(server.at, CHAT, &body).json();
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let tokens = usage["prompt_tokens"].as_u64().unwrap();
        (cached, tokens, answer["timings"]["logits_hash"].clone())
    };
    let (cached, tokens, _) = ask(&server, &said, "And what do you say?");
    assert_eq!(cached, 0);
    assert!(tokens > 3000, "{tokens}");
    let (cached, tokens, _) = ask(&server, &said, "What else?");
    assert!(cached + 25 > tokens, "only the last turn is computed: {cached} of {tokens}");
    // A turn and its answer are 290 tokens: the next mark is 512 before the latest, the one after it 1024 more.
    for turn in [18, 10] {
        let (cached, there, hash) = ask(&server, &said[..turn], "Or else?");
        assert!(there + 512 < tokens, "{there} of {tokens}");
        assert!(cached + 25 > there, "only the earlier turn is computed: {cached} of {there}");
        let (cached, _, fresh) = ask(&start_of(1, 4096), &said[..turn], "Or else?");
        assert_eq!((cached, fresh), (0, hash), "turn {turn}");
    }
}
