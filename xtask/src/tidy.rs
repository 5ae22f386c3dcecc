//! `cargo xtask tidy`: the architecture, checked.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// Who may import whom. A missing row or an extra edge is an error.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("fm-format", &[]),
    ("fm-text", &[]),
    ("fm-store", &["fm-format"]),
    ("fm-kernels", &["fm-format"]),
    ("fm-model", &["fm-format", "fm-kernels"]),
    ("fm-convert", &["fm-format", "fm-model"]),
    ("fm-hub", &["fm-format"]),
    ("fm-engine", &["fm-format", "fm-kernels", "fm-model", "fm-store", "fm-text"]),
    ("fm-server", &["fm-engine", "fm-text"]),
    (
        "fm-cli",
        &[
            "fm-format",
            "fm-engine",
            "fm-convert",
            "fm-hub",
            "fm-model",
            "fm-server",
            "fm-synth",
            "fm-text",
        ],
    ),
    ("fm-synth", &["fm-format"]),
    ("fm-testkit", &["fm-format"]),
];

/// Where `unsafe` may stand; every other crate forbids it.
const MAY_BE_UNSAFE: &[&str] = &[
    "crates/fm-kernels/src/cpu/arch",
    "crates/fm-kernels/src/cpu/pool.rs",
    "crates/fm-kernels/src/ffi.rs",
    "crates/fm-model/src/ffi.rs",
    "crates/fm-store/src/slots.rs",
    "crates/fm-store/src/reader/io_uring.rs",
    "crates/fm-testkit/src/counting_alloc.rs",
];

/// Crates that need one of the places above; the others carry `#![forbid(unsafe_code)]`.
const UNSAFE_CRATES: &[&str] = &["fm-kernels", "fm-model", "fm-store", "fm-testkit"];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] =
    &["utils.rs", "util.rs", "helpers.rs", "common.rs", "misc.rs", "types.rs", "mod.rs"];

/// Files may grow to here.
const LINES_MAX: usize = 500;

/// Checks the workspace in the current directory and reports every problem.
pub(crate) fn run() -> ExitCode {
    let mut problems = Vec::new();
    for entry in fs::read_dir("crates").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        check_imports(&name, &entry.path(), &mut problems);
        check_unsafe_lint(&name, &entry.path(), &mut problems);
        check_files(&entry.path(), &mut problems);
    }
    check_files(Path::new("xtask"), &mut problems);
    check_readme(&mut problems);
    check_features(&mut problems);
    problems.sort();
    problems.iter().for_each(|problem| eprintln!("tidy: {problem}"));
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check_imports(name: &str, path: &Path, problems: &mut Vec<String>) {
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(crate_name, _)| *crate_name == name) else {
        problems.push(format!(
            "crates/{name}: not in MAY_IMPORT; add it and say why in ARCHITECTURE.md"
        ));
        return;
    };
    let text = fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
    let Ok(manifest) = text.parse::<toml::Table>() else {
        problems.push(format!("crates/{name}/Cargo.toml: not valid TOML"));
        return;
    };
    let sections = ["dependencies", "build-dependencies"];
    let tables = sections.iter().filter_map(|section| manifest.get(*section)?.as_table());
    for dependency in tables.flat_map(toml::Table::keys) {
        if dependency.starts_with("fm-") && !allowed.contains(&dependency.as_str()) {
            problems.push(format!("crates/{name}: may not import {dependency}"));
        }
    }
    if manifest.get("lints").is_none() {
        problems.push(format!("crates/{name}/Cargo.toml: `[lints] workspace = true` is missing"));
    }
}

fn check_unsafe_lint(name: &str, path: &Path, problems: &mut Vec<String>) {
    let roots = [path.join("src/lib.rs"), path.join("src/main.rs")];
    let Some(root) = roots.iter().find_map(|root| fs::read_to_string(root).ok()) else {
        problems.push(format!("crates/{name}: neither src/lib.rs nor src/main.rs"));
        return;
    };
    if !UNSAFE_CRATES.contains(&name) && !root.contains("#![forbid(unsafe_code)]") {
        problems.push(format!("crates/{name}: the crate root lacks `#![forbid(unsafe_code)]`"));
    }
}

fn check_files(dir: &Path, problems: &mut Vec<String>) {
    for path in rust_files(dir) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let shown = path.display();
        let lines = text.lines().count();
        if lines > LINES_MAX {
            problems.push(format!("{shown}: {lines} lines, limit {LINES_MAX}"));
        }
        let in_tests = path.components().any(|part| part.as_os_str() == "tests");
        // Cargo takes every other file of `tests/` for a test of its own.
        let shared_by_tests = in_tests && path.ends_with("mod.rs");
        if !shared_by_tests && EMPTY_NAMES.iter().any(|name| path.ends_with(name)) {
            problems.push(format!("{shown}: name it after what it holds"));
        }
        let in_source = path.components().any(|part| part.as_os_str() == "src");
        if in_source && !text.starts_with("//!") {
            problems.push(format!("{shown}: begin with `//!`: what it is and why"));
        }
        let may_be_unsafe = MAY_BE_UNSAFE.iter().any(|allowed| path.starts_with(allowed));
        if !may_be_unsafe && text.lines().any(is_unsafe_code) {
            problems.push(format!("{shown}: `unsafe` has its own places, see STYLE.md"));
        }
        let reads_environment = text.lines().any(|line| line.contains("env::var"));
        let may_read = in_tests || path.starts_with("crates/fm-cli") || path.starts_with("xtask");
        if reads_environment && !may_read {
            problems.push(format!("{shown}: the environment is read in fm-cli only"));
        }
    }
}

fn is_unsafe_code(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    // What stands between quotes is no code.
    let code: String = code.split('"').step_by(2).collect();
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern", "#[unsafe("]
        .iter()
        .any(|unsafely| code.contains(unsafely))
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn check_readme(problems: &mut Vec<String>) {
    let lines = fs::read_to_string("README.md").unwrap_or_default().lines().count();
    if lines == 0 || lines > 250 {
        problems.push(format!("README.md: {lines} lines; it has between 1 and 250"));
    }
}

/// Whether the program alone and the whole workspace want the same features of what both have: else those who run the
/// program and then the tests, as the README says, build nearly everything twice.
fn check_features(problems: &mut Vec<String>) {
    let trees = [&["--package", "fm-cli", "--edges", "normal"] as &[&str], &["--workspace"]];
    let [Some(alone), Some(whole)] = trees.map(features) else {
        problems.push("`cargo tree` does not say which features packages have".to_owned());
        return;
    };
    for (package, features) in alone {
        if whole.get(&package).is_some_and(|others| *others != features) {
            problems.push(format!(
                "crates/fm-cli: it has {package} with `{features}`, the workspace with `{}`; see its Cargo.toml",
                whole[&package]
            ));
        }
    }
}

/// The features of every package.
fn features(selection: &[&str]) -> Option<BTreeMap<String, String>> {
    let words = ["tree", "--locked", "--prefix", "none", "--format", "{p}|{f}|"];
    let output = Command::new("cargo").args(words).args(selection).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    // What was told before ends with an asterisk.
    let rows = text.lines().filter_map(|line| line.split_once('|'));
    let row = |(package, rest): (&str, &str)| {
        Some((package.to_owned(), rest.split_once('|')?.0.to_owned()))
    };
    rows.map(row).collect()
}
