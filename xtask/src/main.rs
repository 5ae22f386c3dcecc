//! `cargo xtask`: the chores of this workspace.
//!
//! - `tidy` checks the architecture: who imports whom, sizes, names, where `unsafe` may stand.
//! - `ci` runs everything that has to pass before a change lands: `lint`, which runs nothing of it, and `test`.
//! - `loom` goes through the orders in which threads of the pool, and users of a slot, take their steps.
//! - `arm` tests the kernels of 64-bit Arm, emulated.
//! - `soak` keeps a server busy with difficult clients, half an hour unless told.
//! - `mutants` plants every classic mistake and demands a red test for each.
#![allow(clippy::print_stderr, clippy::print_stdout)]

mod ci;
mod mutants;
mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first().map(|(chore, rest)| (chore.as_str(), rest)) {
        Some(("tidy", [])) => tidy::run(),
        Some(("ci", [])) => ci::run(),
        Some(("lint", [])) => ci::lint(),
        Some(("test", [])) => ci::test(),
        Some(("loom", [])) => ci::loom(),
        Some(("arm", [])) => ci::arm(),
        Some(("soak", seconds @ ([] | [_]))) => ci::soak(seconds.first()),
        Some(("mutants", names)) => mutants::run(names),
        _ => {
            eprintln!(
                "unknown chore {arguments:?}; there are: tidy, ci, lint, test, loom, arm, soak [SECONDS], mutants [--list] [NAME...]"
            );
            ExitCode::from(2)
        }
    }
}
