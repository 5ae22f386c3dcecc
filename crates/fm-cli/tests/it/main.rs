//! The program as a user meets it.
#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![cfg_attr(not(target_os = "linux"), allow(unused_imports))] // some tests are of one system

mod answers;
mod bench;
mod ceiling;
mod containers;
mod errors;
mod eval;
mod help;
mod hub;
mod inputs;
mod packed;
mod paths;
mod profile;
mod report;
mod serve;
mod serving;
mod signals;

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use fm_testkit::golden::workspace_dir;

/// Runs the program in the root of the workspace, with a home of its own.
fn flash_moe(args: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    program(home.path()).args(args).output().unwrap()
}

/// The program in the root of the workspace, with a home of its own and nobody who types.
fn program(home: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_flash-moe"));
    program.current_dir(workspace_dir()).env_clear().env("HOME", home).stdin(Stdio::null());
    program
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
