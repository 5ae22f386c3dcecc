//! `docs/report.schema.json` knows every reason for which a text ends.

use std::{fs, iter};

use fm_engine::generate::FinishReason;
use fm_testkit::golden::workspace_dir;
use serde_json::Value;

/// The next of all reasons: who adds one meets it here.
fn next(reason: &FinishReason) -> Option<FinishReason> {
    Some(match reason {
        FinishReason::Stop => FinishReason::StopString(0),
        FinishReason::StopString(_) => FinishReason::Length,
        FinishReason::Length => FinishReason::Context,
        FinishReason::Context => FinishReason::Repetition,
        FinishReason::Repetition => FinishReason::Noise,
        FinishReason::Noise => FinishReason::Deadline,
        FinishReason::Deadline => FinishReason::Grammar,
        FinishReason::Grammar => FinishReason::Cancelled,
        FinishReason::Cancelled => return None,
    })
}

#[test]
fn the_document_has_every_reason_for_an_end() {
    let schema = fs::read(workspace_dir().join("docs/report.schema.json")).unwrap();
    let schema: Value = serde_json::from_slice(&schema).unwrap();
    let described = &schema["properties"]["finish_reason"];
    let mut names: Vec<&str> =
        iter::successors(Some(FinishReason::Stop), next).map(FinishReason::name).collect();
    names.dedup();
    assert_eq!(described["enum"], Value::from(names.clone()));
    let description = described["description"].as_str().unwrap();
    assert!(names.iter().all(|name| description.contains(&format!("`{name}`"))), "{description}");
}
