//! One line, a hint, an exit code; never a panic.

use std::{fs, path::Path};

use fm_testkit::golden::{copy_files, demo_dir, golden_dir};

use crate::{flash_moe, program, stderr, stdout};

/// Exit code and stderr of an invocation that must fail, with the temporary directory named `TMP`.
fn failure(args: &[&str], directory: Option<&Path>) -> String {
    let output = flash_moe(args);
    assert!(!output.status.success(), "{args:?}");
    let text = stderr(&output);
    assert!(!text.contains("panicked"), "{text}");
    let code = output.status.code().unwrap();
    let text = format!("$ flash-moe {}\n{text}[{code}]\n", args.join(" "));
    match directory {
        Some(directory) => text.replace(&*directory.to_string_lossy(), "TMP"),
        None => text,
    }
}

#[test]
fn usage_and_models_that_do_not_fit() {
    let invocations: &[&[&str]] = &[
        &["run"],
        &["run", "models/demo", "--io", "mmap"],
        &["run", "models/demo", "--prompt", "x", "--threads", "0"],
        &["run", "models/demo", "--prompt", "x", "--threads", "5000"],
        &["run", "models/demo", "--prompt", "x", "--prefill-chunk", "18446744073709551615"],
        &["run", "models/demo", "--prompt", "x", "--prefill-chunk", "1048576", "--memory", "1GB"],
        &["bench", "models/demo", "--context-at", "4294967200", "--memory", "300MB"],
        &["bench", "models/demo", "--repeats", "18446744073709551615", "--memory", "300MB"],
        &["bench", "models/demo", "--turns", "18446744073709551615", "--memory", "300MB"],
        &["bench", "models/demo", "--sessions", "18446744073709551615"],
        &["run", "models/demo", "--prompt", "x", "--memory", "lots"],
        &["run", "models/demo", "--prompt", "x", "--top-p", "2"],
        &["run", "models/demo", "--prompt", "x", "--slots", "1"],
        &["run", "models/demo", "--prompt-tokens", "1,2,3", "--context", "2"],
        &["run", "models/demo", "--prompt-tokens", "1", "--think"],
        &["run", "models/demo", "--prompt", "x", "--raw", "--no-think"],
        &["run", "models/demo", "--prompt", "x", "--think-min", "5", "--think-budget", "2"],
        &["run", "models/demo", "--prompt", "x", "--greedy", "--temperature", "0.7"],
        &["run", "models/demo", "--prompt", "x", "--session", "missing/talk"],
        &["run", "models/demo", "--prompt", "x", "--device", "reference", "--numerics", "int8"],
        &["bench", "models/demo", "--io-only", "--prefill", "4"],
        &["bench", "models/demo", "--prefill", "100000"],
        &["bench", "models/demo", "--decode", "8", "--context", "20"],
        &["eval", "models/demo", "--text", "README.md", "--tokens", "0"],
        &["profile", "record", "models/demo", "--prompt-file", "/dev/null", "--out", "/nowhere/x"],
        &["logits", "models/demo", "--prompt-tokens", "", "--out", "/nowhere/x"],
        &["rm", "org/typo", "--yes"],
        &["run", "models/demo", "--prompt", "x", "--temperature", "-1"],
        &["run", "models/demo", "--prompt", "x", "--max-tokens", "-1"],
        &["run", "models/demo", "x", "--prompt", "x"],
        &["run", "models/nothing", "--prompt", "x"],
        &["run", "models/demo", "--prompt", "", "--memory", "300MB"],
        &["run", "models/demo", "--prompt", "x", "--memory", "9MB"],
        &["run", "models/demo", "--prompt", "x", "--context", "999999"],
        &["run", "models/demo", "--prompt-tokens", "1,2048", "--memory", "300MB"],
        &["run", "models/demo", "--prompt-tokens", "1,x"],
        &["run", "models/demo", "--prompt", "x", "--k", "99"],
        &["run", "models/demo", "--prompt", "x", "--device", "cpu", "--numerics", "reference"],
        &["run", "golden/qwen3_moe/hf", "--prompt", "x", "--memory", "300MB"],
        &[
            "logits",
            "models/demo",
            "--prompt-tokens",
            "1",
            "--out",
            "/nowhere/x",
            "--memory",
            "300MB",
        ],
    ];
    let all: Vec<String> = invocations.iter().map(|args| failure(args, None)).collect();
    let home = vec![(r"/\S*/\.tmp\w+", "HOME")];
    insta::with_settings!({ filters => home }, {
        insta::assert_snapshot!("usage_and_models_that_do_not_fit", all.join("\n"));
    });
}

