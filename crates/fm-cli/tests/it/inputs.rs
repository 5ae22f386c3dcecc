//! What a user gives: prompts by a pipe, text of a given form, options given twice.

use std::{io::Write, process::Stdio};

use serde_json::Value;

use crate::{flash_moe, program, stderr, stdout};

const RUN: [&str; 10] = [
    "run",
    "models/demo",
    "--memory",
    "300MB",
    "--threads",
    "1",
    "--context",
    "512",
    "--greedy",
    "--quiet",
];
const QUESTION: &str = "What is the capital of Japan?";

fn run(args: &[&str]) -> String {
    let output = flash_moe(&[&RUN, args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn text_of_a_given_form_that_is_no_turn_has_no_thought() {
    // Where a turn begins, this model would think.
    let begun = "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\n";
    let raw = ["--raw", "-p", begun, "--regex", "(yes|no)", "--max-tokens", "4"];
    let answer = run(&raw);
    assert!(["yes\n", "no\n"].contains(&answer.as_str()), "{answer}");
}

#[test]
fn what_a_shell_pipes_in_ends_without_its_line() {
    let home = tempfile::tempdir().unwrap();
    let mut piped = program(home.path());
    piped.args(RUN).args(["--max-tokens", "1", "--json"]).stdin(Stdio::piped());
    let mut child = piped.stdout(Stdio::piped()).spawn().unwrap();
    write!(child.stdin.take().unwrap(), "{QUESTION}\r\n").unwrap();
    let prompt = |json: &str| {
        let told: Value = serde_json::from_str(json).unwrap();
        told["prompt_tokens"].clone()
    };
    let piped = stdout(&child.wait_with_output().unwrap());
    assert_eq!(prompt(&piped), prompt(&run(&[QUESTION, "--max-tokens", "1", "--json"])));
}

#[test]
fn the_last_of_two_options_counts() {
    let asked = |more: &[&str]| run(&[&[QUESTION, "--no-think"], more].concat());
    let [one, many] = ["1", "9"].map(|max| asked(&["--max-tokens", max]));
    assert_ne!(one, many);
    assert_eq!(asked(&["--max-tokens", "1", "--max-tokens", "9"]), many);
}

#[test]
fn shells_have_scripts_that_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&flash_moe(&["completions", shell]));
        for word in ["serve", "convert", "completions", "max-tokens"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}
