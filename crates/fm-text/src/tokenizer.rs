//! Text to token ids and back to bytes, with exactly the ids of Hugging Face `tokenizers`.
//!
//! ```text
//! text ─► added tokens cut out ─► normalise ─► normalised added tokens cut out ─► split, merge
//! ```
//!
//! Splitting and merging are `kitoken`'s, five times as fast as `tokenizers`; what it does
//! otherwise is repaired when `tokenizer.json` is converted (`tokenizer/file.rs`). The tests hold
//! the ids against `tokenizers` itself.

mod added;
mod cache;
mod file;
mod token_table;

use std::{borrow::Cow, collections::HashMap, fs, ops::Range, path::Path};

use kitoken::{Configuration, Kitoken, Normalization, SpecialTokenKind};

use self::{
    added::{AddedMatcher, AddedToken, Cut},
    file::Parts,
    token_table::TokenTable,
};
use crate::error::TextError;

/// What to make of special tokens (`<|im_end|>`) spelled out in the text.
///
/// Added tokens that are not special (`<think>`) become their token either way, as in
/// `tokenizers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They become the token: for text that came out of a chat template.
    Parse,
    /// They are letters like any others: for text that nobody vouches for.
    AsText,
}

/// The vocabulary of a model and the rules to encode with it.
#[derive(Debug)]
pub struct Tokenizer {
    kitoken: Kitoken,
    normalization: Vec<Normalization>,
    /// Added tokens that are looked for in the text as it is.
    added: AddedMatcher,
    /// Added tokens that are looked for after normalisation.
    added_normalized: AddedMatcher,
    whole_pieces: Option<WholePieces>,
    added_ids: HashMap<String, u32>,
    special_ids: Vec<u32>,
    table: TokenTable,
}

/// `ignore_merges` with tokens that no merges reach: a piece of split text is looked up here
/// before it is merged, so the split has to happen outside of `kitoken`.
#[derive(Debug)]
struct WholePieces {
    split: Configuration,
    ids: HashMap<Vec<u8>, u32>,
}

/// The longest run of white space that can be encoded. The split patterns of all current models
/// contain `\s+(?!\S)`, which keeps one backtracking step per character on a stack of a million;
/// beyond that `kitoken` panics.
pub const SPACES_MAX: usize = 500_000;

impl Tokenizer {
    /// Opens `tokenizer.json` in `dir`.
    ///
    /// The converted form is kept in `cache_dir`, if there is one, under a name made of the
    /// file's hash. A cache that is broken or cannot be written is ignored.
    ///
    /// # Errors
    /// If the file is missing, is not a tokenizer, or is one whose ids could not be exact.
    pub fn open(dir: &Path, cache_dir: Option<&Path>) -> Result<Tokenizer, TextError> {
        let path = dir.join("tokenizer.json");
        let json =
            fs::read(&path).map_err(|source| TextError::Read { path: path.clone(), source })?;
        let cache_path = cache_dir.map(|dir| cache::path(dir, &json));
        if let Some(parts) = cache_path.as_deref().and_then(cache::read)
            && let Ok(tokenizer) = Tokenizer::from_parts(parts, &path)
        {
            return Ok(tokenizer);
        }
        let parts = Parts::from_json(&json, &path)?;
        if let Some(cache_path) = cache_path {
            // The next start is slower, nothing else.
            let _ = cache::write(&cache_path, &parts);
        }
        Tokenizer::from_parts(parts, &path)
    }

