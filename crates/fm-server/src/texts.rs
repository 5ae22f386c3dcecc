//! The texts that wait and are written now: how far each is, in numbers, for whoever watches.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use fm_engine::{
    generate::Event,
    schedule::{Listener, Update},
};
use serde_json::{Value, json};

/// See the module. Bound: what the scheduler's queue and sessions take.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    open: Mutex<Vec<Arc<Text>>>,
    opened: AtomicU64,
    /// Tokens of prompts through layers, in all: grows while a long step is computed.
    prompt_layers: AtomicU64,
}

#[derive(Debug, Default)]
struct Text {
    id: u64,
    prompt_tokens: u64,
    /// Whether it has a session.
    started: AtomicBool,
    /// Tokens of its prompt through layers, of so many.
    done: AtomicU64,
    total: AtomicU64,
    written: AtomicU64,
}

/// A text on the list, for as long as somebody may still hear of it.
struct Listed {
    text: Arc<Text>,
    texts: Arc<Texts>,
}

impl Texts {
    /// Puts a text on the list that stays there as long as its listener.
    pub(crate) fn watched(self: &Arc<Self>, prompt_tokens: usize, mut inner: Listener) -> Listener {
        let id = self.opened.fetch_add(1, Ordering::Relaxed);
        let prompt_tokens = prompt_tokens as u64;
        let text = Arc::new(Text { id, prompt_tokens, ..Text::default() });
        self.open().push(Arc::clone(&text));
        let listed = Listed { text, texts: Arc::clone(self) };
        Box::new(move |update| {
            listed.note(&update);
            inner(update)
        })
    }

    pub(crate) fn prompt_layers(&self) -> u64 {
        self.prompt_layers.load(Ordering::Relaxed)
    }

    /// `[id, has a session, prompt done, of so much, tokens of the prompt, tokens written]`
    pub(crate) fn list(&self) -> Value {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let one = |text: &Arc<Text>| {
            let started = u8::from(text.started.load(Ordering::Relaxed));
            let (done, total) = (count(&text.done), count(&text.total));
            json!([text.id, started, done, total, text.prompt_tokens, count(&text.written)])
        };
        self.open().iter().map(one).collect()
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Text>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listed {
    fn note(&self, update: &Update<'_>) {
        match update {
            Update::Started => self.text.started.store(true, Ordering::Relaxed),
            Update::Event(Event::Prefill { done, total }) => {
                let before = self.text.done.swap(*done, Ordering::Relaxed);
                self.text.total.store(*total, Ordering::Relaxed);
                let more = done.saturating_sub(before);
                self.texts.prompt_layers.fetch_add(more, Ordering::Relaxed);
            }
            Update::Event(Event::Token(_)) => {
                self.text.written.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.texts.open().retain(|text| !Arc::ptr_eq(text, &self.text));
    }
}
