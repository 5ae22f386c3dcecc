//! Tells the binary which commit it was built from.

use std::process::Command;

fn main() {
    let describe =
        Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let commit = describe.ok().filter(|output| output.status.success());
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let commit = commit.unwrap_or_else(|| "unknown commit".to_owned());
    println!("cargo::rustc-env=FLASH_MOE_COMMIT={commit}");
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
}
