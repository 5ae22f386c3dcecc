//! `config.toml`: the same options as the flags, with `_` for `-`. Flags win.

use std::{
    fs,
    io::ErrorKind::{NotADirectory, NotFound},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use fm_engine::options::OptionRow;
use toml::{Table, Value};

/// What the file says and nobody has taken yet.
pub(crate) struct Config {
    path: PathBuf,
    table: Table,
}

impl Config {
    /// Reads the file, if there is one.
    pub(crate) fn read(path: Option<&Path>) -> anyhow::Result<Self> {
        let path = path.map_or_else(PathBuf::new, Path::to_path_buf);
        let reading = || format!("reading {}", path.display());
        let table = match fs::read_to_string(&path) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Table::new(),
            text => text.with_context(reading)?.parse().with_context(reading)?,
        };
        Ok(Self { path, table })
    }

    /// Applies the keys that the rows name, and takes them out.
    pub(crate) fn apply<T>(
        &mut self,
        rows: &[OptionRow<T>],
        options: &mut T,
    ) -> anyhow::Result<()> {
        for row in rows {
            let key = row.name.replace('-', "_");
            if let Some(value) = self.table.remove(&key) {
                let text = match value {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                row.apply(options, &text)
                    .with_context(|| format!("`{key}` in {}", self.path.display()))?;
            }
        }
        Ok(())
    }

    /// Refuses keys that nobody has asked for: a misspelt one would otherwise do nothing.
    pub(crate) fn refuse_rest(&self) -> anyhow::Result<()> {
        match self.table.keys().next() {
            Some(key) if key.contains('-') => {
                bail!("{} has the unknown key `{key}`: keys have `_` for `-`", self.path.display())
            }
            Some(key) => bail!("{} has the unknown key `{key}`", self.path.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fm_engine::options::{ENGINE, EngineOptions};

    #[test]
    fn keys_are_applied_and_unknown_ones_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            Config::read(Some(&path)).unwrap()
        };
        let mut config = read("memory = '6GB'\nprefill_chunk = 64\ntypo = 1");
        let mut options = EngineOptions::default();
        config.apply(&ENGINE, &mut options).unwrap();
        assert_eq!((options.memory, options.prefill_chunk), (Some(6_000_000_000), Some(64)));
        let file = path.display();
        assert_eq!(
            config.refuse_rest().unwrap_err().to_string(),
            format!("{file} has the unknown key `typo`")
        );
        let error = read("prefill_chunk = 0").apply(&ENGINE, &mut options).unwrap_err();
        assert!(error.to_string().starts_with(&format!("`prefill_chunk` in {file}")), "{error}");
    }

    #[test]
    fn a_file_that_is_not_there_says_nothing_and_a_directory_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        Config::read(Some(&dir.path().join("nothing"))).unwrap().refuse_rest().unwrap();
        Config::read(None).unwrap().refuse_rest().unwrap();
        assert!(Config::read(Some(dir.path())).is_err());
    }
}
