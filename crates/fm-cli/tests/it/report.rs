//! `run --json` is an interface: `docs/report.schema.json` describes it, and it is held to that.

use std::fs;

use fm_testkit::golden::{copy_files, demo_dir, workspace_dir};
use serde_json::Value;

use crate::{flash_moe, stderr, stdout};

fn output() -> Value {
    let output = flash_moe(&[
        "run",
        "models/demo",
        "--prompt",
        "What is 7 plus 5?",
        "--greedy",
        "--json",
        "--memory",
        "300MB",
        "--threads",
        "2",
        "--context",
        "512",
        "--max-tokens",
        "50",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// The part of JSON Schema that the document uses: `type`, `properties`, `required`, `items`.
fn check(schema: &Value, value: &Value, at: &str) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let fits = types.contains(&kind) || (kind == "integer" && types.contains(&"number"));
    assert!(fits, "{at} is {kind}, the schema says {types:?}");
    if let Value::Object(object) = value {
        let properties = schema["properties"].as_object().unwrap();
        for (key, value) in object {
            let schema =
                properties.get(key).unwrap_or_else(|| panic!("{at}.{key} is undocumented"));
            assert!(schema["description"].is_string(), "{at}.{key} has no description");
            check(schema, value, &format!("{at}.{key}"));
        }
        let required = schema["required"].as_array().unwrap();
        assert!(required.iter().eq(properties.keys()), "{at}: all of it is promised");
        for key in properties.keys() {
            assert!(object.contains_key(key), "{at}.{key} is promised and missing");
        }
    }
    if let Value::Array(items) = value {
        items.iter().for_each(|item| check(&schema["items"], item, &format!("{at}[]")));
    }
}

#[test]
fn it_is_what_the_schema_says() {
    let schema = fs::read(workspace_dir().join("docs/report.schema.json")).unwrap();
    check(&serde_json::from_slice(&schema).unwrap(), &output(), "$");
}

/// Everything that is the same every time: names, tokens, text, counters.
#[test]
fn it_says_the_same_every_time() {
    let mut value = output();
    blur(&mut value, "");
    insta::assert_json_snapshot!("report", value);
}

/// Replaces what depends on the machine, the moment or the instruction set.
fn blur(value: &mut Value, key: &str) {
    let depends = key.ends_with("_s")
        || [
            "peak_bytes",
            "disk_busy_share",
            "foreseen_records",
            "foreseen_used",
            "foreseen_wasted_bytes",
            "verdict",
            "wait_share",
            "logits_hash",
            "hit_rate",
            "reader",
        ]
        .contains(&key)
        || ["hits", "cold_misses", "capacity_misses", "read_bytes", "read_bytes_per_token"]
            .contains(&key);
    match value {
        Value::Object(object) => object.iter_mut().for_each(|(key, value)| blur(value, key)),
        value if depends => *value = Value::String("…".to_owned()),
        _ => {}
    }
}

/// What the model asks for and does not get is said to people and to programs.
#[test]
fn keys_of_the_generation_configuration_that_are_not_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    copy_files(&demo_dir(), dir.path());
    let path = dir.path().join("generation_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["epsilon_cutoff"] = 3e-4.into();
    config["min_length"] = 0.into();
    fs::write(&path, config.to_string()).unwrap();
    let model = dir.path().to_str().unwrap();
    let args = ["--prompt", "a", "--max-tokens", "1", "--json", "--memory", "300MB"];
    let output = flash_moe(&[&["run", model], &args[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let value: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let warning = value["warnings"][0].as_str().unwrap();
    assert!(warning.contains("asks for epsilon_cutoff, which"), "{warning}");
    assert!(stderr(&output).contains(&format!("warning: {warning}")), "{}", stderr(&output));

    config["top_k"] = (-1).into();
    fs::write(&path, config.to_string()).unwrap();
    let output = flash_moe(&[&["run", model], &args[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("generation_config.json: `top_k` is -1, expected"), "{message}");
}
