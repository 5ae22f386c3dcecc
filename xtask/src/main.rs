//! `cargo xtask`: the chores of this workspace.
//!
//! - `tidy` checks the architecture: who imports whom, sizes, names, where `unsafe` may stand.
//! - `ci` runs everything that has to pass before a change lands.
#![allow(clippy::print_stderr, clippy::print_stdout)]

mod ci;
mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(),
        Some("ci") => ci::run(),
        other => {
            eprintln!("unknown chore {other:?}; there are: tidy, ci");
            ExitCode::from(2)
        }
    }
}
