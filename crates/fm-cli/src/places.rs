//! Where the program looks and writes: the only file that knows the environment.

use std::{env, path::PathBuf};

use fm_engine::Places;

const NAME: &str = "flash-moe";

/// `$XDG_x_HOME/flash-moe`, or `~/fallback/flash-moe`.
fn xdg(variable: &str, fallback: &str) -> Option<PathBuf> {
    let explicit = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(fallback));
    Some(explicit.or_else(home)?.join(NAME))
}

/// The user's `config.toml`.
pub(crate) fn config_file() -> Option<PathBuf> {
    Some(xdg("XDG_CONFIG_HOME", ".config")?.join("config.toml"))
}

/// Where the engine may look and write.
pub(crate) fn places() -> Places {
    Places { root: PathBuf::from("/"), cache_dir: xdg("XDG_CACHE_HOME", ".cache") }
}
