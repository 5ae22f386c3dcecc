//! How well a model predicts a text, and how far two sources of logits are apart on it.
//!
//! ```text
//! text ─► tokens ─► windows ─► logits of the model ─┬─► perplexity
//!                      └─────► logits of another  ──┴─► KL, top-1 agreement
//! ```
//!
//! The other logits come from the same model in other numerics, from another model, or from a
//! [`dump`]. Both sides see the same windows, row by row, and only one batch of rows of each is in
//! memory. `docs/eval.md` says what is computed.

use std::{ops::ControlFlow, ops::Range, path::PathBuf};

use fm_model::{
    Runner,
    runner::{Batch, Output, Row, RowInput, SessionId, StepError, Wants},
};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;

pub mod dump;
pub mod score;

use dump::DumpWriter;
use score::{Compared, Distance, Evaluation, Scored, WindowSums};

/// Tokens of a window unless the caller or the model's context says otherwise.
pub const WINDOW: usize = 512;

/// Rows whose logits are in memory at once.
pub const ROWS: usize = 32;

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// There is nothing to predict.
    #[error("the text is empty")]
    EmptyText,
    /// The model knows tokens only.
    #[error("{} has no tokenizer, so no text can be measured", path.display())]
    NoTokenizer {
        /// The model's directory or GGUF file.
        path: PathBuf,
    },
    /// Nothing is left to predict behind the beginning.
    #[error("the text is too short: {tokens} tokens, none of them with another one before it")]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
    },
    /// A window has no place for a scored token.
    #[error(
        "a window of {window} tokens has no room for a scored one beside {warm_up} of warm-up and \
         the {prefix} that begin every text"
    )]
    Window {
        /// Tokens of a window.
        window: usize,
        /// Tokens of it that are not scored.
        warm_up: usize,
        /// Tokens that the tokenizer puts before every text.
        prefix: usize,
    },
    /// The two do not mean the same by a token.
    #[error("the vocabularies differ: {detail}")]
    Vocabularies {
        /// In what.
        detail: VocabularyDifference,
    },
    /// A dump cannot be read or written.
    #[error("cannot read or write the dump {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no dump of this version.
    #[error("{} is not a dump of logits of this version", path.display())]
    NotADump {
        /// The file.
        path: PathBuf,
    },
    /// The file is not as long as its header says.
    #[error("the dump {} has {found} bytes, its header asks for {expected}", path.display())]
    DumpLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The length that follows from its header.
        expected: u64,
    },
    /// The bytes are not those that were written.
    #[error(
        "the dump {} is corrupt in window {window}: checksum {found:016x}, expected {expected:016x}",
        path.display()
    )]
    DumpCorrupt {
        /// The file.
        path: PathBuf,
        /// The window, counted from 0.
        window: usize,
        /// Checksum in the file.
        expected: u64,
        /// Checksum of its bytes.
        found: u64,
    },
    /// It was made of something else.
    #[error("the dump {} is of another {what}", path.display())]
    DumpMismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
}

/// In what two vocabularies differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VocabularyDifference {
    /// In their lengths.
    #[error("{0} logits per token, the other has {1}")]
    Lengths(usize, usize),
    /// In what the text becomes.
    #[error("token {0} of the text is another one")]
    Token(usize),
    /// In how many tokens it becomes, or in what stands before it.
    #[error("the text begins or ends with other tokens")]
    Frame,
}

impl EvalError {
    /// What the user could do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::EmptyText => "give a file with text: --text FILE",
            Self::NoTokenizer { .. } => "`flash-moe logits` writes logits of given tokens",
            Self::TooShort { .. } => "give a longer text",
            Self::Window { .. } => "raise --window or lower --warm-up",
            Self::Vocabularies { .. } => {
                "only models with the same tokenizer can be compared token by token"
            }
            Self::NotADump { .. } => "`flash-moe eval MODEL --text FILE --dump FILE` writes one",
            Self::DumpLength { .. } | Self::DumpCorrupt { .. } => "write the dump again",
            Self::DumpMismatch { .. } => {
                "use the text, --tokens, --window and --warm-up that the dump was made with"
            }
            Self::Io { .. } => return None,
        })
    }
}

