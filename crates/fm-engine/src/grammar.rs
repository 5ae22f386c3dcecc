//! What a text may be: a grammar, and the tokens that it allows next.
//!
//! ```text
//! Grammar ─► Grammars::constraint (compiled once, or of late) ─► Request ─► Follower
//!             └ the vocabulary as a trie, built for the first of them       a thread beside the model
//! ```
//!
//! Parsing, regular expressions and the walk over the trie are `llguidance`'s; what is ours is which
//! tokens are letters, how much a grammar may cost, and that nobody waits for it.

mod captures;
mod classes;
mod compiled;
mod compiling;
mod follower;
mod intersections;
mod matcher;
mod meant;
mod numbers;
mod recent;
mod room;
mod terms;
mod trie;
mod weight;

use std::{
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    thread,
    time::Duration,
};

use fm_text::Tokenizer;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use serde_json::{Value, json};

pub(crate) use self::follower::{Follower, WayOut};
use self::{
    compiled::Compiled,
    compiling::{COMPILING_MAX, Compilations},
    follower::Heard,
    matcher::Matcher,
    recent::{Key, Recent},
    room::Ledger,
    trie::{Letters, Words},
};
pub use self::{numbers::HIDDEN_JSON, room::Room};
use crate::bytes::Bytes;

/// Bytes of a grammar's text, or of a schema.
pub const BYTES_MAX: usize = 64 << 10;

/// The same of a grammar of calls, which has the schemas of all tools in it.
pub(crate) const CALLS_BYTES_MAX: usize = fm_text::tools::GRAMMAR_BYTES_MAX;

/// Levels of a schema.
pub const DEPTH_MAX: usize = 64;

/// Brackets of a grammar or an expression that are open at once.
const BRACKETS_MAX: usize = 500;

/// How long somebody waits for a grammar.
const COMPILE_WAIT: Duration = Duration::from_secs(5);

/// Stack of a thread that compiles or follows a grammar; it recurses with the depth of the grammar.
const STACK_BYTES: usize = 16 << 20;

/// White space between the parts of a JSON text. Without a bound, a model may go on with it for ever.
const JSON_SPACE: &str = r"[\x20\t]{1,4}|\r?\n[\x20\t]{0,40}";

/// Memory of the tries while they are built, for every token: measured 355 bytes for 248,000.
pub(crate) const TRIE_TOKEN_BYTES: u64 = 400;

/// What a text shall be.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// A JSON object.
    Json,
    /// JSON that is valid under a schema; properties come in the order of the schema.
    JsonSchema(Value),
    /// All of the text matches a regular expression, in the syntax of the crate `regex`.
    Regex(String),
    /// One of these, letter by letter.
    Choice(Vec<String>),
    /// A context-free grammar in the dialect of Lark that `llguidance` takes.
    Lark(String),
    /// Calls of tools, in the same dialect: the special tokens that a dialect of calls consists of are
    /// letters too.
    Calls(String),
}

/// Why a grammar is not taken, or a text under it cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// Its text is too long.
    #[error("it has {bytes} bytes, {max} are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// Bytes that are taken.
        max: usize,
    },
    /// It is nested too deeply.
    #[error("it is nested more than {max} deep")]
    TooDeep {
        /// Levels that are taken.
        max: usize,
    },
    /// There will never be so much memory for it.
    #[error(
        "it may take {} of memory, and there is room for {}; write it with less, or give the engine \
         more (--memory)", Bytes(*needs), Bytes(*room)
    )]
    TooLarge {
        /// What it may take.
        needs: u64,
        /// What there is.
        room: u64,
    },
    /// It does not parse, says what is not supported, or would take too much work.
    #[error("{reason}")]
    Invalid {
        /// Where and why, in the words of `llguidance`.
        reason: String,
    },
    /// No text at all, or only the empty one.
    #[error("there is no text that it allows, but perhaps the empty one")]
    Nothing,
    /// It has not been compiled in time, but may be soon.
    #[error("compiling it takes more than {COMPILE_WAIT:?}; try again in a moment")]
    TooSlow,
    /// Others are compiled.
    #[error("{COMPILING_MAX} complex grammars are being compiled; try again later")]
    Busy,
    /// Those of others take the memory.
    #[error(
        "the grammars of other requests take the memory that there is for grammars; try again later"
    )]
    Full,
    /// The vocabulary has no trie.
    #[error("this model's vocabulary cannot be used with grammars: {reason}")]
    Vocabulary {
        /// Why.
        reason: String,
    },
    /// The text came to a place where no token is allowed, or which is too ambiguous.
    #[error("the text cannot go on under its grammar: {reason}")]
    Stuck {
        /// Why, in the words of `llguidance`.
        reason: String,
    },
    /// What it counts goes beyond what can be told apart.
    #[error(
        "the text is longer than its grammar can be followed: what it counts takes too many states"
    )]
    Exhausted,
    /// A token came before there was room for it: a mask would be one of another text.
    #[error("the thread that follows the grammar has not heard of every token")]
    Unheard,
    /// The thread that follows the grammar is gone.
    #[error("the thread that follows the grammar broke off")]
    Gone,
}

