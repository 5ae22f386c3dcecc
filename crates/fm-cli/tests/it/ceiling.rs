//! `--memory` is a ceiling, with true shapes and experts that do not fit.

use serde_json::Value;

use crate::{flash_moe, stderr, stdout};

/// Peak and logits hash of a run.
fn run(model: &str, memory: &str) -> (f64, String) {
    let tokens: Vec<String> = (0..48).map(|token| token.to_string()).collect();
    let output = flash_moe(&[
        "run",
        model,
        "--prompt-tokens",
        &tokens.join(","),
        "--max-tokens",
        "16",
        "--greedy",
        "--json",
        "--threads",
        "2",
        "--context",
        "512",
        "--memory",
        memory,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let value: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let walked: Vec<u64> = (48..64).collect();
    assert_eq!(value["tokens"], serde_json::json!(walked), "the tape is walked");
    let report = &value["report"];
    let hash = report["logits_hash"].as_str().unwrap().to_owned();
    (report["peak_bytes"].as_f64().unwrap(), hash)
}

#[test]
fn memory_stays_under_the_budget_and_the_bits_stay_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("noise");
    let model = model.to_str().unwrap();
    let written =
        flash_moe(&["synth", model, "--geometry", "qwen3-30b", "--layers", "1", "--bits", "2"]);
    assert!(written.status.success(), "{}", stderr(&written));
    // 0.39 GB, of it 0.21 of trunk: experts come and go in the one, stay in the other.
    let (tight, hash) = run(model, "330MB");
    let (roomy, same) = run(model, "900MB");
    assert_eq!(hash, same);
    assert!(tight <= 330e6, "{tight}");
    assert!(tight >= 200e6, "the test bites only if memory is really used: {tight}");
    assert!(roomy > tight, "{roomy} {tight}");
}
