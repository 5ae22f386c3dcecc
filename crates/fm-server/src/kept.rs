//! What answers said, by the ids that clients know it by: calls as the model wrote them, and items of responses.
//!
//! A client sends every call of its conversation back with the next request, as JSON that was read and
//! written again. As long as the model's own words are here, the prompt repeats them, so that it stays
//! the text that has been computed.
//!
//! Clients of the Responses API may send the id of an item alone, in the belief that it is kept.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use fm_engine::generate::Call;
use serde_json::Value;

use crate::{fields::plain, serve::new_id};

/// Bytes of everything that is kept; what was not asked for longest goes first.
const BYTES_MAX: usize = 32 << 20;

/// What an entry takes beside its texts, about.
const ENTRY_BYTES: usize = 256;

/// Ids of the calls of one answer.
#[derive(Clone, Debug)]
pub(crate) struct CallIds(String);

impl CallIds {
    pub(crate) fn new(prefix: &str) -> Self {
        Self(new_id(prefix))
    }

    /// The id of a call, by its place among those of a choice.
    pub(crate) fn id(&self, choice: usize, call: usize) -> String {
        format!("{}{choice:x}{call:x}", self.0)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<String, Entry>,
    /// By when they were used last.
    by_use: BTreeMap<u64, String>,
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    name: String,
    arguments: String,
    written: String,
    used: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.name.len() + self.arguments.len() + self.written.len()
    }
}

impl Kept {
    /// What is kept, as entries say themselves.
    pub(crate) fn bytes(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    pub(crate) fn put(&self, id: &str, call: &Call) {
        let Some(written) = &call.written else { return };
        let entry = Entry {
            name: call.name.clone(),
            arguments: call.arguments.clone(),
            written: written.clone(),
            used: 0,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).put(id, entry, BYTES_MAX);
    }

    /// Keeps an item of a response.
    pub(crate) fn put_item(&self, id: &str, item: &Value) {
        let (name, arguments) = (String::new(), String::new());
        let entry = Entry { name, arguments, written: item.to_string(), used: 0 };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).put(id, entry, BYTES_MAX);
    }

    /// The item of this id, if it is still here, and its bytes.
    pub(crate) fn item(&self, id: &str) -> Option<(Value, usize)> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A call has a name.
        let entry = entries.by_id.get(id).filter(|entry| entry.name.is_empty())?;
        let item = (serde_json::from_str(&entry.written).ok()?, entry.written.len());
        entries.touch(id);
        Some(item)
    }

    /// The arguments as they were written, if the client means the same by this id.
    pub(crate) fn get(&self, id: &str, name: &str, arguments: &Value) -> Option<String> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.by_id.get(id)?;
        let said = plain(entry.arguments.as_bytes()).ok()?;
        if entry.name != name || said != *arguments {
            return None;
        }
        let written = entry.written.clone();
        entries.touch(id);
        Some(written)
    }
}

impl Entries {
    fn put(&mut self, id: &str, entry: Entry, bytes_max: usize) {
        self.bytes += entry.bytes();
        self.by_id.insert(id.to_owned(), entry);
        self.touch(id);
        while self.bytes > bytes_max
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            let gone = self.by_id.remove(&oldest);
            self.bytes -= gone.map_or(0, |gone| gone.bytes());
        }
    }

    fn touch(&mut self, id: &str) {
        let Some(entry) = self.by_id.get_mut(id) else { return };
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, id.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(name: &str, arguments: &str) -> Call {
        let arguments = arguments.to_owned();
        let written = Some(format!("written {arguments}"));
        Call { index: 0, name: name.to_owned(), arguments, written }
    }

    #[test]
    fn only_the_same_call_is_found() {
        let kept = Kept::default();
        kept.put("a", &call("f", r#"{"x":1,  "y": "é"}"#));
        let same = json!({"y": "é", "x": 1});
        assert_eq!(kept.get("a", "f", &same).as_deref(), Some(r#"written {"x":1,  "y": "é"}"#));
        assert_eq!(kept.get("a", "g", &same), None);
        assert_eq!(kept.get("b", "f", &same), None);
        assert_eq!(kept.get("a", "f", &json!({"x": 2, "y": "é"})), None);
        assert_eq!(kept.get("a", "f", &json!({"x": 1})), None);
    }

    #[test]
    fn an_item_is_no_call_and_a_call_no_item() {
        let (kept, item) = (Kept::default(), json!({"type": "message", "content": "é"}));
        kept.put("a", &call("f", "{}"));
        kept.put_item("b", &item);
        let bytes = item.to_string().len();
        assert_eq!(kept.item("b"), Some((item, bytes)));
        assert_eq!((kept.item("a"), kept.item("c")), (None, None));
        assert_eq!(kept.get("b", "", &json!({})), None);
        assert!(kept.bytes() > 2 * ENTRY_BYTES);
    }

    #[test]
    fn what_was_not_asked_for_longest_goes_first() {
        let mut entries = Entries::default();
        let entry = || Entry {
            name: String::new(),
            arguments: String::new(),
            written: "x".repeat(100),
            used: 0,
        };
        let max = 3 * entry().bytes();
        for id in ["a", "b", "c"] {
            entries.put(id, entry(), max);
        }
        entries.touch("a");
        entries.put("d", entry(), max);
        let mut ids: Vec<&str> = entries.by_id.keys().map(String::as_str).collect();
        ids.sort_unstable();
        assert_eq!(ids, ["a", "c", "d"]);
        assert_eq!((entries.by_use.len(), entries.bytes), (3, max));
    }
}
