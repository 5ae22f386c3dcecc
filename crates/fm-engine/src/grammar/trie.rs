//! A vocabulary as letters: what a grammar may be spelled with.

use std::sync::Arc;

use fm_text::{Dialect, Tokenizer, tools::DIALECTS};
use llguidance::ParserFactory;
use toktrie::{
    InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};

use super::{GrammarError, limits, readable};

/// Bytes of a token that the trie has room for; longer ones are not used under a grammar.
const TOKEN_BYTES_MAX: usize = 1000;

/// See the module.
pub(super) struct Words {
    pub(super) factory: ParserFactory,
    /// Tokens that are letters, and the end: a grammar may name others by their number.
    letters: SimpleVob,
    /// The same, and the special tokens that calls are marked with.
    letters_and_marks: SimpleVob,
    /// Tokens that are nothing but newlines.
    pub(super) newlines: Vec<u32>,
    /// `<think>`, if it is one token.
    pub(super) think: Option<u32>,
    /// Tokens of one byte that JSON is closed with.
    pub(super) closers: Closers,
    /// Stands for the end of the text in masks; no row of logits has it.
    pub(super) end: u32,
}

impl Words {
    pub(super) fn new(
        tokenizer: &Tokenizer,
        vocab: usize,
        eos: &[u32],
    ) -> Result<Self, GrammarError> {
        let marks = DIALECTS.iter().flat_map(Dialect::marks);
        let marks: Vec<u32> = marks
            .filter_map(|mark| tokenizer.token_id(mark))
            .filter(|id| (*id as usize) < vocab && tokenizer.is_special(*id) && !eos.contains(id))
            .collect();
        let letters = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            // No UTF-8 has this byte, and to the trie it means something else.
            let fits = bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER)
                && bytes.len() <= TOKEN_BYTES_MAX;
            let is_letter = !tokenizer.is_special(id) && !eos.contains(&id);
            let is_letter = fits && (is_letter || marks.contains(&id));
            if is_letter { bytes.to_vec() } else { Vec::new() }
        };
        let end = vocab as u32;
        let mut words: Vec<Vec<u8>> = (0..end).map(letters).collect();
        let is_newline = |word: &[u8]| !word.is_empty() && word.iter().all(|byte| *byte == b'\n');
        let newlines = (0..end).filter(|id| is_newline(&words[*id as usize])).collect();
        let mut spells: Vec<bool> = words.iter().map(|word| !word.is_empty()).collect();
        spells.push(true);
        let letters_and_marks = SimpleVob::from_slice(&spells);
        marks.iter().for_each(|id| spells[*id as usize] = false);
        words.push(Vec::new());
        let closers = Closers::of(&words);
        let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
        drop(words);
        let environment: TokEnv = Arc::new(Environment(trie));
        // Slices would answer within strings ten times as fast, for another 12 to 24 MB each; the
        // model takes longer than either.
        let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &[]);
        let mut factory = factory
            .map_err(|error| GrammarError::Vocabulary { reason: readable(&error.to_string()) })?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let think = tokenizer.token_id(fm_text::thinking::OPEN);
        let letters = SimpleVob::from_slice(&spells);
        Ok(Self { factory, letters, letters_and_marks, newlines, think, closers, end })
    }

    pub(super) fn letters(&self, letters: Letters) -> &SimpleVob {
        match letters {
            Letters::Only => &self.letters,
            Letters::AndMarks => &self.letters_and_marks,
        }
    }
}

/// What JSON is opened and closed with, as tokens of one byte.
#[derive(Clone, Debug, Default)]
pub(super) struct Closers {
    /// Ends of lists and objects.
    pub(super) brackets: Vec<(u32, u8)>,
    /// Begins an object.
    pub(super) open: Option<u32>,
    /// Ends a string, and begins one.
    pub(super) quote: Option<u32>,
    /// A letter that no other value begins with: where it may stand, a string is open.
    pub(super) letter: Option<u32>,
    /// A digit, and what ends a number that something follows.
    pub(super) digit: Option<u32>,
    pub(super) comma: Option<u32>,
}

impl Closers {
    fn of(words: &[Vec<u8>]) -> Self {
        let token = |byte: u8| words.iter().position(|word| *word == [byte]).map(|id| id as u32);
        let brackets = [b']', b'}'].into_iter().filter_map(|byte| Some((token(byte)?, byte)));
        let brackets = brackets.collect();
        let [open, quote, letter, digit, comma] = [b'{', b'"', b'q', b'0', b','].map(token);
        Self { brackets, open, quote, letter, digit, comma }
    }
}

/// What a text may be spelled with.
#[derive(Clone, Copy)]
pub(super) enum Letters {
    /// No special tokens.
    Only,
    /// None but those that calls are marked with.
    AndMarks,
}

/// The trie alone: any way to spell a text is allowed, so nothing is ever tokenised.
struct Environment(TokTrie);

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
