//! `eval` as a user meets it.

use std::{fs, path::Path};

use fm_testkit::golden::{copy_files, demo_dir};
use serde_json::Value;

use crate::{flash_moe, stderr, stdout};

const TEXT: &str = "tools/demo-model/heldout.txt";
const PLAN: [&str; 4] = ["--memory", "400MB", "--threads", "1"];

fn eval(args: &[&str]) -> std::process::Output {
    flash_moe(&[&["eval"], args, &PLAN].concat())
}

fn json(args: &[&str]) -> Value {
    let output = eval(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn a_dump_is_something_to_compare_with() {
    let dir = tempfile::tempdir().unwrap();
    let dump = dir.path().join("dump");
    let dump = dump.to_str().unwrap();
    let text = ["models/demo", "--text", TEXT, "--tokens", "300", "--split", "<|endoftext|>"];
    let written = json(&[text.as_slice(), &["--dump", dump, "--window", "64"]].concat());
    assert_eq!(written["against"], Value::Null);
    assert_eq!((&written["window"], &written["warm_up"]), (&64.into(), &16.into()));
    // The dump says how the text was cut.
    let same = json(&[text.as_slice(), &["--against", dump]].concat());
    assert_eq!((&same["window"], &same["warm_up"]), (&64.into(), &16.into()));
    assert_eq!(same["perplexity"], written["perplexity"]);
    // And how much of it there was.
    let whole = ["models/demo", "--text", TEXT, "--split", "<|endoftext|>", "--against", dump];
    assert_eq!(json(&whole)["perplexity"], written["perplexity"]);
    assert_eq!(
        (&same["against"]["kl_max"], &same["against"]["numerics"]),
        (&0.0.into(), &"int15".into())
    );
    let fewer = json(&[text.as_slice(), &["--against", dump, "--k", "2"]].concat());
    assert!(fewer["against"]["kl"]["value"].as_f64().unwrap() > 1e-3, "{fewer}");
    assert_eq!(fewer["lossy"][0], "2 experts per token instead of 4");

    let table = eval(&[text.as_slice(), &["--against", dump, "--k", "2"]].concat());
    let (table, notes) = (stdout(&table), stderr(&table));
    for row in ["model ", "perplexity ", "mean KL ", "top-1 agreement ", "intervals of 95 %"] {
        assert!(table.contains(row), "{row} in {table}");
    }
    assert!(notes.contains("warning: lossy: 2 experts"), "{notes}");
}

#[test]
fn numerics_and_other_models_run_side_by_side() {
    let text = ["models/demo", "--text", TEXT, "--tokens", "140", "--window", "64"];
    let against_reference = ["--numerics", "f32", "--against", "reference"];
    let found = json(&[text.as_slice(), &against_reference].concat());
    assert_eq!(found["against"]["numerics"], "reference");
    let kl = found["against"]["kl"]["value"].as_f64().unwrap();
    assert!(kl < 1e-6, "{kl}");
    let halves = ["--kv", "f16", "--k", "3", "--against", "exact"];
    let found = json(&[text.as_slice(), &halves].concat());
    let lossy = ["3 experts per token instead of 4", "keys and values in f16 instead of f32"];
    assert_eq!(found["lossy"], serde_json::json!(lossy));
    assert_eq!(found["against"]["lossy"], serde_json::json!([]));
    let halves = json(&[text.as_slice(), &["--kv", "f16", "--against", "exact"]].concat());
    let kl = halves["against"]["kl"]["value"].as_f64().unwrap();
    assert!(kl > 0.0 && kl < 1e-5, "{kl}");
    assert!(found["against"]["kl"]["value"].as_f64().unwrap() > 10.0 * kl, "{found}");
    let found = json(&[text.as_slice(), &["--against", "models/demo-bf16"]].concat());
    assert_eq!(found["against"]["model"], "models/demo-bf16");
    let kl = found["against"]["kl"]["value"].as_f64().unwrap();
    assert!((1e-5..0.3).contains(&kl), "4 bits against 16: {kl}");
}

/// A copy of the demonstration model whose tokenizer knows one mark less.
fn other_tokenizer(dir: &Path) {
    copy_files(&demo_dir(), dir);
    let path = dir.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json["added_tokens"].as_array_mut().unwrap().truncate(8);
    fs::write(path, json.to_string()).unwrap();
}

#[test]
fn what_cannot_be_measured_is_an_error_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (empty, short, broken) =
        (file("empty", ""), file("short", "a"), file("broken", "fm-eval\0 and no more"));
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    other_tokenizer(&model);
    let model = model.to_str().unwrap();
    let demo = |more: &[&str]| [&["models/demo", "--text"], more].concat().join(" ");
    let invocations = [
        "models/demo".to_owned(),
        demo(&["/nowhere/text"]),
        demo(&[&empty]),
        demo(&[&short]),
        demo(&[TEXT, "--window", "9999999"]),
        demo(&[TEXT, "--window", "32", "--warm-up", "32"]),
        demo(&[TEXT, "--against", "f16"]),
        demo(&[TEXT, "--against", &broken]),
        demo(&[TEXT, "--tokens", "200", "--against", model]),
        demo(&[TEXT, "--tokens", "200", "--dump", "/nowhere/dump"]),
        format!("golden/qwen3_moe/hf --text {TEXT}"),
    ];
    let all: Vec<String> = invocations
        .iter()
        .map(|line| {
            let output = eval(&line.split(' ').collect::<Vec<_>>());
            assert!(!output.status.success(), "{line}");
            let text = format!("$ eval {line}\n{}[{:?}]\n", stderr(&output), output.status.code());
            text.replace(dir.path().to_str().unwrap(), "TMP")
        })
        .collect();
    let filters = vec![(r"/\S*/\.tmp\w+", "HOME")];
    insta::with_settings!({ filters => filters }, {
        insta::assert_snapshot!("eval_errors", all.join("\n"));
    });
}
