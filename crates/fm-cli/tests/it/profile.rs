//! `profile`: a text recorded, its trace replayed.

use std::{fs, path::Path};

use fm_engine::PolicyKind;
use serde_json::Value;

use crate::{flash_moe, stderr, stdout};

fn record(out: &Path, tokens: &[u32]) {
    record_in(out, tokens, ["64", "1"]);
}

fn record_in(out: &Path, tokens: &[u32], [context, chunk]: [&str; 2]) {
    let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let (out, tokens) = (out.to_str().unwrap(), tokens.join(","));
    let output = flash_moe(&[
        "profile",
        "record",
        "models/demo",
        "--prompt-tokens",
        &tokens,
        "--generate",
        "20",
        "--out",
        out,
        "--memory",
        "300MB",
        "--threads",
        "1",
        "--context",
        context,
        "--chunk",
        chunk,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
}

fn replay(args: &[&str]) -> Value {
    let output = flash_moe(&[&["profile", "replay", "--json"], args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn a_recorded_text_is_replayed_with_every_policy() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    // More tokens than the context holds: a second session goes on.
    record(&a, &fm_testkit::noise::Noise::new(1).tokens(60, 2000));
    record(&b, &fm_testkit::noise::Noise::new(2).tokens(30, 2000));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());

    let tables = replay(&[a, b, "--slots", "32,64", "--warm-up", "10"]);
    let traces = tables["traces"].as_array().unwrap();
    assert_eq!(
        (traces.len(), &traces[0]["steps"], &traces[1]["steps"]),
        (2, &80.into(), &50.into())
    );
    assert_eq!(traces[0]["header"]["model"], "models/demo");
    for capacity in traces.iter().flat_map(|trace| trace["capacities"].as_array().unwrap()) {
        let policies = capacity["policies"].as_array().unwrap();
        let hits = |name: &str| {
            let policy = policies.iter().find(|policy| policy["policy"] == name).unwrap();
            policy["hits"].as_u64().unwrap()
        };
        for name in PolicyKind::names() {
            assert!(hits(name) < hits("belady"), "{name}");
        }
        let requests = policies[0]["hits"].as_u64().unwrap()
            + policies[0]["cold_misses"].as_u64().unwrap()
            + policies[0]["capacity_misses"].as_u64().unwrap();
        assert_eq!(requests, 8 * 4 * policies[0]["tokens"].as_u64().unwrap());
    }

    assert!(tables["better_than_auto"].is_array());
    let output = flash_moe(&["profile", "replay", a, b, "--policy", "auto,lru", "--slots", "64"]);
    let last = stdout(&output).lines().last().map(str::to_owned);
    assert!(last.unwrap().contains("better than auto"));

    let together = replay(&[a, b, "--together", "--policy", "lru", "--slots", "64"]);
    let policy = &together["traces"][0]["capacities"][0]["policies"][0];
    assert_eq!((&policy["steps"], &policy["tokens"]), (&50.into(), &100.into()));

    let output = flash_moe(&["profile", "replay", a, "--memory", "12MB", "--per-layer"]);
    let text = stdout(&output);
    assert!(text.contains(", 80 steps, 256 experts in 8 layers, 4 per token"), "{text}");
    // About the trace, the capacity, all policies and the bound.
    assert_eq!(text.lines().count(), 2 + PolicyKind::names().count() + 1, "{text}");
    assert!(text.contains(" least-stale ") && !text.contains(" observe "), "{text}");
}

#[test]
fn a_text_is_recorded_in_pieces_no_longer_than_the_context() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    record_in(&path, &fm_testkit::noise::Noise::new(1).tokens(150, 2000), ["100", "128"]);
    let tables = replay(&[path.to_str().unwrap(), "--slots", "64"]);
    // Pieces of 100 and 50 tokens, and 20 that are written.
    let policy = &tables["traces"][0]["capacities"][0]["policies"][0];
    assert_eq!((&policy["steps"], &policy["tokens"]), (&22.into(), &170.into()));
}

#[test]
fn what_is_no_trace_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    record(&path, &[5, 6, 7]);
    let trace = path.to_str().unwrap();
    let refused = |args: &[&str], code: i32, words: &str| {
        let output = flash_moe(&[&["profile", "replay"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    };
    refused(&[trace, "--warm-up", "23"], 2, "has 23 steps");
    refused(&[trace, "--slots", "3"], 1, "cannot hold 4 experts");
    refused(&[trace, "--memory", "much"], 2, "`much` is no size");
    refused(&[trace, "--policy", "observe"], 1, "--scores");
    refused(&[trace, "--slots", "3"], 1, "hint: raise --memory, or --slots");
    refused(&["README.md"], 1, "README.md is not a trace of this version");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
    refused(&[trace], 1, "is damaged: the file ends");
}

#[test]
fn a_recording_that_fails_leaves_the_earlier_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let out = path.to_str().unwrap();
    record(&path, &[5, 6, 7]);
    let before = fs::read(&path).unwrap();
    let fails = |tokens: &str, out: &str| {
        let tokens = ["--prompt-tokens", tokens, "--out", out, "--memory", "300MB"];
        let output = flash_moe(&[&["profile", "record", "models/demo"], &tokens[..]].concat());
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    assert!(fails("5,6,99999", out).contains("token 99999 is not in the vocabulary"));
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing beside it");
    assert!(fails("5", "/nowhere/x").contains("cannot read or write the trace /nowhere/x"));
}

#[test]
fn a_text_comes_from_stdin_too() {
    let dir = tempfile::tempdir().unwrap();
    let (text, out) = (dir.path().join("text"), dir.path().join("trace"));
    fs::write(&text, "There once was a robot").unwrap();
    let args = ["profile", "record", "models/demo", "--prompt-file", "-", "--memory", "300MB"];
    let output = crate::program(dir.path())
        .args(args)
        .arg("--out")
        .arg(&out)
        .stdin(fs::File::open(&text).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(out.exists());
}
