//! Results of calls: whose they are. Most templates write them without ids, so that to the model the first result is
//! that of the first call, whatever order a client sends them in.

use std::{
    collections::{HashMap, VecDeque},
    iter, slice,
};

use fm_text::Message;
use serde_json::Value;

use super::calls;

/// Puts results that follow each other into the order of the calls before them, those of no such call last, and gives
/// each the name of what was called, which some templates want. An id is that of the latest call that has it: there
/// are clients that count calls anew in every turn.
pub(crate) fn place_results(messages: &mut [Message]) {
    let (mut names, mut places) = (HashMap::new(), HashMap::new());
    for part in messages.chunk_by_mut(|one, next| is_result(one) == is_result(next)) {
        if part.first().is_some_and(is_result) {
            part.sort_by_cached_key(|result| {
                let place = result.tool_call_id.as_ref().and_then(|id| places.get(id));
                place.copied().unwrap_or(usize::MAX)
            });
            for result in part {
                let name = result.tool_call_id.as_ref().and_then(|id| names.get(id));
                result.name = result.name.take().or_else(|| name.cloned());
            }
            continue;
        }
        let (mut own, mut is_over) = (HashMap::new(), false);
        for message in part {
            // Calls behind what somebody else has said are made later.
            is_over |= message.role != "assistant";
            for (id, function) in calls(std::slice::from_ref(message)) {
                if std::mem::take(&mut is_over) {
                    own.clear();
                }
                own.insert(id.to_owned(), own.len());
                if let Some(name) = function["name"].as_str() {
                    names.insert(id.to_owned(), name.to_owned());
                }
            }
        }
        // What the user says between two results makes them those of no other calls.
        if !own.is_empty() {
            places = own;
        }
    }
}

/// Gives every call a message of its own, and puts a result behind each: for templates that know one call in a message,
/// and take a result for that of the last one. Results are those of calls that nobody has spoken behind; of calls with one
/// id, in their order. All others stay behind them.
pub(crate) fn call_one_by_one(messages: &mut Vec<Message>) {
    let mut given = std::mem::take(messages).into_iter().peekable();
    while given.peek().is_some() {
        let said = iter::from_fn(|| given.next_if(|message| !is_result(message)));
        let said: Vec<Message> = said.flat_map(each_call).collect();
        let results = iter::from_fn(|| given.next_if(is_result));
        let mut results: Vec<Option<Message>> = results.map(Some).collect();
        let mut places: HashMap<Option<String>, VecDeque<usize>> = HashMap::new();
        for (at, result) in results.iter().flatten().enumerate() {
            places.entry(result.tool_call_id.clone()).or_default().push_back(at);
        }
        let spoken = said.iter().rposition(|message| message.role != "assistant");
        let first = spoken.map_or(0, |at| at + 1);
        for (at, message) in said.into_iter().enumerate() {
            let id = calls(slice::from_ref(&message)).next().map(|(id, _)| id.to_owned());
            messages.push(message);
            let place = id.filter(|_| at >= first).and_then(|id| places.get_mut(&Some(id)));
            let place = place.and_then(VecDeque::pop_front);
            messages.extend(place.and_then(|at| results[at].take()));
        }
        messages.extend(results.into_iter().flatten());
    }
}

/// A message and its calls but the first, each in a message that says nothing else.
fn each_call(mut message: Message) -> impl Iterator<Item = Message> {
    let calls = message.tool_calls.as_mut().and_then(Value::as_array_mut);
    let further = calls.map(|calls| calls.split_off(calls.len().min(1))).unwrap_or_default();
    let alone = |call| Message {
        tool_calls: Some(Value::Array(vec![call])),
        ..Message::new("assistant", "")
    };
    iter::once(message).chain(further.into_iter().map(alone))
}

