//! Everything that has to pass before a change lands, in the order of its cost.

use std::{
    env,
    process::{Command, ExitCode},
    time::Instant,
};

/// What reading finds, in the order of its cost. One profile for this and for the tests, so that two cores build
/// the dependencies once.
const LINT: &[&[&str]] = &[
    &["fmt", "--all", "--check"],
    &["xtask", "tidy"],
    // Planting all of them takes an hour; that each still has a place takes a second.
    &["xtask", "mutants", "--list"],
    // With the fuzz targets, whose library is not needed to check them.
    &[
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--features",
        "fm-fuzz/fuzzing",
        "--",
        "-D",
        "warnings",
    ],
    &["doc", "--release", "--workspace", "--no-deps", "--document-private-items"],
];

/// What needs tools of its own, or is run.
const TEST: &[&[&str]] = &[
    &["deny", "check", "bans", "licenses", "sources"],
    &["nextest", "run", "--release", "--workspace"],
    &["xtask", "loom"],
];

/// What all of them are told.
const SETTINGS: [(&str, &str); 2] =
    [("RUSTDOCFLAGS", "-D warnings"), ("CUSTOM_LIBFUZZER_PATH", "/not/linked.a")];

/// Whether a command does what it shall; says why it could not be started.
fn succeeds(command: &mut Command) -> bool {
    let status = command.status().inspect_err(|error| eprintln!("cannot start cargo: {error}"));
    status.is_ok_and(|status| status.success())
}

fn code(success: bool) -> ExitCode {
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether all steps succeed; the first that does not is the last.
fn all_succeed(steps: &[&[&str]]) -> bool {
    steps.iter().all(|step| {
        println!("== cargo {}", step.join(" "));
        let started = Instant::now();
        let done = succeeds(Command::new("cargo").args(*step).envs(SETTINGS));
        println!("== {} s", started.elapsed().as_secs());
        done
    })
}

/// Checks what needs no tool but those that come with Rust.
pub(crate) fn lint() -> ExitCode {
    code(all_succeed(LINT))
}

/// Everything else.
pub(crate) fn test() -> ExitCode {
    code(all_succeed(TEST))
}

/// Both.
pub(crate) fn run() -> ExitCode {
    code(all_succeed(LINT) && all_succeed(TEST))
}

/// Half an hour of the server's soak test, or so many seconds.
pub(crate) fn soak(seconds: Option<&String>) -> ExitCode {
    let seconds = seconds.map_or("1800", String::as_str);
    let words = ["test", "--release", "--package", "fm-server", "--test", "soak"];
    code(succeeds(Command::new("cargo").args(words).env("FLASH_MOE_SOAK_SECONDS", seconds)))
}

/// Goes through every order in which the threads of the pool can take their steps: a package of its own
/// (`loom/`), because the flag would build everything else anew.
pub(crate) fn loom() -> ExitCode {
    let words = ["test", "--locked", "--manifest-path", "loom/Cargo.toml"];
    let target = [("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")];
    code(succeeds(Command::new("cargo").args(words).envs(target)))
}

/// Tests the kernels for 64-bit Arm on another machine: cross-compiled, and emulated with every instruction set
/// there is. What is set in the environment goes before what is guessed for Debian.
pub(crate) fn arm() -> ExitCode {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let words = [
        "test",
        "--release",
        "--target",
        TARGET,
        "--package",
        "fm-kernels",
        "--lib",
        "--test",
        "cpu",
    ];
    let defaults = [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
        (
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu",
        ),
    ];
    let unset = defaults.into_iter().filter(|(name, _)| env::var_os(name).is_none());
    let tests = ["--", "in_", "level", "panels"];
    let done = succeeds(Command::new("cargo").args(words).args(tests).envs(unset));
    if !done {
        eprintln!(
            "hint: rustup target add {TARGET}; Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        );
    }
    code(done)
}
