//! `docs/options.md` says what the option tables say.

use std::fs;

use fm_engine::options::{ENGINE, OptionRow, SAMPLING};
use fm_testkit::golden::workspace_dir;

fn section<T>(title: &str, rows: &[OptionRow<T>]) -> String {
    let rows = rows.iter().map(|row| {
        let choices = (row.choices)();
        let value = if choices.is_empty() { row.value.to_owned() } else { choices.join(" \\| ") };
        let key = row.name.replace('-', "_");
        format!("| `--{} {value}` | `{key}` | {} |\n", row.name, row.help)
    });
    let rows: String = rows.collect();
    format!("## {title}\n\n| flag | key in config.toml | meaning |\n|---|---|---|\n{rows}")
}

fn document() -> String {
    let head = "# Options\n\n\
        Written by the test `options_document` from the tables in `crates/fm-engine/src/options.rs`; \
        edit those.\n\n\
        Flags win over `config.toml` in `$XDG_CONFIG_HOME/flash-moe` (or `~/.config/flash-moe`), \
        and both win over the model's own defaults. Sizes: GB = 10⁹ bytes, GiB = 2³⁰.\n";
    format!("{head}\n{}\n{}", section("Engine", &ENGINE), section("Sampling", &SAMPLING))
}

#[test]
fn the_document_is_what_the_tables_say() {
    let path = workspace_dir().join("docs/options.md");
    let found = fs::read_to_string(&path).unwrap_or_default();
    if found != document() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, document()).unwrap();
        panic!("docs/options.md was out of date and has been rewritten; commit it");
    }
}
