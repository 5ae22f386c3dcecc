//! OpenAI's chat completions and completions.

use fm_testkit::golden::demo_dir;
use serde_json::{Value, json};

use crate::{
    client::{get, post},
    harness::{start, start_halving, steady},
};

const CHAT: &str = "/v1/chat/completions";

fn sum(more: &Value) -> Value {
    let mut body = json!({
        "model": "any-name",
        "messages": [{"role": "user", "content": "What is 7 plus 5?"}],
        "temperature": 0,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn the_bytes_of_a_short_answer() {
    let server = start(1);
    let short = json!({"enable_thinking": false, "max_tokens": 2, "logprobs": true});
    insta::assert_snapshot!("chat_whole", steady(&post(server.at, CHAT, &sum(&short)).body));
    let stream = json!({
        "enable_thinking": false, "max_tokens": 2,
        "stream": true, "stream_options": {"include_usage": true},
    });
    let streamed = post(server.at, CHAT, &sum(&stream));
    assert!(streamed.head.contains("content-type: text/event-stream"), "{}", streamed.head);
    insta::assert_snapshot!("chat_stream", steady(&streamed.body));
}

/// Text of a kind, put together from the deltas of a choice.
fn deltas(chunks: &[Value], choice: u64, kind: &str) -> String {
    let choices = chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
    let own = choices.filter(|own| own["index"] == choice);
    own.filter_map(|own| own["delta"][kind].as_str()).collect()
}

#[test]
fn a_streamed_answer_is_the_whole_one_with_thinking_logprobs_and_choices() {
    let server = start(3);
    let manner = json!({
        "temperature": 0.8, "seed": 11, "n": 3, "max_tokens": 60, "logprobs": true, "top_logprobs": 2,
    });
    let whole = post(server.at, CHAT, &sum(&manner)).json();
    let mut stream = manner;
    stream["stream"] = true.into();
    stream["stream_options"] = json!({"include_usage": true});
    let streamed = post(server.at, CHAT, &sum(&stream));
    assert_eq!(streamed.events().last().unwrap().1, "[DONE]");
    let chunks = streamed.chunks();
    let mut differ = Vec::new();
    for choice in 0..3 {
        let want = &whole["choices"][choice];
        let message = &want["message"];
        let index = choice as u64;
        assert_eq!(deltas(&chunks, index, "content"), message["content"].as_str().unwrap());
        let thinking = message["reasoning_content"].as_str().unwrap();
        assert_eq!(deltas(&chunks, index, "reasoning_content"), thinking);
        let own = chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
        let own: Vec<&Value> = own.filter(|own| own["index"] == index).collect();
        assert_eq!(own.last().unwrap()["finish_reason"], want["finish_reason"]);
        let odds = own.iter().filter_map(|own| own["logprobs"]["content"].as_array());
        let odds: Vec<&Value> = odds.flatten().collect();
        assert_eq!(
            odds,
            want["logprobs"]["content"].as_array().unwrap().iter().collect::<Vec<_>>()
        );
        let text: String = odds.iter().filter_map(|odds| odds["token"].as_str()).collect();
        assert_eq!(text, message["content"].as_str().unwrap());
        differ.push(thinking.to_owned());
    }
    differ.dedup();
    assert!(differ.len() > 1, "choices have seeds of their own");
    let (mut usage, want) = (chunks.last().unwrap()["usage"].clone(), &whole["usage"]);
    let cached = std::mem::take(&mut usage["prompt_tokens_details"]["cached_tokens"]);
    assert!(cached.as_u64().unwrap() > 0, "the prompt was there already");
    usage["prompt_tokens_details"]["cached_tokens"] = 0.into();
    assert_eq!(usage, *want);
    assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn thinking_is_switched_in_the_words_of_any_template() {
    let server = start(1);
    let ask = |more: &Value| {
        let mut body = json!({"max_tokens": 8});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = post(server.at, CHAT, &sum(&body)).json();
        (answer["choices"][0]["message"].clone(), answer["usage"]["prompt_tokens"].clone())
    };
    let off = ask(&json!({"enable_thinking": false}));
    assert_ne!(ask(&json!({"enable_thinking": true})), off);
    for name in ["enable_thinking", "thinking"] {
        assert_eq!(ask(&json!({"chat_template_kwargs": {name: false}})), off, "{name}");
        let both = json!({"enable_thinking": false, "chat_template_kwargs": {name: true}});
        assert_eq!(ask(&both), off, "the field goes before {name}");
    }
}

#[test]
fn stop_strings_bias_and_length_end_an_answer() {
    let server = start(1);
    let story = json!({
        "messages": [{"role": "user", "content": "Write a story about a robot who loves music."}],
        "enable_thinking": false, "max_tokens": 60,
    });
    let whole = post(server.at, CHAT, &sum(&story)).json();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let stop: String = text.chars().skip(30).take(8).collect();
    let mut stopped = story.clone();
    stopped["stop"] = json!(["no such text", stop]);
    let stopped = post(server.at, CHAT, &sum(&stopped)).json();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let cut = stopped["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(cut, &text[..text.find(&stop).unwrap()]);
    let token = post(server.at, "/tokenize", &json!({"content": " Tom"})).json();
    let mut biased = story;
    biased["logit_bias"] = json!({token["tokens"][0].to_string(): 100});
    biased["max_tokens"] = 3.into();
    let biased = post(server.at, CHAT, &sum(&biased)).json();
    let first = post(server.at, "/detokenize", &json!({"tokens": [token["tokens"][0]]})).json();
    let want = first["content"].as_str().unwrap().repeat(3);
    assert_eq!(biased["choices"][0]["message"]["content"].as_str().unwrap(), want);
}

#[test]
fn without_a_seed_answers_differ_and_with_one_they_do_not() {
    let server = start(1);
    let ask = |more: Value| {
        let text = json!({"messages": [{"role": "user", "content": "Write a story about a fox."}],
            "enable_thinking": false, "temperature": 1.5, "max_tokens": 40, "top_p": 1, "top_k": 0});
        let mut body = sum(&text);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.at, CHAT, &body).json()["choices"][0]["message"]["content"].clone()
    };
    assert_ne!(ask(json!({})), ask(json!({})));
    assert_eq!(ask(json!({"seed": -7})), ask(json!({"seed": -7})));
}

#[test]
fn a_raw_text_goes_on_from_words_or_tokens() {
    let server = start(1);
    let words = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12});
    let whole = post(server.at, "/v1/completions", &words).json();
    let tokens = post(server.at, "/tokenize", &json!({"content": "Once upon a time"})).json();
    let mut stream = json!({"prompt": tokens["tokens"], "temperature": 0, "max_tokens": 12});
    stream["stream"] = true.into();
    let streamed = post(server.at, "/v1/completions", &stream);
    let chunks = streamed.chunks();
    let text = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
    assert_eq!(text.collect::<String>(), whole["choices"][0]["text"].as_str().unwrap());
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_raw_text_has_control_tokens_where_that_is_asked_for() {
    let server = start(1);
    let tokens = |more: Value| {
        let mut body = json!({"prompt": "<|im_start|><think>", "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.at, "/v1/completions", &body).json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(tokens(json!({"parse_special": true})), 2);
    let letters = tokens(json!({}));
    assert!(letters > 2, "{letters}");
    assert_eq!(tokens(json!({"parse_special": false})), letters);
}

#[test]
fn several_raw_texts_go_on_as_each_alone() {
    let server = start(4);
    let ask = |prompt: Value, more: Value| {
        let mut body = json!({"prompt": prompt, "temperature": 1, "seed": 9, "n": 2, "max_tokens": 8, "echo": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.at, "/v1/completions", &body)
    };
    let [first, second] = ["Once upon a time", "The fox"];
    let tokens = post(server.at, "/tokenize", &json!({"content": second})).json()["tokens"].clone();
    let alone = [first, second].map(|prompt| ask(json!(prompt), json!({})).json());
    let together = ask(json!([first, tokens]), json!({})).json();
    let texts = |answer: &Value| {
        let choices = answer["choices"].as_array().unwrap().clone();
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let want = [texts(&alone[0]), texts(&alone[1])].concat();
    assert_eq!(texts(&together), want);
    assert!(want[0].starts_with(first) && want[3].starts_with(second), "{want:?}");
    assert_ne!(want[2], want[3], "choices have seeds of their own");
    let of = |answer: &Value, name: &str| answer["usage"][name].as_u64().unwrap();
    for name in ["prompt_tokens", "completion_tokens"] {
        assert_eq!(of(&together, name), of(&alone[0], name) + of(&alone[1], name), "{name}");
    }
    let mut streamed = vec![String::new(); 4];
    for chunk in ask(json!([first, second]), json!({"stream": true})).chunks() {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        streamed[index].push_str(choice["text"].as_str().unwrap());
    }
    assert_eq!(streamed, want);
    let refused = |prompt: Value| {
        let refused = ask(prompt, json!({}));
        assert_eq!(refused.status, 400);
        refused.json()["error"]["param"].as_str().unwrap().to_owned()
    };
    assert_eq!(refused(json!([first, 7])), "prompt[1]");
    assert_eq!(refused(json!([[5], [999_999]])), "prompt[1]");
    assert_eq!(refused(json!([999_999])), "prompt");
    assert_eq!(refused(json!([[5], []])), "prompt[1]", "before the first one is answered");
    assert_eq!(refused(json!([])), "prompt");
    assert_eq!(refused(json!(vec![first; 33])), "prompt");
}

#[test]
fn a_raw_text_has_odds_in_four_lists_and_can_be_told_again() {
    let server = start(1);
    let ask = |more: Value| {
        let mut body = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.at, "/v1/completions", &body)
    };
    let plain = ask(json!({})).json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let choice = ask(json!({"logprobs": 2})).json()["choices"][0].clone();
    assert_eq!(choice["text"], plain.as_str());
    let list = |odds: &Value, name: &str| odds[name].as_array().unwrap().clone();
    let odds = &choice["logprobs"];
    let tokens = list(odds, "tokens");
    assert_eq!(tokens.len(), 12);
    let mut at = 0;
    for (place, token) in tokens.iter().enumerate() {
        let token = token.as_str().unwrap();
        assert_eq!(list(odds, "text_offset")[place], at);
        assert!(plain[at..].starts_with(token), "{plain} {token}");
        let own = list(odds, "token_logprobs")[place].clone();
        // Greedy: what was chosen is the likeliest.
        let top = list(odds, "top_logprobs")[place].clone();
        assert_eq!((top.as_object().unwrap().len(), &top[token]), (2, &own));
        at += token.len();
    }
    // In pieces it says the same.
    let streamed = ask(json!({"logprobs": 2, "stream": true}));
    let pieces = streamed.chunks();
    let pieces = pieces.iter().map(|chunk| &chunk["choices"][0]["logprobs"]);
    let pieces: Vec<&Value> = pieces.filter(|odds| odds.is_object()).collect();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let all = pieces.iter().flat_map(|odds| list(odds, name));
        assert_eq!(all.collect::<Vec<_>>(), list(odds, name), "{name}");
    }
    // What a stop string takes away has no odds.
    let stop = &plain[tokens[0].as_str().unwrap().len()..][..4];
    let stopped = ask(json!({"logprobs": 0, "stop": stop})).json()["choices"][0].clone();
    assert_eq!(list(&stopped["logprobs"], "tokens"), tokens[..1]);
    assert_eq!(stopped["text"], tokens[0]);

    let told = ask(json!({"echo": true})).json()["choices"][0]["text"].clone();
    assert_eq!(told, format!("Once upon a time{plain}"));
    let streamed = ask(json!({"echo": true, "stream": true}));
    let chunks = streamed.chunks();
    let text = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
    assert_eq!(text.collect::<String>(), told.as_str().unwrap());
    for (refused, field) in
        [(json!({"echo": true, "logprobs": 1}), "echo"), (json!({"suffix": "."}), "suffix")]
    {
        let refused = ask(refused);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(field)));
    }
}

#[test]
fn what_a_message_spells_is_no_control_token() {
    let server = start(1);
    let count = |content: Value| {
        let body = json!({"messages": [{"role": "user", "content": content}]});
        let counted = post(server.at, "/v1/messages/count_tokens", &body).json();
        counted["input_tokens"].as_u64().unwrap()
    };
    let tokenize = |body: Value| {
        let tokens = post(server.at, "/tokenize", &body).json();
        (tokens["count"].as_u64().unwrap(), tokens["tokens"].clone())
    };
    for spelled in [
        "<|im_end|><|im_start|>system",
        "</think><think>",
        "</tool_call><tool_call>{}",
        "</tool_response><tool_response>",
    ] {
        let (letters, tokens) = tokenize(json!({"content": spelled}));
        let (marks, _) = tokenize(json!({"content": spelled, "parse_special": true}));
        assert!(letters > marks + 4, "{spelled}: {letters} {marks}");
        assert_eq!(count(spelled.into()), count("".into()) + letters, "{spelled}");
        let part = json!([{"type": "text", "text": spelled}]);
        assert_eq!(count(part), count("".into()) + letters, "{spelled}");
        // A text that goes on as it stands is the same letters.
        let goes_on = |prompt: &Value| {
            let body = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0});
            let answer = post(server.at, "/v1/completions", &body).json();
            (answer["usage"]["prompt_tokens"].clone(), answer["choices"][0]["text"].clone())
        };
        assert_eq!(goes_on(&spelled.into()), goes_on(&tokens), "{spelled}");
    }
}

#[test]
fn what_an_answer_took_comes_with_the_last_chunk() {
    let server = start(2);
    let paths = [
        (CHAT, sum(&json!({}))),
        (CHAT, sum(&json!({"n": 2}))),
        ("/v1/completions", json!({"prompt": "The fox", "n": 2})),
    ];
    for (path, mut body) in paths {
        // Without a seed a text may end by itself before.
        (body["max_tokens"], body["seed"]) = (5.into(), 1.into());
        body["stream"] = true.into();
        let choices = body["n"].as_u64().unwrap_or(1) as usize;
        let mut chunks = post(server.at, path, &body).chunks();
        let last = chunks.pop().unwrap();
        assert!(last["choices"][0]["finish_reason"].is_string(), "{last}");
        assert_eq!(last["timings"]["finish"], "length", "{last}");
        let ends = chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"].is_string());
        assert_eq!(ends.count(), choices - 1, "of the other choice");
        assert!(chunks.iter().all(|chunk| chunk["timings"].is_null()));
    }
}

#[test]
fn times_and_end_are_those_of_the_first_choice_whoever_ends_last() {
    let server = start(3);
    let mut differ = 0;
    for seed in 0..16 {
        let body = json!({"prompt": [5, 6, 7, 8], "max_tokens": 6, "temperature": 0.9, "n": 2, "seed": seed});
        let answer = post(server.at, "/v1/completions", &body).json();
        let [first, second] = [0, 1].map(|at| &answer["choices"][at]["finish_reason"]);
        assert_eq!(&answer["timings"]["finish"], first, "{answer}");
        differ += u32::from(first != second);
    }
    assert!(differ > 0, "or it could be either's");
}

#[test]
fn models_health_and_metrics() {
    let server = start(1);
    let models = get(server.at, "/v1/models").json();
    assert_eq!(models["data"][0]["id"], "demo");
    assert_eq!(get(server.at, "/v1/models/org/other").json()["id"], "org/other");
    for field in ["context_length", "max_model_len", "max_input_tokens"] {
        assert_eq!(models["data"][0][field], 1024, "{field}");
    }
    assert_eq!(
        [&models["data"][0]["numerics"], &models["data"][0]["lossy"]],
        [&json!("int15"), &json!([])]
    );
    let halving = get(start_halving(&demo_dir()).at, "/v1/models/any").json();
    assert_eq!(halving["lossy"], json!(["keys and values in f16 instead of f32"]));
    assert_eq!(get(server.at, "/health").json(), json!({"status": "ready", "model": "demo"}));
    post(server.at, CHAT, &sum(&json!({"max_tokens": 5})));
    let metrics = get(server.at, "/metrics").body;
    assert!(metrics.contains("flash_moe_requests_total{finish=\"length\"} 1\n"), "{metrics}");
    assert!(metrics.contains("flash_moe_written_tokens_total 5\n"), "{metrics}");
    for name in ["queue", "first_token", "token"] {
        assert!(metrics.contains(&format!("flash_moe_{name}_seconds_count 1\n")), "{metrics}");
    }
    let log = server.log.lock().unwrap();
    let [line] = log.as_slice() else { panic!("{log:?}") };
    assert!(
        line.starts_with("/v1/chat/completions prompt=18 cached=0 restored=0 written=5 "),
        "{line}"
    );
    assert!(!line.contains("plus"), "no text in the log: {line}");
}

#[test]
fn the_panels_in_the_documentation_name_what_is_exported() {
    let server = start(1);
    let metrics = get(server.at, "/metrics").body;
    let exported = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let exported = exported.filter_map(|line| line.split(' ').next());
    let exported: Vec<&str> = exported.collect();
    let mut helped = metrics.lines().filter_map(|line| line.strip_prefix("# HELP "));
    assert!(helped.all(|line| line.split_once(' ').is_some_and(|(_, help)| help.ends_with('.'))));
    assert_eq!(metrics.matches("# HELP ").count(), exported.len(), "each says what it is");
    // A disk that nobody has measured has no limit.
    let exported: Vec<&str> =
        exported.into_iter().chain(["flash_moe_disk_limit_bytes_per_second"]).collect();
    let path = fm_testkit::golden::workspace_dir().join("docs/grafana.json");
    let board: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut named = std::collections::BTreeSet::new();
    for target in targets {
        let expression = target["expr"].as_str().unwrap();
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("flash_moe_")) {
            let word = word.trim_end_matches("_bucket");
            assert!(exported.contains(&word), "{word} in {expression}");
            named.insert(word.to_owned());
        }
    }
    assert_eq!(named.len(), exported.len(), "each is shown: {named:?} of {exported:?}");
}

#[test]
fn what_a_prompt_that_is_too_long_came_in_is_named() {
    let server = start(1);
    let long = "word ".repeat(3000);
    let said = json!([{"role": "user", "content": long}]);
    for (path, body, field) in [
        (CHAT, json!({"messages": said}), "messages"),
        ("/v1/responses", json!({"input": said}), "input"),
        ("/v1/completions", json!({"prompt": long}), "prompt"),
        ("/v1/completions", json!({"prompt": ["a", long]}), "prompt[1]"),
        ("/v1/completions", json!({"prompt": vec![1; 3000]}), "prompt"),
    ] {
        let error = post(server.at, path, &body).json()["error"].clone();
        assert_eq!(error["code"], "context_length_exceeded", "{path}: {error}");
        assert_eq!(error["param"], field, "{path}");
    }
}

#[test]
fn an_answer_that_was_only_a_thought_comes_back() {
    let server = start(1);
    let ask = |role: &str, name: &str| {
        let thought = json!({"role": role, "content": null, name: "Seven and five."});
        let said = json!({"role": "user", "content": "What is 7 plus 5?"});
        let body = json!({"messages": [said, thought, said], "max_tokens": 1});
        let answer = post(server.at, CHAT, &body);
        (answer.status, answer.json()["error"]["param"].clone())
    };
    assert_eq!(ask("assistant", "reasoning_content"), (200, Value::Null));
    assert_eq!(ask("assistant", "reasoning"), (200, Value::Null));
    assert_eq!(ask("user", "reasoning_content"), (400, json!("messages[1].content")));
    assert_eq!(ask("assistant", "name"), (400, json!("messages[1].content")));
}
