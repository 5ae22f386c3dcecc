//! A tokenizer as plain data: the `tokenizer.ggml` keys of a file's metadata.
//!
//! ```text
//! Vocabulary ─► checked ─► tokenizer.json ─► the one conversion there is (tokenizer/file.rs)
//! ```
//!
//! The metadata say less than `tokenizer.json` did: how text is split is a name
//! (`vocabulary/split.rs`), the merges of a `SentencePiece` vocabulary follow from its scores
//! (`vocabulary/pieces.rs`), and added tokens have lost their flags. Those that carry a mark for
//! control are taken for special, which they need not have been: that shows only where special
//! tokens are read as text, or left out of an answer.

mod bpet;
mod error;
mod pieces;
mod split;

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

pub use self::{
    bpet::{BpetError, MAGIC as BPET_MAGIC},
    error::VocabularyError,
};
use crate::tokenizer::{
    AddedToken, Frame,
    decoder::{Start, of_pieces},
};

/// What a file's metadata say about its tokens. Fields carry the names of their keys, which stand
/// in [`key`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: `gpt2` merges bytes, `llama` pieces of `SentencePiece`.
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is split before bytes are merged.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the text of every token, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`, by id. Only `llama` has a use for them.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id; see [`kind`].
    pub token_type: Vec<i32>,
    /// `tokenizer.ggml.merges`: two tokens each, with a space between them.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos_token: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos_token: Option<bool>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos_token_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos_token_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_ids`: all that end a text, of writers that have such a key.
    pub eos_token_ids: Vec<u32>,
    /// `tokenizer.ggml.eot_token_id`: ends a turn.
    pub eot_token_id: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: ends a message.
    pub eom_token_id: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown_token_id: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding_token_id: Option<u32>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
    /// `tokenizer.chat_template.NAME` of every name in `tokenizer.chat_templates`.
    pub chat_templates: Vec<(String, String)>,
}

/// Metadata keys.
pub mod key {
    /// Kind of tokenizer.
    pub const MODEL: &str = "tokenizer.ggml.model";
    /// How text is split.
    pub const PRE: &str = "tokenizer.ggml.pre";
    /// Texts.
    pub const TOKENS: &str = "tokenizer.ggml.tokens";
    /// Scores.
    pub const SCORES: &str = "tokenizer.ggml.scores";
    /// Kinds of tokens.
    pub const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
    /// Merges.
    pub const MERGES: &str = "tokenizer.ggml.merges";
    /// Whether text begins with a space.
    pub const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
    /// Whether text begins with a beginning of text.
    pub const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
    /// Whether text ends with an end of text.
    pub const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
    /// Beginning of text.
    pub const BOS: &str = "tokenizer.ggml.bos_token_id";
    /// End of text.
    pub const EOS: &str = "tokenizer.ggml.eos_token_id";
    /// Ends of text.
    pub const EOS_ALL: &str = "tokenizer.ggml.eos_token_ids";
    /// End of turn.
    pub const EOT: &str = "tokenizer.ggml.eot_token_id";
    /// End of message.
    pub const EOM: &str = "tokenizer.ggml.eom_token_id";
    /// What has no token.
    pub const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
    /// Padding.
    pub const PADDING: &str = "tokenizer.ggml.padding_token_id";
    /// The template, and the start of the keys of further ones.
    pub const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
    /// Names of further templates.
    pub const CHAT_TEMPLATES: &str = "tokenizer.chat_templates";
    /// All of them that begin with `tokenizer.ggml`.
    pub const ALL: [&str; 16] = [
        MODEL,
        PRE,
        TOKENS,
        SCORES,
        TOKEN_TYPE,
        MERGES,
        ADD_SPACE_PREFIX,
        ADD_BOS,
        ADD_EOS,
        BOS,
        EOS,
        EOS_ALL,
        EOT,
        EOM,
        UNKNOWN,
        PADDING,
    ];
}

/// Values of `tokenizer.ggml.token_type`.
pub mod kind {
    /// Made by merging.
    pub const NORMAL: i32 = 1;
    /// Stands for text that has no token.
    pub const UNKNOWN: i32 = 2;
    /// A mark for the model.
    pub const CONTROL: i32 = 3;
    /// Added text.
    pub const USER_DEFINED: i32 = 4;
    /// A row of the embedding without a token.
    pub const UNUSED: i32 = 5;
    /// A byte to fall back to.
    pub const BYTE: i32 = 6;
}