/// A copy of the demonstration model with one thing changed.
fn damaged(change: impl FnOnce(&std::path::Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    copy_files(&demo_dir(), dir.path());
    change(dir.path());
    failure(
        &["run", &dir.path().to_string_lossy(), "--prompt", "x", "--memory", "300MB"],
        Some(dir.path()),
    )
}

fn edit_config(dir: &std::path::Path, from: &str, to: &str) {
    let path = dir.join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "the configuration has {from}");
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

#[test]
fn damaged_checkpoints() {
    let weights = "model.safetensors";
    let refusing = "{{ raise_exception('say more than\\n' ~ messages[0].content) }}";
    let all = [
        damaged(|dir| fs::remove_file(dir.join(weights)).unwrap()),
        damaged(|dir| {
            let file = fs::OpenOptions::new().write(true).open(dir.join(weights)).unwrap();
            file.set_len(5_000_000).unwrap();
        }),
        damaged(|dir| fs::write(dir.join(weights), [255; 64]).unwrap()),
        damaged(|dir| fs::write(dir.join("config.json"), "{").unwrap()),
        damaged(|dir| edit_config(dir, "\"qwen3_5_moe\"", "\"qwen9\"")),
        damaged(|dir| edit_config(dir, "\"bits\": 4", "\"bits\": 5")),
        damaged(|dir| edit_config(dir, "\"num_hidden_layers\": 8", "\"num_hidden_layers\": 7")),
        damaged(|dir| fs::write(dir.join("tokenizer.json"), "{}").unwrap()),
        damaged(|dir| fs::write(dir.join("chat_template.jinja"), "{% if %}").unwrap()),
        damaged(|dir| fs::write(dir.join("chat_template.jinja"), refusing).unwrap()),
    ];
    insta::assert_snapshot!("damaged_checkpoints", all.join("\n"));
}

/// The tiny GGUF model with some bytes replaced by as many others.
fn damaged_gguf(from: &str, to: &str) -> String {
    let mut bytes = fs::read(golden_dir("qwen3_moe").join("q8_0.gguf")).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    bytes.splice(at..at + from.len(), to.bytes());
    failing_gguf(&bytes)
}

fn failing_gguf(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let args = ["run", &path.to_string_lossy(), "--prompt", "x", "--memory", "300MB"];
    failure(&args, Some(dir.path())).replace("TMP/model.gguf", "model.gguf")
}

#[test]
fn damaged_gguf_files() {
    let whole = fs::read(golden_dir("qwen3_moe").join("q8_0.gguf")).unwrap();
    let all = [
        failing_gguf(&whole[..whole.len() / 2]),
        failing_gguf(&whole[..4000]),
        damaged_gguf("GGUF\x03", "GGUF\x07"),
        damaged_gguf("qwen3moe", "qwen9moe"),
        damaged_gguf("qwen3moe.expert_count", "qwen3moe.expert_bribe"),
        damaged_gguf("qwen35", "qwen39"),
        damaged_gguf("tokenizer.ggml.padding_token_id", "tokenizer.ggml.padding_token_up"),
        damaged_gguf("blk.0.attn_k.weight", "blk.0.attn_x.weight"),
    ];
    insta::assert_snapshot!("damaged_gguf_files", all.join("\n"));
}

#[test]
fn more_slots_than_bytes_can_be_counted_are_all_there_is_room_for() {
    let plan = |slots: &[&str]| {
        let args = ["plan", "models/demo", "--memory", "300MB", "--threads", "2", "--json"];
        let output = flash_moe(&[&args, slots].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let plan: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        plan["slots"].as_u64().unwrap()
    };
    assert_eq!(plan(&["--slots", "18446744073709551615"]), plan(&[]));
}

/// Where stderr takes nothing, the work and its exit code are as ever.
#[cfg(target_os = "linux")]
#[test]
fn a_stderr_that_is_full_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let dump = dir.path().join("dump");
    let heldout = "tools/demo-model/heldout.txt";
    let commands = [
        (&["run", "models/nothing", "--prompt", "x"] as &[&str], 1),
        (&["run", "models/demo", "--prompt", "What is the capital of Japan?"], 0),
        (&["list"], 0),
        (
            &[
                "eval",
                "models/demo",
                "--text",
                heldout,
                "--tokens",
                "40",
                "--dump",
                dump.to_str().unwrap(),
            ],
            0,
        ),
    ];
    for (command, code) in commands {
        let home = tempfile::tempdir().unwrap();
        let full = fs::File::create("/dev/full").unwrap();
        let output = program(home.path()).args(command).stderr(full).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command:?}: {}", stdout(&output));
    }
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    for args in [
        &["bench", "models/demo", "--verify", "--prefill", "8"] as &[&str],
        &["bench", "models/demo", "--layer", "3", "--decode", "2"],
        &["bench", "models/demo", "--io-only", "--verify"],
        &["bench", "models/demo", "--turns", "1", "--layer", "7"],
        &["serve", "models/demo", "--greedy", "--temperature", "1", "--port", "0"],
        &["run", "models/demo", "--prompt-tokens", "1,,2"],
    ] {
        let output = flash_moe(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    }
}

/// The least memory that a refusal names.
fn least_memory(args: &[&str]) -> String {
    let refused = stderr(&flash_moe(&[args, &["--memory", "1MB"]].concat()));
    let (_, least) = refused.split_once("needs at least ").unwrap();
    least.split_once(" (").unwrap().0.to_owned()
}

/// As it is printed, it is enough.
#[test]
fn the_memory_that_is_asked_for_is_enough() {
    for model in ["models/demo", "golden/deepseek_v3/bf16.gguf", "golden/mixtral/bf16.gguf"] {
        let least = least_memory(&["plan", model]);
        let output = flash_moe(&["plan", model, "--memory", &least]);
        assert!(output.status.success(), "{model}: {least}: {}", stderr(&output));
    }
}

/// A server takes more than `run`; its plan is the one that it uses.
#[test]
fn a_server_is_planned_before_it_is_started() {
    let prompts = tempfile::tempdir().unwrap();
    let serve =
        ["serve", "models/demo", "--port", "0", "--prefix-cache", prompts.path().to_str().unwrap()];
    for (sessions, planned) in [(&[] as &[&str], 1), (&["--sessions", "3"], 3)] {
        let plan = [&["plan", "models/demo", "--serve"], sessions].concat();
        let refused = stderr(&flash_moe(&[&*plan, &["--memory", "50MB"]].concat()));
        assert_eq!(refused.contains("or lower --sessions, "), planned > 1, "{refused}");
        let least = least_memory(&plan);
        assert_eq!(least, least_memory(&[&serve[..], sessions].concat()));
        let output = flash_moe(&[&*plan, &["--memory", &least, "--json"]].concat());
        let plan: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(plan["sessions"], planned);
    }
}

/// What grows without an end, as `/dev/zero` does, ends here.
#[test]
fn texts_have_a_longest_length() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("long.txt");
    fs::File::create(&long).unwrap().set_len((64 << 20) + 1).unwrap();
    let long = long.to_str().unwrap();
    for args in [
        &["run", "models/demo", "--prompt-file", long] as &[&str],
        &["run", "models/demo", "--prompt", "x", "--json-schema", long],
        &["eval", "models/demo", "--text", long],
    ] {
        let refused = stderr(&flash_moe(args));
        assert!(refused.contains("is longer than 67.11 MB: give a part of it"), "{refused}");
    }
}

