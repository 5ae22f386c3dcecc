//! The command line: flags in, text out. Everything else is in the crates below.
#![forbid(unsafe_code)]

mod cmd;
mod config;
mod console;
mod flags;
mod hub;
mod input;
mod places;
mod results;
mod signals;
mod version;

use std::process::ExitCode;

/// Failure of the work; usage errors are clap's and end with 2.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let matches = cmd::command().get_matches();
    match cmd::dispatch(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if console::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<console::Interrupted>() => {
            console::say!("{error}");
            ExitCode::from(console::INTERRUPTED)
        }
        Err(error) => {
            console::say!("error: {error:#}");
            if let Some(hint) = console::hint(&error) {
                console::say!("hint: {hint}");
            }
            ExitCode::from(if error.is::<flags::Usage>() {
                2
            } else if console::interrupted() {
                console::INTERRUPTED
            } else {
                FAILED
            })
        }
    }
}
