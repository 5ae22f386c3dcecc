//! `convert` and `verify`, and that a container answers with the same bits.

use std::{
    fs::{self, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::Path,
};

use serde_json::Value;

use crate::{flash_moe, program, stderr, stdout};

fn logits_hash(model: &str, more: &[&str]) -> String {
    let args = [
        "run",
        model,
        "--prompt",
        "Tell me about Peru.",
        "--greedy",
        "--max-tokens",
        "30",
        "--json",
        "--memory",
        "300MB",
        "--threads",
        "2",
        "--context",
        "512",
    ];
    let output = flash_moe(&[&args, more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let value: Value = serde_json::from_str(&stdout(&output)).unwrap();
    value["report"]["logits_hash"].as_str().unwrap().to_owned()
}

fn flip_a_bit(file: &Path, at: u64) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at as usize] ^= 8;
    let mut file = OpenOptions::new().write(true).open(file).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&bytes[at as usize..=at as usize]).unwrap();
}

#[test]
fn a_container_has_the_same_bits_and_notices_a_wrong_one() {
    let dir = tempfile::tempdir().unwrap();
    let container = dir.path().join("pebble");
    let container = container.to_str().unwrap();
    let converted = flash_moe(&["convert", "models/demo", container]);
    assert!(converted.status.success(), "{}", stderr(&converted));
    assert!(stderr(&converted).contains("wrote 7.83 MB"), "{}", stderr(&converted));
    let again = flash_moe(&["convert", "models/demo", container]);
    assert!(stderr(&again).contains("was complete already"), "{}", stderr(&again));

    let want = logits_hash("models/demo", &[]);
    assert_eq!(logits_hash(container, &[]), want);
    assert_eq!(logits_hash(container, &["--slots", "4", "--io", "direct"]), want);
    assert_eq!(logits_hash("models/demo", &["--slots", "4", "--prefill-chunk", "3"]), want);

    let verified = flash_moe(&["verify", container]);
    assert!(verified.status.success());
    assert!(stderr(&verified).contains(" 7.83 MB in all"), "{}", stderr(&verified));
    flip_a_bit(&dir.path().join("pebble/experts/layer-003.bin"), 70_000);
    let verified = flash_moe(&["verify", container]);
    assert_eq!(verified.status.code(), Some(1));
    let message = stderr(&verified);
    assert!(message.contains("layer-003.bin: layer 3 expert 2, down, at byte 65536"), "{message}");
    assert!(message.contains("hint: check the disk"), "{message}");

    let prompt = ["--prompt", "Tell me about Peru.", "--memory", "300MB", "--greedy"];
    let spoiled = flash_moe(&[&["run", container], prompt.as_slice()].concat());
    assert_eq!(spoiled.status.code(), Some(1));
    let message = stderr(&spoiled);
    assert!(message.contains("layer 3 expert 2 is corrupt"), "{message}");
    assert!(message.contains("hint: "), "{message}");
}

#[test]
fn what_a_container_lacks_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let container = dir.path().join("pebble");
    let convert = || {
        let output = flash_moe(&["convert", "models/demo", container.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    convert();
    let manifest = fs::read(container.join("manifest.json")).unwrap();
    flip_a_bit(&container.join("experts/layer-003.bin"), 70_000);
    let said = stderr(&flash_moe(&["run", container.to_str().unwrap(), "--prompt", "Hello?"]));
    assert!(said.contains("delete this file"), "{said}");
    // As the hint says.
    fs::remove_file(container.join("experts/layer-003.bin")).unwrap();
    fs::write(container.join("tokenizer.json"), "{").unwrap();
    let said = convert();
    assert!(said.contains("of it stood there from before"), "{said}");
    assert!(convert().contains("was complete already"));
    assert_eq!(fs::read(container.join("manifest.json")).unwrap(), manifest);
    let verified = flash_moe(&["verify", container.to_str().unwrap()]);
    assert!(verified.status.success(), "{}", stderr(&verified));
}

/// Where the bytes of a tensor of a safetensors file begin.
fn start_of(file: &Path, tensor: &str) -> u64 {
    let bytes = fs::read(file).unwrap();
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_bytes as usize]).unwrap();
    8 + header_bytes + header[tensor]["data_offsets"][0].as_u64().unwrap()
}

#[test]
fn a_wrong_bit_of_the_trunk_is_an_error_before_any_token() {
    let dir = tempfile::tempdir().unwrap();
    let container = dir.path().join("pebble");
    assert!(flash_moe(&["convert", "models/demo", container.to_str().unwrap()]).status.success());
    let trunk = container.join("trunk.safetensors");
    // Read as a whole, some rows at a time, and as a vector.
    let layer = "language_model.model.layers.3.";
    for tensor in [
        "language_model.model.embed_tokens.weight".to_owned(),
        format!("{layer}self_attn.q_proj.scales"),
        format!("{layer}self_attn.q_norm.weight"),
    ] {
        let at = start_of(&trunk, &tensor) + 1;
        flip_a_bit(&trunk, at);
        let output =
            flash_moe(&["run", container.to_str().unwrap(), "-p", "Hi", "--memory", "300MB"]);
        flip_a_bit(&trunk, at);
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
        let message = stderr(&output);
        assert!(message.contains(&format!("tensor {tensor} in ")), "{message}");
        assert!(message.contains(" is corrupt: ") && message.contains("hint: "), "{message}");
    }
    let mended = ["run", container.to_str().unwrap(), "-p", "Hi", "--memory", "300MB"];
    assert!(flash_moe(&mended).status.success());
}

