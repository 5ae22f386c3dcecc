//! What can be wrong with a vocabulary.

use super::{TOKEN_BYTES_MAX, key, split};

/// A metadata key and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// Another kind of tokenizer.
    #[error("{} is {model:?}; `gpt2` and `llama` can be read", key::MODEL)]
    UnknownModel {
        /// Its name.
        model: String,
    },

    /// Another way to split text.
    #[error("{} is {pre:?}, which is not known; known are {}", key::PRE, split::names())]
    UnknownPre {
        /// Its name.
        pre: String,
    },

    /// The file does not say how text is split, or says that its writer did not know.
    #[error(
        "{} is missing or `default`, so nobody knows how this model splits text; make the file \
         anew with a converter that writes it",
        key::PRE
    )]
    UnsaidPre,

    /// A key that exact ids need.
    #[error("{key} is missing")]
    Missing {
        /// Which one.
        key: &'static str,
    },

    /// A list that does not have an entry for every token.
    #[error("{key} has {found} entries for {tokens} tokens")]
    Count {
        /// The list.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The length it should have.
        tokens: usize,
    },

    /// A token that does not exist.
    #[error("{key} is {id}, and there are {tokens} tokens")]
    IdOutOfRange {
        /// Who names it.
        key: &'static str,
        /// Its id.
        id: u32,
        /// How many there are.
        tokens: usize,
    },

    /// More tokens than ids.
    #[error("{} has more entries than there are ids", key::TOKENS)]
    TooManyTokens,

    /// Two ids for one text.
    #[error("{} has the same text for {first} and {second}", key::TOKENS)]
    Duplicate {
        /// An id.
        first: u32,
        /// A later one.
        second: u32,
    },

    /// A token that is no token.
    #[error("{} has {bytes} bytes for {id}; at most {TOKEN_BYTES_MAX} are possible", key::TOKENS)]
    TokenTooLong {
        /// Its id.
        id: u32,
        /// Its length.
        bytes: usize,
    },

    /// A kind of token that this model does not have.
    #[error("{} is {found} for {id}", key::TOKEN_TYPE)]
    TokenType {
        /// The token.
        id: u32,
        /// Its kind.
        found: i32,
    },

    /// A score that does not order anything.
    #[error("{} is not a number for {id}", key::SCORES)]
    Score {
        /// The token.
        id: u32,
    },

    /// A byte that could not be encoded.
    #[error("{} lacks `<0x{byte:02X}>`", key::TOKENS)]
    MissingByte {
        /// The byte.
        byte: u8,
    },

    /// A merge that is not two tokens with a space between them.
    #[error("{} has something else than two tokens at {index}", key::MERGES)]
    MergeShape {
        /// Its position.
        index: usize,
    },

    /// A merge of tokens, or to a token, that does not exist.
    #[error("{} has at {index} tokens that are not in {}", key::MERGES, key::TOKENS)]
    MergeOfNothing {
        /// Its position.
        index: usize,
    },
}

/// The start of a name that somebody else chose.
pub(super) fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}
