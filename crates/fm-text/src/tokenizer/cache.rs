//! The converted tokenizer, kept in the cache directory.
//!
//! Converting a vocabulary of 248 thousand tokens from JSON takes half a second, reading it back
//! in the library's own binary form a tenth of that. A cache that cannot be read or written is not
//! an error: the JSON is always there.
//!
//! ```text
//! file = magic (8) | xxh3-128 of key and rest (16) | bytes of each of the rest (4 × u64)
//!      | kitoken definition | about (JSON: steps, added tokens, rules, frame, start) | merger | token table
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
    added::AddedToken,
    decoder::Start,
    file::Parts,
    frame::Frame,
    merge::{Merger, Rules},
    split::Step,
    token_table::TokenTable,
};

/// Names format and version. Change the last digits whenever the conversion in `file.rs` or the
/// version of `kitoken` changes: old caches then go unused.
const MAGIC: &[u8; 8] = b"fmtext07";

#[derive(Serialize, Deserialize)]
struct About {
    steps: Vec<Step>,
    added: Vec<AddedToken>,
    rules: Rules,
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

/// Writes the cache under a name that no other file has and renames it, so that nobody reads half a file.
pub(crate) fn write(cache_dir: &Path, key: u128, parts: &Parts) -> io::Result<()> {
    fs::create_dir_all(cache_dir)?;
    let mut named = tempfile::Builder::new();
    // Whoever shares the directory reads it, too.
    #[cfg(unix)]
    named.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = named.suffix(".tmp").tempfile_in(cache_dir)?;
    file.write_all(&encode(key, parts)?)?;
    file.persist(path(cache_dir, key))?;
    Ok(())
}

fn hash(key: u128, body: &[u8]) -> u128 {
    let mut hash = Xxh3Default::new();
    hash.update(&key.to_le_bytes());
    hash.update(body);
    hash.digest128()
}

fn encode(key: u128, parts: &Parts) -> io::Result<Vec<u8>> {
    let about = About {
        steps: parts.steps.clone(),
        added: parts.added.clone(),
        rules: parts.merger.rules(),
        frame: parts.frame.clone(),
        start: parts.start,
    };
    let mut sections = [parts.definition.to_vec(), serde_json::to_vec(&about)?, vec![], vec![]];
    parts.merger.write(&mut sections[2]);
    parts.table.write(&mut sections[3]);
    let mut body = Vec::new();
    sections.iter().for_each(|section| body.extend((section.len() as u64).to_le_bytes()));
    sections.iter().for_each(|section| body.extend_from_slice(section));
    Ok([&MAGIC[..], &hash(key, &body).to_le_bytes(), &body].concat())
}

fn decode(key: u128, data: &[u8]) -> Option<Parts> {
    let (found, body) = data.strip_prefix(MAGIC)?.split_first_chunk::<16>()?;
    if hash(key, body) != u128::from_le_bytes(*found) {
        return None;
    }
    let [kit, about, merger, table] = sections(body)?;
    let About { steps, added, rules, frame, start } = serde_json::from_slice(about).ok()?;
    let definition = Definition::from_slice(kit).ok()?;
    let (merger, table) = (Merger::read(rules, merger)?, TokenTable::read(table)?);
    Some(Parts { definition, steps, merger, added, table, frame, start })
}

/// What lies behind the lengths at the beginning.
fn sections<const N: usize>(body: &[u8]) -> Option<[&[u8]; N]> {
    let (lengths, mut rest) = body.split_at_checked(8 * N)?;
    let mut found = [&[][..]; N];
    for (section, length) in found.iter_mut().zip(lengths.as_chunks::<8>().0) {
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        (*section, rest) = rest.split_at_checked(length)?;
    }
    rest.is_empty().then_some(found)
}