/// The longest token in bytes; published ones have a few hundred.
pub const TOKEN_BYTES_MAX: usize = 1024;

/// Tokens that end a text wherever they are found, whatever kind they are said to be. Metadata name one
/// or two ids, `generation_config.json` named all of them; converters take some for plain text.
const ENDS: [&str; 18] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    MESSAGE_END,
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
];

/// Ends a turn, but only a message of several where a model has a token for the end of its turn.
const MESSAGE_END: &str = "<|end|>";
const TURN_END: &str = "<|return|>";

/// The tokens that end a text by what they are, of those that `find` knows, ascending.
pub fn known_ends(find: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let in_turns = find(TURN_END).is_some();
    let ends = ENDS.iter().filter(|text| !(in_turns && **text == MESSAGE_END));
    let mut ids: Vec<u32> = ends.filter_map(|text| find(text)).collect();
    ids.sort_unstable();
    ids
}

const GPT2: &str = "gpt2";
const LLAMA: &str = "llama";

/// `tokenizer.json`, as far as it decides about ids.
#[derive(Serialize)]
struct TokenizerJson<'a> {
    added_tokens: Vec<AddedToken>,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: ModelJson<'a>,
}

#[derive(Default, Serialize)]
struct ModelJson<'a> {
    r#type: &'static str,
    unk_token: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: BTreeMap<&'a str, u32>,
    merges: Vec<(&'a str, &'a str)>,
}

impl Vocabulary {
    /// Name and text of the special tokens, as chat templates know them (`bos_token`).
    pub fn special_tokens(&self) -> Vec<(&'static str, &str)> {
        let named = [
            ("bos_token", self.bos_token_id),
            ("eos_token", self.eos_token_id),
            ("unk_token", self.unknown_token_id),
            ("pad_token", self.padding_token_id),
        ];
        let text = |id: Option<u32>| self.tokens.get(id? as usize).map(String::as_str);
        named.into_iter().filter_map(|(name, id)| Some((name, text(id)?))).collect()
    }

    /// Every token that ends a text or a turn, in ascending order.
    pub fn end_tokens(&self) -> Vec<u32> {
        let named = [self.eos_token_id, self.eot_token_id, self.eom_token_id];
        let is_named = named.iter().any(Option::is_some) || !self.eos_token_ids.is_empty();
        let texts = self.tokens.iter().zip(0..).filter(|&(text, id)| {
            let is_plain = self.token_type.get(id as usize) == Some(&kind::NORMAL);
            ENDS.contains(&text.as_str()) && !(is_named && is_plain && !is_mark(text))
        });
        let ends: HashMap<&str, u32> = texts.map(|(text, id)| (text.as_str(), id)).collect();
        let known = known_ends(|text| ends.get(text).copied());
        let named = named.into_iter().flatten().chain(self.eos_token_ids.iter().copied());
        let mut ids: Vec<u32> = named.chain(known).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// About the length of the `tokenizer.json` that this was made of, by which memory is planned.
    pub fn json_bytes(&self) -> u64 {
        let entries = |list: &[String], more: usize| -> usize {
            list.iter().map(|text| text.len() + more).sum()
        };
        // A token is an entry with an id; a merge spells one; those of pieces are found later.
        let merges = match self.model.as_str() {
            LLAMA => 2 * entries(&self.tokens, 8),
            _ => entries(&self.merges, 8),
        };
        (entries(&self.tokens, 10) + merges) as u64
    }

    /// Changes with everything that decides about ids.
    pub(crate) fn hash(&self) -> u128 {
        let mut hash = Xxh3::new();
        let mut text = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        text(&self.model);
        for list in [&self.tokens, &self.merges] {
            text(&list.len().to_string());
            list.iter().for_each(|entry| text(entry));
        }
        let ids = [self.bos_token_id, self.eos_token_id, self.unknown_token_id];
        let flags = [self.add_space_prefix, self.add_bos_token, self.add_eos_token];
        text(&format!("{:?} {ids:?} {flags:?}", self.pre));
        self.scores.iter().for_each(|score| hash.update(&score.to_le_bytes()));
        self.token_type.iter().for_each(|kind| hash.update(&kind.to_le_bytes()));
        hash.digest128()
    }

    /// What this vocabulary was made of, or its equal.
    pub(crate) fn tokenizer_json(&self) -> Result<Vec<u8>, VocabularyError> {
        let ids = self.checked_ids()?;
        let json = match self.model.as_str() {
            GPT2 => self.byte_level(&ids),
            LLAMA => self.sentence_piece(&ids),
            model => Err(VocabularyError::UnknownModel { model: error::shown(model) }),
        }?;
        Ok(serde_json::to_vec(&json).expect("strings and numbers are always JSON"))
    }

    /// What stands around a text that no template made.
    pub(crate) fn frame(&self) -> Result<Frame, VocabularyError> {
        // What writers of metadata leave out is what `llama` and Llama 3 vocabularies did.
        let bos = self.add_bos_token.unwrap_or(match self.model.as_str() {
            LLAMA => true,
            _ => split::find(self.pre.as_deref())?.adds_bos,
        });
        let token = |added: bool, id: Option<u32>, key: &'static str| match id {
            _ if !added => Ok(Vec::new()),
            Some(id) => Ok(vec![id]),
            None => Err(VocabularyError::Missing { key }),
        };
        Ok(Frame {
            before: token(bos, self.bos_token_id, key::BOS)?,
            after: token(self.add_eos_token == Some(true), self.eos_token_id, key::EOS)?,
        })
    }

