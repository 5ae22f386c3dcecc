//! A parser that says what it takes, and goes no further than it may.
//!
//! What it holds is told from its lexer's own numbers and from the rows of its text, with factors that were measured
//! against what was allocated. Between two looks there is a mask, which could make states without end: the walk over the
//! vocabulary that a mask is made by counts them.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use llguidance::{
    TokenParser,
    api::StopReason,
    earley::{BiasComputer, ParserRecognizer, regexvec::LexerStats},
    panic_utils,
};
use toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie};

use super::{GrammarError, readable};

/// What a mask may add beside states: expressions, of which there are 100,000 at most. Measured 2.9 MB.
const MASK_BYTES: u64 = 3_500_000;

/// Memory of a state beside what it consists of.
const STATE_BYTES: u64 = 150;

/// Memory of a kind of word: its name and its expression as it was written.
const WORD_BYTES: u64 = 1_500;

/// Memory of an item of a row, of a row, and of a byte of text: measured 26 MB for 780,000 items in 132,000 rows of
/// 216,000 bytes.
const ITEM_BYTES: u64 = 12;
const ROW_BYTES: u64 = 100;
const TEXT_BYTES: u64 = 40;

/// What does not change while a text is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed {
    /// Bytes of the expressions as they were compiled, of which every lexer has a copy.
    pub(super) expressions: u64,
    /// Whether some have to hold together: what shows that they can is remembered, and no number says how much that is
    /// but the work it was.
    pub(super) meet: bool,
}

impl Fixed {
    /// What a lexer takes.
    fn lexer(self, stats: &LexerStats) -> u64 {
        let [states, words, derivatives] =
            [stats.num_states, stats.num_regexps, stats.num_derivatives].map(|count| count as u64);
        // It says 64 for a derivative, of which there are many; they take half of that.
        let tables = (stats.num_bytes as u64).saturating_sub(64 * derivatives) * 3 / 2;
        let remembered = if self.meet { 4 * stats.total_fuel_spent as u64 } else { 0 };
        let states = states * (STATE_BYTES + words / 8);
        let expressions = 2 * self.expressions + words * WORD_BYTES;
        tables + 30 * derivatives + states + expressions + remembered
    }
}

/// See the module.
pub(super) struct Matcher {
    parser: TokenParser,
    walk: Arc<Walk>,
    fixed: Fixed,
    /// What rows and text take.
    rows: u64,
    /// What it may hold.
    allowance: u64,
    /// Why it cannot go on.
    broken: Option<GrammarError>,
}

impl Matcher {
    /// At the start of a text.
    pub(super) fn new(mut parser: TokenParser, fixed: Fixed, allowance: u64) -> Self {
        parser.start_without_prompt();
        let walk = Walk::new(&parser.token_env);
        Self { parser, walk, fixed, rows: 0, allowance, broken: None }.with_own_walk()
    }

    /// A copy with a lexer of its own.
    pub(super) fn deep_clone(&self) -> Self {
        let (walk, broken) = (Walk::new(&self.parser.token_env), self.broken.clone());
        let Self { fixed, rows, allowance, .. } = *self;
        let parser = self.parser.deep_clone();
        Self { parser, walk, fixed, rows, allowance, broken }.with_own_walk()
    }

    fn with_own_walk(mut self) -> Self {
        self.parser.bias_computer = Arc::clone(&self.walk) as Arc<dyn BiasComputer>;
        self
    }

    /// What it takes.
    pub(super) fn held(&self) -> u64 {
        self.rows + self.fixed.lexer(&self.parser.parser.lexer_stats())
    }

    /// Whether a mask would be too much.
    pub(super) fn is_full(&self) -> bool {
        self.held() + MASK_BYTES >= self.allowance
    }

    /// What may come next.
    pub(super) fn compute_mask(&mut self) -> Result<SimpleVob, GrammarError> {
        let stats = self.parser.parser.lexer_stats();
        let held = self.rows + self.fixed.lexer(&stats);
        let room = self.allowance.saturating_sub(held + MASK_BYTES);
        if room == 0 {
            return Err(self.broken.get_or_insert(GrammarError::Exhausted).clone());
        }
        self.walk.begin(&stats, room);
        let mask = self.run(TokenParser::compute_mask);
        if self.walk.over.load(Relaxed) {
            self.broken = Some(GrammarError::Exhausted);
            return Err(GrammarError::Exhausted);
        }
        mask
    }

