//! Grammars that are being compiled, each on a thread of its own. A compilation cannot be broken off, so what it
//! comes to is kept even if nobody waits any more: who asks again waits for the same one, or finds what it has made.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{Grammar, GrammarError, Grammars, compiled::Compiled, recent::Key, spawn};

/// Grammars that are compiled at once, and those who wait for one. Work is limited, by a grammar's size and by
/// `intersections` and `numbers`, so a slow one ends after some seconds.
pub(super) const COMPILING_MAX: usize = 2;

/// How long somebody waits for one of these places, where most grammars take milliseconds. Whoever waits keeps others
/// from being read, so it is no longer than that.
const PLACE_WAIT: Duration = Duration::from_millis(100);

/// What a compilation came to.
type Outcome = Result<Arc<Compiled>, GrammarError>;

/// See the module.
#[derive(Default)]
pub(super) struct Compilations {
    places: Mutex<Places>,
    /// A place is free again.
    freed: Condvar,
}

#[derive(Default)]
struct Places {
    /// Bound: [`COMPILING_MAX`], and that of those who wait.
    running: Vec<Arc<Compilation>>,
    waiting: usize,
}

struct Compilation {
    key: Key,
    outcome: Mutex<Option<Outcome>>,
    ended: Condvar,
}

impl Grammars {
    /// Compiles a grammar, and waits so long for that.
    pub(super) fn compile(self: &Arc<Self>, grammar: Grammar, wait: Duration) -> Outcome {
        // No work of this grammar's: whoever comes first builds them, however long that takes.
        self.words()?;
        let (now, key) = (Instant::now(), Key::of(&grammar));
        let compilation = self.compiling.enter(key, now + wait.min(PLACE_WAIT), |compilation| {
            let outcome = Err(GrammarError::Gone);
            let running = Running { grammars: Arc::clone(self), compilation, outcome };
            // Without a thread, those who wait hear that it is gone.
            let _ = spawn(move || running.compile(grammar));
        })?;
        let outcome = compilation.wait(wait.saturating_sub(now.elapsed()));
        self.compiling.leave();
        outcome
    }
}

impl Compilations {
    /// The compilation of this grammar, and a place among those who wait, as soon as there is one, or never if there is
    /// none `until` then. One that is not running yet is started.
    fn enter(
        &self,
        key: Key,
        until: Instant,
        start: impl FnOnce(Arc<Compilation>),
    ) -> Result<Arc<Compilation>, GrammarError> {
        let full = |places: &mut Places| {
            let is_new = places.running.iter().all(|running| running.key != key);
            is_new && places.running.len() == COMPILING_MAX || places.waiting == COMPILING_MAX
        };
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.freed.wait_timeout_while(self.places(), left, full);
        let (mut places, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(GrammarError::Busy);
        }
        places.waiting += 1;
        let running = places.running.iter().find(|running| running.key == key).map(Arc::clone);
        if let Some(running) = running {
            return Ok(running);
        }
        let new = Arc::new(Compilation { key, outcome: Mutex::default(), ended: Condvar::new() });
        places.running.push(Arc::clone(&new));
        // The thread takes it at its end, and where there is no thread, this one.
        drop(places);
        start(Arc::clone(&new));
        Ok(new)
    }

