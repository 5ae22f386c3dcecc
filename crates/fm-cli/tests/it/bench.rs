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
    assert!(rows[2][column("settings")].starts_with("decode 4 at 16; int15; 2 threads; "));
    assert!(rows[2][column("settings")].contains("; look-ahead auto; "));
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