    /// The text goes on with this token.
    pub(super) fn consume_token(&mut self, token: u32) -> Result<(), GrammarError> {
        let trie = self.parser.token_env.tok_trie();
        let bytes = trie.token_len(token) as u64;
        let counts = |parser: &TokenParser| {
            let stats = parser.parser_stats();
            (stats.rows as u64, stats.all_items as u64)
        };
        let before = counts(&self.parser);
        self.run(|parser| {
            parser.consume_token(token)?;
            parser.check_stop()
        })?;
        let after = counts(&self.parser);
        let rows = (after.0 - before.0) * ROW_BYTES + (after.1 - before.1) * ITEM_BYTES;
        self.rows += rows + bytes * TEXT_BYTES;
        Ok(())
    }

    /// How many of these the text may go on with.
    pub(super) fn count_allowed(&mut self, tokens: &[u32]) -> Result<usize, GrammarError> {
        self.run(|parser| parser.validate_tokens_raw(tokens))
    }

    /// Puts the parser at the end of a text that is complete before it begins.
    pub(super) fn check_stop(&mut self) -> Result<bool, GrammarError> {
        self.run(TokenParser::check_stop)
    }

    /// Whether nothing can come next.
    pub(super) fn is_stopped(&self) -> bool {
        self.broken.is_some() || self.parser.stop_reason() != StopReason::NotStopped
    }

    /// Whether its lexer or its parser gave up.
    pub(super) fn is_lost(&self) -> bool {
        self.broken.is_some() || self.parser.parser.get_error().is_some()
    }

    /// Whether the text may end here.
    #[cfg(test)]
    pub(super) fn is_accepting(&mut self) -> bool {
        self.parser.is_accepting()
    }

    /// A panic of the parser is an error, and so is every call after one.
    fn run<T>(
        &mut self,
        work: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>,
    ) -> Result<T, GrammarError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let parser = &mut self.parser;
        panic_utils::catch_unwind(AssertUnwindSafe(|| work(parser))).map_err(|reason| {
            let error = stuck(&reason);
            self.broken = Some(error.clone());
            error
        })
    }
}

/// The walk over the vocabulary that finds out what may come next, of one matcher.
struct Walk {
    vocabulary: TokEnv,
    /// The first state that is not there yet.
    fresh: AtomicUsize,
    /// Bytes that states may still take.
    room: AtomicU64,
    /// What a state takes, whatever it consists of.
    state_bytes: AtomicU64,
    /// Whether there were too many.
    over: AtomicBool,
}

impl Walk {
    fn new(vocabulary: &TokEnv) -> Arc<Self> {
        Arc::new(Self {
            vocabulary: Arc::clone(vocabulary),
            fresh: AtomicUsize::new(0),
            room: AtomicU64::new(0),
            state_bytes: AtomicU64::new(0),
            over: AtomicBool::new(false),
        })
    }

    /// Before a walk.
    fn begin(&self, stats: &LexerStats, room: u64) {
        let [words, letters] = [stats.num_regexps, stats.alphabet_size].map(|count| count as u64);
        self.fresh.store(stats.num_states, Relaxed);
        self.room.store(room, Relaxed);
        // The same as above: 1.5 of what it says, which is 113 bytes, four for each letter, and eight for each word.
        self.state_bytes.store(STATE_BYTES + words / 8 + 170 + 6 * letters, Relaxed);
        self.over.store(false, Relaxed);
    }
}

impl BiasComputer for Walk {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut allowed = self.trie().alloc_token_set();
        let mut counted = Counted {
            recognizer,
            fresh: self.fresh.load(Relaxed),
            room: self.room.load(Relaxed),
            state_bytes: self.state_bytes.load(Relaxed),
            over: false,
        };
        self.trie().add_bias(&mut counted, &mut allowed, start);
        self.over.store(counted.over, Relaxed);
        allowed
    }

    fn trie(&self) -> &TokTrie {
        self.vocabulary.tok_trie()
    }
}

/// A recognizer that lets nothing through once there are too many states.
struct Counted<'r, 'p> {
    recognizer: &'r mut ParserRecognizer<'p>,
    fresh: usize,
    room: u64,
    state_bytes: u64,
    over: bool,
}

impl Recognizer for Counted<'_, '_> {
    fn pop_bytes(&mut self, count: usize) {
        self.recognizer.pop_bytes(count);
    }

    fn collapse(&mut self) {
        self.recognizer.collapse();
    }

    fn trie_finished(&mut self) {
        self.recognizer.trie_finished();
    }

    fn trie_started(&mut self, label: &str) {
        self.recognizer.trie_started(label);
    }

    #[inline]
    fn try_push_byte(&mut self, byte: u8) -> bool {
        if self.over || !self.recognizer.try_push_byte(byte) {
            return false;
        }
        let state = self.recognizer.lexer_state();
        // Numbers are given in turn.
        let made = (state.as_usize() + 1).saturating_sub(self.fresh);
        if made > 0 {
            self.fresh += made;
            let words = self.recognizer.lexer().possible_lexemes(state).iter().count() as u64;
            let bytes = made as u64 * (self.state_bytes + 12 * words);
            self.over = bytes > self.room;
            self.room = self.room.saturating_sub(bytes);
        }
        true
    }

