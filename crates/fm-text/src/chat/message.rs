//! One message of a conversation, as templates see it.

use minijinja::value::{Rest, Serde};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::json;

/// Names for what the model thought. Templates read the first, gpt-oss's the second.
const REASONING_NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One message. What it does not have, or has as `null`, a template sees as undefined.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool` or whatever else the template knows.
    pub role: String,
    /// Text or a list of parts.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub content: Option<Value>,
    /// What the model thought before it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// `[{"id": …, "type": "function", "function": {"name": …, "arguments": …}}, …]`
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub tool_calls: Option<Value>,
    /// The call that this message of a tool answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The name of the speaker or the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All other fields, untouched.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// Whether there is nothing in it: no text, or an empty one, and no parts.
    pub fn says_nothing(&self) -> bool {
        match &self.content {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(parts)) => {
                parts.iter().all(|part| part["text"].as_str().is_some_and(str::is_empty))
            }
            Some(_) => false,
        }
    }

    /// A message of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message {
            role: role.into(),
            content: Some(Value::String(content.into())),
            ..Message::default()
        }
    }

    /// Turns the arguments of tool calls from objects, which most templates expect, into JSON text as Python writes
    /// it. Returns whether there were any.
    pub(super) fn write_tool_arguments(&mut self) -> bool {
        let mut any = false;
        for function in self.functions_mut() {
            let Some(arguments) = function.get_mut("arguments").filter(|a| a.is_object()) else {
                continue;
            };
            let value = minijinja::Value::from(Serde(&*arguments));
            if let Ok(text) = json::tojson(&value, Rest(Vec::new())) {
                *arguments = Value::String(text);
                any = true;
            }
        }
        any
    }

    /// What is called. Templates accept a call with and without the envelope.
    fn functions_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let calls = self.tool_calls.as_mut().and_then(Value::as_array_mut);
        calls
            .into_iter()
            .flatten()
            .map(|call| if call.get("function").is_some() { &mut call["function"] } else { call })
    }

    /// The message as `transformers` hands it to a template: without its nulls, on which many
    /// templates fail, and with the reasoning under both names that templates know.
    pub(super) fn for_template(&self) -> Map<String, Value> {
        let mut fields = match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            // A struct of strings, JSON values and string keys is always an object.
            _ => Map::new(),
        };
        fields.retain(|_, value| !value.is_null());
        let reasoning = REASONING_NAMES.iter().find_map(|name| fields.get(*name)).cloned();
        if let Some(reasoning) = reasoning {
            fields.entry("thinking").or_insert_with(|| reasoning.clone());
            fields.insert("reasoning_content".to_owned(), reasoning);
        }
        fields
    }
}

/// Tells `null` from absent.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_comes_back_with_every_field() {
        let sent = json!({"role": "assistant", "content": null, "tool_calls": [], "prefix": true});
        let message: Message = serde_json::from_value(sent.clone()).unwrap();
        assert_eq!(message.content, Some(Value::Null));
        assert_eq!(serde_json::to_value(&message).unwrap(), sent);
    }

    #[test]
    fn templates_see_no_nulls_and_the_reasoning_under_both_names() {
        let sent = json!({"role": "assistant", "content": null, "reasoning": "hm", "x": null});
        let message: Message = serde_json::from_value(sent).unwrap();
        let seen = Value::Object(message.for_template());
        let expected = json!({
            "role": "assistant", "reasoning": "hm", "thinking": "hm", "reasoning_content": "hm",
        });
        assert_eq!(seen, expected);
    }
}
