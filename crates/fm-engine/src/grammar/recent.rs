//! Grammars that were compiled of late: an agent sends the same tools with every turn.

use std::{
    mem::{Discriminant, discriminant},
    sync::{Arc, Mutex, PoisonError},
};

use super::{Compiled, Grammar};

/// Grammars that are kept; the one that was not asked for longest goes first.
pub(super) const ENTRIES_MAX: usize = 32;

/// See the module. Those that are followed live on without it. What they take is bounded where all grammars are counted.
#[derive(Default)]
pub(super) struct Recent(Mutex<Vec<Entry>>);

struct Entry {
    key: Key,
    compiled: Arc<Compiled>,
}

/// What a grammar is known by: its kind and its text. Schemas that are equal as JSON may differ in the
/// order of their properties, which is that of the answer.
#[derive(Clone, PartialEq)]
pub(super) struct Key(Discriminant<Grammar>, String);

impl Key {
    pub(super) fn of(grammar: &Grammar) -> Self {
        let text = match grammar {
            Grammar::Json => String::new(),
            Grammar::JsonSchema(schema) => schema.to_string(),
            Grammar::Choice(choices) => serde_json::Value::from(choices.as_slice()).to_string(),
            Grammar::Regex(text) | Grammar::Lark(text) | Grammar::Calls(text) => text.clone(),
        };
        Self(discriminant(grammar), text)
    }
}

impl Recent {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Compiled>> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entries.iter().position(|entry| entry.key == *key)?;
        let entry = entries.remove(at);
        let compiled = Arc::clone(&entry.compiled);
        entries.push(entry);
        Some(compiled)
    }

    pub(super) fn put(&self, key: Key, compiled: &Arc<Compiled>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.key != key);
        entries.push(Entry { key, compiled: Arc::clone(compiled) });
        while entries.len() > ENTRIES_MAX {
            entries.remove(0);
        }
    }

    /// Forgets the one of those that nobody else has that was not asked for longest, if there is one.
    pub(super) fn forget(&self) -> bool {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = entries.iter().position(|entry| Arc::strong_count(&entry.compiled) == 1);
        idle.map(|at| entries.remove(at)).is_some()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