    fn save_stats(&mut self, walked: usize) {
        self.recognizer.save_stats(walked);
    }
}

pub(super) fn stuck(error: &impl ToString) -> GrammarError {
    let reason = readable(&error.to_string());
    // Its lexer's two bounds, in the words of llguidance 1.9 (`earley/regexvec.rs`, `get_error`).
    if ["too many states", "too many expressions"].iter().any(|bound| reason.contains(bound)) {
        return GrammarError::Exhausted;
    }
    let dead_end = reason.contains("NoExtension");
    let reason =
        if dead_end { "no token of this model is allowed here".to_owned() } else { reason };
    GrammarError::Stuck { reason }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{
            Constraint, Grammar, Room,
            tests::{demo, grammars_within},
        },
        *,
    };

    /// A parser that may take so much more than a mask does.
    fn within(more: u64, grammar: Grammar) -> Result<Constraint, GrammarError> {
        let room = Room { parser: MASK_BYTES + more, ..Room::default() };
        grammars_within(&demo(), room).constraint(grammar)
    }

    /// Tokens until it gives up.
    fn follow(matcher: &mut Matcher, text: &str) -> (usize, GrammarError) {
        let tokenizer = demo();
        let tokens = tokenizer.encode(text, fm_text::SpecialTokens::AsText).unwrap();
        for (at, token) in tokens.iter().enumerate() {
            if let Err(error) = matcher.compute_mask() {
                return (at, error);
            }
            matcher.consume_token(*token).unwrap();
        }
        panic!("it holds {} after {} tokens", matcher.held(), tokens.len());
    }

    #[test]
    fn rows_count_and_a_longer_text_needs_more() {
        let list = || Grammar::JsonSchema(json!({"type": "array", "items": {"type": "integer"}}));
        let text = format!("[{}", "1, ".repeat(20_000));
        let [few, many] = [500_000, 1_500_000].map(|more| {
            let mut matcher = within(more, list()).unwrap().matcher();
            let (tokens, error) = follow(&mut matcher, &text);
            assert_eq!(error, GrammarError::Exhausted);
            assert_eq!(matcher.compute_mask(), Err(GrammarError::Exhausted));
            assert!(matcher.is_lost() && matcher.is_stopped());
            tokens
        });
        assert!(few > 500 && many > 2 * few, "{few}, {many}");
    }

    #[test]
    fn a_mask_makes_no_more_states_than_there_is_room_for() {
        let kinds = |count: usize| {
            let names: Vec<String> = (0..count).map(|at| format!("A{at}")).collect();
            let rule = |at: usize| format!("A{at}: /[a-z]{{1,{}}}{at}/", at + 1);
            let rules: Vec<String> = (0..count).map(rule).collect();
            Grammar::Lark(format!("start: ({})*\n{}\n", names.join("|"), rules.join("\n")))
        };
        let mut matcher = within(3_000_000, kinds(400)).unwrap().matcher();
        let before = matcher.held();
        let (_, error) = follow(&mut matcher, &"abcdefghijklmnop".repeat(40));
        assert_eq!(error, GrammarError::Exhausted);
        let held = matcher.held();
        assert!(held > before && held < MASK_BYTES + 3_000_000, "{before}, {held}");
    }

    #[test]
    fn a_walk_over_the_vocabulary_ends_where_states_take_too_much() {
        // What it knows of the last letters are as many states as there are beginnings of tokens.
        let grammar = || Grammar::Regex(".*[a-m].{14}".to_owned());
        assert!(within(1_000_000, grammar()).is_ok());
        let refused = within(60_000, grammar()).unwrap_err();
        assert!(refused.to_string().contains("very beginning"), "{refused}");
    }

    #[test]
    fn a_copy_goes_its_own_way() {
        let constraint = within(2_000_000, Grammar::Regex("[ab]+".to_owned())).unwrap();
        let (mut one, mut other) = (constraint.matcher(), constraint.matcher());
        let token = demo().encode("a", fm_text::SpecialTokens::AsText).unwrap()[0];
        one.consume_token(token).unwrap();
        assert!(one.consume_token(demo().vocab_len() as u32 + 9).is_err());
        assert!(one.is_stopped() && one.consume_token(token).is_err(), "it stays so");
        assert!(!other.is_stopped() && !other.is_accepting());
        other.consume_token(token).unwrap();
        assert!(other.is_accepting() && other.compute_mask().is_ok());
    }
}
