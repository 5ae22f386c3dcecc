//! Input of the Responses API: a list of items, which become messages.

use fm_text::Message;
use serde_json::{Value, json};

use super::SEAL;
use crate::{
    bodies::BODY_MAX,
    fields::{Fields, NAME_MAX},
    kept::Kept,
    openai::message::{REFUSAL, function, parts_text},
    problem::{Problem, Wrong},
    tools::Namespaces,
    turns,
};

/// Items of a request.
const ITEMS_MAX: usize = 8192;

/// Parts that are text.
const TEXTS: &[&str] = &["input_text", "output_text", "text", REFUSAL];

/// What tools did that run on the original's servers, where the answer behind it says what came of it, and what only
/// they can read or do.
const LEFT_OUT: [&str; 10] = [
    "web_search_call",
    "file_search_call",
    "image_generation_call",
    "code_interpreter_call",
    "tool_search_call",
    "tool_search_output",
    "compaction",
    "compaction_summary",
    "context_compaction",
    "configuration_update",
];

/// Reads `instructions` and `input`, whose calls may be of functions in namespaces.
pub(super) fn read(
    fields: &mut Fields,
    namespaces: &Namespaces,
    kept: &Kept,
) -> Result<Vec<Message>, Problem> {
    let mut items = Items { namespaces, kept, messages: Vec::new(), referenced: 0, thought: None };
    if let Some(instructions) = fields.text("instructions")? {
        items.messages.push(Message::new("system", instructions));
    }
    match fields.take("input") {
        None => return Err(Wrong::Missing.at("input")),
        Some(Value::String(text)) => items.messages.push(Message::new("user", text)),
        Some(Value::Array(list)) if list.is_empty() => return Err(Wrong::Empty.at("input")),
        Some(Value::Array(list)) if list.len() > ITEMS_MAX => {
            return Err(Wrong::Many(ITEMS_MAX).at("input"));
        }
        Some(Value::Array(list)) => {
            for (at, item) in list.iter().enumerate() {
                items.add(item, &format!("input[{at}]"))?;
            }
        }
        Some(_) => return Err(Wrong::Kind("a string or a list of items").at("input")),
    }
    // All of it may have been left out.
    if items.messages.is_empty() { Err(Wrong::Empty.at("input")) } else { Ok(items.messages) }
}

struct Items<'n> {
    namespaces: &'n Namespaces,
    kept: &'n Kept,
    messages: Vec<Message>,
    /// Bytes of the items that were named instead of sent.
    referenced: usize,
    /// What the assistant thought before the item that comes next.
    thought: Option<String>,
}

