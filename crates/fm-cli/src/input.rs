//! Texts that users give: in a file, or on stdin.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use anyhow::Context;

/// The bytes of a file; `-` is stdin.
pub(crate) fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path == Path::new("-") {
        return stdin();
    }
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// All that comes on stdin.
pub(crate) fn stdin() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).context("reading stdin")?;
    Ok(bytes)
}

/// A file as text; `-` is stdin.
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(bytes(path)?).with_context(|| format!("{} is not UTF-8", path.display()))
}