    fn from_parts(parts: Parts, path: &Path) -> Result<Tokenizer, TextError> {
        let Parts { mut definition, added, whole_pieces, table } = parts;
        let normalization = file::take_normalization(&mut definition);
        let whole_pieces = (!whole_pieces.is_empty()).then(|| WholePieces {
            split: Configuration {
                split: std::mem::take(&mut definition.config.split),
                ..Configuration::default()
            },
            ids: whole_pieces.into_iter().map(|(id, bytes)| (bytes, id)).collect(),
        });
        let kitoken = Kitoken::from_definition(definition)
            .map_err(|source| TextError::Build { path: path.to_owned(), source })?;

        let added_ids = added.iter().map(|token| (token.content.clone(), token.id)).collect();
        let mut special_ids: Vec<u32> =
            added.iter().filter(|token| token.special).map(|token| token.id).collect();
        special_ids.sort_unstable();
        let (normalized, exact): (Vec<_>, Vec<_>) =
            added.into_iter().partition(|token| token.normalized);
        let normalized = normalized.into_iter().map(|token| {
            let mut content = Cow::Borrowed(token.content.as_str());
            // As in the middle of a text: what happens at its start does not happen to a token.
            normalize(&normalization, &mut content, 1..2);
            AddedToken { content: content.into_owned(), ..token }
        });
        Ok(Tokenizer {
            added_normalized: AddedMatcher::new(normalized.collect()),
            added: AddedMatcher::new(exact),
            kitoken,
            normalization,
            whole_pieces,
            added_ids,
            special_ids,
            table,
        })
    }

    /// Encodes text. Adds no token that the text does not spell, in particular none at its start.
    ///
    /// # Errors
    /// If a run of white space is longer than [`SPACES_MAX`], or the vocabulary has neither a
    /// token nor a fallback for a part of the text.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, TextError> {
        refuse_long_spaces(text)?;
        let skip_special = special == SpecialTokens::AsText;
        let mut ids = Vec::with_capacity(text.len() / 3);
        for cut in self.added.cut(text, skip_special) {
            let range = match cut {
                Cut::Token(id) => {
                    ids.push(id);
                    continue;
                }
                Cut::Text(range) => range,
            };
            let end = if range.end == text.len() { usize::MAX } else { range.end };
            let mut piece = Cow::Borrowed(&text[range.clone()]);
            normalize(&self.normalization, &mut piece, range.start..end);
            for cut in self.added_normalized.cut(&piece, skip_special) {
                match cut {
                    Cut::Token(id) => ids.push(id),
                    Cut::Text(range) => self.encode_plain(&piece[range], &mut ids)?,
                }
            }
        }
        Ok(ids)
    }

    /// Encodes normalised text without added tokens.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let merge = |piece: &str| {
            // No kind of special token is parsed here: they are all cut out.
            self.kitoken
                .encode(piece, &[] as &[SpecialTokenKind])
                .map_err(|source| TextError::Encode { bytes: piece.len(), source })
        };
        let Some(whole) = &self.whole_pieces else {
            ids.append(&mut merge(text)?);
            return Ok(());
        };
        for (start, end) in whole.split.split(text) {
            let piece = &text[start..end];
            match whole.ids.get(piece.as_bytes()) {
                Some(&id) => ids.push(id),
                None => ids.append(&mut merge(piece)?),
            }
        }
        Ok(())
    }

    /// The bytes a token stands for; not always whole characters. Nothing for an id that no token
    /// has.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.table.get(id)
    }

    /// Whether the token is special: a mark for the model, not a part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.binary_search(&id).is_ok()
    }

    /// The token that `text` is, all of it: an added token if there is one, else any other.
    ///
    /// Looks at the whole vocabulary if it is not an added token.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.added_ids.get(text).copied().or_else(|| self.table.find(text.as_bytes()))
    }

    /// One more than the largest token id. The model's embedding may have more rows.
    pub fn vocab_len(&self) -> usize {
        self.table.len()
    }
}

fn normalize(steps: &[Normalization], text: &mut Cow<'_, str>, position: Range<usize>) {
    if text.is_empty() {
        return;
    }
    steps.iter().for_each(|step| step.normalize(text, position.clone()));
}

fn refuse_long_spaces(text: &str) -> Result<(), TextError> {
    if text.len() <= SPACES_MAX {
        return Ok(());
    }
    let (mut start, mut chars) = (0, 0);
    for (at, c) in text.char_indices() {
        if !c.is_whitespace() {
            chars = 0;
            continue;
        }
        if chars == 0 {
            start = at;
        }
        chars += 1;
        if chars > SPACES_MAX {
            let run = &text[start..];
            let chars = run.chars().take_while(|c| c.is_whitespace()).count();
            return Err(TextError::SpacesTooLong { offset: start, chars, max: SPACES_MAX });
        }
    }
    Ok(())
}