impl Items<'_> {
    fn add(&mut self, item: &Value, field: &str) -> Result<(), Problem> {
        let named = item["role"].is_null() && item["content"].is_null() && item["id"].is_string();
        match item["type"].as_str() {
            // What has nothing but an id is named by it, as in the original.
            None if named => self.reference(item, field),
            None | Some("message") => self.message(item, field),
            Some("reasoning") => {
                self.think(item);
                Ok(())
            }
            Some("function_call") => self.call(item, field),
            Some(
                "function_call_output" | "custom_tool_call_output" | "local_shell_call_output",
            ) => self.result(item, field),
            Some("item_reference") => self.reference(item, field),
            Some("custom_tool_call") => {
                let input = json!({"input": string(item, "input", field)?});
                self.call_of(item, &function(Some(text(item, "name")), &input, field)?, field)
            }
            Some("local_shell_call") => {
                let name = Some("local_shell".to_owned());
                self.call_of(item, &function(name, &item["action"], field)?, field)
            }
            Some(kind) if LEFT_OUT.contains(&kind) => Ok(()),
            Some(_) => Err(Wrong::Unsupported("items of this type").at(field)),
        }
    }

    fn reference(&mut self, item: &Value, field: &str) -> Result<(), Problem> {
        let id = string(item, "id", field)?;
        if id.len() > NAME_MAX {
            return Err(Wrong::Long(NAME_MAX).at(format!("{field}.id")));
        }
        let kept = self.kept.item(id);
        let (item, bytes) = kept.ok_or_else(|| Problem::NoItem { id: id.to_owned() })?;
        // A short body may name a long item many times.
        self.referenced += bytes;
        if self.referenced > BODY_MAX {
            return Err(Wrong::Rule("with the items before it has more than 16 MiB").at(field));
        }
        // What is kept has a type and is no reference, so this ends here.
        self.add(&item, field)
    }

    fn message(&mut self, item: &Value, field: &str) -> Result<(), Problem> {
        let role = match item["role"].as_str() {
            Some("developer" | "system") => "system",
            Some("user") => "user",
            Some("assistant") => "assistant",
            _ => {
                let roles = "one of system, developer, user, assistant";
                return Err(Wrong::Kind(roles).at(format!("{field}.role")));
            }
        };
        let text = content(&item["content"], &format!("{field}.content"))?;
        let thought = self.thought.take();
        match self.messages.last_mut() {
            // Templates know one system message: instructions and what follows them are one.
            Some(last) if role == "system" && last.role == "system" => {
                turns::add_text(last, "\n\n", &text);
            }
            _ => {
                let mut message = Message::new(role, text);
                message.reasoning_content = thought.filter(|_| role == "assistant");
                self.messages.push(message);
            }
        }
        Ok(())
    }

    /// What nobody can read (`encrypted_content` of the original) is left out.
    fn think(&mut self, item: &Value) {
        let said = ["content", "summary"].map(|name| {
            let parts = item[name].as_array().into_iter().flatten();
            parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        });
        let sealed = item["encrypted_content"].as_str().and_then(|text| text.strip_prefix(SEAL));
        let mut said = said.into_iter().chain(sealed.map(str::to_owned));
        if let Some(text) = said.find(|text| !text.is_empty()) {
            let thoughts = [self.thought.take(), Some(text)].into_iter().flatten();
            self.thought = thoughts.reduce(|first, second| first + "\n" + &second);
        }
    }

    /// Calls that follow each other, or what was said before them, are one message.
    fn call(&mut self, item: &Value, field: &str) -> Result<(), Problem> {
        let function = function(self.namespaces.called_of(item), &item["arguments"], field)?;
        self.call_of(item, &function, field)
    }

    fn call_of(&mut self, item: &Value, function: &Value, field: &str) -> Result<(), Problem> {
        let id = string(item, "call_id", field)?;
        let call = json!({"id": id, "type": "function", "function": function});
        let thought = self.thought.take();
        let last = self.messages.last_mut().filter(|last| last.role == "assistant");
        match last.filter(|_| thought.is_none()) {
            Some(last) => match last.tool_calls.as_mut().and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => last.tool_calls = Some(json!([call])),
            },
            None => self.messages.push(Message {
                reasoning_content: thought,
                tool_calls: Some(json!([call])),
                ..Message::new("assistant", "")
            }),
        }
        Ok(())
    }

    fn result(&mut self, item: &Value, field: &str) -> Result<(), Problem> {
        let id = string(item, "call_id", field)?.to_owned();
        let text = content(&item["output"], &format!("{field}.output"))?;
        self.thought = None;
        self.messages.push(Message { tool_call_id: Some(id), ..Message::new("tool", text) });
        Ok(())
    }
}

fn content(value: &Value, field: &str) -> Result<String, Problem> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts_text(parts, TEXTS, field),
        Value::Null => Err(Wrong::Missing.at(field)),
        _ => Err(Wrong::Kind("a string or a list of parts").at(field)),
    }
}

fn text(item: &Value, name: &str) -> String {
    item[name].as_str().unwrap_or_default().to_owned()
}

