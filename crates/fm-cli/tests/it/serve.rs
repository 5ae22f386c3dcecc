//! `serve` from its greeting to its end, and the official clients against it.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use fm_testkit::golden::workspace_dir;
use serde_json::{Value, json};

use crate::{
    flash_moe, program,
    serving::{Serving, ask, send, send_with},
    stderr,
};

#[test]
fn it_greets_answers_and_ends_on_sigterm() {
    let serving = Serving::start(&["--served-name", "pebble"]);
    let response = ask(&serving.address);
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("\"model\":\"pebble\""), "{response}");
    let metrics = send(&serving.address, "GET /metrics", "");
    let limit = metrics.split_once("\nflash_moe_memory_limit_bytes_per_second ").unwrap().1;
    let limit: f64 = limit.lines().next().unwrap().parse().unwrap();
    assert!(limit > 1e8, "{limit}");
    assert!(!metrics.contains("disk_limit"), "nothing is read from it any more");
    let (code, said) = serving.end();
    assert_eq!(code, Some(0), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let [request, end] = lines.as_slice() else { panic!("{said}") };
    assert!(request.starts_with("/v1/chat/completions prompt="), "{request}");
    assert!(end.starts_with("finishing what is being answered"), "{end}");
}

#[test]
fn a_log_that_nobody_can_hear_stops_nothing() {
    let Serving { mut child, stderr, address, home: _home, .. } = Serving::start(&[]);
    drop(stderr);
    for _ in 0..2 {
        assert!(ask(&address).starts_with("HTTP/1.1 200"));
    }
    let id = child.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_taken_port_and_an_open_door_are_refused_before_the_model_is_read() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = flash_moe(&["serve", "models/nothing", "--port", &port]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.starts_with(&format!("error: cannot listen on 127.0.0.1:{port}: ")), "{said}");
    assert!(said.contains("\nhint: choose another address"), "{said}");

    let open = flash_moe(&["serve", "models/nothing", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(open.status.code(), Some(2));
    insta::assert_snapshot!("open_door", stderr(&open));
    let empty = ["serve", "models/nothing", "--host", "0.0.0.0", "--port", "0", "--api-key", ""];
    assert_eq!(flash_moe(&empty).status.code(), Some(2), "an empty key is none");
    let unnamed = ["serve", "models/nothing", "--port", "0", "--served-name", ""];
    assert_eq!(flash_moe(&unnamed).status.code(), Some(2), "an empty name is none");
    for key in [" ", "\n", "schlüssel", "a\nb"] {
        let unheard = flash_moe(&["serve", "models/nothing", "--port", "0", "--api-key", key]);
        assert_eq!(unheard.status.code(), Some(2), "{key:?} is one that no client can send");
    }
}

/// It is a key that was meant, and no reason to let everybody in.
#[cfg(unix)]
#[test]
fn a_key_that_is_no_text_is_refused() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let home = tempfile::tempdir().unwrap();
    let mut serve = program(home.path());
    serve.args(["serve", "models/nothing", "--port", "0"]);
    serve.env("FLASH_MOE_API_KEY", OsStr::from_bytes(b"secret\xff"));
    let refused = serve.output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn without_a_home_it_says_that_prompts_are_kept_in_memory_only() {
    let home = tempfile::tempdir().unwrap();
    let serve = |more: &[&str]| {
        let mut serve = program(home.path());
        serve.args(["serve", "models/demo", "--port", "0", "--memory", "1MB"]).args(more);
        stderr(&serve.env("HOME", "").output().unwrap())
    };
    let said = serve(&[]);
    assert!(said.starts_with("warning: there is no cache directory: "), "{said}");
    let said = serve(&["--prefix-cache", "off"]);
    assert!(said.starts_with("error: "), "nobody has asked for one: {said}");
    // A file in the place of a home has no settings and no checksums in it.
    let inspect =
        program(home.path()).args(["inspect", "models/demo"]).env("HOME", "/dev/null").output();
    let inspect = inspect.unwrap();
    assert!(inspect.status.success() && inspect.stderr.is_empty(), "{}", stderr(&inspect));
}

#[test]
fn a_model_without_a_template_greets_with_what_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    for file in fs::read_dir(workspace_dir().join("models/demo")).unwrap() {
        let (path, name) = file.map(|file| (file.path(), file.file_name())).unwrap();
        if name != "chat_template.jinja" {
            fs::copy(path, dir.path().join(name)).unwrap();
        }
    }
    let with_one = Serving::start(&[]);
    assert!(with_one.greeting.contains("/v1/chat/completions"), "{}", with_one.greeting);
    assert_eq!(with_one.end().0, Some(0));
    let serving = Serving::start_with(&dir.path().to_string_lossy(), &["--host", "[::1]"]);
    let greeting = &serving.greeting;
    assert!(greeting.contains("  it has no chat template: "), "{greeting}");
    assert!(
        greeting.contains("/v1/completions -H") && !greeting.contains("/v1/chat"),
        "{greeting}"
    );
    assert!(serving.address.starts_with("[::1]:"), "{greeting}");
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn a_server_for_all_addresses_greets_with_one_that_can_be_asked() {
    let serving = Serving::start(&["--host", "0.0.0.0", "--api-key", "secret"]);
    assert!(!serving.greeting.contains("0.0.0.0"), "{}", serving.greeting);
    assert!(serving.address.starts_with("127.0.0.1:"), "{}", serving.greeting);
    assert!(send(&serving.address, "GET /health", "").starts_with("HTTP/1.1 200"));
    assert_eq!(serving.end().0, Some(0));
    for host in ["http://a", "a/b", "", "a b"] {
        let refused = flash_moe(&["serve", "models/nothing", "--allow-host", host]);
        assert_eq!(refused.status.code(), Some(2), "{host:?} never matches");
        assert!(stderr(&refused).contains("--allow-host"), "{}", stderr(&refused));
    }
}

#[test]
fn flags_say_who_comes_in_and_how_much_is_answered() {
    let open = ["--allow-host", "box.example", "--allow-origin", "https://app.example"];
    let serving = Serving::start(
        &[&open[..], &["--api-key", " secret\n", "--queue", "3", "--sessions", "2"]].concat(),
    );
    assert!(serving.greeting.contains("2 sessions of 1024 tokens, up to 3 requests wait"));
    let key = " -H \"authorization: Bearer $FLASH_MOE_API_KEY\" -d ";
    assert!(serving.greeting.contains(key), "{}", serving.greeting);
    assert!(!serving.greeting.contains("secret"), "{}", serving.greeting);
    let ask = |headers: &[&str], n: usize| {
        let message = json!({"role": "user", "content": "hi"});
        let body = json!({"messages": [message], "max_tokens": 3, "n": n});
        let what = "POST /v1/chat/completions";
        let response = send_with(&serving.address, what, headers, &body.to_string());
        let status = response["HTTP/1.1 ".len()..][..3].to_owned();
        (status, response)
    };
    let (key, host) = ("authorization: Bearer secret", "host: localhost");
    assert_eq!(ask(&[host], 1).0, "401");
    assert_eq!(ask(&[host, "authorization: Bearer other"], 1).0, "401");
    assert_eq!(ask(&[host, key], 3).0, "200");
    let (status, said) = ask(&[host, key], 4);
    assert_eq!(status, "400", "{said}");
    assert_eq!(ask(&["host: box.example", key], 1).0, "200");
    assert_eq!(ask(&["host: cab.example", key], 1).0, "403");
    let (status, said) = ask(&[host, key, "origin: https://app.example"], 1);
    assert!(status == "200" && said.contains("access-control-allow-origin: https://app.example"));
    assert_eq!(ask(&[host, key, "origin: https://other.example"], 1).0, "403");
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn flags_say_how_words_are_chosen_and_when_an_answer_ends() {
    let penalty = ["--presence-penalty", "2", "--frequency-penalty", "0.5"];
    let serving = Serving::start(&[&penalty[..], &["--request-timeout", "5"]].concat());
    let ask = |more: Value| {
        let mut body = json!({
            "prompt": "The fox and the boat", "max_tokens": 60, "temperature": 1.5, "seed": 5,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = json(&send(&serving.address, "POST /v1/completions", &body.to_string()));
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let own = ask(json!({}));
    assert_eq!(own, ask(json!({"presence_penalty": 2, "frequency_penalty": 0.5})));
    assert_ne!(own, ask(json!({"presence_penalty": 0})));
    assert_ne!(own, ask(json!({"frequency_penalty": 0})));
    assert_eq!(serving.end().0, Some(0));

    let serving = Serving::start(&["--request-timeout", "0.1", "--allow-loops"]);
    let spell = json!({"content": "<|im_end|><|endoftext|>", "parse_special": true});
    let ends = json(&send(&serving.address, "POST /tokenize", &spell.to_string()));
    let never = ends["tokens"].as_array().unwrap().iter().map(|end| (end.to_string(), json!(-100)));
    let bias = Value::Object(never.collect());
    // Eight thousand tokens, which nothing else ends.
    let body =
        json!({"prompt": "The fox", "max_tokens": 1000, "n": 8, "seed": 1, "logit_bias": bias});
    let late = send(&serving.address, "POST /v1/completions", &body.to_string());
    let finish = || json(&late)["timings"]["finish"].clone();
    assert!(late.starts_with("HTTP/1.1 503") || finish() == "deadline", "{late}");
    assert_eq!(serving.end().0, Some(0));
}

/// The body of an answer.
fn json(response: &str) -> Value {
    serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// What an agent sends, with a system message that is worth keeping.
fn agent_asks(question: &str) -> Value {
    let rules = "Be kind to foxes, boats and leaves.\n".repeat(40);
    let tool = json!({"name": "look", "description": "Looks.", "input_schema": {"type": "object"}});
    json!({
        "system": rules, "tools": [tool], "max_tokens": 12, "seed": 1,
        "messages": [{"role": "user", "content": question}],
    })
}

#[test]
fn a_conversation_survives_kill_9() {
    let serving = Serving::start(&[]);
    let asked = agent_asks("What is a fox?").to_string();
    let first = json(&send(&serving.address, "POST /v1/messages", &asked));
    // It writes as soon as nobody asks for anything.
    let there = |address: &str| {
        send(address, "GET /metrics", "").contains("\nflash_moe_prefix_on_disk 1\n")
    };
    let waited = Instant::now();
    while !there(&serving.address) {
        assert!(waited.elapsed() < Duration::from_secs(30), "it writes nothing");
        thread::yield_now();
    }
    let again = Serving::start_at(&serving.kill(), &[]);
    assert!(there(&again.address));
    let second = json(&send(&again.address, "POST /v1/messages", &asked));
    assert_eq!(second["content"], first["content"]);
    assert_eq!(second["timings"]["logits_hash"], first["timings"]["logits_hash"]);
    let tokens = first["usage"]["input_tokens"].as_u64().unwrap();
    let restored = second["timings"]["restored_tokens"].as_u64().unwrap();
    // Its memories are there up to where the answer begins.
    assert!((tokens - 16..tokens).contains(&restored), "{restored} of {tokens}");
    assert_eq!(second["usage"]["cache_read_input_tokens"], restored);
    // Another server of the model does not disturb it, and `off` is off.
    let beside = Serving::start_at(&again.home, &[]);
    assert!(
        beside.greeting.contains("warning: another server of this model"),
        "{}",
        beside.greeting
    );
    assert_eq!(beside.end().0, Some(0));
    let off = Serving::start_at(&again.home, &["--prefix-cache", "off"]);
    let third = json(&send(&off.address, "POST /v1/messages", &asked));
    assert_eq!(third["timings"]["cached_tokens"], 0);
    assert_eq!(third["timings"]["logits_hash"], first["timings"]["logits_hash"]);
    assert_eq!((off.end().0, again.end().0), (Some(0), Some(0)));
}

#[test]
fn prompts_are_taken_in_before_the_first_client_comes() {
    let home = Rc::new(tempfile::tempdir().unwrap());
    let (request, system) = (home.path().join("agent.json"), home.path().join("system.md"));
    std::fs::write(&request, agent_asks("Something else entirely.").to_string()).unwrap();
    std::fs::write(&system, "You are a fox.").unwrap();
    let [request, system] = [&request, &system].map(|file| file.to_str().unwrap());
    let options = ["--prefill", request, "--system", system, "--prefix-cache", "off"];
    let serving = Serving::start_at(&home, &options);
    let said = serving.greeting.matches("tokens that conversations begin with").count();
    assert_eq!(said, 2, "{}", serving.greeting);
    let asked = agent_asks("What is a fox?").to_string();
    let answer = json(&send(&serving.address, "POST /v1/messages", &asked));
    let usage = &answer["usage"];
    assert!(usage["cache_read_input_tokens"].as_u64() > Some(500), "{usage}");
    assert!(usage["input_tokens"].as_u64() < Some(20), "{usage}");
    let short = json(&ask(&serving.address));
    let cached = short["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached > Some(5), "{short}");
    assert_eq!(serving.end().0, Some(0));

    std::fs::write(home.path().join("agent.json"), r#"{"messages": 3}"#).unwrap();
    let output = flash_moe(&["serve", "models/demo", "--port", "0", "--prefill", request]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("no request that could be answered here: messages: "), "{said}");
}

#[test]
fn a_prompt_of_the_responses_api_is_taken_in_too() {
    let home = Rc::new(tempfile::tempdir().unwrap());
    let request = home.path().join("agent.json");
    let asks = |question: Value| {
        let tool = json!({"type": "function", "name": "look", "parameters": {"type": "object"}});
        let rules = "Be kind to foxes, boats and leaves.\n".repeat(40);
        json!({"instructions": rules, "tools": [tool], "input": question, "max_output_tokens": 3})
    };
    std::fs::write(&request, asks("Something else entirely.".into()).to_string()).unwrap();
    let options = ["--prefill", request.to_str().unwrap(), "--prefix-cache", "off"];
    let serving = Serving::start_at(&home, &options);
    let items = json!([{"type": "message", "role": "user", "content": "What is a fox?"}]);
    let answer = json(&send(&serving.address, "POST /v1/responses", &asks(items).to_string()));
    let usage = &answer["usage"];
    let cached = usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 500 && usage["input_tokens"].as_u64().unwrap() - cached < 20, "{usage}");
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn the_system_message_is_looked_for_in_two_places_and_a_blank_one_is_none() {
    let home = Rc::new(tempfile::tempdir().unwrap());
    let write = |name: &str, text: &str| {
        let file = home.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let tokens_in = |settings: Option<&Path>, more: &[&str]| {
        let options = [&["--prefix-cache", "off"], more].concat();
        let serving = Serving::start_in(&home, settings, &options);
        let answer = json(&ask(&serving.address));
        assert_eq!(serving.end().0, Some(0));
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let tokens = |more: &[&str]| tokens_in(None, more);
    let none = tokens(&[]);
    let blank = write(".config/flash-moe/system.md", "\n \n");
    assert_eq!(tokens(&[]), none, "nothing is said");
    write(".flash-moe/system.md", "You are a fox.");
    let fox = tokens(&[]);
    assert!(fox > none, "the other file has something to say");
    write(
        "settings/flash-moe/system.md",
        "You are a boat on a river, and you know every fish in it.",
    );
    let settings = home.path().join("settings");
    assert!(tokens_in(Some(&settings), &[]) > fox, "where the settings are goes first");
    assert_eq!(tokens(&["--system", &blank]), none, "this one was asked for, and says nothing");
}

/// `FLASH_MOE_CLIENTS` is a Python with `tools/clients/requirements.txt`; CI makes one.
#[test]
fn the_official_clients_are_content() {
    let Some(python) = env::var_os("FLASH_MOE_CLIENTS").map(PathBuf::from) else {
        assert!(env::var_os("CI").is_none(), "CI has to set FLASH_MOE_CLIENTS");
        #[allow(clippy::print_stderr)] // the only way to say that nothing was tested
        {
            eprintln!("skipped: FLASH_MOE_CLIENTS is not set");
        }
        return;
    };
    let serving = Serving::start(&["--quiet"]);
    let checked = Command::new(python)
        .arg(workspace_dir().join("tools/clients/check.py"))
        .arg(format!("http://{}", serving.address))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    let (code, _) = serving.end();
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));
    assert!(
        said.lines().count() > 20 && said.lines().all(|line| line.starts_with("ok ")),
        "{said}"
    );
    assert_eq!(code, Some(0));
}
