//! The one error type of this crate.

use std::{io, path::PathBuf};

use crate::{
    chat::RaisedException,
    vocabulary::{BpetError, VocabularyError},
};

/// Why text could not become tokens, or messages a prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The file system failed.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the file system said.
        source: io::Error,
    },

    /// What git-lfs leaves in the place of a file that it has not fetched.
    #[error(
        "{}: this is a pointer of git-lfs, not the file itself, which `git lfs pull` brings",
        path.display()
    )]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },

    /// A file is not the JSON it should be.
    #[error("{} is not valid JSON of the expected shape", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },

    /// The tokenizer library refused `tokenizer.json`.
    #[error("cannot convert {}", path.display())]
    Convert {
        /// The file.
        path: PathBuf,
        /// What the converter said.
        source: kitoken::convert::ConversionError,
    },

    /// The tokenizer asks for something whose token ids could not be guaranteed.
    #[error("{} uses {feature}, which is not supported: its token ids would not be exact", path.display())]
    UnsupportedTokenizer {
        /// The file.
        path: PathBuf,
        /// What it asks for.
        feature: &'static str,
    },

    /// A file beside `tokenizer.json` gives a token another text, or a text another token.
    #[error(
        "{} has token {id} as {text:?}, and tokenizer.json has {}; which of them the model was trained \
         with cannot be told",
        path.display(),
        match (known, found) {
            (Some(known), _) if known != text => format!("{known:?} there"),
            (_, Some(found)) => format!("that text as token {found}"),
            (_, None) => "another one".to_owned(),
        }
    )]
    TokenContradiction {
        /// The file.
        path: PathBuf,
        /// The token there.
        id: u32,
        /// Its text there.
        text: String,
        /// The token that has this text.
        found: Option<u32>,
        /// The text that this token has.
        known: Option<String>,
    },

    /// A special token that has no id anywhere.
    #[error(
        "{} names the special token {text:?}, which neither tokenizer.json nor added_tokens.json gives \
         an id",
        path.display()
    )]
    TokenWithoutId {
        /// The file.
        path: PathBuf,
        /// The token.
        text: String,
    },

    /// An id that no vocabulary has.
    #[error("{} gives {text:?} the id {id}; at most 16777216 make sense", path.display())]
    TokenId {
        /// The file.
        path: PathBuf,
        /// The id.
        id: u32,
        /// The token.
        text: String,
    },

    /// The vocabulary in a file's metadata contradicts itself or is of a kind that is not known.
    #[error("cannot use the vocabulary of {}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// The metadata key and what is wrong with it.
        source: VocabularyError,
    },

    /// A `tokenizer.bin` is not what it should be.
    #[error("cannot read the tokenizer {}", path.display())]
    Bpet {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: BpetError,
    },

    /// A part of a text has no token and the vocabulary has no fallback.
    #[error("the vocabulary has no token for {part:?}")]
    Encode {
        /// The part.
        part: String,
    },

    /// An expression that the tokenizer splits text with gave up.
    #[error("cannot split a text of {bytes} bytes as the tokenizer does")]
    Split {
        /// Its length.
        bytes: usize,
        /// Why.
        source: Box<fancy_regex::Error>,
    },

    /// The split pattern of the tokenizer would exhaust its backtracking stack.
    #[error(
        "cannot encode a run of {chars} white-space characters at byte {offset}; at most {max} \
         are possible"
    )]
    SpacesTooLong {
        /// First byte of the run.
        offset: usize,
        /// Its length in characters.
        chars: usize,
        /// The longest run that can be encoded.
        max: usize,
    },

    /// A token id outside of the vocabulary.
    #[error("token {id} is not in the vocabulary of {vocab_len} tokens")]
    UnknownToken {
        /// The id.
        id: u32,
        /// One more than the largest id.
        vocab_len: usize,
    },

    /// The chat template does not parse.
    #[error("cannot parse the chat template of {}", path.display())]
    TemplateSyntax {
        /// The file the template came from.
        path: PathBuf,
        /// Line and reason.
        source: minijinja::Error,
    },

    /// The chat template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation")]
    Refused {
        /// The template's own words.
        source: RaisedException,
    },

    /// The chat template failed: it and the conversation do not fit together.
    #[error("the chat template cannot render this conversation")]
    Render {
        /// Reason and line.
        source: minijinja::Error,
    },

    /// The model lists chat templates, but none that can be used.
    #[error("{} lists {count} chat templates, none of them named `default`", path.display())]
    NoDefaultTemplate {
        /// The file.
        path: PathBuf,
        /// How many it lists.
        count: usize,
    },

    /// A stop string must say something.
    #[error("stop string {index} is empty; leave it out")]
    EmptyStopString {
        /// Its position in the list.
        index: usize,
    },

    /// The tags of a thinking block must say something.
    #[error("the opening and the closing tag of a thinking block must not be empty")]
    EmptyThinkingTag,
}
