//! System messages within a conversation, for templates that know them at its beginning only: some
//! refuse them there, some put them in front, some leave them out without a word.

use fm_text::Message;
use serde_json::Value;

use crate::turns;

/// Makes them part of the user's turns, between the tags that agents have for this.
pub(crate) fn tell(messages: &mut Vec<Message>) {
    let start = messages.iter().position(|message| message.role != "system");
    let rest = messages.split_off(start.unwrap_or(messages.len()));
    // Not every template takes two turns of one role.
    let mut joins = false;
    for message in rest {
        let late = message.role == "system";
        let message = if late { reminder(&message) } else { message };
        let user = message.role == "user";
        match messages.last_mut().filter(|last| user && (late || joins) && last.role == "user") {
            Some(last) => turns::add_text(last, "\n", text(&message)),
            None => messages.push(message),
        }
        joins = user && (late || joins);
    }
}

/// Whether there are any.
pub(crate) fn are_in(messages: &[Message]) -> bool {
    messages.windows(2).any(|pair| pair[0].role != "system" && pair[1].role == "system")
}

fn reminder(message: &Message) -> Message {
    Message::new(
        "user",
        format!("<system-reminder>\n{}\n</system-reminder>", text(message).trim_end()),
    )
}

fn text(message: &Message) -> &str {
    message.content.as_ref().and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(messages: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut messages: Vec<Message> =
            messages.iter().map(|(role, text)| Message::new(*role, *text)).collect();
        tell(&mut messages);
        messages.iter().map(|message| (message.role.clone(), text(message).to_owned())).collect()
    }

    #[test]
    fn they_join_the_turn_that_they_stand_beside_and_stay_in_order() {
        let of = |own: &[(&str, &str)]| -> Vec<(String, String)> {
            own.iter().map(|(role, text)| ((*role).to_owned(), (*text).to_owned())).collect()
        };
        let first = [("system", "S"), ("system", "T"), ("user", "a"), ("user", "b")];
        assert_eq!(told(&first), of(&first), "nothing is late");
        let late = [("system", "S"), ("user", "a"), ("system", "r\n"), ("assistant", "b")];
        let reminded = "a\n<system-reminder>\nr\n</system-reminder>";
        assert_eq!(told(&late), of(&[("system", "S"), ("user", reminded), ("assistant", "b")]));
        let before = [("assistant", "b"), ("system", "r"), ("user", "c"), ("user", "d")];
        let reminded = "<system-reminder>\nr\n</system-reminder>\nc\nd";
        assert_eq!(told(&before), of(&[("assistant", "b"), ("user", reminded)]));
        let result = [("tool", "x"), ("system", "r")];
        let reminded = "<system-reminder>\nr\n</system-reminder>";
        assert_eq!(told(&result), of(&[("tool", "x"), ("user", reminded)]));
    }
}