    /// Ids by text, of the tokens that are in use.
    fn checked_ids(&self) -> Result<HashMap<&str, u32>, VocabularyError> {
        let count = self.tokens.len();
        let lists = [
            (key::TOKEN_TYPE, self.token_type.len(), true),
            (key::SCORES, self.scores.len(), self.model == LLAMA || !self.scores.is_empty()),
        ];
        for (key, found, needed) in lists {
            if needed && found != count {
                return Err(VocabularyError::Count { key, found, tokens: count });
            }
        }
        self.check_named_ids()?;
        let mut ids = HashMap::with_capacity(count);
        for (id, (text, &kind)) in self.tokens.iter().zip(&self.token_type).enumerate() {
            let id = u32::try_from(id).map_err(|_| VocabularyError::TooManyTokens)?;
            if !(kind::NORMAL..=kind::BYTE).contains(&kind)
                || (kind == kind::BYTE && self.model == GPT2)
            {
                return Err(VocabularyError::TokenType { id, found: kind });
            }
            if text.len() > TOKEN_BYTES_MAX {
                return Err(VocabularyError::TokenTooLong { id, bytes: text.len() });
            }
            if is_padding(id, text, kind) {
                continue;
            }
            if let Some(first) = ids.insert(text.as_str(), id) {
                return Err(VocabularyError::Duplicate { first, second: id });
            }
        }
        Ok(ids)
    }

    fn check_named_ids(&self) -> Result<(), VocabularyError> {
        let tokens = self.tokens.len();
        let named = [
            (key::BOS, self.bos_token_id),
            (key::EOS, self.eos_token_id),
            (key::EOT, self.eot_token_id),
            (key::EOM, self.eom_token_id),
            (key::UNKNOWN, self.unknown_token_id),
            (key::PADDING, self.padding_token_id),
        ];
        let ends = self.eos_token_ids.iter().map(|id| (key::EOS_ALL, Some(*id)));
        for (key, id) in named.into_iter().chain(ends) {
            if let Some(id) = id.filter(|&id| id as usize >= tokens) {
                return Err(VocabularyError::IdOutOfRange { key, id, tokens });
            }
        }
        Ok(())
    }

    /// Tokens that are cut out of the text before it is split.
    fn added_tokens(&self) -> Vec<AddedToken> {
        let tokens = self.tokens.iter().zip(&self.token_type).zip(0..);
        let added = tokens.filter_map(|((text, &kind), id)| {
            let special = match kind {
                kind::CONTROL | kind::UNKNOWN => true,
                kind::USER_DEFINED => false,
                _ => return None,
            };
            (!is_padding(id, text, kind)).then(|| AddedToken::new(id, text, special))
        });
        added.collect()
    }

