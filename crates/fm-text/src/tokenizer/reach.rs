//! Which tokens merging makes, and when.
//!
//! `tokenizers` looks up a *pair* to find what two neighbours become and how soon; a
//! [`Merger`](super::merge::Merger) looks up the *resulting text*. They agree on a vocabulary that holds only tokens that are what their
//! own text encodes to, in the order of the merge that finishes each of them. If a token is
//! what its own text encodes to, then wherever merges have left its two halves beside each other,
//! no merge has crossed its borders, so inside them everything went as it does for the token
//! alone: the halves, and with them the pair and its rank, are always the same ones.

use std::{
    collections::{HashMap, HashSet},
    num::NonZero,
    thread,
};

use super::file::{BpeJson, byte_bytes, byte_of};
use crate::meanwhile::meanwhile;

/// A vocabulary in merging order.
pub(super) struct Reached {
    /// Ids and texts of what merging can make, first merged first, and of the bytes of a byte fallback.
    pub(super) merged: Vec<(u32, Vec<u8>)>,
    /// Those of tokens that only a whole piece of split text can be (`ignore_merges`); usually none.
    pub(super) whole_pieces: Vec<(u32, Vec<u8>)>,
    /// Whether every byte has a token of its own to fall back to.
    pub(super) has_byte_fallback: bool,
}

/// Rank and result by pair.
type Merges = HashMap<(u32, u32), (usize, u32)>;

/// Vocabularies are not so large that more would be quicker.
const THREADS_MAX: usize = 8;

/// Of a token that no merge makes because it is one symbol.
const NO_MERGE: usize = usize::MAX;

impl Reached {
    /// `chars` says whether a symbol is a character; otherwise it stands for a byte.
    pub(super) fn of(model: &BpeJson, chars: bool) -> Result<Reached, &'static str> {
        let byte_tokens = if chars { byte_tokens(model)? } else { None };
        let merges = merges(model, byte_tokens.as_deref().unwrap_or_default())?;
        let tokens: Vec<(&str, u32)> = model.vocab.iter().map(|(t, id)| (&**t, *id)).collect();
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        let share = tokens.len().div_ceil(threads).max(1);
        // Each token is merged by itself, which is most of the work.
        let parts: Vec<Ranked> = thread::scope(|scope| {
            let merges = &merges;
            let rank = |tokens| meanwhile(scope, move || Ranked::of(tokens, model, merges, chars));
            let ranked: Vec<_> = tokens.chunks(share).map(rank).collect();
            ranked.into_iter().map(|ranked| ranked()).collect()
        });
        let mut ranked = Vec::with_capacity(tokens.len());
        let mut whole_pieces = Vec::new();
        for part in parts {
            ranked.extend(part.ranked);
            whole_pieces.extend(part.whole_pieces);
        }
        let has_byte_fallback = byte_tokens.is_some();
        let spelled: HashSet<u8> = ranked.iter().filter_map(|t| single(&t.2)).collect();
        for (byte, id) in (0..=u8::MAX).zip(byte_tokens.into_iter().flatten()) {
            if !spelled.contains(&byte) {
                ranked.push((NO_MERGE, id, vec![byte]));
            }
        }
        ranked.sort_unstable();
        let merged = ranked.into_iter().map(|(_, id, bytes)| (id, bytes)).collect();
        Ok(Reached { merged, whole_pieces, has_byte_fallback })
    }
}

/// What becomes of some tokens.
#[derive(Default)]
struct Ranked {
    /// Rank, id and bytes.
    ranked: Vec<(usize, u32, Vec<u8>)>,
    whole_pieces: Vec<(u32, Vec<u8>)>,
}

impl Ranked {
    fn of(tokens: &[(&str, u32)], model: &BpeJson, merges: &Merges, chars: bool) -> Self {
        let mut found = Self::default();
        for &(text, id) in tokens {
            let bytes = if chars {
                text.as_bytes().to_vec()
            } else if text.chars().all(|c| byte_of(c).is_some()) {
                byte_bytes(text)
            } else {
                // No text has these characters once its bytes are written as characters.
                continue;
            };
            match rank(text, id, model, merges) {
                Some(rank) => found.ranked.push((rank, id, bytes)),
                None if model.ignore_merges == Some(true) => found.whole_pieces.push((id, bytes)),
                None => {}
            }
        }
        found
    }
}

fn single(bytes: &[u8]) -> Option<u8> {
    (bytes.len() == 1).then(|| bytes[0])
}

/// Ids of `<0x00>` to `<0xFF>`, if the model falls back to them. One that is missing would make
/// some characters unknown and others not.
fn byte_tokens(model: &BpeJson) -> Result<Option<Vec<u32>>, &'static str> {
    if model.byte_fallback != Some(true) {
        return Ok(None);
    }
    let id = |byte: u8| model.vocab.get(&format!("<0x{byte:02X}>")).copied();
    let ids: Vec<u32> = (0..=u8::MAX).filter_map(id).collect();
    match ids.len() {
        0 => Ok(None),
        256 => Ok(Some(ids)),
        _ => Err("a byte fallback that lacks some of the 256 bytes"),
    }
}

fn merges(model: &BpeJson, byte_tokens: &[u32]) -> Result<Merges, &'static str> {
    let byte_tokens: HashSet<u32> = byte_tokens.iter().copied().collect();
    let mut merges = HashMap::with_capacity(model.merges.len());
    let mut joined = String::new();
    for (rank, pair) in model.merges.iter().enumerate() {
        let (left, right) = pair.pair().ok_or("a merge that is not two tokens")?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let ids = (model.vocab.get(left), model.vocab.get(right), model.vocab.get(&joined));
        let (Some(&left), Some(&right), Some(&whole)) = ids else {
            return Err("a merge of or to a token that is not in its vocabulary");
        };
        if byte_tokens.contains(&left) || byte_tokens.contains(&right) {
            return Err("a merge of byte tokens");
        }
        merges.insert((left, right), (rank, whole));
    }
    Ok(merges)
}

/// The rank of the merge that finishes the token in its own text; nothing if its text becomes
/// something else.
fn rank(text: &str, id: u32, model: &BpeJson, merges: &Merges) -> Option<usize> {
    let mut symbols = Vec::with_capacity(text.len());
    let mut utf8 = [0; 4];
    for c in text.chars() {
        symbols.push(*model.vocab.get(&*c.encode_utf8(&mut utf8))?);
    }
    let last = merge_all(&mut symbols, merges);
    (symbols == [id]).then_some(last)
}

/// Applies the merge of lowest rank, leftmost first, until none applies. Returns the last rank.
fn merge_all(symbols: &mut Vec<u32>, merges: &Merges) -> usize {
    let find = |left: u32, right: u32| merges.get(&(left, right)).copied();
    // What every pair of neighbours becomes: only those beside the latest merge are looked up anew.
    let mut pairs: Vec<_> = symbols.windows(2).map(|pair| find(pair[0], pair[1])).collect();
    let mut last = NO_MERGE;
    loop {
        let possible = pairs.iter().enumerate();
        let best = possible.filter_map(|(at, pair)| pair.map(|(rank, whole)| (rank, at, whole)));
        let Some((rank, at, whole)) = best.min() else { return last };
        last = rank;
        symbols[at] = whole;
        symbols.remove(at + 1);
        pairs.remove(at);
        if at > 0 {
            pairs[at - 1] = find(symbols[at - 1], whole);
        }
        if at < pairs.len() {
            pairs[at] = find(whole, symbols[at + 1]);
        }
    }
}