#[test]
fn a_step_has_a_row_for_every_session() {
    let rows = ["--sessions", "9", "--prefill-chunk", "8"];
    for command in [&["plan", "models/demo", "--serve"] as &[&str], &["bench", "models/demo"]] {
        let output = flash_moe(&[command, &rows].concat());
        assert!(!output.status.success());
        let refused = stderr(&output);
        assert!(refused.contains("--prefill-chunk 8 is less than the 9 sessions"), "{refused}");
    }
    let few = ["plan", "models/demo", "--serve", "--sessions", "9", "--context", "4"];
    assert!(flash_moe(&few).status.success());
}

/// `flash-moe plan … | head -1`, with a reader that has gone before the first line.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let commands = [
        &["plan", "models/demo"] as &[&str],
        &["plan", "models/demo", "--json"],
        &["inspect", "models/demo"],
        &["inspect", "models/demo", "--json"],
        &["run", "models/demo", "--prompt-tokens", "5,6", "--max-tokens", "2", "--quiet"],
        &["eval", "models/demo", "--text", "tools/demo-model/heldout.txt", "--tokens", "40"],
    ];
    for command in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let home = tempfile::tempdir().unwrap();
        let output = program(home.path()).args(command).stdout(writer).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.success() && !said.contains("panicked"), "{command:?}: {said}");
    }
}
