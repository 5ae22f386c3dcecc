//! Where the program looks and writes: the only file that knows the environment.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use fm_engine::Places;
use fm_hub::{Cache, Token};

const NAME: &str = "flash-moe";

/// Why there is no cache directory.
pub(crate) const NO_CACHE: &str =
    "there is no cache directory: neither XDG_CACHE_HOME nor HOME is set";

/// Why the cache of the hub is nowhere.
pub(crate) const NO_HUB_CACHE: &str = "there is no cache directory: none of HF_HUB_CACHE, \
     HF_HOME, XDG_CACHE_HOME and HOME is set";

/// `$XDG_x_HOME/flash-moe`, or `~/fallback/flash-moe`.
fn xdg(name: &str, fallback: &str) -> Option<PathBuf> {
    let explicit = variable(name).filter(|path| path.is_absolute());
    let home = || variable("HOME").map(|home| home.join(fallback));
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

/// Where the system message of the server may lie, in the order in which they are looked for.
pub(crate) fn system_files() -> Vec<PathBuf> {
    let own = xdg("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("system.md"));
    let home = variable("HOME").map(|home| home.join(".flash-moe/system.md"));
    own.into_iter().chain(home).collect()
}

/// Where prompts that have been computed are kept.
pub(crate) fn prefix_dir() -> Option<PathBuf> {
    Some(xdg("XDG_CACHE_HOME", ".cache")?.join("prefixes"))
}

/// Whether a terminal is to show colours, as `NO_COLOR` (<https://no-color.org>) and `TERM` say.
pub(crate) fn colour() -> bool {
    shows_colour(variable("NO_COLOR").as_deref(), env::var_os("TERM").as_deref())
}

fn shows_colour(refused: Option<&Path>, terminal: Option<&OsStr>) -> bool {
    refused.is_none() && terminal.is_none_or(|terminal| terminal != "dumb")
}

/// The file of this program.
pub(crate) fn program() -> Option<PathBuf> {
    env::current_exe().ok()
}

/// The key that requests to the server must carry. What is no text is no reason to do without one.
pub(crate) fn server_key() -> Option<String> {
    let key = env::var_os("FLASH_MOE_API_KEY").filter(|key| !key.is_empty());
    key.map(|key| key.to_string_lossy().into_owned())
}

/// The hub, if nobody says otherwise.
const HUB: &str = "https://huggingface.co";

/// A variable that says something.
fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|value| !value.as_os_str().is_empty())
}

/// A directory that programs which use the hub know. They take `~` for the home, as shells do, where
/// no shell has seen it.
fn hub_variable(name: &str) -> Option<PathBuf> {
    Some(under_home(variable(name)?, variable("HOME")))
}

fn under_home(path: PathBuf, home: Option<PathBuf>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(below), Some(home)) => home.join(below),
        _ => path,
    }
}

/// Where programs that use the hub keep what they share: `$HF_HOME`, or `~/.cache/huggingface`.
fn hub_home() -> Option<PathBuf> {
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    hub_variable("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))
}

/// The cache of the hub: `$HF_HUB_CACHE`, or `hub` where all of them look.
pub(crate) fn hub_cache() -> Option<Cache> {
    let dir = hub_variable("HF_HUB_CACHE").or_else(|| Some(hub_home()?.join("hub")))?;
    Some(Cache::new(dir))
}

/// The user's token: `$HF_TOKEN`, or what `hf auth login` has left.
pub(crate) fn hub_token() -> Option<Token> {
    let given = env::var("HF_TOKEN").ok().and_then(|token| Token::new(&token));
    given.or_else(|| Token::new(&fs::read_to_string(hub_home()?.join("token")).ok()?))
}

/// The address of the hub: `$HF_ENDPOINT`, or the one everybody knows.
pub(crate) fn hub_endpoint() -> String {
    env::var("HF_ENDPOINT").ok().filter(|url| !url.is_empty()).unwrap_or_else(|| HUB.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_is_the_home_and_part_of_a_name_is_none() {
        let under = |path: &str| under_home(path.into(), Some("/home/x".into()));
        assert_eq!(under("~/models"), Path::new("/home/x/models"));
        for path in ["~x/models", "models/~", "/~/models"] {
            assert_eq!(under(path), Path::new(path));
        }
        assert_eq!(under_home("~/models".into(), None), Path::new("~/models"));
    }

    #[test]
    fn colours_can_be_refused() {
        assert!(shows_colour(None, Some("xterm".as_ref())));
        assert!(shows_colour(None, None));
        assert!(!shows_colour(Some("1".as_ref()), Some("xterm".as_ref())));
        assert!(!shows_colour(None, Some("dumb".as_ref())));
    }
}