/// How a text is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cutting {
    /// Tokens of a window, those that begin every document included.
    pub window: usize,
    /// Tokens that windows inside a document have for context; at least 1.
    pub warm_up: usize,
}

/// A text on its way through models: documents that know nothing of each other.
#[derive(Clone, Debug)]
pub struct Text {
    prefix: Vec<u32>,
    /// Of all documents.
    tokens: Vec<u32>,
    /// Where each of them ends.
    ends: Vec<usize>,
    cutting: Cutting,
}

/// A part of a document that is computed by itself. Every token is scored in exactly one window, but
/// for the first of a document if the tokenizer puts nothing before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its place, counted from 0.
    pub index: usize,
    /// Tokens before the scored ones: the document from its beginning, or `warm_up` of them.
    pub context: Range<usize>,
    /// Tokens whose probability counts.
    pub scored: Range<usize>,
}

impl Text {
    /// Takes the tokens of documents, and those that the tokenizer puts before each of them.
    ///
    /// # Errors
    /// If not one token would be scored.
    pub fn new(
        prefix: &[u32],
        documents: &[Vec<u32>],
        cutting: Cutting,
    ) -> Result<Self, EvalError> {
        let Cutting { window, warm_up } = cutting;
        let tokens = documents.concat();
        if tokens.is_empty() {
            return Err(EvalError::EmptyText);
        }
        if warm_up == 0 || window.saturating_sub(prefix.len()) <= warm_up {
            return Err(EvalError::Window { window, warm_up, prefix: prefix.len() });
        }
        let ends = documents.iter().scan(0, |end, document| {
            *end += document.len();
            Some(*end)
        });
        let text = Self { prefix: prefix.to_vec(), ends: ends.collect(), tokens, cutting };
        if text.scored() == 0 {
            return Err(EvalError::TooShort { tokens: text.tokens.len() });
        }
        Ok(text)
    }

    /// All tokens, those before documents not included.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How it is cut.
    pub fn cutting(&self) -> Cutting {
        self.cutting
    }

    fn documents(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| start..*end)
    }

    /// Tokens whose probability counts.
    pub fn scored(&self) -> usize {
        self.windows().map(|window| window.scored.len()).sum()
    }

    /// The windows, in order.
    pub fn windows(&self) -> impl Iterator<Item = Window> {
        let Cutting { window, warm_up } = self.cutting;
        let room = window - self.prefix.len();
        let unscored = usize::from(self.prefix.is_empty());
        let cut = self.documents().flat_map(move |document| {
            let Range { start, end } = document;
            let whole = (start + room).min(end);
            let first = (start..start + unscored, start + unscored..whole);
            let later = (whole..end)
                .step_by(room - warm_up)
                .map(move |at| (at - warm_up..at, at..end.min(at + room - warm_up)));
            std::iter::once(first).chain(later).filter(|(_, scored)| !scored.is_empty())
        });
        cut.enumerate().map(|(index, (context, scored))| Window { index, context, scored })
    }

    /// Whether another tokenizer's tokens are these.
    ///
    /// # Errors
    /// With the first difference.
    pub fn same_tokens(&self, other: &Self) -> Result<(), EvalError> {
        let same = |text: &Self| (text.prefix == self.prefix, text.ends == self.ends);
        let mut pairs = self.tokens.iter().zip(&other.tokens);
        let detail = match pairs.position(|(ours, theirs)| ours != theirs) {
            Some(at) => VocabularyDifference::Token(at),
            None if same(other) == (true, true) => return Ok(()),
            None => VocabularyDifference::Frame,
        };
        Err(EvalError::Vocabularies { detail })
    }
}

/// A source of logits for the windows of a text.
pub trait Logits {
    /// Values of a row.
    fn vocab(&self) -> usize;

    /// Rows that it can give at once.
    fn rows_max(&self) -> usize;

    /// Begins a window; the one before has been read to its end.
    ///
    /// # Errors
    /// If its context cannot be computed.
    fn begin(&mut self, window: &Window) -> Result<(), EngineError>;

