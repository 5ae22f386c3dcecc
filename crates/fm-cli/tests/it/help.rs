//! Help is documentation: a change of it is looked at.

use crate::{flash_moe, stderr, stdout};

/// The help of a command and of all below it.
fn look_at(command: &[&str]) {
    let output = flash_moe(&[command, &["--help"]].concat());
    assert!(output.status.success());
    let (name, text) = (command.join("_"), stdout(&output));
    let name = if name.is_empty() { "flash-moe" } else { &name };
    insta::assert_snapshot!(format!("help_{name}"), text);
    let below = text.split_once("\nCommands:\n").map_or("", |(_, rest)| rest).lines();
    let below = below.take_while(|line| !line.is_empty()).filter_map(|line| {
        // What a command does may go on in lines that are set in further.
        line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split(' ').next()
    });
    below.filter(|name| *name != "help").for_each(|name| look_at(&[command, &[name]].concat()));
}

#[test]
fn help_of_every_command() {
    look_at(&[]);
}

#[test]
fn the_version_says_commit_and_cpu() {
    let text = stdout(&flash_moe(&["--version"]));
    assert!(text.starts_with("flash-moe 0.1.0 ("), "{text}");
    assert!(text.contains("\ncpu: ") && text.contains("\nfeatures: "), "{text}");
}

#[test]
fn negative_numbers_are_values_in_every_command() {
    for words in ["run m --max-tokens -1", "profile record m --threads -1", "bench m --decode -1"] {
        let refused = flash_moe(&words.split(' ').collect::<Vec<_>>());
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(!said.contains("unexpected argument"), "{said}");
    }
}
