//! Text to token ids and back to bytes, with exactly the ids of Hugging Face `tokenizers`.
//!
//! ```text
//! text ─► added tokens cut out ─► normalise ─► normalised added tokens cut out ─► split, merge
//! ```
//!
//! Normalising is `kitoken`'s, and what text is split at; what it does otherwise than `tokenizers` is repaired
//! when `tokenizer.json` is converted (`tokenizer/file.rs`). Splitting (`tokenizer/split.rs`) and merging
//! (`tokenizer/merge.rs`) are ours. The tests hold the ids against what `tokenizers` itself gave.

mod added;
mod beside;
mod cache;
pub(crate) mod decoder;
mod exact;
mod file;
mod frame;
pub(crate) mod guard;
mod merge;
mod normalize;
mod reach;
mod split;
mod token_table;

use std::{borrow::Cow, collections::HashMap, path::Path};

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

pub(crate) use self::{added::AddedToken, frame::Frame};

use self::{
    added::{AddedMatcher, Cut},
    beside::Beside,
    decoder::Start,
    file::Parts,
    merge::{Merger, Room},
    normalize::Normalizer,
    split::Splitter,
    token_table::TokenTable,
};
use crate::{error::TextError, files, vocabulary::Vocabulary};

/// What to make of control tokens (`<|im_end|>`, `<think>`) spelled out in the text.
///
/// Those are the special tokens and all others that a vocabulary adds and spells with signs: whether
/// `<think>` is called special differs from file to file. Other added tokens, such as white space,
/// become their token either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They become the token: for text that came out of a chat template.
    Parse,
    /// They become the token, unless [`Tokenizer::guard`] has guarded them: for a template whose
    /// messages nobody vouches for.
    ParseTemplate,
    /// They are letters like any others: for text that nobody vouches for.
    AsText,
}

/// The vocabulary of a model and the rules to encode with it.
#[derive(Debug)]
pub struct Tokenizer {
    normalizer: Normalizer,
    splitter: Splitter,
    merger: Merger,
    /// Added tokens that are looked for in the text as it is.
    added: AddedMatcher,
    /// Added tokens that are looked for after normalisation.
    added_normalized: AddedMatcher,
    added_ids: HashMap<String, u32>,
    special_ids: Vec<u32>,
    table: TokenTable,
    vocab_len: usize,
    frame: Frame,
    start: Start,
}

/// Where a converted tokenizer is kept.
#[derive(Clone, Copy)]
struct Cache<'a> {
    dir: Option<&'a Path>,
    hash: u128,
}

/// The longest run of white space that can be encoded. The split patterns of all current models
/// contain `\s+(?!\S)`, which keeps one backtracking step per character on a stack of a million.
pub const SPACES_MAX: usize = 500_000;

impl Tokenizer {
    /// Opens `tokenizer.json` in `dir`, and the files beside it for further tokens, and for what they
    /// say about [`prefix`](Self::prefix) and [`suffix`](Self::suffix).
    ///
    /// The converted form is kept in `cache_dir`, if there is one, under a name made of the
    /// file's hash. A cache that is broken or cannot be written is ignored.
    ///
    /// # Errors
    /// If the file is missing, is not a tokenizer, or is one whose ids could not be exact.
    pub fn open(dir: &Path, cache_dir: Option<&Path>) -> Result<Tokenizer, TextError> {
        let path = dir.join("tokenizer.json");
        let json = files::read(&path)?;
        let config_path = dir.join("tokenizer_config.json");
        let config = files::read_tokenizer_config(dir)?;
        if let Some(feature) = unsupported_switch(&config) {
            return Err(TextError::UnsupportedTokenizer { path: config_path, feature });
        }
        let beside = Beside::read(dir)?;
        let cache = Cache { dir: cache_dir, hash: xxh3_128(&json) ^ beside.hash() };
        let convert = || Parts::from_json(&json, beside, &path);
        let mut tokenizer = Tokenizer::cached(cache, convert)?;
        let frame = Frame::configured(&config, |text| tokenizer.token_id(text))
            .map_err(|feature| TextError::UnsupportedTokenizer { path: config_path, feature })?;
        if let Some(frame) = frame {
            tokenizer.frame = frame;
        }
        Ok(tokenizer)
    }

    /// Makes a tokenizer of the vocabulary in the metadata of `path`, with the ids of the
    /// `tokenizer.json` that the vocabulary was made of.
    ///
    /// The converted form is kept in `cache_dir` as by [`open`](Self::open).
    ///
    /// # Errors
    /// If the vocabulary contradicts itself, or does not say all that exact ids need.
    pub fn from_vocabulary(
        vocabulary: &Vocabulary,
        path: &Path,
        cache_dir: Option<&Path>,
    ) -> Result<Tokenizer, TextError> {
        let refused = |source| TextError::Vocabulary { path: path.to_owned(), source };
        let cache = Cache { dir: cache_dir, hash: vocabulary.hash() };
        Tokenizer::cached(cache, || {
            let json = vocabulary.tokenizer_json().map_err(refused)?;
            let frame = vocabulary.frame().map_err(refused)?;
            Ok(Parts { frame, ..Parts::from_json(&json, Beside::default(), path)? })
        })
    }

