//! Turns of a conversation. Some follow each other in one role: agents send them, and some templates take
//! turns strictly, and refuse a second one. Those of the user may be asked again in other words.

use std::ops::RangeInclusive;

use fm_text::{ChatTemplate, Message, RenderRequest, SpecialTokens, TextError, Tokenizer};
use serde_json::Value;

/// Roles, and the shortest conversations that have two messages of theirs in a row.
const TWICE: [(&str, &[&str]); 3] = [
    ("system", &["system", "system", "user"]),
    ("user", &["user", "user"]),
    ("assistant", &["user", "assistant", "assistant", "user"]),
];

/// What is put into users' words to find them: one of these that the text does not have. They are for private
/// use, and templates write them as they are.
const FINDERS: RangeInclusive<char> = '\u{E000}'..='\u{E03F}';

/// Where words of the user are in a text, in bytes, ascending; those of the first turn are not looked for, as
/// the text is marked behind its first part anyway. `render` makes a text of messages, as it has made this one,
/// and does it once more: with a letter in the middle of what the user says.
pub(crate) fn of_the_user(
    text: &str,
    messages: &mut [Message],
    render: impl FnOnce(&[Message]) -> Result<String, TextError>,
) -> Vec<usize> {
    let Some(finder) = FINDERS.into_iter().find(|finder| !text.contains(*finder)) else {
        return Vec::new();
    };
    let users = messages.iter_mut().enumerate().filter(|(_, message)| message.role == "user");
    let mut said = Vec::new();
    for (at, message) in users.skip(1) {
        let Some(found) = message.content.as_ref().and_then(|words| with(finder, words)) else {
            continue;
        };
        said.push((at, message.content.replace(found)));
    }
    if said.is_empty() {
        return Vec::new();
    }
    let found = render(messages);
    said.into_iter().for_each(|(at, words)| messages[at].content = words);
    found.map_or_else(|_| Vec::new(), |found| places(text, &found, finder))
}

/// Words with a letter in their middle, so that they begin and end as they do; nothing if there are none.
fn with(finder: char, words: &Value) -> Option<Value> {
    let words = words.as_str()?;
    let (start, trimmed) = (words.len() - words.trim_start().len(), words.trim());
    let middle = words.floor_char_boundary(start + trimmed.len() / 2);
    let (before, behind) = words.split_at(middle);
    (!trimmed.is_empty()).then(|| format!("{before}{finder}{behind}").into())
}

/// Where `finder` is in what is otherwise `text`. Where a template writes something else on account of it, places
/// are those before and behind that.
fn places(text: &str, found: &str, finder: char) -> Vec<usize> {
    let parts: Vec<&str> = found.split(finder).collect();
    let mut start = 0;
    let before = parts[..parts.len() - 1].iter().map_while(|part| {
        start += text[start..].strip_prefix(part).map(|_| part.len())?;
        Some(start)
    });
    let mut places: Vec<usize> = before.collect();
    let mut end = text.len();
    let behind = parts[places.len() + 1..].iter().rev().map_while(|part| {
        end = text[start..end].strip_suffix(part).map(|rest| start + rest.len())?;
        Some(end)
    });
    let behind: Vec<usize> = behind.collect();
    places.extend(behind.into_iter().rev());
    places
}

