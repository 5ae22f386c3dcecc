//! What the log and the metrics say of those who leave.

use serde_json::json;

use crate::{
    client::{get, send},
    harness::{start, until},
};

fn number(line: &str, name: &str) -> f64 {
    let (_, rest) = line.split_once(&format!(" {name}=")).unwrap();
    let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    rest[..digits.unwrap_or(rest.len())].parse().unwrap()
}

#[test]
fn who_leaves_has_had_what_was_written_until_then() {
    let server = start(1);
    for (thinks, body) in [
        (false, json!({"thinking": {"type": "disabled"}})),
        (true, json!({"thinking": {"type": "enabled", "budget_tokens": 600}, "thinking_min": 600})),
    ] {
        let mut body = body;
        // Long enough, and read for the first time: no time in the log is less than a millisecond.
        let whom = if thinks { "an owl" } else { "a fox" };
        let asked = format!("Write a long story about {whom}. ").repeat(30);
        body["messages"] = json!([{"role": "user", "content": asked}]);
        body["max_tokens"] = 600.into();
        body["stream"] = true.into();
        let before = server.log.lock().unwrap().len();
        let mut leaves = send(server.at, "POST /v1/messages", &[], &body.to_string());
        for _ in 0..40 {
            leaves.until("_delta\"");
        }
        drop(leaves);
        until(|| server.log.lock().unwrap().len() > before);
        let line = server.log.lock().unwrap().pop().unwrap();
        assert!(line.ends_with("finish=gone"), "{line}");
        for name in ["written", "prefill", "ttft", "decode", "hits"] {
            assert!(number(&line, name) > 0.0, "{name}: {line}");
        }
        let metrics = get(server.at, "/metrics").body;
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse::<f64>().unwrap()
        };
        assert_eq!(value("flash_moe_thinking_tokens_total") > 0.0, thinks);
        assert_eq!(value("flash_moe_first_token_seconds_count"), if thinks { 2.0 } else { 1.0 });
        assert_eq!(value("flash_moe_token_seconds_count"), if thinks { 2.0 } else { 1.0 });
    }
}
