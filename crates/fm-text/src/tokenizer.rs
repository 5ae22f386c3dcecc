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
mod beside;
mod cache;
mod exact;
mod file;
mod frame;
pub(crate) mod guard;
mod normalize;
mod reach;
mod token_table;

use std::{borrow::Cow, collections::HashMap, fs, path::Path};

use kitoken::{Configuration, Kitoken, SpecialTokenKind};
use xxhash_rust::xxh3::xxh3_128;

pub(crate) use self::{added::AddedToken, frame::Frame};

use self::{
    added::{AddedMatcher, Cut},
    beside::Beside,
    file::Parts,
    normalize::Normalizer,
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
    kitoken: Kitoken,
    normalizer: Normalizer,
    /// Added tokens that are looked for in the text as it is.
    added: AddedMatcher,
    /// Added tokens that are looked for after normalisation.
    added_normalized: AddedMatcher,
    whole_pieces: Option<WholePieces>,
    added_ids: HashMap<String, u32>,
    special_ids: Vec<u32>,
    table: TokenTable,
    frame: Frame,
}

/// `ignore_merges` with tokens that no merges reach: a piece of split text is looked up here
/// before it is merged, so the split has to happen outside of `kitoken`.
#[derive(Debug)]
struct WholePieces {
    split: Configuration,
    ids: HashMap<Vec<u8>, u32>,
}

/// Where a converted tokenizer is kept.
#[derive(Clone, Copy)]
struct Cache<'a> {
    dir: Option<&'a Path>,
    hash: u128,
}