/// The last control tokens before places in a text, of which these are the tokens: there turns begin.
pub(crate) fn begin(
    tokenizer: &Tokenizer,
    (tokens, text): (&[u32], &str),
    places: &[usize],
) -> Vec<u32> {
    let is_control = |token: &u32| tokenizer.is_special(*token);
    let controls = (0..).zip(tokens).filter(|(_, token)| is_control(token));
    let mut before: Vec<u32> = controls.map(|(at, _)| at).collect();
    let mut end = text.len();
    let turns = places.iter().rev().map_while(|place| {
        // Of the tokens between two places only the control tokens are those of the whole text.
        let part = tokenizer.encode(&text[*place..end], SpecialTokens::ParseTemplate).ok()?;
        let behind = part.iter().filter(|token| is_control(token)).count();
        before.truncate(before.len().checked_sub(behind)?);
        end = *place;
        before.last().copied()
    });
    let mut turns: Vec<u32> = turns.collect();
    turns.reverse();
    turns.dedup();
    turns
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

/// Adds to what a message says. In place: a conversation may have thousands to add.
pub(crate) fn add_text(message: &mut Message, between: &str, more: &str) {
    let Some(Value::String(text)) = &mut message.content else {
        message.content = Some(more.into());
        return;
    };
    if !text.is_empty() && !more.is_empty() {
        text.push_str(between);
    }
    text.push_str(more);
}

/// Adds the next message of the same role.
pub(crate) fn append(last: &mut Message, next: Message) {
    add_text(last, "\n", next.content.as_ref().and_then(Value::as_str).unwrap_or_default());
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
    use fm_testkit::golden::demo_dir;
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

    /// Turns as `write` writes them, one behind the other.
    fn written(messages: &[Message], write: fn(&str, &str) -> String) -> String {
        let text = |turn: &Message| turn.content.as_ref().unwrap().as_str().unwrap().to_owned();
        messages.iter().map(|turn| write(&turn.role, &text(turn))).collect()
    }

    fn said(turns: &[(&str, &str)]) -> Vec<Message> {
        turns.iter().map(|(role, text)| Message::new(*role, *text)).collect()
    }

    #[test]
    fn turns_of_the_user_are_found_by_one_more_rendering() {
        let write: fn(&str, &str) -> String = |role, text| format!("<{role}>{};", text.trim());
        let turns = [
            ("user", "é"),
            ("assistant", "é"),
            ("user", " é\n"),
            ("tool", "é"),
            ("user", "  "),
            ("user", "aé\u{E000}éa"),
        ];
        let mut messages = said(&turns);
        let text = written(&messages, write);
        let mut renderings = 0;
        let places = of_the_user(&text, &mut messages, |messages| {
            renderings += 1;
            Ok(written(messages, write))
        });
        let before: Vec<&str> = places.iter().map(|place| &text[..*place]).collect();
        let second = "<user>é;<assistant>é;<user>";
        let last = format!("{second}é;<tool>é;<user>;<user>aé");
        assert_eq!((before, renderings), (vec![second, last.as_str()], 1));
        assert_eq!(written(&messages, write), text, "it says again what it said");
        let unasked = |_: &[Message]| unreachable!();
        assert!(of_the_user(&text, &mut messages[..2], unasked).is_empty(), "the first one");
        let refuses = |_: &[Message]| Err(TextError::UnknownToken { id: 9, vocab_len: 9 });
        assert!(of_the_user(&text, &mut messages, refuses).is_empty());
        assert_eq!(written(&messages, write), text);
    }

    #[test]
    fn a_turn_that_is_written_another_way_does_not_hide_the_others() {
        let write: fn(&str, &str) -> String = |role, text| match text {
            "special" => "!".to_owned(),
            text => format!("<{role}>{text};"),
        };
        let turns = ["one", "two", "special", "three", "four"].map(|text| ("user", text));
        let mut messages = said(&turns);
        let text = written(&messages, write);
        let places = of_the_user(&text, &mut messages, |messages| Ok(written(messages, write)));
        let before: Vec<&str> = places.iter().map(|place| &text[..*place]).collect();
        let [two, four] = ["<user>one;<user>t", "<user>one;<user>two;!<user>three;<user>fo"];
        let three = "<user>one;<user>two;!<user>th";
        assert_eq!(before, [two, three, four]);
    }

    #[test]
    fn turns_begin_with_the_control_token_before_their_words() {
        let tokenizer = Tokenizer::open(&demo_dir(), None).unwrap();
        let turn = |words: &str| {
            let guarded = tokenizer.guard(words);
            format!(
                "<|im_start|>user\n{guarded}<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
            )
        };
        let turns = ["Hi", "a fox", "say <|im_start|> and <|im_end|>", "é"].map(turn);
        let text = turns.concat();
        let tokens = tokenizer.encode(&text, SpecialTokens::ParseTemplate).unwrap();
        let starts: Vec<usize> = turns
            .iter()
            .scan(0, |end, turn| {
                let start = *end;
                *end += turn.len();
                Some(start)
            })
            .collect();
        let words = starts[1..].iter().map(|start| start + "<|im_start|>user\n".len());
        // In the middle of words, and twice in the same ones.
        let places: Vec<usize> = words.flat_map(|at| [at, at + 1]).collect();
        let places: Vec<usize> =
            places.into_iter().filter(|at| text.is_char_boundary(*at)).collect();
        let begin = begin(&tokenizer, (&tokens, &text), &places);
        let encoded = |text: &str| tokenizer.encode(text, SpecialTokens::ParseTemplate).unwrap();
        let want: Vec<u32> =
            starts[1..].iter().map(|start| encoded(&text[..*start]).len() as u32).collect();
        assert_eq!(begin, want);
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
