//! Texts that users give: in a file, or on stdin.

use std::{
    fmt::Display,
    fs::File,
    io::{self, Read},
    path::Path,
};

use anyhow::{Context, bail};
use fm_engine::bytes::Bytes;

/// More is no prompt, and no text that is measured: tokenizing takes some twenty times as much memory.
const BYTES_MAX: u64 = 64 << 20;

/// The bytes of a file; `-` is stdin.
pub(crate) fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path == Path::new("-") {
        return stdin();
    }
    let file = File::open(path).with_context(|| format!("reading {}", path.display()))?;
    up_to_the_limit(file, &path.display())
}

/// All that comes on stdin.
pub(crate) fn stdin() -> anyhow::Result<Vec<u8>> {
    up_to_the_limit(io::stdin(), &"stdin")
}

fn up_to_the_limit(from: impl Read, name: &dyn Display) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = from.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("reading {name}"))?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!("{name} is longer than {}: give a part of it", Bytes(BYTES_MAX));
    }
    Ok(bytes)
}

/// A file as text; `-` is stdin.
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(bytes(path)?).with_context(|| format!("{} is not UTF-8", path.display()))
}