#[test]
fn a_gguf_file_runs_and_its_container_has_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let container = dir.path().join("tiny");
    let container = container.to_str().unwrap();
    for family in ["qwen3_moe", "qwen3_5_moe"] {
        let file = format!("golden/{family}/q8_0.gguf");
        let want = logits_hash(&file, &[]);
        assert_eq!(logits_hash(&file, &["--slots", "2", "--prefill-chunk", "3"]), want);
        let _ = fs::remove_dir_all(container);
        assert!(flash_moe(&["convert", &file, container]).status.success());
        assert_eq!(logits_hash(container, &["--slots", "2"]), want, "{family}");
        assert!(flash_moe(&["verify", container]).status.success());
    }
    flip_a_bit(&dir.path().join("tiny/metadata.gguf"), 5000);
    assert_eq!(flash_moe(&["verify", container]).status.code(), Some(1));
    // What is wrong is wrong, whether or not anybody reads it.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = program(dir.path()).args(["verify", container, "--json"]).stdout(writer).output();
    assert_eq!(unread.unwrap().status.code(), Some(1));
}

#[test]
fn a_model_without_checksums_says_how_to_get_them() {
    let output = flash_moe(&["verify", "models/demo"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("hint: `flash-moe verify --record MODEL`"));
}

/// A number of the configuration is as good as a bit of a weight.
#[test]
fn an_edited_configuration_is_named_after_recording() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("model");
    fs::create_dir(&model).unwrap();
    for file in fs::read_dir(fm_testkit::golden::golden_dir("qwen3_moe").join("hf")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    let (config, model) = (model.join("config.json"), model.to_str().unwrap());
    let run = |args: &[&str]| program(home.path()).args(args).output().unwrap();
    let out = home.path().join("logits.safetensors");
    let out = ["--out", out.to_str().unwrap(), "--memory", "300MB"];
    let logits = || run(&[&["logits", model, "--prompt-tokens", "1,2,3"], &out[..]].concat());
    assert!(run(&["verify", model, "--record"]).status.success());
    assert!(logits().status.success(), "{}", stderr(&logits()));

    let mut value: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    value["rope_theta"] = 2e6.into();
    fs::write(&config, value.to_string()).unwrap();
    let verified = run(&["verify", model]);
    assert_eq!(verified.status.code(), Some(1));
    let message = stderr(&verified);
    assert!(message.contains("config.json: the file"), "{message}");
    assert!(message.contains("hint: if the change is meant"), "{message}");
    let refused = logits();
    assert_eq!(refused.status.code(), Some(1));
    let message = stderr(&refused);
    assert!(message.contains("config.json had other bytes when"), "{message}");
    assert!(message.contains("hint: ") && message.contains("verify --record"), "{message}");

    assert!(run(&["verify", model, "--record"]).status.success());
    assert!(logits().status.success(), "the edit is meant");
}

#[test]
fn checksums_of_other_files_are_no_secret() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("model");
    fs::create_dir(&model).unwrap();
    fm_testkit::golden::copy_files(&fm_testkit::golden::demo_dir(), &model);
    let run = |args: &[&str]| {
        let output = program(home.path()).args(args).args(["--memory", "300MB"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let model = model.to_str().unwrap();
    let answer = ["run", model, "--prompt-tokens", "5,6", "--max-tokens", "2"];
    let recorded = program(home.path()).args(["verify", model, "--record"]).output().unwrap();
    assert!(recorded.status.success(), "{}", stderr(&recorded));
    let said = run(&answer);
    assert!(said.contains("recorded checksums") && !said.contains("warning: "), "{said}");
    let weights = fs::File::options().append(true).open(Path::new(model).join("model.safetensors"));
    weights.unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let said = run(&answer);
    assert!(said.contains("warning: the checksums that were recorded of this model"), "{said}");
    assert!(said.contains("lengths only, as the recorded checksums"), "{said}");
}

/// Slots are padded; files are what people compare.
#[test]
fn sizes_are_those_of_the_files() {
    let home = tempfile::tempdir().unwrap();
    let json = |args: &[&str]| -> Value {
        let output = program(home.path()).args(args).arg("--json").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let megabytes = |bytes: &Value| (bytes.as_f64().unwrap() / 1e5).round() / 10.0;
    json(&["verify", "models/demo", "--record"]);
    let mut verified = json(&["verify", "models/demo"]);
    let root = fm_testkit::golden::demo_dir();
    let small = fm_format::container::COPIED
        .into_iter()
        .map(|name| fs::metadata(root.join(name)).map_or(0, |file| file.len()));
    verified["bytes"] = (verified["bytes"].as_u64().unwrap() - small.sum::<u64>()).into();
    let bench = ["bench", "models/demo", "--prefill", "8", "--repeats", "1", "--warm-up", "8"];
    let bench = json(&[&bench[..], &["--memory", "300MB"]].concat());
    let inspected = json(&["inspect", "models/demo"]);
    let sizes = [&verified["bytes"], &bench["about"]["model_bytes"], &inspected["bytes"]];
    assert_eq!(sizes.map(megabytes), [6.7; 3]);
}
