//! The program as a user meets it.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod answers;
mod bench;
mod ceiling;
mod containers;
mod errors;
mod eval;
mod help;
mod hub;
mod packed;
mod profile;
mod report;
mod serve;

use std::process::{Command, Output, Stdio};

use fm_testkit::golden::workspace_dir;

/// Runs the program in the root of the workspace, with a home of its own.
fn flash_moe(args: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_flash-moe"))
        .args(args)
        .current_dir(workspace_dir())
        .env_clear()
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
