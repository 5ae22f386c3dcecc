//! Names of files and directories that are not what they should be.

use std::{ffi::OsStr, fs};

use fm_testkit::golden::{copy_files, demo_dir};

use crate::{program, stderr, stdout};

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
