//! `config.toml`: the same options as the flags, with `_` for `-`. Flags win.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use fm_engine::options::OptionRow;
use toml::{Table, Value};

/// Reads the file, if there is one.
pub(crate) fn read(path: Option<&Path>) -> anyhow::Result<Table> {
    let Some(path) = path.filter(|path| path.is_file()) else { return Ok(Table::new()) };
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    text.parse().with_context(|| format!("reading {}", path.display()))
}

/// Applies the keys that the rows name and takes them out of the table.
pub(crate) fn apply<T>(
    table: &mut Table,
    rows: &[OptionRow<T>],
    options: &mut T,
) -> anyhow::Result<()> {
    for row in rows {
        if let Some(value) = table.remove(&row.name.replace('-', "_")) {
            let text = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            row.apply(options, &text).context("in config.toml")?;
        }
    }
    Ok(())
}

/// Refuses keys that nobody has asked for: a misspelt one would otherwise do nothing.
pub(crate) fn refuse_rest(table: &Table) -> anyhow::Result<()> {
    match table.keys().next() {
        Some(key) => bail!("config.toml has the unknown key `{key}`"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fm_engine::options::{ENGINE, EngineOptions};

    #[test]
    fn keys_are_applied_and_unknown_ones_refused() {
        let mut table: Table = "memory = '6GB'\nprefill_chunk = 64\ntypo = 1".parse().unwrap();
        let mut options = EngineOptions::default();
        apply(&mut table, &ENGINE, &mut options).unwrap();
        assert_eq!((options.memory, options.prefill_chunk), (Some(6_000_000_000), Some(64)));
        assert_eq!(
            refuse_rest(&table).unwrap_err().to_string(),
            "config.toml has the unknown key `typo`"
        );
    }
}
