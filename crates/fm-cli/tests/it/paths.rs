//! Names of files and directories that are not what they should be.

use std::{ffi::OsStr, fs, path::Path};

use fm_testkit::golden::{copy_files, demo_dir, golden_dir};

use crate::{flash_moe, program, stderr, stdout};

/// A name that is no text.
#[cfg(unix)]
fn no_text() -> &'static OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(b"d\xe9mo")
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_text_is_printed_as_far_as_it_can_be() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join(no_text());
    fs::create_dir(&model).unwrap();
    copy_files(&demo_dir(), &model);
    for more in [&["--record", "--json"] as &[&str], &["--json"]] {
        let output = program(home.path()).arg("verify").arg(&model).args(more).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert!(value["model"].as_str().unwrap().ends_with("d\u{fffd}mo"), "{value}");
    }
    let listed =
        program(home.path()).args(["list", "--json"]).env("HF_HUB_CACHE", &model).output().unwrap();
    assert!(listed.status.success(), "{}", stderr(&listed));
}

#[cfg(unix)]
#[test]
fn a_prompt_is_read_from_a_file_whatever_its_name() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(no_text());
    fs::write(&file, "Hi").unwrap();
    let run = |more: &[&OsStr]| {
        let mut command = program(home.path());
        command.args(["run", "models/demo", "--max-tokens", "1", "--memory", "300MB"]);
        let output = command.args(more).stdin(fs::File::open(&file).unwrap()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    };
    run(&["--prompt-file".as_ref(), file.as_os_str()]);
    run(&["--prompt".as_ref(), "x".as_ref(), "--system".as_ref(), file.as_os_str()]);
    run(&["--prompt".as_ref(), "x".as_ref(), "--system".as_ref(), "-".as_ref()]);
}

fn refusal(args: &[&str]) -> String {
    let output = flash_moe(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    stderr(&output)
}

#[test]
fn a_file_that_is_no_model_says_what_to_give() {
    for file in ["models/demo/model.safetensors", "models/demo/config.json", "README.md"] {
        let said = refusal(&["run", file, "--prompt", "x"]);
        assert!(said.contains(&format!("error: {file} is neither a directory")), "{said}");
        assert!(said.contains("hint: give the directory"), "{said}");
        assert!(refusal(&["verify", file]).contains("hint: give the directory"));
    }
}

#[test]
fn a_path_to_nothing_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for command in [
        &["run", "/nope", "--prompt", "x"] as &[&str],
        &["inspect", "/nope"],
        &["verify", "/nope"],
        &["convert", "/nope", out.to_str().unwrap()],
    ] {
        let said = refusal(command);
        assert!(said.contains("error: /nope does not exist"), "{said}");
        assert!(said.contains("hint: "), "{said}");
    }
}

#[test]
fn a_gguf_file_is_known_by_its_first_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, named) = (dir.path().join("x.bin"), dir.path().join("x.gguf/"));
    fs::copy(golden_dir("qwen3_moe").join("q8_0.gguf"), &plain).unwrap();
    fs::copy(&plain, dir.path().join("x.gguf")).unwrap();
    for file in [plain, named] {
        let (file, home) = (file.to_str().unwrap(), dir.path());
        let run = |args: &[&str]| {
            let output = program(home).args(args).output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        };
        run(&["inspect", file]);
        run(&["run", file, "--prompt", "Hi", "--raw", "--max-tokens", "1", "--memory", "300MB"]);
        run(&["verify", "--record", file]);
        run(&["verify", file]);
    }
}

#[test]
fn what_macos_leaves_beside_files_is_no_model() {
    let dir = tempfile::tempdir().unwrap();
    let [plain, gguf] = ["plain", "gguf"].map(|name| dir.path().join(name));
    fs::create_dir(&plain).unwrap();
    fs::create_dir(&gguf).unwrap();
    copy_files(&demo_dir(), &plain);
    fs::copy(golden_dir("qwen3_moe").join("q8_0.gguf"), gguf.join("x.gguf")).unwrap();
    for (model, beside) in [(plain, "._model.safetensors"), (gguf, "._x.gguf")] {
        fs::write(model.join(beside), "\0\x05\x16\x07\0\x02\0\0Mac OS X        ").unwrap();
        let output = program(dir.path()).arg("inspect").arg(&model).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn an_empty_home_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let model = fs::canonicalize(demo_dir()).unwrap();
    let output = program(Path::new(""))
        .args(["run", model.to_str().unwrap(), "--prompt", "Hi", "--max-tokens", "1"])
        .args(["--memory", "300MB"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written where it stood");
}