    /// Merges of bytes, which are written as letters.
    fn byte_level(&self, ids: &HashMap<&str, u32>) -> Result<TokenizerJson<'_>, VocabularyError> {
        let split = split::find(self.pre.as_deref())?;
        if self.merges.is_empty() {
            return Err(VocabularyError::Missing { key: key::MERGES });
        }
        let mut vocab: BTreeMap<&str, u32> = BTreeMap::new();
        for (text, &kind) in self.tokens.iter().zip(&self.token_type) {
            if kind == kind::NORMAL {
                vocab.extend(ids.get_key_value(text.as_str()).map(|(_, &id)| (text.as_str(), id)));
            }
        }
        let mut merges = Vec::with_capacity(self.merges.len());
        let mut whole = String::new();
        for (index, merge) in self.merges.iter().enumerate() {
            let (left, right) = merge
                .split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty())
                .filter(|(_, right)| !right.contains(' '))
                .ok_or(VocabularyError::MergeShape { index })?;
            whole.clear();
            whole.push_str(left);
            whole.push_str(right);
            // What merges to or from an added token was a token of the model as well.
            for part in [left, right, &whole] {
                let &id = ids.get(part).ok_or(VocabularyError::MergeOfNothing { index })?;
                vocab.insert(&self.tokens[id as usize], id);
            }
            merges.push((left, right));
        }
        let model = ModelJson {
            r#type: "BPE",
            ignore_merges: split.whole_pieces,
            vocab,
            merges,
            ..ModelJson::default()
        };
        Ok(TokenizerJson {
            added_tokens: self.added_tokens(),
            normalizer: split.normalizer(),
            pre_tokenizer: split.pre_tokenizer(),
            decoder: json!({"type": "ByteLevel"}),
            model,
        })
    }

    /// Merges of characters, with bytes for those that have no token.
    fn sentence_piece(
        &self,
        ids: &HashMap<&str, u32>,
    ) -> Result<TokenizerJson<'_>, VocabularyError> {
        if let Some(id) = self.scores.iter().position(|score| !score.is_finite()) {
            return Err(VocabularyError::Score { id: id as u32 });
        }
        if let Some(byte) = (0..=u8::MAX).find(|b| !ids.contains_key(&*format!("<0x{b:02X}>"))) {
            return Err(VocabularyError::MissingByte { byte });
        }
        let unknown = self.unknown_token_id.map(|id| self.tokens[id as usize].as_str());
        let mut added_tokens = self.added_tokens();
        if let Some((text, id)) = unknown.zip(self.unknown_token_id)
            && !added_tokens.iter().any(|token| token.id == id)
        {
            added_tokens.push(AddedToken::new(id, text, true));
        }
        let vocab: BTreeMap<&str, u32> =
            self.tokens.iter().filter_map(|t| Some((t.as_str(), *ids.get(t.as_str())?))).collect();
        let to_metaspace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let (normalizer, start) = if self.add_space_prefix == Some(false) {
            (to_metaspace, Start::Kept)
        } else {
            let prepend = json!({"type": "Prepend", "prepend": "▁"});
            let steps = json!({"type": "Sequence", "normalizers": [prepend, to_metaspace]});
            (steps, Start::Space)
        };
        let model = ModelJson {
            r#type: "BPE",
            unk_token: unknown,
            fuse_unk: true,
            byte_fallback: true,
            merges: pieces::merges(&self.tokens, &self.scores, ids),
            vocab,
            ..ModelJson::default()
        };
        let (pre_tokenizer, decoder) = (Value::Null, of_pieces(start));
        Ok(TokenizerJson { added_tokens, normalizer, pre_tokenizer, decoder, model })
    }
}

/// Whether nothing but a control token is spelled so. `</s>` and the like are words of HTML as well, which
/// merges make of text.
fn is_mark(text: &str) -> bool {
    let between = |open, close| text.starts_with(open) && text.ends_with(close);
    between("<|", "|>") || between("<｜", "｜>")
}

/// Whether this is a row of the embedding that no token has. Older files mark such rows by their
/// text alone.
fn is_padding(id: u32, text: &str, kind: i32) -> bool {
    kind == kind::UNUSED || (kind != kind::NORMAL && text == format!("[PAD{id}]"))
}