type Built = Result<Words, GrammarError>;

/// A model's vocabulary, as grammars need it. Built when the first grammar comes.
pub struct Grammars {
    words: LazyLock<Built, Box<dyn FnOnce() -> Built + Send>>,
    compiling: Compilations,
    recent: Recent,
    room: Room,
    ledger: Arc<Ledger>,
    /// Held by who looks at what could be: there is room for one copy of a parser.
    copying: Mutex<()>,
}

/// A grammar that has been compiled once, to be followed by any number of texts.
#[derive(Clone)]
pub struct Constraint {
    grammars: Arc<Grammars>,
    compiled: Arc<Compiled>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Constraint").field(&self.compiled.grammar).finish()
    }
}

impl Grammars {
    /// For a model with `vocab` rows of logits, within the memory that is planned for them. Special tokens and `eos` are
    /// never letters.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab: usize, eos: Vec<u32>, room: Room) -> Arc<Self> {
        Self::with(room, move || Words::new(&tokenizer, vocab, &eos))
    }

    /// The same, built at once.
    ///
    /// # Errors
    /// If the vocabulary has no trie.
    pub fn build(
        tokenizer: &Tokenizer,
        vocab: usize,
        eos: &[u32],
        room: Room,
    ) -> Result<Arc<Self>, GrammarError> {
        let words = Words::new(tokenizer, vocab, eos)?;
        Ok(Self::with(room, move || Ok(words)))
    }

    fn with(room: Room, build: impl FnOnce() -> Built + Send + 'static) -> Arc<Self> {
        let words = LazyLock::new(Box::new(build) as Box<_>);
        let (compiling, recent) = (Compilations::default(), Recent::default());
        let ledger = Ledger::new(room.shared);
        Arc::new(Self { words, compiling, recent, room, ledger, copying: Mutex::new(()) })
    }

    /// Compiles a grammar, unless it has been compiled of late, to find out whether it can be followed.
    ///
    /// # Errors
    /// If it is too large, does not parse, says what is not supported, or allows nothing; or if it takes long: then it
    /// is there for who asks again.
    pub fn constraint(self: &Arc<Self>, grammar: Grammar) -> Result<Constraint, GrammarError> {
        self.constraint_within(grammar, COMPILE_WAIT)
    }

    fn constraint_within(
        self: &Arc<Self>,
        grammar: Grammar,
        wait: Duration,
    ) -> Result<Constraint, GrammarError> {
        grammar.check_size()?;
        let recent = self.recent.get(&Key::of(&grammar));
        let compiled = recent.map_or_else(|| self.compile(grammar, wait), Ok)?;
        Ok(Constraint { grammars: Arc::clone(self), compiled })
    }

    fn words(&self) -> Result<&Words, GrammarError> {
        self.words.as_ref().map_err(Clone::clone)
    }
}

/// A thread for a grammar.
fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
    builder.spawn(work).map(drop)
}

impl Constraint {
    /// A parser at the start of the text.
    fn matcher(&self) -> Matcher {
        self.compiled.start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }

    /// What it is.
    pub fn grammar(&self) -> &Grammar {
        &self.compiled.grammar
    }

    /// Whether a text of it may begin with white space, or with the same letter as one of these.
    ///
    /// # Errors
    /// If that cannot be told.
    pub fn may_begin_like(&self, texts: &[&str]) -> Result<bool, GrammarError> {
        let words = self.grammars.words()?;
        let _turn = self.grammars.copying.lock().unwrap_or_else(PoisonError::into_inner);
        let mask = match follower::next_mask(&mut self.matcher(), words, self.letters()) {
            Heard::Mask(mask) => mask,
            Heard::Stuck(error) => return Err(error),
            _ => return Ok(false),
        };
        let trie = words.factory.tok_env().tok_trie();
        let begins = |token: u32| {
            let first = trie.token(token).first();
            let like = texts.iter().any(|text| text.as_bytes().first() == first);
            mask.has(token) && (like || first.is_some_and(u8::is_ascii_whitespace))
        };
        Ok((0..words.end).any(begins))
    }

    /// What it may be spelled with.
    fn letters(&self) -> Letters {
        self.compiled.grammar.letters()
    }
}

/// What `llguidance` 1.9 says for its makers (`toktrie`, `get_special_token`) or of its options, and what a client
/// can do about it.
const IN_OTHER_WORDS: [(&str, &str); 2] = [
    (
        "missing special token prefix",
        "a grammar cannot name special tokens; as a text, one is written in quotes",
    ),
    (
        "coerce_one_of",
        "oneOf is taken if its schemas differ in type, or in the text or boolean of a const, in objects that of a required \
         property, without $ref; anyOf always",
    ),
];

