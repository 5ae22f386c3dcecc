//! `bench`: its figures depend on the machine and are never looked at; what they are of is.

use std::fs;

use serde_json::{Value, json};

use crate::{flash_moe, stderr, stdout};

const PLAN: [&str; 7] = ["bench", "models/demo", "--memory", "300MB", "--threads", "2", "--json"];

fn bench(args: &[&str]) -> Value {
    let output = flash_moe(&[&PLAN, args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// Types instead of values, and of a list its first item: what programs that read it rely on.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => json!("null"),
        Value::Bool(_) => json!("boolean"),
        Value::Number(_) => json!("number"),
        Value::String(_) => json!("string"),
        Value::Array(items) => items.iter().take(1).map(shape).collect(),
        Value::Object(object) => {
            object.iter().map(|(key, value)| (key.clone(), shape(value))).collect()
        }
    }
}

const SMALL: [&str; 8] = ["--prefill", "40", "--decode", "4", "--repeats", "1", "--warm-up", "80"];

#[test]
fn its_json_keeps_its_shape() {
    let mut value = bench(&[&SMALL[..], &["--slots", "40"]].concat());
    let mut shapes = shape(&value);
    // Which repeats count depends on what else the machine does.
    for test in shapes["speed"].as_array_mut().unwrap() {
        test["repeats"][0]["discarded"] = json!("string or null");
    }
    insta::assert_json_snapshot!("bench", shapes);
    let tests = value["speed"].as_array_mut().unwrap();
    let names: Vec<&str> = tests.iter().map(|test| test["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["prefill 40", "decode 4 at 16"]);
    assert_eq!(
        (&value["about"]["out_of_core"], &value["speed"][0]["kept"]),
        (&json!(true), &json!(1))
    );
}

#[test]
fn lengths_and_positions_are_measured_one_by_one() {
    let args = ["--prefill", "20,30", "--context-at", "10,70", "--decode", "2", "--repeats", "1"];
    let value = bench(&[&args[..], &["--sessions", "2"]].concat());
    let tests = value["speed"].as_array().unwrap();
    let names: Vec<&str> = tests.iter().map(|test| test["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["prefill 20", "prefill 30", "decode 2 x 2 at 10", "decode 2 x 2 at 70"]);
}

/// The hash of what was written last.
fn hash(value: &Value) -> String {
    value["speed"].as_array().unwrap().last().unwrap()["logits_hash"].as_str().unwrap().to_owned()
}

#[test]
fn the_hash_is_that_of_the_text_whatever_is_in_memory() {
    let resident = bench(&SMALL);
    let tight = bench(&[&SMALL[..], &["--slots", "40"]].concat());
    assert_eq!(
        (&resident["about"]["out_of_core"], &tight["about"]["out_of_core"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(hash(&resident), hash(&tight));
    let other = bench(&[&SMALL[..], &["--k", "3"]].concat());
    assert_ne!(hash(&resident), hash(&other));
    assert_eq!(other["about"]["lossy"], json!(["3 experts per token instead of 4"]));
}

#[test]
fn every_session_has_the_hash_of_its_text_alone() {
    let sessions = |value: &Value| value["speed"][0]["sessions"].as_array().unwrap().clone();
    let of_all = |value: &Value, key: &str| -> Vec<Value> {
        sessions(value).iter().map(|session| session[key].clone()).collect()
    };
    let hashes = |value: &Value| of_all(value, "logits_hash");
    let work = ["--decode", "4", "--repeats", "2", "--warm-up", "0"];
    // The vocabulary of 2,048 tokens in three parts.
    let firsts = (vec![json!(0); 3], vec![json!(0), json!(682), json!(1364)]);
    let alone = bench(&work);
    assert_eq!(hashes(&alone), [hash(&alone)]);
    let together = bench(&[&work[..], &["--sessions", "3", "--same-text"]].concat());
    assert_eq!(hashes(&together), [hash(&alone), hash(&alone), hash(&alone)]);
    let own = bench(&[&work[..], &["--sessions", "3"]].concat());
    assert_eq!(hashes(&own)[0], hash(&alone), "the first text is the one that one session writes");
    assert_ne!(hashes(&own)[1], hash(&alone));
    assert_ne!(hash(&own), hash(&together));
    assert_eq!((of_all(&together, "first"), of_all(&own, "first")), firsts);
}

#[test]
fn prompts_may_come_from_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    fs::write(&file, "A robot that learned to paint went to the sea.").unwrap();
    let args = [&SMALL[..], &["--text", file.to_str().unwrap()]].concat();
    let (short, long) = (bench(&args), bench(&SMALL));
    assert_ne!(hash(&short), hash(&long));
    let came_again = |value: &Value| value["speed"][1]["text_came_again"].as_bool();
    assert_eq!((came_again(&short), came_again(&long)), (Some(true), Some(false)));
}

#[test]
fn parts_of_the_work_are_measured_alone() {
    let disk = bench(&["--io-only", "--repeats", "1"]);
    assert_eq!(disk["rates"][0]["limit"], "disk");
    assert!(disk["rates"][0]["repeats"][0]["bytes"].as_u64().unwrap() > 0);
    let kernels = bench(&["--kernels", "--repeats", "1"]);
    let formats = kernels["rates"].as_array().unwrap();
    let names = formats.iter().map(|test| test["test"].as_str().unwrap());
    insta::assert_json_snapshot!("bench_kernels", names.collect::<Vec<_>>());
    let experts = bench(&["--moe-only", "--verify", "--layer", "1", "--repeats", "1"]);
    let verified = &experts["rates"][0]["verified"];
    let difference = verified["difference"].as_f64().unwrap();
    assert!(difference > 0.0 && difference <= verified["tolerance"].as_f64().unwrap());
    let refused = flash_moe(&[&PLAN[..], &["--moe-only", "--layer", "99"]].concat());
    assert!(stderr(&refused).contains("--layer 99: no such layer"), "{}", stderr(&refused));
}

#[test]
fn runs_are_compared_and_turns_are_watched() {
    let runs = bench(&["--determinism", "3", "--decode", "4"]);
    assert_eq!(runs["determinism"]["equal"], true);
    assert_eq!(runs["determinism"]["hashes"].as_array().unwrap().len(), 3);
    let turns = bench(&["--turns", "3", "--decode", "4"]);
    let turns = turns["turns"].as_array().unwrap();
    let contexts: Vec<&Value> = turns.iter().map(|turn| &turn["context"]).collect();
    assert_eq!(contexts, [36, 72, 108]);
    // All but the last token of the turn before.
    assert_eq!(turns[2]["reused"], 71);
    assert!(turns.iter().all(|turn| turn["held_bytes"].as_u64().unwrap() > 0));
}

#[test]
fn what_a_part_would_not_heed_is_refused() {
    for ignored in [&["--sessions", "2"] as &[&str], &["--same-text"], &["--prefill", "8"]] {
        let refused = flash_moe(&[&PLAN[..], &["--turns", "2"], ignored].concat());
        assert_eq!(refused.status.code(), Some(2), "{ignored:?}");
        assert!(stderr(&refused).contains("cannot be used with"), "{}", stderr(&refused));
    }
}

#[test]
fn figures_are_added_to_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notes");
    std::fs::write(&file, "to buy\tmilk\n").unwrap();
    let args = ["--io-only", "--repeats", "1", "--record", file.to_str().unwrap()];
    let refused = flash_moe(&[&PLAN[..], &args].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("is no table"), "{}", stderr(&refused));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "to buy\tmilk\n");
}

#[test]
fn every_figure_is_recorded_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("results.tsv");
    let record = ["--record", file.to_str().unwrap(), "--note", "two\tlines\nof text"];
    let value = bench(&[&SMALL[..], &record].concat());
    bench(&[&SMALL[..], &record[..2]].concat());
    let text = fs::read_to_string(&file).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 5, "{text}");
    insta::assert_json_snapshot!("bench_columns", rows[0]);
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{text}");
    let column = |name: &str| rows[0].iter().position(|known| *known == name).unwrap();
    assert_eq!(rows[2][column("logits hash")], hash(&value));
    assert_eq!(rows[2][column("description")], "two lines of text");
}

/// The settings that were recorded of a run.
fn settings(args: &[&str]) -> (Vec<String>, Value) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("results.tsv");
    let value = bench(&[args, &["--record", file.to_str().unwrap()]].concat());
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let column = lines[0].iter().position(|name| *name == "settings").unwrap();
    let last = lines.last().unwrap()[column];
    (last.split("; ").map(str::to_owned).collect(), value)
}

#[test]
fn a_recorded_line_says_how_to_measure_it_again() {
    let (defaults, value) = settings(&SMALL);
    let about = &value["about"];
    let slots = format!("memory 300000000 bytes, {} of them in slots", about["slot_bytes"]);
    let context = format!("context {}", about["context"]);
    let io = format!("io auto: {}", about["reader"].as_str().unwrap());
    let chunk = format!("chunk {}", about["prefill_chunk"]);
    let expected = [
        "decode 4 at 16",
        "int15 on cpu",
        "2 threads",
        &slots,
        &context,
        "kv f32",
        &io,
        "policy auto",
        "look-ahead auto",
        &chunk,
        "warm-up 80",
        "repeats 1",
        "text the vocabulary",
    ];
    assert_eq!(defaults, expected);

    let work = "--decode 4 --sessions 2 --same-text --repeats 2 --warm-up 5";
    let plan = "--numerics f32 --slots 40 --context 60 --kv f16 --io buffered --policy lru \
                --lookahead off --prefill-chunk 16 --k 3";
    let args: Vec<&str> = [work, plan].iter().flat_map(|args| args.split_whitespace()).collect();
    let (set, _) = settings(&args);
    for part in [
        "decode 2 x 4 at 16",
        "f32 on cpu",
        "context 60",
        "kv f16",
        "io buffered: ",
        "policy lru",
        "look-ahead off",
        "chunk 16",
        "warm-up 5",
        "repeats 2",
        "text the vocabulary, the same in all sessions",
        "40 slots",
        "lossy: 3 experts per token instead of 4",
        "lossy: keys and values in f16 instead of f32",
    ] {
        assert!(set.iter().any(|found| found.starts_with(part)), "{part} in {set:?}");
    }
}

#[test]
fn turns_and_runs_are_recorded_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("results.tsv");
    let record = ["--record", file.to_str().unwrap(), "--k", "1"];
    let turns = bench(&[&["--turns", "2", "--decode", "3"], &record[..]].concat());
    let runs = bench(&[&["--determinism", "2", "--decode", "3"], &record[..]].concat());
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let last_turn = turns["turns"][1]["logits_hash"].as_str().unwrap();
    let run = runs["determinism"]["hashes"][0].as_str().unwrap();
    assert_eq!(lines.len(), 4, "{text}");
    for (line, test, hash) in [(lines[2], "turn 2", last_turn), (lines[3], "2 runs of 3", run)] {
        assert!(line.contains(test) && line.contains(hash), "{line}");
        assert!(line.contains("; lossy: "), "{line}");
    }
    let memory = lines[0].split('\t').position(|column| column == "memory bytes").unwrap();
    let held = turns["turns"].as_array().unwrap().iter().map(|turn| turn["held_bytes"].to_string());
    let recorded = lines[1..3].iter().map(|line| line.split('\t').nth(memory).unwrap().to_owned());
    assert!(held.eq(recorded), "each turn has its own: {text}");
}

#[test]
fn people_get_a_table() {
    let output = flash_moe(&[&PLAN[..6], &SMALL].concat());
    let text = stdout(&output);
    for part in ["models/demo · ", "numerics int15 · 2 threads", "decode 4 at 16", "tok/s", "load "]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
}
