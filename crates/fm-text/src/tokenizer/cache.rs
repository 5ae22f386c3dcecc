//! The converted tokenizer, kept in the cache directory.
//!
//! Converting a vocabulary of 248 thousand tokens from JSON takes half a second, reading it back
//! in the library's own binary form a tenth of that. A cache that cannot be read or written is not
//! an error: the JSON is always there.
//!
//! ```text
//! file = magic (8) | xxh3-128 of key and rest (16) | kitoken bytes (u64) | about bytes (u64)
//!      | kitoken definition | about (JSON: added tokens, whole pieces, frame, start) | token table
//! ```
//!
//! The hash is checked because a flipped bit in a vocabulary gives wrong ids and no error, and so does the vocabulary of
//! another model under this one's name: the key, which the name says, is in it.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use kitoken::Definition;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;

use super::{
    added::AddedToken, decoder::Start, file::Parts, frame::Frame, token_table::TokenTable,
};

/// Names format and version. Change the last digits whenever the conversion in `file.rs` or the
/// version of `kitoken` changes: old caches then go unused.
const MAGIC: &[u8; 8] = b"fmtext05";

#[derive(Serialize, Deserialize)]
struct About {
    added: Vec<AddedToken>,
    whole_pieces: Vec<(u32, Vec<u8>)>,
    frame: Frame,
    start: Start,
}

/// Where the cache of what has this key lies.
fn path(cache_dir: &Path, key: u128) -> PathBuf {
    let version = String::from_utf8_lossy(MAGIC);
    cache_dir.join(format!("tokenizer-{key:032x}.{version}"))
}

/// The cached tokenizer of this key, or nothing if there is none that is whole.
pub(crate) fn read(cache_dir: &Path, key: u128) -> Option<Parts> {
    decode(key, &fs::read(path(cache_dir, key)).ok()?)
}

/// Writes the cache under a name of its own and renames it, so that nobody reads half a file.
pub(crate) fn write(cache_dir: &Path, key: u128, parts: &Parts) -> io::Result<()> {
    fs::create_dir_all(cache_dir)?;
    let path = path(cache_dir, key);
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = fs::File::create_new(&temporary)?;
    let written = file.write_all(&encode(key, parts)?).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        // The error to report is the first one.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn hash(key: u128, body: &[u8]) -> u128 {
    let mut hash = Xxh3Default::new();
    hash.update(&key.to_le_bytes());
    hash.update(body);
    hash.digest128()
}

fn encode(key: u128, parts: &Parts) -> io::Result<Vec<u8>> {
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
    Ok([&MAGIC[..], &hash(key, &body).to_le_bytes(), &body].concat())
}

fn decode(key: u128, data: &[u8]) -> Option<Parts> {
    let (found, body) = data.strip_prefix(MAGIC)?.split_first_chunk::<16>()?;
    if hash(key, body) != u128::from_le_bytes(*found) {
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
