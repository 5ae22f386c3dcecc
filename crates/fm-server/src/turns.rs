//! Turns of a conversation. Some follow each other in one role: agents send them, and some templates take
//! turns strictly, and refuse a second one. The latest one of the user may be asked again in other words.

use fm_text::{ChatTemplate, Message, RenderRequest, TextError};
use serde_json::Value;

/// Roles, and the shortest conversations that have two messages of theirs in a row.
const TWICE: [(&str, &[&str]); 3] = [
    ("system", &["system", "system", "user"]),
    ("user", &["user", "user"]),
    ("assistant", &["user", "assistant", "assistant", "user"]),
];

/// What a user might have said instead: nobody begins like that.
const SAID_INSTEAD: &str = "\u{1}";

/// How many bytes a text has in common with those in which the last user says something else. Nothing if
/// no other user's turn is before that: the text is marked behind its first part anyway.
pub(crate) fn before_the_latest(
    text: &str,
    messages: &mut [Message],
    render: impl FnOnce(&[Message]) -> Result<String, TextError>,
) -> Option<usize> {
    let is_users = |message: &Message| message.role == "user";
    let last = messages.iter().rposition(is_users)?;
    messages[..last].iter().find(|message| is_users(message))?;
    let said = messages[last].content.replace(SAID_INSTEAD.into());
    let other = render(messages);
    messages[last].content = said;
    let same = text.bytes().zip(other.ok()?.bytes()).take_while(|(a, b)| a == b).count();
    Some(text.floor_char_boundary(same))
}

/// Makes one message of those in a row whose role the template refuses twice; others stay as they are.
pub(crate) fn join_refused(messages: &mut Vec<Message>, template: &ChatTemplate) {
    for (role, twice) in TWICE {
        let is_pair = |pair: &[Message]| pair.iter().all(|message| message.role == role);
        if messages.windows(2).any(is_pair) && refuses(template, twice) {
            for next in std::mem::take(messages) {
                match messages.last_mut().filter(|last| last.role == role && next.role == role) {
                    Some(last) => append(last, next),
                    None => messages.push(next),
                }
            }
        }
    }
}

/// Whether the template takes these turns, but not two of a role in a row.
fn refuses(template: &ChatTemplate, twice: &[&str]) -> bool {
    let takes = |roles: &[&str]| {
        let messages: Vec<_> = roles.iter().map(|role| Message::new(*role, "probe")).collect();
        template.render(&RenderRequest::new(&messages)).is_ok()
    };
    let mut once = twice.to_vec();
    once.dedup();
    takes(&once) && !takes(twice)
}

/// Adds the next message of the same role.
pub(crate) fn append(last: &mut Message, next: Message) {
    let texts = [last.content.take(), next.content].into_iter().flatten();
    let texts = texts.filter_map(|text| text.as_str().map(str::to_owned));
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    last.content = Some(texts.join("\n").into());
    let thoughts = [last.reasoning_content.take(), next.reasoning_content].into_iter().flatten();
    last.reasoning_content = thoughts.reduce(|first, second| first + "\n" + &second);
    match (last.tool_calls.as_mut().and_then(Value::as_array_mut), next.tool_calls) {
        (Some(calls), Some(Value::Array(more))) => calls.extend(more),
        (None, Some(calls)) => last.tool_calls = Some(calls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EACH: &str = "{%- for m in messages -%}";
    const WRITE: &str = "{{ m.role }}:{{ m.content }}{{ '+call' if m.tool_calls }} {% endfor -%}";

    /// As Mistral's.
    const ALTERNATE: &str = "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}\
                             {{- raise_exception('roles must alternate') -}}{%- endif -%}";

    const ONE_SYSTEM: &str = "{%- if m.role == 'system' and not loop.first -%}\
                              {{- raise_exception('late') -}}{%- endif -%}";

    /// What a template of these parts sees of the messages.
    fn seen(parts: &[&str], messages: &[(&str, &str)]) -> Result<String, fm_text::TextError> {
        let name = format!("fm-server-turns-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("chat_template.jinja"), parts.concat()).unwrap();
        let template = ChatTemplate::open(&dir).unwrap().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let message = |(role, text): &(&str, &str)| Message::new(*role, *text);
        let mut messages: Vec<Message> = messages.iter().map(message).collect();
        if let Some(last) = messages.last_mut().filter(|last| last.role == "assistant") {
            last.tool_calls = Some(json!([{"function": {"name": "f", "arguments": {}}}]));
        }
        join_refused(&mut messages, &template);
        let request =
            RenderRequest { add_generation_prompt: false, ..RenderRequest::new(&messages) };
        template.render(&request)
    }

    #[test]
    fn a_text_parts_where_its_last_user_speaks() {
        let render = |messages: &[Message]| {
            let turn = |turn: &Message| {
                let text = turn.content.as_ref().unwrap().as_str().unwrap();
                format!("<{}>{text};", turn.role)
            };
            Ok(messages.iter().map(turn).collect::<Vec<_>>().concat())
        };
        let mut messages =
            ["user", "assistant", "user", "tool"].map(|role| Message::new(role, "é"));
        let text: String = render(&messages).unwrap();
        let at = before_the_latest(&text, &mut messages, render).unwrap();
        assert_eq!(&text[..at], "<user>é;<assistant>é;<user>");
        assert_eq!(render(&messages).unwrap(), text, "it says again what it said");
        assert_eq!(before_the_latest(&text, &mut messages[..2], render), None, "the first one");
        let refuses = |_: &[Message]| Err(TextError::UnknownToken { id: 9, vocab_len: 9 });
        assert_eq!(before_the_latest(&text, &mut messages, refuses), None);
    }

    #[test]
    fn turns_are_joined_where_the_template_refuses_them_and_nowhere_else() {
        let turns = [
            ("user", "a"),
            ("user", "b"),
            ("assistant", "c"),
            ("user", "d"),
            ("assistant", ""),
            ("assistant", "e"),
        ];
        let free = seen(&[EACH, WRITE], &turns).unwrap();
        assert_eq!(free, "user:a user:b assistant:c user:d assistant: assistant:e+call ");
        let strict = seen(&[EACH, ALTERNATE, WRITE], &turns).unwrap();
        assert_eq!(strict, "user:a\nb assistant:c user:d assistant:e+call ");
        let rules = [("system", "a"), ("system", "b"), ("user", "c"), ("user", "d")];
        let one = seen(&[EACH, ONE_SYSTEM, WRITE], &rules).unwrap();
        assert_eq!(one, "system:a\nb user:c user:d ");
        // Where it takes none of a role, two are not made one.
        assert!(seen(&[EACH, ALTERNATE, WRITE], &rules).is_err());
    }
}
