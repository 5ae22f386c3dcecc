//! What a response repeats of its request. Most events of a stream have none of it, its frames all of it: so it is
//! written once, and bounded, because it waits in the queue with its request.

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use crate::{
    fields::{Fields, NAME_MAX},
    problem::{Problem, Wrong},
    tools,
};

/// Bytes of all of it: tools are most of it, those that the model is not told of too.
const ALL_MAX: usize = tools::BYTES_MAX;

/// Fields that are repeated if the request has them, and how many bytes of each.
const FIELDS: &[(&str, usize)] = &[
    ("instructions", ALL_MAX),
    ("max_output_tokens", NAME_MAX),
    ("metadata", 64 * NAME_MAX),
    ("parallel_tool_calls", NAME_MAX),
    ("prompt_cache_key", NAME_MAX),
    ("reasoning", NAME_MAX),
    ("safety_identifier", NAME_MAX),
    ("text", 128 * NAME_MAX),
    ("tool_choice", 128 * NAME_MAX),
    ("tools", ALL_MAX),
    ("top_logprobs", NAME_MAX),
    ("user", NAME_MAX),
];

/// See the module: fields in their order, each as JSON.
#[derive(Debug, Default)]
pub(super) struct Repeated(Vec<(String, Box<RawValue>)>);

impl Repeated {
    /// All fields that responses have, as the request says or as they are without it.
    pub(super) fn of(fields: &Fields, model: &str) -> Result<Self, Problem> {
        let defaults = json!({
            "instructions": null,
            "max_output_tokens": null,
            "metadata": {},
            "model": model,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null},
            "store": false,
            "temperature": null,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": null,
            "truncation": "disabled",
        });
        let mut all = Self::default();
        for (name, value) in defaults.as_object().into_iter().flatten() {
            all.set(name, value);
        }
        let mut bytes = 0;
        for (name, max) in FIELDS {
            let Some(value) = fields.peek(name) else { continue };
            let written = match (defaults[*name].as_object(), value.as_object()) {
                // What it leaves open is as it is without it.
                (Some(own), Some(said)) => {
                    let mut both = own.clone();
                    both.extend(said.clone());
                    all.set(name, &both.into())
                }
                _ => all.set(name, value),
            };
            bytes += written;
            // Of a text, its letters count, however they are written.
            if value.as_str().map_or(written, str::len) > *max {
                return Err(Wrong::Large(*max).at(*name));
            }
            if bytes > ALL_MAX {
                let rule =
                    "with what else a response repeats of its request it has more than 2 MiB";
                return Err(Wrong::Rule(rule).at(*name));
            }
        }
        Ok(all)
    }

    /// Gives a field another value; says how many bytes that is.
    pub(super) fn set(&mut self, name: &str, value: &Value) -> usize {
        let value = to_raw_value(value).expect("a value is JSON");
        let bytes = value.get().len();
        match self.0.iter_mut().find(|(own, _)| own == name) {
            Some((_, own)) => *own = value,
            None => self.0.push((name.to_owned(), value)),
        }
        bytes
    }
}

impl Serialize for Repeated {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