    fn leave(&self) {
        self.places().waiting -= 1;
        self.freed.notify_all();
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Compilation {
    fn wait(&self, wait: Duration) -> Outcome {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = self.ended.wait_timeout_while(outcome, wait, |outcome| outcome.is_none());
        let (outcome, _) = ended.unwrap_or_else(PoisonError::into_inner);
        outcome.clone().unwrap_or(Err(GrammarError::TooSlow))
    }

    fn end(&self, with: Outcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(with);
        self.ended.notify_all();
    }
}

/// A compilation on its thread. However that ends, it gives its place back, and then says what it came to.
struct Running {
    grammars: Arc<Grammars>,
    compilation: Arc<Compilation>,
    outcome: Outcome,
}

impl Running {
    fn compile(mut self, grammar: Grammar) {
        self.outcome = Compiled::new(grammar, &self.grammars).map(Arc::new);
        if let Ok(compiled) = &self.outcome {
            self.grammars.recent.put(self.compilation.key.clone(), compiled);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Self { grammars, compilation, outcome } = self;
        grammars.compiling.places().running.retain(|running| !Arc::ptr_eq(running, compilation));
        grammars.compiling.freed.notify_all();
        compilation.end(std::mem::replace(outcome, Err(GrammarError::Gone)));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicBool, Ordering},
            mpsc,
        },
        thread,
    };

    use fm_testkit::golden::demo_dir;
    use fm_text::Tokenizer;

    use super::{
        super::{
            COMPILE_WAIT, Room,
            tests::{demo, grammars},
            trie,
        },
        *,
    };

    fn until(mut what: impl FnMut() -> bool) {
        for _ in 0..20_000 {
            if what() {
                return;
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        panic!("it did not happen");
    }

    impl Grammars {
        fn running(&self) -> usize {
            self.compiling.places().running.len()
        }
    }

    #[test]
    fn no_more_are_compiled_or_waited_for_at_once_than_may_be() {
        let grammars = grammars(&demo());
        let [first, second] = ["a", "b"].map(|text| Grammar::Regex(text.to_owned()));
        let enter = |grammar| grammars.compiling.enter(Key::of(grammar), Instant::now(), |_| ());
        // Two whose threads do not end.
        for (count, endless) in [&first, &second].into_iter().enumerate() {
            // A place is free again when an answer is there.
            for _ in 0..3 {
                grammars.constraint(Grammar::Json).unwrap();
                assert!(grammars.constraint(Grammar::Regex("(".to_owned())).is_err());
            }
            enter(endless).unwrap();
            grammars.compiling.leave();
            let again = grammars.compile(endless.clone(), Duration::ZERO);
            assert_eq!(again.map(drop), Err(GrammarError::TooSlow), "it waits for the same one");
            assert_eq!(grammars.running(), count + 1);
        }
        let third = Grammar::Regex("c".to_owned());
        assert_eq!(grammars.constraint(third).map(drop), Err(GrammarError::Busy));
        assert_eq!(grammars.constraint(Grammar::Json).map(drop), Ok(()), "it is there");
        for places in [Ok(()), Ok(()), Err(GrammarError::Busy)] {
            assert_eq!(enter(&first).map(drop), places);
        }
    }

    #[test]
    fn what_comes_too_late_for_who_asked_is_there_for_who_asks_again() {
        let grammars = grammars(&demo());
        let grammar = Grammar::Regex("(a|b){3}".to_owned());
        match grammars.compile(grammar.clone(), Duration::ZERO) {
            Err(GrammarError::TooSlow) => {}
            other => drop(other.unwrap()),
        }
        until(|| grammars.recent.len() == 1 && grammars.running() == 0);
        assert!(grammars.constraint_within(grammar, Duration::ZERO).is_ok());
    }

    #[test]
    fn who_comes_when_all_are_at_work_waits_for_a_place() {
        let grammars = grammars(&demo());
        let key = |text: &str| Key::of(&Grammar::Regex(text.to_owned()));
        let enter =
            |text: &str, wait| grammars.compiling.enter(key(text), Instant::now() + wait, |_| ());
        for text in ["a", "b"] {
            enter(text, Duration::ZERO).unwrap();
        }
        let busy = |text: &str| enter(text, Duration::ZERO).map(drop) == Err(GrammarError::Busy);
        assert!(busy("c") && busy("a"), "places and those who wait are counted");
        thread::scope(|scope| {
            let third = scope.spawn(|| enter("a", COMPILE_WAIT).map(drop));
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(20) {
                thread::park_timeout(Duration::from_millis(1));
            }
            assert!(!third.is_finished());
            grammars.compiling.leave();
            assert_eq!(third.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn marks_that_the_model_has_no_rows_for_are_no_letters() {
        let marks = ["<tool_call>", "</tool_call>"];
        let text = std::fs::read_to_string(demo_dir().join("tokenizer.json")).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for token in json["added_tokens"].as_array_mut().unwrap() {
            token["special"] = marks.contains(&token["content"].as_str().unwrap()).into();
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        let tokenizer = Tokenizer::open(dir.path(), None).unwrap();
        for mark in marks.map(|mark| tokenizer.token_id(mark).unwrap()) {
            let words = |vocab| trie::Words::new(&tokenizer, vocab as usize, &[]).unwrap();
            let (known, unknown) = (words(mark + 1), words(mark));
            let [only, and_marks] = [trie::Letters::Only, trie::Letters::AndMarks];
            assert!(known.letters(and_marks).is_allowed(mark));
            assert!(!known.letters(only).is_allowed(mark));
            assert!(unknown.letters(only).is_allowed(unknown.end), "{mark} is the end of the text");
        }
    }

    #[test]
    fn the_vocabulary_is_not_on_the_clock_of_a_grammar() {
        let (built, (go, gate)) = (Arc::new(AtomicBool::new(false)), mpsc::channel::<()>());
        let (begin, begun) = mpsc::channel();
        let is_built = Arc::clone(&built);
        let tokenizer = demo();
        let grammars = Grammars::with(Room::default(), move || {
            begin.send(()).unwrap();
            let _ = gate.recv();
            is_built.store(true, Ordering::SeqCst);
            trie::Words::new(&tokenizer, tokenizer.vocab_len(), &[])
        });
        let asked = thread::spawn(move || {
            let outcome = grammars.constraint_within(Grammar::Json, Duration::ZERO).map(drop);
            (outcome, built.load(Ordering::SeqCst))
        });
        begun.recv_timeout(COMPILE_WAIT).unwrap();
        // Who would not wait for it would be gone by then.
        thread::park_timeout(Duration::from_millis(20));
        drop(go);
        let (outcome, built) = asked.join().unwrap();
        assert!(built && matches!(outcome, Ok(()) | Err(GrammarError::TooSlow)), "{outcome:?}");
    }
}
