//! The tests of a package in the scratch tree.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::scratch::Scratch;

/// nextest filters, run one after the other until a mutant is dead: the oracle is slow, and seldom
/// needed when the goldens have been asked.
pub(crate) const STAGES: [&str; 2] = ["not test(/^ugly::/)", "test(/^ugly::/)"];

/// A test that hangs is as red as one that fails. It has far longer than any test takes, because a busy
/// machine is no mistake: with a minute, tests of 15 s were red without any mutant, and would have
/// killed mutants that nobody noticed.
const NEXTEST_CONFIG: &str = "\
[profile.default]
slow-timeout = { period = \"60s\", terminate-after = 5 }
";

/// What nextest exits with if a test failed.
const TESTS_FAILED: i32 = 100;
/// What nextest exits with if the build failed.
const BUILD_FAILED: i32 = 101;

/// Builds and runs tests of the scratch tree.
#[derive(Debug)]
pub(crate) struct Suite<'a> {
    scratch: &'a Scratch,
}

/// What came of a stage.
pub(crate) enum Verdict {
    /// The tests ran.
    Ran {
        /// Those that failed, crashed or hung: `module::test`.
        red: Vec<String>,
    },
    /// They could not be built.
    DoesNotBuild {
        /// What the compiler says.
        errors: String,
    },
}

impl<'a> Suite<'a> {
    pub(crate) fn new(scratch: &'a Scratch) -> Result<Self> {
        std::fs::create_dir_all(&scratch.build)?;
        std::fs::write(scratch.build.join("nextest.toml"), NEXTEST_CONFIG)?;
        Ok(Self { scratch })
    }

    /// Runs the tests of a package that a filter lets through, all of them whatever fails.
    pub(crate) fn run(&self, package: &str, filter: &str) -> Result<Verdict> {
        let Scratch { tree, build, .. } = self.scratch;
        let output = Command::new("cargo")
            .args(["nextest", "run", "--release", "--package", package])
            .args(["--no-fail-fast", "--no-tests", "pass", "--filterset", filter])
            .args(["--status-level", "fail", "--final-status-level", "none"])
            .args(["--success-output", "never", "--failure-output", "never", "--color", "never"])
            .arg("--config-file")
            .arg(build.join("nextest.toml"))
            .arg("--target-dir")
            .arg(build)
            // One mistake touches few of many units: 1 s per rebuild of kernels and model, not 20.
            .env("CARGO_PROFILE_RELEASE_INCREMENTAL", "true")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "64")
            .env("RUST_BACKTRACE", "0")
            .current_dir(tree)
            .output()
            .context("starting cargo nextest")?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(Verdict::Ran { red: Vec::new() }),
            Some(TESTS_FAILED) => Ok(Verdict::Ran { red: said.lines().filter_map(red).collect() }),
            Some(BUILD_FAILED) => Ok(Verdict::DoesNotBuild { errors: errors(&said) }),
            _ => bail!("cargo nextest ended with {}:\n{said}", output.status),
        }
    }
}

/// The test that a status line says is red: `FAIL [   0.013s] (4/79) fm-model::it module::test`.
fn red(line: &str) -> Option<String> {
    let (status, rest) = line.trim_start().split_once(' ')?;
    let loud = status.chars().all(|c| c.is_ascii_uppercase() || c == '-');
    let (time, rest) = rest.trim_start().strip_prefix('[')?.split_once(']')?;
    let timed = time.trim().ends_with('s');
    // What is being stopped is told again, as TIMEOUT, when it has ended.
    let calm = ["PASS", "SLOW", "LEAK", "TERMINATING"].contains(&status);
    (loud && timed && !calm).then(|| rest.rsplit(' ').next().unwrap_or(rest).to_owned())
}

/// The compiler's errors, without its warnings.
fn errors(said: &str) -> String {
    let paragraphs = said.split("\n\n").filter(|paragraph| paragraph.starts_with("error"));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn red_tests_are_read_from_status_lines() {
        let fail = "        FAIL [   0.303s] ( 8/35) fm-model::it golden::cpu::logits";
        assert_eq!(red(fail).as_deref(), Some("golden::cpu::logits"));
        let hung = "     TIMEOUT [  60.010s] (1/2) fm-model::it sameness::cpu::chunks";
        assert_eq!(red(hung).as_deref(), Some("sameness::cpu::chunks"));
        let crash = "     SIGABRT [   0.010s] (1/2) fm-model state::tests::blocks";
        assert_eq!(red(crash).as_deref(), Some("state::tests::blocks"));
        for line in [
            "        PASS [   0.303s] ( 8/35) fm-model::it golden::cpu::logits",
            " TERMINATING [> 60.000s] (─────────) fm-model::it sameness::cpu::chunks",
            "     Summary [   8.224s] 35 tests run: 35 passed, 0 skipped",
            "   Compiling fm-model v0.1.0 (/tmp/fm-model)",
            "────────────",
        ] {
            assert_eq!(red(line), None, "{line}");
        }
    }
}
