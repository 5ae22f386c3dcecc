//! A grammar as it is followed from, and what making it may take.

use std::{
    panic::AssertUnwindSafe,
    sync::{Mutex, PoisonError},
};

use llguidance::{
    Logger,
    api::{GrammarInit, ParserLimits},
    derivre::{ExprRef, raw::ExprSet},
    earley::lexerspec::LexerSpec,
    panic_utils,
};
use toktrie::InferenceCapabilities;

use super::{
    Grammar, GrammarError, Grammars,
    follower::{self, Heard},
    matcher::{Fixed, Matcher},
    numbers, readable,
    room::Share,
    terms,
    trie::{Letters, Words},
    weight,
};

/// What compiling takes whatever the grammar is.
const BASE_BYTES: u64 = 300_000;

/// Work on the expressions of a grammar: so much for each, and for every byte of it, but no more than that. Each unit is
/// 8 to 60 bytes; without a bound by the length, terminals that are made of two others each, and so on, take 60 MB for 400
/// bytes of text.
const WORK_LEAST: u64 = 150_000;
const WORK_BYTE: u64 = 10;
const WORK_MOST: u64 = 1_000_000;

/// Work on the states of expressions that are looked at in advance: those of 65 KB of words take 400,000.
const STATES_WORK: u64 = 500_000;

/// What a compilation takes of a byte of expressions: as they were read, twice more as they are stored, once for the
/// lexer, each with up to as much room as it takes itself.
const EXPRESSION_FACTOR: u64 = 8;

/// The same of a kind of word: a choice of 5,500 words took 16 MB.
const WORD_BYTES: u64 = 3_000;

/// The same of the states that are made in advance of more than a thousand expressions.
const STATE_BYTES: u64 = 700;
const STATES_MOST: u64 = 24_000_000;

/// Memory of a compiled grammar beside its lexer, for every byte of its rules: measured 51.
const RULE_BYTES: u64 = 55;

/// A grammar, and a parser at the start of its text.
pub(super) struct Compiled {
    pub(super) grammar: Grammar,
    /// Never moved on: texts follow copies of it.
    pub(super) start: Mutex<Matcher>,
    /// What it takes of the memory of all of them, as long as it is there.
    pub(super) _share: Share,
}

impl Compiled {
    pub(super) fn new(grammar: Grammar, grammars: &Grammars) -> Result<Self, GrammarError> {
        let words = grammars.words()?;
        let mut share = grammars.share();
        grammars.grow(&mut share, BASE_BYTES + weight::of_looking(&grammar))?;
        let rules = weight::rules(&grammar);
        let always = BASE_BYTES
            + rules * weight::RULE_BYTES
            + numbers::remainders(&grammar) * weight::REMAINDER_BYTES;
        grammars.grow(&mut share, always + weight::of_expressions(&grammar))?;
        weight::check_schemas(&grammar)?;
        let text = grammar.text_bytes() as u64;
        let work = (WORK_LEAST + WORK_BYTE * text).min(WORK_MOST);
        let limits = ParserLimits { initial_lexer_fuel: work, ..words.factory.limits().clone() };
        let top = GrammarInit::Serialized(grammar.top_level());
        let vocabulary = words.factory.tok_env().clone();
        let read = caught(|| top.to_internal(Some(vocabulary), limits.clone()))?;
        let expressions = read.1.regex_builder.exprset();
        let derivatives = terms::bytes(expressions)?;
        let fixed = Fixed { expressions: expressions.num_bytes() as u64, meet: meet(expressions) };
        let of_lexer = of_making(&read.1);
        grammars.grow(&mut share, always + of_lexer + derivatives)?;
        let limits = ParserLimits { initial_lexer_fuel: STATES_WORK, ..limits };
        let read = GrammarInit::Internal(read.0, read.1);
        let (quiet, none) = (Logger::new(0, 0), InferenceCapabilities::default());
        let parser =
            caught(|| words.factory.create_parser_from_init_ext(read, quiet, none, limits))?;
        let allowance = grammars.room.parser;
        let mut start = Matcher::new(parser, fixed, allowance);
        // Refuses what allows nothing from the start: a grammar of the empty text is complete before
        // it begins.
        if start.check_stop().is_err() || start.is_stopped() {
            return Err(GrammarError::Nothing);
        }
        match follower::next_mask(&mut start, words, grammar.letters()) {
            Heard::Mask(_) => {}
            Heard::Stuck(GrammarError::Exhausted) => return Err(too_complex()),
            _ => return Err(GrammarError::Nothing),
        }
        if grammar.is_json() {
            grammars.grow(&mut share, always + of_lexer + derivatives + start.held())?;
            let copying = grammars.copying.lock().unwrap_or_else(PoisonError::into_inner);
            let copy = start.deep_clone();
            drop(copying);
            try_object(copy, words)?;
        }
        let held = start.held();
        let (needs, room) = (held / 3 * 4, allowance);
        if needs > room {
            return Err(GrammarError::TooLarge { needs, room });
        }
        share.shrink(BASE_BYTES + held + 2 * fixed.expressions + RULE_BYTES * rules);
        Ok(Self { grammar, start: Mutex::new(start), _share: share })
    }
}

/// Refuses what can begin an object and go no further: every key that may come is looked at there.
fn try_object(mut start: Matcher, words: &Words) -> Result<(), GrammarError> {
    let Some(open) = words.closers.open.filter(|open| start.count_allowed(&[*open]) == Ok(1))
    else {
        return Ok(());
    };
    let mut is_stuck = || {
        start.consume_token(open).is_err()
            || matches!(follower::next_mask(&mut start, words, Letters::Only), Heard::Stuck(_))
    };
    if is_stuck() {
        let reason = "an object of it has too many keys that may come first: properties that may be left out, or \
                      alternatives";
        return Err(GrammarError::Invalid { reason: reason.to_owned() });
    }
    Ok(())
}

/// Work that may end in a panic.
fn caught<T>(work: impl FnOnce() -> anyhow::Result<T>) -> Result<T, GrammarError> {
    panic_utils::catch_unwind(AssertUnwindSafe(work))
        .map_err(|error| GrammarError::Invalid { reason: readable(&format!("{error:#}")) })
}

fn too_complex() -> GrammarError {
    let reason = "what may follow at its very beginning takes too many states".to_owned();
    GrammarError::Invalid { reason }
}

/// What making a lexer may take, when it is known what it consists of.
fn of_making(read: &LexerSpec) -> u64 {
    let expressions = read.regex_builder.exprset();
    let states = match expressions.len() as u64 {
        few @ 0..1000 => few,
        many => many * STATE_BYTES,
    };
    EXPRESSION_FACTOR * expressions.num_bytes() as u64
        + WORD_BYTES * read.lexemes.len() as u64
        + states.min(STATES_MOST)
}

/// Whether some expressions hold together with others, or without them. Any other is known to have a text.
fn meet(expressions: &ExprSet) -> bool {
    (1..expressions.len() as u32)
        .map(ExprRef::new)
        .any(|id| id != ExprRef::NO_MATCH && !expressions.is_positive(id))
}
