//! Help is documentation: a change of it is looked at.

use crate::{flash_moe, stdout};

#[test]
fn help_of_every_command() {
    for command in [
        "",
        "pull",
        "list",
        "rm",
        "run",
        "serve",
        "plan",
        "inspect",
        "convert",
        "verify",
        "bench",
        "logits",
        "eval",
        "synth",
        "profile",
        "profile record",
        "profile replay",
    ] {
        let args: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let output = flash_moe(&args);
        assert!(output.status.success());
        let name = if command.is_empty() { "flash-moe" } else { command };
        insta::assert_snapshot!(format!("help_{}", name.replace(' ', "_")), stdout(&output));
    }
}

#[test]
fn the_version_says_commit_and_cpu() {
    let text = stdout(&flash_moe(&["--version"]));
    assert!(text.starts_with("flash-moe 0.1.0 ("), "{text}");
    assert!(text.contains("\ncpu: ") && text.contains("\nfeatures: "), "{text}");
}
