//! Strings and tokens: everything between what people write and what the network reads.
//!
//! Text goes in through a [`ChatTemplate`] and a [`Tokenizer`]; tokens come back out through a
//! [`Detokenizer`], a [`ThinkingSplitter`] and [`StopStrings`], which are fed piece by piece while
//! the model is still talking. A [`Vocabulary`] is a tokenizer as plain data, for files that carry
//! it in their metadata. Knows nothing about models, devices or files other than the tokenizer's
//! own.

#![forbid(unsafe_code)]

pub mod answer;
pub mod chat;
pub mod detokenizer;
pub mod error;
mod files;
mod held;
mod meanwhile;
pub mod stop;
pub mod thinking;
pub mod tokenizer;
pub mod tools;
pub mod vocabulary;

pub use answer::{AnswerForm, AnswerSplitter};
pub use chat::{ChatTemplate, Message, RenderRequest};
pub use detokenizer::{Detokenizer, SpecialText, Spelled};
pub use error::TextError;
pub use files::end_token;
pub use stop::{StopPush, StopStrings};
pub use thinking::{Channel, Segment, ThinkingSplitter, ThinkingState, ThinkingTags};
pub use tokenizer::{SpecialTokens, Tokenizer};
pub use tools::{CallPart, Channels, Definitions, Dialect, Part};
pub use vocabulary::{Vocabulary, VocabularyError};