    /// The next rows of the window: before its first scored token, and so on.
    ///
    /// # Errors
    /// If they cannot be computed or read.
    fn next(&mut self, rows: usize) -> Result<&[f32], EngineError>;
}

/// Logits that a model computes.
pub struct Computed<'a> {
    runner: &'a mut dyn Runner,
    text: &'a Text,
    context: u32,
    cancelled: &'a dyn Fn() -> bool,
    session: Option<SessionId>,
    /// Tokens of the window that have not been fed yet, latest first.
    rest: Vec<u32>,
    batch: Batch,
}

impl std::fmt::Debug for Computed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Computed").field("session", &self.session).finish_non_exhaustive()
    }
}

impl<'a> Computed<'a> {
    /// Computes with `runner`, in sessions of `context` tokens, until `cancelled` says so.
    pub fn new(
        runner: &'a mut dyn Runner,
        text: &'a Text,
        context: u32,
        cancelled: &'a dyn Fn() -> bool,
    ) -> Self {
        let (rest, batch) = (Vec::new(), Batch::default());
        Self { runner, text, context, cancelled, session: None, rest, batch }
    }

    /// Feeds the next tokens.
    fn feed(&mut self, count: usize, wants: Wants) -> Result<&[f32], EngineError> {
        let session = self.session.expect("a window has begun");
        let position = self.runner.position(session)?;
        let tokens = self.rest.drain(self.rest.len() - count..).rev();
        self.batch.rows.clear();
        self.batch.rows.extend((position..).zip(tokens).map(|(position, token)| Row {
            session,
            input: RowInput::Token(token),
            position,
            wants,
        }));
        let Output { logits, spoiled, .. } = self.runner.step(&self.batch, &mut |_| {
            if (self.cancelled)() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        match spoiled.into_iter().next() {
            Some(spoiled) => Err(spoiled.reason.into()),
            None => Ok(logits),
        }
    }
}

impl Drop for Computed<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.runner.close(session);
        }
    }
}

impl Logits for Computed<'_> {
    fn vocab(&self) -> usize {
        self.runner.vocab()
    }

    fn rows_max(&self) -> usize {
        self.runner.logits_rows_max().min(self.runner.rows_max())
    }

    fn begin(&mut self, window: &Window) -> Result<(), EngineError> {
        if let Some(session) = self.session.take() {
            self.runner.close(session);
        }
        self.session = Some(self.runner.open(self.context)?);
        let fed = &self.text.tokens[window.context.start..window.scored.end - 1];
        self.rest.clear();
        self.rest.extend(self.text.prefix.iter().chain(fed).rev());
        // The last token before the scored ones is the first whose logits count.
        let mut ahead = self.rest.len() - window.scored.len();
        while ahead > 0 {
            let count = ahead.min(self.runner.rows_max());
            self.feed(count, Wants::default())?;
            ahead -= count;
        }
        Ok(())
    }

    fn next(&mut self, rows: usize) -> Result<&[f32], EngineError> {
        self.feed(rows, Wants { logits: true, ..Wants::default() })
    }
}