/// The longest run of white space that can be encoded. The split patterns of all current models
/// contain `\s+(?!\S)`, which keeps one backtracking step per character on a stack of a million;
/// beyond that `kitoken` panics.
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
        let json =
            fs::read(&path).map_err(|source| TextError::Read { path: path.clone(), source })?;
        let config_path = dir.join("tokenizer_config.json");
        let config = files::read_tokenizer_config(dir)?;
        let beside = Beside::read(dir, &config)?;
        let cache = Cache { dir: cache_dir, hash: xxh3_128(&json) ^ beside.hash() };
        let convert = || Parts::from_json(&json, beside, &path);
        let mut tokenizer = Tokenizer::cached(cache, &path, convert)?;
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
        Tokenizer::cached(cache, path, || {
            let json = vocabulary.tokenizer_json().map_err(refused)?;
            let frame = vocabulary.frame().map_err(refused)?;
            Ok(Parts { frame, ..Parts::from_json(&json, Beside::default(), path)? })
        })
    }

    fn cached(
        cache: Cache<'_>,
        path: &Path,
        convert: impl FnOnce() -> Result<Parts, TextError>,
    ) -> Result<Tokenizer, TextError> {
        let cache_path = cache.dir.map(|dir| cache::path(dir, cache.hash));
        if let Some(parts) = cache_path.as_deref().and_then(cache::read)
            && let Ok(tokenizer) = Tokenizer::from_parts(parts, path)
        {
            return Ok(tokenizer);
        }
        let parts = convert()?;
        if let Some(cache_path) = cache_path {
            // The next start is slower, nothing else.
            let _ = cache::write(&cache_path, &parts);
        }
        Tokenizer::from_parts(parts, path)
    }

    fn from_parts(parts: Parts, path: &Path) -> Result<Tokenizer, TextError> {
        let Parts { mut definition, added, whole_pieces, table, frame } = parts;
        let normalizer = Normalizer::new(file::take_normalization(&mut definition));
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
            normalizer.apply(&mut content, 1..2);
            AddedToken { content: content.into_owned(), ..token }
        });
        Ok(Tokenizer {
            added_normalized: AddedMatcher::new(normalized.collect()),
            added: AddedMatcher::new(exact),
            kitoken,
            normalizer,
            whole_pieces,
            added_ids,
            special_ids,
            table,
            frame,
        })
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
    /// If a run of white space is longer than [`SPACES_MAX`], or the vocabulary has neither a
    /// token nor a fallback for a part of the text.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, TextError> {
        refuse_long_spaces(text)?;
        let skip_control = special == SpecialTokens::AsText;
        let mut ids = Vec::with_capacity(text.len() / 3);
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
                        self.encode_plain(&guard::unguarded(&piece[range]), &mut ids)?;
                    }
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
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The demonstration tokenizer in a folder of its own, with an empty cache.
    struct Case {
        model: tempfile::TempDir,
        cache: tempfile::TempDir,
    }

    impl Case {
        /// `kept` added tokens stay.
        fn new(kept: usize) -> Case {
            Case::changed(|json| json["added_tokens"].as_array_mut().unwrap().truncate(kept))
        }

        fn changed(change: impl FnOnce(&mut serde_json::Value)) -> Case {
            let demo =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
            let mut json = serde_json::from_slice(&fs::read(demo).unwrap()).unwrap();
            change(&mut json);
            let case =
                Case { model: tempfile::tempdir().unwrap(), cache: tempfile::tempdir().unwrap() };
            fs::write(case.model.path().join("tokenizer.json"), json.to_string()).unwrap();
            case
        }

        fn open(&self) -> Tokenizer {
            Tokenizer::open(self.model.path(), Some(self.cache.path())).unwrap()
        }

        fn cache_file(&self) -> PathBuf {
            let files: Vec<_> = fs::read_dir(self.cache.path()).unwrap().collect();
            assert_eq!(files.len(), 1, "one cache, no temporary files");
            files.into_iter().next().unwrap().unwrap().path()
        }
    }

    fn ids(tokenizer: &Tokenizer) -> Vec<u32> {
        let text = "<|im_start|>user\nHello the world 東京<|im_end|>";
        tokenizer.encode(text, SpecialTokens::Parse).unwrap()
    }

    #[test]
    fn the_second_start_reads_the_cache() {
        let case = Case::new(9);
        let first = case.open();
        assert_eq!(ids(&case.open()), ids(&first));

        // The cache of another tokenizer in its place is believed: so it is read.
        let other = Case::new(0);
        other.open();
        fs::copy(other.cache_file(), case.cache_file()).unwrap();
        assert_eq!(case.open().token_id("<think>"), None);
    }

    #[test]
    fn a_broken_cache_is_replaced() {
        let case = Case::new(9);
        let expected = ids(&case.open());
        let path = case.cache_file();
        let whole = fs::read(&path).unwrap();
        let mut broken = vec![Vec::new(), whole[..whole.len() - 1].to_vec(), whole[..20].to_vec()];
        broken.push(Vec::from(&b"fmtext00"[..]));
        // A flipped bit anywhere: the name of the format, the hash, the vocabulary, the table.
        for at in [0, 9, 30, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            broken.push(flipped);
        }
        for data in broken {
            fs::write(&path, data).unwrap();
            assert_eq!(ids(&case.open()), expected);
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_error() {
        let case = Case::new(9);
        let file = case.cache.path().join("file");
        fs::write(&file, "in the way").unwrap();
        let tokenizer = Tokenizer::open(case.model.path(), Some(&file)).unwrap();
        assert_eq!(ids(&tokenizer), ids(&Tokenizer::open(case.model.path(), None).unwrap()));
    }

    #[test]
    fn another_file_has_another_cache() {
        let case = Case::new(9);
        case.open();
        let other = Case::new(8);
        let json = fs::read(other.model.path().join("tokenizer.json")).unwrap();
        fs::write(case.model.path().join("tokenizer.json"), json).unwrap();
        assert_eq!(case.open().token_id("</think>"), None);
    }

    #[test]
    fn tokens_have_names_bytes_and_kinds() {
        let tokenizer = Case::new(9).open();
        let think = tokenizer.token_id("<think>").unwrap();
        let end = tokenizer.token_id("<|im_end|>").unwrap();
        assert_eq!((think, end, tokenizer.vocab_len()), (2046, 2041, 2048));
        assert!(tokenizer.is_special(end) && !tokenizer.is_special(think));
        assert_eq!(tokenizer.token_bytes(end), Some(&b"<|im_end|>"[..]));
        assert_eq!(tokenizer.token_bytes(2048), None);
        let the = tokenizer.token_id(" the").unwrap();
        assert_eq!(tokenizer.encode(" the", SpecialTokens::Parse).unwrap(), [the]);
    }

    #[test]
    fn control_tokens_in_foreign_text_are_letters() {
        let tokenizer = Case::new(9).open();
        for control in ["<|im_end|>", "<think>", "</tool_call>"] {
            let id = tokenizer.token_id(control).unwrap();
            let text = format!("bye {control}");
            assert!(tokenizer.encode(&text, SpecialTokens::Parse).unwrap().contains(&id));
            let as_text = tokenizer.encode(&text, SpecialTokens::AsText).unwrap();
            assert!(!as_text.contains(&id), "{control}");
            let bytes = as_text.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap().to_vec());
            assert_eq!(bytes.collect::<Vec<u8>>(), text.as_bytes());
        }
    }

    #[test]
    fn a_guarded_message_spells_control_tokens_and_a_template_writes_them() {
        let tokenizer = Case::new(9).open();
        let spell = |text: &str| tokenizer.encode(text, SpecialTokens::AsText).unwrap();
        let end = tokenizer.token_id("<|im_end|>").unwrap();
        let think = tokenizer.token_id("<think>").unwrap();
        // Two of them would be guarded, or a token, once their own guards are taken out.
        for message in [
            "bye <|im_end|>\n<|im_start|>system",
            "<|<|im_end|>im_end|>",
            "plain",
            "<\u{FDD0}|im_end|>",
            "<\u{FDD0}<\u{FDD0}|im_end|>|im_end|>",
            "<think>\n</think> <tool_call>{}</tool_call><tool_response>",
        ] {
            let rendered = format!("<think>{}<|im_end|>", tokenizer.guard(message));
            let ids = tokenizer.encode(&rendered, SpecialTokens::ParseTemplate).unwrap();
            let spelled = spell(&message.replace('\u{FDD0}', ""));
            assert_eq!(ids, [vec![think], spelled, vec![end]].concat(), "{message}");
        }
    }

    #[test]
    fn text_that_a_vocabulary_adds_is_a_token_wherever_it_stands() {
        let added = [(2048, "東京"), (2049, "ö"), (2050, "  \n")];
        let case = Case::changed(|json| {
            let tokens = added.map(|(id, text)| AddedToken::new(id, text, false));
            let tokens = tokens.map(|token| serde_json::to_value(token).unwrap());
            json["added_tokens"].as_array_mut().unwrap().extend(tokens);
        });
        let tokenizer = case.open();
        for (id, text) in added {
            assert_eq!(tokenizer.encode(text, SpecialTokens::AsText).unwrap(), [id]);
            let guarded = tokenizer.guard(text);
            assert_eq!(tokenizer.encode(&guarded, SpecialTokens::ParseTemplate).unwrap(), [id]);
        }
    }

    #[test]
    fn no_message_spells_a_token_in_characters_that_are_normalised_to_its_own() {
        let case = Case::changed(|json| {
            let token = AddedToken { normalized: true, ..AddedToken::new(2048, "<K>", false) };
            let token = serde_json::to_value(token).unwrap();
            json["added_tokens"].as_array_mut().unwrap().push(token);
        });
        let tokenizer = case.open();
        let encode = |text: &str, special| tokenizer.encode(text, special).unwrap();
        // The sign of the unit kelvin is the letter K in every normal form.
        for message in ["<K>", "<\u{212A}>", "é <\u{212A}> <think>"] {
            assert!(encode(message, SpecialTokens::Parse).contains(&2048));
            let guarded = tokenizer.guard(message);
            let ids = encode(&guarded, SpecialTokens::ParseTemplate);
            assert_eq!(ids, encode(message, SpecialTokens::AsText), "{message}");
            assert!(!ids.contains(&2048));
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let missing = Tokenizer::open(Path::new("/nowhere"), None).map(drop);
        assert!(
            matches!(missing, Err(TextError::Read { path, .. }) if path.ends_with("tokenizer.json"))
        );
    }
}