fn string<'i>(item: &'i Value, name: &str, field: &str) -> Result<&'i str, Problem> {
    item[name].as_str().ok_or_else(|| Wrong::Kind("a string").at(format!("{field}.{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Tools;

    fn messages(input: &Value) -> Value {
        let functions = json!([{"type": "function", "name": "h"}]);
        let tools = json!([
            {"type": "namespace", "name": "n", "tools": functions},
            // The name that both together would have.
            {"type": "function", "name": "n__h"},
        ]);
        let body = json!({"instructions": "Be brief.", "input": input, "tools": tools});
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        let tools = Tools::take_responses(&mut fields).unwrap();
        let kept = Kept::default();
        kept.put_item(
            "msg_1",
            &json!({"type": "message", "role": "assistant", "content": "Kept."}),
        );
        let messages = read(&mut fields, &tools.namespaces, &kept).unwrap();
        let one = |message: &Message| {
            let calls = message.tool_calls.as_ref().and_then(Value::as_array);
            let names = calls.into_iter().flatten().map(|call| call["function"]["name"].clone());
            json!([
                message.role,
                message.content,
                message.reasoning_content,
                names.collect::<Value>()
            ])
        };
        messages.iter().map(one).collect()
    }

    #[test]
    fn items_that_are_named_are_as_long_as_a_body_together() {
        let kept = Kept::default();
        let text = "x".repeat(1 << 20);
        kept.put_item("long", &json!({"type": "message", "role": "assistant", "content": text}));
        for (times, fit) in [(15, true), (16, false)] {
            let input = vec![json!({"type": "item_reference", "id": "long"}); times];
            let mut fields = Fields::parse(json!({"input": input}).to_string().as_bytes()).unwrap();
            let messages = read(&mut fields, &Namespaces::default(), &kept);
            assert_eq!(messages.is_ok(), fit, "{times}");
        }
    }

    #[test]
    fn a_thread_that_was_begun_elsewhere_goes_on() {
        let output = |kind: &str| json!({"type": kind, "call_id": "x", "output": "ok"});
        let input = json!([
            {"role": "user", "content": "a"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
            {"type": "compaction_summary", "encrypted_content": "x"},
            {"type": "configuration_update"},
            {"type": "item_reference", "id": "msg_1"},
            {"type": "custom_tool_call", "call_id": "x", "name": "patch", "input": "*** Begin"},
            output("custom_tool_call_output"),
            {"type": "local_shell_call", "call_id": "x", "action": {"command": ["ls"]}},
            output("local_shell_call_output"),
        ]);
        let expected = json!([
            ["system", "Be brief.", null, []],
            ["user", "a", null, []],
            ["assistant", "Kept.", null, ["patch"]],
            ["tool", "ok", null, []],
            ["assistant", "", null, ["local_shell"]],
            ["tool", "ok", null, []],
        ]);
        assert_eq!(messages(&input), expected);
    }

    #[test]
    fn items_are_the_messages_that_they_belong_to() {
        let call = |name: &str| json!({"type": "function_call", "call_id": name, "name": name, "arguments": "{}"});
        let within = |namespace: &str, name: &str| json!({"type": "function_call", "call_id": name, "namespace": namespace, "name": name, "arguments": "{}"});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": [{"type": "input_text", "text": "ok"}]});
        let thought = |text: &str| json!({"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": text}]});
        let said = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]});
        let sealed = json!({"type": "reasoning", "summary": [], "encrypted_content": "x"});
        let input = json!([
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            thought("hm"), call("f"), call("g"), result("f"), result("g"),
            sealed, said, within("n", "h"), within("gone__", "k"), result("h"), thought("so"), sealed,
            thought("then"), said,
        ]);
        let expected = json!([
            ["system", "Be brief.\n\nBe kind.", null, []],
            ["user", "a\nb", null, []],
            ["assistant", "", "hm", ["f", "g"]],
            ["tool", "ok", null, []],
            ["tool", "ok", null, []],
            ["assistant", "Well.", null, ["n__h_", "gone__k"]],
            ["tool", "ok", null, []],
            ["assistant", "Well.", "so\nthen", []],
        ]);
        assert_eq!(messages(&input), expected);
    }
}