/// Scores a text by `model`, holds it to `against`, and writes the logits down if asked to.
/// `on_progress` hears how many tokens have been scored.
///
/// # Errors
/// If logits cannot be had, are not numbers, or belong to another vocabulary, or if the text does.
pub fn evaluate(
    text: &Text,
    model: &mut dyn Logits,
    mut against: Option<&mut dyn Logits>,
    mut dump: Option<&mut DumpWriter>,
    on_progress: &mut dyn FnMut(usize),
) -> Result<Evaluation, EngineError> {
    let vocab = model.vocab();
    let mut rows_max = model.rows_max();
    if let Some(against) = &against {
        rows_max = rows_max.min(against.rows_max());
        if against.vocab() != vocab {
            let detail = VocabularyDifference::Lengths(vocab, against.vocab());
            return Err(EvalError::Vocabularies { detail }.into());
        }
    }
    // The last token of a window is never fed, only scored: no step would find that it is unknown.
    if let Some(&token) = text.tokens.iter().find(|token| **token as usize >= vocab) {
        return Err(StepError::UnknownToken { token, vocab }.into());
    }
    let (mut windows, mut done) = (Vec::new(), 0);
    for window in text.windows() {
        model.begin(&window)?;
        if let Some(against) = &mut against {
            against.begin(&window)?;
        }
        let mut sums = WindowSums::default();
        for first in window.scored.clone().step_by(rows_max) {
            let count = rows_max.min(window.scored.end - first);
            let ours = model.next(count)?;
            if let Some(dump) = &mut dump {
                dump.rows(ours)?;
            }
            let theirs = against.as_mut().map(|against| against.next(count)).transpose()?;
            for row in 0..count {
                let at = row * vocab..(row + 1) * vocab;
                let (token, target) = (first + row, text.tokens[first + row]);
                let scored = Scored::of(&ours[at.clone()], target)?;
                let compared = match theirs {
                    Some(theirs) => Some(Compared::of(&ours[at.clone()], &theirs[at], target)?),
                    None => None,
                };
                sums.add(token, scored, compared);
            }
            done += count;
            on_progress(done);
        }
        if let Some(dump) = &mut dump {
            dump.end_window()?;
        }
        windows.push(sums);
    }
    let against = against.is_some().then(|| Distance::of(&windows));
    Ok(Evaluation { against, ..Evaluation::of(&windows) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lens: &[u32], prefix: usize, window: usize, warm_up: usize) -> Result<Text, EvalError> {
        let documents: Vec<Vec<u32>> = lens.iter().map(|len| (0..*len).collect()).collect();
        Text::new(&[7, 7][..prefix], &documents, Cutting { window, warm_up })
    }

    #[test]
    fn every_token_is_scored_once_and_with_the_context_it_has() {
        for (lens, prefix) in [(vec![100], 0), (vec![4, 1, 0, 10, 11, 10], 0), (vec![1, 99], 2)] {
            let (room, warm_up) = (10 - prefix, 3);
            let text = text(&lens, prefix, 10, warm_up).unwrap();
            let mut scored = Vec::new();
            for (index, window) in text.windows().enumerate() {
                let document = text.documents().find(|d| d.contains(&window.scored.start)).unwrap();
                assert_eq!((window.index, window.context.end), (index, window.scored.start));
                assert!(window.scored.end <= document.end, "no window spans two documents");
                assert!(window.context.len() + window.scored.len() <= room);
                let begins = window.context.start == document.start;
                assert!(begins || window.context.len() == warm_up);
                assert!(prefix > 0 || !window.context.is_empty());
                scored.extend(window.scored);
            }
            let first = |at: &usize| text.documents().any(|d| d.start == *at && !d.is_empty());
            let all = 0..text.tokens.len();
            let expected: Vec<usize> = all.filter(|at| prefix > 0 || !first(at)).collect();
            assert_eq!(scored, expected);
            assert_eq!(text.scored(), expected.len());
        }
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        assert!(matches!(text(&[], 0, 10, 3), Err(EvalError::EmptyText)));
        assert!(matches!(text(&[0, 0], 0, 10, 3), Err(EvalError::EmptyText)));
        assert!(matches!(text(&[1, 1], 0, 10, 3), Err(EvalError::TooShort { tokens: 2 })));
        assert_eq!(text(&[1], 1, 10, 3).unwrap().scored(), 1);
        for (prefix, window, warm_up) in [(0, 3, 3), (2, 5, 3), (0, 5, 0), (1, 5, usize::MAX)] {
            let error = text(&[9], prefix, window, warm_up).unwrap_err();
            assert!(matches!(error, EvalError::Window { .. }), "{error}");
        }
    }

    #[test]
    fn other_tokens_are_another_vocabulary() {
        let ours = text(&[5, 4], 1, 5, 1).unwrap();
        assert!(ours.same_tokens(&ours).is_ok());
        for (lens, prefix) in [(vec![5, 4], 0), (vec![9], 1), (vec![4, 5], 1), (vec![5, 3], 1)] {
            assert!(ours.same_tokens(&text(&lens, prefix, 5, 1).unwrap()).is_err());
        }
    }
}