fn is_result(message: &Message) -> bool {
    message.role == "tool"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn called(of: &[(&str, &str)]) -> Message {
        let call = |(id, name): &(&str, &str)| json!({"id": id, "function": {"name": name}});
        let calls: Value = of.iter().map(call).collect();
        Message { tool_calls: Some(calls), ..Message::new("assistant", "") }
    }

    fn result(id: &str, text: &str) -> Message {
        Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", text) }
    }

    fn placed(mut messages: Vec<Message>) -> Vec<(String, Option<String>)> {
        place_results(&mut messages);
        let results = messages.into_iter().filter(is_result);
        let text = |content: Option<Value>| content.unwrap().as_str().unwrap().to_owned();
        results.map(|result| (text(result.content), result.name)).collect()
    }

    fn want(of: &[(&str, Option<&str>)]) -> Vec<(String, Option<String>)> {
        of.iter().map(|(text, name)| ((*text).to_owned(), name.map(str::to_owned))).collect()
    }

    #[test]
    fn results_come_in_the_order_of_their_calls() {
        let calls = || called(&[("p", "f"), ("q", "g"), ("r", "h")]);
        let said = || Message::new("user", "and?");
        let mixed = vec![
            calls(),
            result("gone", "?"),
            result("r", "3"),
            result("none", "!"),
            result("p", "1"),
            result("q", "2"),
        ];
        let told = [("1", Some("f")), ("2", Some("g")), ("3", Some("h")), ("?", None), ("!", None)];
        assert_eq!(placed(mixed), want(&told), "those of no call stay as they are, behind them");
        let between = vec![calls(), result("r", "3"), said(), result("q", "2"), result("p", "1")];
        let told = [("3", Some("h")), ("1", Some("f")), ("2", Some("g"))];
        assert_eq!(placed(between), want(&told));
        // Calls of two messages in a row are made at once.
        let apart = vec![called(&[("o", "e")]), calls(), result("r", "3"), result("o", "0")];
        assert_eq!(placed(apart), want(&[("0", Some("e")), ("3", Some("h"))]));
        let talk = Message::new("assistant", "and then");
        let talked = vec![called(&[("o", "e")]), talk, calls(), result("o", "0"), result("p", "1")];
        assert_eq!(placed(talked), want(&[("0", Some("e")), ("1", Some("f"))]));
        // What comes late would be taken for the result of a call just before it.
        let late = vec![called(&[("o", "e")]), said(), calls(), result("o", "0"), result("p", "1")];
        assert_eq!(placed(late), want(&[("1", Some("f")), ("0", Some("e"))]));
    }

    #[test]
    fn calls_of_one_message_come_one_by_one_with_their_results() {
        let thought = Message {
            reasoning_content: Some("hm".to_owned()),
            ..called(&[("p", "f"), ("q", "g")])
        };
        let asked = Message::new("user", "?");
        let later = called(&[("r", "h")]);
        let mut told = vec![
            asked.clone(),
            thought.clone(),
            later.clone(),
            result("p", "1"),
            result("q", "2"),
            result("r", "3"),
            result("none", "!"),
            asked.clone(),
        ];
        call_one_by_one(&mut told);
        let first =
            Message { reasoning_content: thought.reasoning_content, ..called(&[("p", "f")]) };
        let want = vec![
            asked.clone(),
            first,
            result("p", "1"),
            called(&[("q", "g")]),
            result("q", "2"),
            later,
            result("r", "3"),
            result("none", "!"),
            asked,
        ];
        assert_eq!(told, want);
    }

    #[test]
    fn a_result_is_that_of_no_call_that_somebody_has_spoken_behind() {
        let user = || Message::new("user", "use g");
        let mut told = vec![called(&[("0", "f")]), user(), called(&[("0", "g")]), result("0", "1")];
        let want = told.clone();
        call_one_by_one(&mut told);
        assert_eq!(told, want, "clients count calls anew in every turn");
        let mut told =
            vec![called(&[("", "f"), ("", "g")]), result("", "1"), result("", "2"), user()];
        call_one_by_one(&mut told);
        let want =
            [called(&[("", "f")]), result("", "1"), called(&[("", "g")]), result("", "2"), user()];
        assert_eq!(told, want, "without ids they come in the order of the calls");
    }

    #[test]
    fn an_id_is_that_of_the_latest_call_before_it() {
        let turn = |name: &str| [called(&[("call_0", name)]), result("call_0", name)];
        let told = [("f", Some("f")), ("g", Some("g"))];
        assert_eq!(placed([turn("f"), turn("g")].concat()), want(&told));
        let own = Message { name: Some("own".to_owned()), ..result("call_0", "1") };
        assert_eq!(placed(vec![called(&[("call_0", "f")]), own]), want(&[("1", Some("own"))]));
    }
}