/// A reason in one line, without what is meant for `llguidance`'s makers.
fn readable(reason: &str) -> String {
    let end = ["\n<", "<backtrace>", "<state>", "<non-verbose/>"];
    let end = end.iter().filter_map(|mark| reason.find(mark)).min().unwrap_or(reason.len());
    let known = |(theirs, _): &&(&str, &str)| reason[..end].contains(theirs);
    if let Some((_, ours)) = IN_OTHER_WORDS.iter().find(known) {
        return (*ours).to_owned();
    }
    let words: Vec<&str> = reason[..end].split_whitespace().collect();
    let text = words.join(" ");
    text.char_indices().nth(400).map_or(text.clone(), |(at, _)| format!("{} …", &text[..at]))
}

fn limits() -> ParserLimits {
    ParserLimits {
        // An ambiguous grammar costs the square of it: at 2000 a mask was seen to take a second, at
        // 1000 a quarter of that.
        max_items_in_row: 1000,
        // 500 bytes each, but for grammars of many kinds of words: their memory is counted beside.
        max_lexer_states: 10_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

impl Grammar {
    /// Whether its texts are JSON.
    fn is_json(&self) -> bool {
        matches!(self, Self::Json | Self::JsonSchema(_))
    }

    fn text_bytes(&self) -> usize {
        match self {
            Self::Json => 0,
            Self::JsonSchema(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) | Self::Calls(text) => text.len(),
            Self::Choice(choices) => choices.iter().map(|choice| choice.len() + 4).sum(),
        }
    }

    fn letters(&self) -> Letters {
        match self {
            Self::Calls(_) => Letters::AndMarks,
            _ => Letters::Only,
        }
    }

    fn check_size(&self) -> Result<(), GrammarError> {
        let bytes = self.text_bytes();
        let max = if matches!(self, Self::Calls(_)) { CALLS_BYTES_MAX } else { BYTES_MAX };
        if bytes > max {
            return Err(GrammarError::TooLong { bytes, max });
        }
        match self {
            Self::JsonSchema(schema) if !is_schema(schema) => {
                let reason = "a schema is an object, or true".to_owned();
                Err(GrammarError::Invalid { reason })
            }
            Self::JsonSchema(schema) if depth(schema) > DEPTH_MAX => {
                Err(GrammarError::TooDeep { max: DEPTH_MAX })
            }
            Self::Regex(text) | Self::Lark(text) if brackets(text) > BRACKETS_MAX => {
                Err(GrammarError::TooDeep { max: BRACKETS_MAX })
            }
            Self::Choice(choices) if choices.is_empty() => Err(GrammarError::Nothing),
            _ => {
                intersections::check(self)?;
                captures::check(self)?;
                numbers::check(self)
            }
        }
    }

    fn top_level(&self) -> TopLevelGrammar {
        match self {
            Self::Json => TopLevelGrammar::from_json_schema(bounded(json!({"type": "object"}))),
            Self::JsonSchema(schema) => TopLevelGrammar::from_json_schema(bounded(schema.clone())),
            Self::Regex(text) => TopLevelGrammar::from_regex(text),
            Self::Choice(choices) => {
                TopLevelGrammar::from_lark(format!("start: {}", choice_rule(choices)))
            }
            Self::Lark(text) | Self::Calls(text) => TopLevelGrammar::from_lark(text.clone()),
        }
    }
}

/// The body of a rule that is JSON of a schema.
pub fn json_rule(schema: Value) -> String {
    format!("%json {}", bounded(schema))
}

/// The body of a rule that is one of these texts.
pub fn choice_rule(choices: &[String]) -> String {
    // JSON writes this letter as it stands, and Lark does not read it so.
    let quoted = choices
        .iter()
        .map(|text| Value::from(text.as_str()).to_string().replace('\x7f', "\\u007f"));
    quoted.collect::<Vec<_>>().join(" | ")
}

/// The body of a rule that is a regular expression.
pub fn regex_rule(text: &str) -> String {
    let mut rule = String::from("/");
    let mut escaped = false;
    for letter in text.chars() {
        if letter == '/' && !escaped {
            rule.push('\\');
        }
        escaped = letter == '\\' && !escaped;
        rule.push(letter);
    }
    rule + "/"
}

/// The body of a rule that is a grammar of its own; one that can be compiled alone closes every bracket
/// that it opens.
pub fn lark_rule(text: &str) -> String {
    format!("%lark {{\n{text}\n}}")
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || *value == Value::Bool(true)
}

/// The schema with our white space, whatever it says about it itself.
fn bounded(schema: Value) -> Value {
    let mut schema = if schema.is_object() { meant::rewritten(schema) } else { json!({}) };
    schema["x-guidance"] = json!({"whitespace_pattern": JSON_SPACE});
    schema
}

/// Lists and objects within each other.
pub fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Array(list) => list.iter().map(depth).max(),
        Value::Object(map) => map.values().map(depth).max(),
        _ => return 0,
    };
    1 + deepest.unwrap_or(0)
}

/// The most brackets that are open at once; those in strings count, which real grammars survive.
fn brackets(text: &str) -> usize {
    let (mut open, mut most) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

#[cfg(test)]
mod calls_tests;
#[cfg(test)]
mod parameters_tests;
#[cfg(test)]
mod tests;
