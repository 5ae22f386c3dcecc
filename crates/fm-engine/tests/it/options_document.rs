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

/// What no table has: the command line alone knows it.
const REST: &str = "\
`run --greedy` is `--temperature 0`; it has no key.

## Places

A variable that is empty is as good as not set.

| what | where |
|---|---|
| `config.toml`, `system.md` (`serve`) | `$XDG_CONFIG_HOME/flash-moe`, or `~/.config/flash-moe`; `system.md` also `~/.flash-moe` |
| the cache directory | `$XDG_CACHE_HOME/flash-moe`, or `~/.cache/flash-moe` |
| `checksums/` in it | what `verify --record` has recorded |
| `heat/` in it | which experts earlier runs used (`--warm-start`) |
| `prefixes/` in it | prompts that `serve` has computed |
| `limits….json`, `tokenizer-…` in it | what a disk and the memory give, tokenizers ready to use; made again when they are gone |
| pulled models | `$HF_HUB_CACHE`, `$HF_HOME/hub`, `$XDG_CACHE_HOME/huggingface/hub`, or `~/.cache/huggingface/hub` |

| variable | |
|---|---|
| `HF_TOKEN`, `HF_ENDPOINT` | the hub: see [hub.md](hub.md) |
| `FLASH_MOE_API_KEY` | what requests to `serve` must carry: see [server.md](server.md) |
| `NO_COLOR`, `TERM=dumb` | thoughts on a terminal are not dimmed |
";

fn document() -> String {
    let head = "# Options\n\n\
        Written by the test `options_document` from the tables in `crates/fm-engine/src/options.rs`; \
        edit those.\n\n\
        Flags win over `config.toml` in `$XDG_CONFIG_HOME/flash-moe` (or `~/.config/flash-moe`), \
        and both win over the model's own defaults. Sizes: GB = 10⁹ bytes, GiB = 2³⁰; \
        the B may be left out.\n";
    let tables = [section("Engine", &ENGINE), section("Sampling", &SAMPLING)].join("\n");
    format!("{head}\n{tables}\n{REST}")
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