    fn cached(
        cache: Cache<'_>,
        convert: impl FnOnce() -> Result<Parts, TextError>,
    ) -> Result<Tokenizer, TextError> {
        let Cache { dir, hash } = cache;
        if let Some(parts) = dir.and_then(|dir| cache::read(dir, hash)) {
            return Ok(Tokenizer::from_parts(parts));
        }
        let parts = convert()?;
        if let Some(dir) = dir {
            // The next start is slower, nothing else.
            let _ = cache::write(dir, hash, &parts);
        }
        Ok(Tokenizer::from_parts(parts))
    }

    fn from_parts(parts: Parts) -> Tokenizer {
        let Parts { definition, steps, merger, added, table, frame, start } = parts;
        let normalizer = Normalizer::new(definition.config.normalization);
        let added_ids = added.iter().map(|token| (token.content.clone(), token.id)).collect();
        let mut special_ids: Vec<u32> =
            added.iter().filter(|token| token.special).map(|token| token.id).collect();
        special_ids.sort_unstable();
        let (normalized, exact): (Vec<_>, Vec<_>) =
            added.into_iter().partition(|token| token.normalized);
        let normalized = normalized.into_iter().map(|token| {
            let mut content = Cow::Borrowed(token.content.as_str());
            // As in the middle of a text: what happens at its start does not happen to a token.
            normalizer.apply(&mut content, 1..2);
            AddedToken { content: content.into_owned(), ..token }
        });
        Tokenizer {
            added_normalized: AddedMatcher::new(normalized.collect()),
            added: AddedMatcher::new(exact),
            normalizer,
            splitter: Splitter::new(steps),
            merger,
            added_ids,
            special_ids,
            vocab_len: table.len(),
            table,
            frame,
            start,
        }
    }

    /// What belongs before a text that no chat template made, usually nothing or a beginning of
    /// text. A template writes such tokens itself.
    pub fn prefix(&self) -> &[u32] {
        &self.frame.before
    }

    /// What belongs after a whole text that no chat template made, such as an end of text; not
    /// after the start of one that the model shall continue.
    pub fn suffix(&self) -> &[u32] {
        &self.frame.after
    }

    /// Encodes text. Adds no token that the text does not spell, in particular none at its start:
    /// see [`prefix`](Self::prefix).
    ///
    /// # Errors
    /// If a run of white space is longer than [`SPACES_MAX`], a split pattern gives up otherwise, or the vocabulary has
    /// neither a token nor a fallback for a part of the text.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, TextError> {
        refuse_long_spaces(text)?;
        let skip_control = special == SpecialTokens::AsText;
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut room = Room::default();
        for cut in self.added.cut(text, skip_control) {
            let range = match cut {
                Cut::Token(id) => {
                    ids.push(id);
                    continue;
                }
                Cut::Text(range) => range,
            };
            let end = if range.end == text.len() { usize::MAX } else { range.end };
            let mut piece = Cow::Borrowed(&text[range.clone()]);
            self.normalizer.apply(&mut piece, range.start..end);
            for cut in self.added_normalized.cut(&piece, skip_control) {
                match cut {
                    Cut::Token(id) => ids.push(id),
                    Cut::Text(range) if special == SpecialTokens::ParseTemplate => {
                        self.encode_plain(&guard::unguarded(&piece[range]), &mut room, &mut ids)?;
                    }
                    Cut::Text(range) => self.encode_plain(&piece[range], &mut room, &mut ids)?,
                }
            }
        }
        Ok(ids)
    }

    /// Encodes normalised text without added tokens.
    fn encode_plain(
        &self,
        text: &str,
        room: &mut Room,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let pieces = self.splitter.pieces(text)?;
        pieces.into_iter().try_for_each(|piece| self.merger.encode(&text[piece], room, ids))
    }

    /// The bytes a token stands for; not always whole characters. Nothing for an id that no token
    /// has.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.table.get(id)
    }

    /// What a text loses where it begins.
    pub(crate) fn start(&self) -> Start {
        self.start
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

    /// For a model whose embedding has so many rows: often more than there are tokens.
    #[must_use]
    pub fn for_model(mut self, vocab: usize) -> Self {
        self.vocab_len = self.table.len().max(vocab);
        self
    }

    /// One more than the largest id: of the tokens, or of the model's rows. Not every id below has a token.
    pub fn vocab_len(&self) -> usize {
        self.vocab_len
    }
}

/// What a `tokenizer_config.json` switches on that is not done. Cleaning up spaces is not done to BPE in
/// `transformers` 5 either, unless that is forced.
fn unsupported_switch(config: &Value) -> Option<&'static str> {
    const CLEAN: &str = "clean_up_tokenization_spaces";
    const FORCED: &str = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
    let on = |key: &str| !matches!(config[key], Value::Null | Value::Bool(false));
    if on("split_special_tokens") {
        return Some("split_special_tokens");
    }
    (on(CLEAN) && on(FORCED)).then_some(FORCED)
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

#[cfg(test)]
mod tests;
