//! The converted tokenizer, kept in the cache directory.
//!
//! Converting a vocabulary of 248 thousand tokens from JSON takes half a second, reading it back
//! in the library's own binary form a tenth of that. A cache that cannot be read or written is not
//! an error: the JSON is always there.
//!
//! ```text
//! file = magic (8) | xxh3-128 of the rest (16) | kitoken bytes (u64) | about bytes (u64)
//!      | kitoken definition | about (JSON: added tokens, whole pieces, frame, start) | token table
//! ```
//!
//! The hash is checked because a flipped bit in a vocabulary gives wrong ids and no error.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use kitoken::Definition;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    added::AddedToken, decoder::Start, file::Parts, frame::Frame, token_table::TokenTable,
};

/// Names format and version. Change the last digits whenever the conversion in `file.rs` or the
/// version of `kitoken` changes: old caches then go unused.
const MAGIC: &[u8; 8] = b"fmtext04";

#[derive(Serialize, Deserialize)]
struct About {
    added: Vec<AddedToken>,
    whole_pieces: Vec<(u32, Vec<u8>)>,
    frame: Frame,
    start: Start,
}

/// Where the cache of what has this hash lies.
pub(crate) fn path(cache_dir: &Path, hash: u128) -> PathBuf {
    let version = String::from_utf8_lossy(MAGIC);
    cache_dir.join(format!("tokenizer-{hash:032x}.{version}"))
}

/// The cached tokenizer, or nothing if there is none that is whole.
pub(crate) fn read(path: &Path) -> Option<Parts> {
    decode(&fs::read(path).ok()?)
}

/// Writes the cache under a name of its own and renames it, so that nobody reads half a file.
pub(crate) fn write(path: &Path, parts: &Parts) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = fs::File::create_new(&temporary)?;
    let written = file.write_all(&encode(parts)?).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error to report is the first one.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn encode(parts: &Parts) -> io::Result<Vec<u8>> {
    let kit = parts.definition.to_vec();
    let about = About {
        added: parts.added.clone(),
        whole_pieces: parts.whole_pieces.clone(),
        frame: parts.frame.clone(),
        start: parts.start,
    };
    let about = serde_json::to_vec(&about)?;
    let mut body = Vec::with_capacity(kit.len() * 2 + about.len());
    body.extend_from_slice(&(kit.len() as u64).to_le_bytes());
    body.extend_from_slice(&(about.len() as u64).to_le_bytes());
    body.extend_from_slice(&kit);
    body.extend_from_slice(&about);
    parts.table.write(&mut body);
    Ok([&MAGIC[..], &xxh3_128(&body).to_le_bytes(), &body].concat())
}

fn decode(data: &[u8]) -> Option<Parts> {
    let (hash, body) = data.strip_prefix(MAGIC)?.split_first_chunk::<16>()?;
    if xxh3_128(body) != u128::from_le_bytes(*hash) {
        return None;
    }
    let (kit_bytes, rest) = body.split_first_chunk::<8>()?;
    let (about_bytes, rest) = rest.split_first_chunk::<8>()?;
    let bytes = |field: &[u8; 8]| usize::try_from(u64::from_le_bytes(*field)).ok();
    let (kit, rest) = rest.split_at_checked(bytes(kit_bytes)?)?;
    let (about, table) = rest.split_at_checked(bytes(about_bytes)?)?;
    let About { added, whole_pieces, frame, start } = serde_json::from_slice(about).ok()?;
    let definition = Definition::from_slice(kit).ok()?;
    Some(Parts { definition, added, whole_pieces, table: TokenTable::read(table)?, frame, start })
}
