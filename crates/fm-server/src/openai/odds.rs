//! Log-probabilities in the shape of chats and responses. They are written as they are read: as a tree of JSON, each
//! candidate takes 2 kB.

use std::borrow::Cow;

use fm_text::Tokenizer;
use serde::{Serialize, Serializer};

use crate::answer::TokenOdds;

/// `logprobs` of a choice.
#[derive(Serialize)]
pub(super) struct Logprobs<'o> {
    content: Entries<'o>,
    refusal: (),
}

/// The likelihood of each token, and of the likeliest in its place.
pub(super) struct Entries<'o> {
    pub(super) tokenizer: &'o Tokenizer,
    pub(super) odds: &'o [TokenOdds],
}

#[derive(Serialize)]
struct Entry<'o> {
    #[serde(flatten)]
    own: Candidate<'o>,
    top_logprobs: Vec<Candidate<'o>>,
}

#[derive(Serialize)]
struct Candidate<'t> {
    token: Cow<'t, str>,
    logprob: f64,
    bytes: &'t [u8],
}

impl<'o> Logprobs<'o> {
    pub(super) fn new(tokenizer: &'o Tokenizer, odds: &'o [TokenOdds]) -> Self {
        Self { content: Entries { tokenizer, odds }, refusal: () }
    }
}

impl Entries<'_> {
    fn candidate(&self, token: u32, logprob: f32) -> Candidate<'_> {
        let bytes = self.tokenizer.token_bytes(token).unwrap_or_default();
        Candidate { token: String::from_utf8_lossy(bytes), logprob: logprob.into(), bytes }
    }
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.odds.iter().map(|odds| {
            let top = odds.likeliest.iter();
            Entry {
                own: self.candidate(odds.token, odds.logprob),
                top_logprobs: top
                    .map(|(token, logprob)| self.candidate(*token, *logprob))
                    .collect(),
            }
        }))
    }
}
