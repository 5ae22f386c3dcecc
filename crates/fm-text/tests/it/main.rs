//! What people would use of this crate: chat templates, tools and tokenizers, beside those of other programs.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod chat;
mod chat_goldens;
mod oracle;
mod tokenizer_oracle;
mod tools;
