//! Rules of a grammar that would keep what they match: nobody asks for it, and a rule that is made of itself keeps all of
//! its text for every letter of it.

use super::{Grammar, GrammarError};

/// Attributes of a rule.
const KEEPING: [&str; 2] = ["capture", "stop_capture"];

/// Refuses what takes the square of the text.
pub(super) fn check(grammar: &Grammar) -> Result<(), GrammarError> {
    let (Grammar::Lark(text) | Grammar::Calls(text)) = grammar else { return Ok(()) };
    // Where they stand is not looked at, as in `intersections`; but in a schema, a word is in quotes.
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    let keeps = text.match_indices("capture").any(|(at, word)| {
        let (before, after) = (&text[..at], text[at + word.len()..].trim_start());
        let begin = before.trim_end_matches(is_word).len();
        let is_attribute = KEEPING.contains(&&text[begin..at + word.len()]);
        is_attribute && after.starts_with([']', ',', '='])
    });
    if keeps {
        let reason = "rules of a grammar keep nothing of an answer: leave [capture] and [stop_capture] out; as letters, \
                      write \\x63apture"
            .to_owned();
        return Err(GrammarError::Invalid { reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_keep_nothing() {
        let check = |text: &str| check(&Grammar::Lark(text.to_owned()));
        for text in [
            "start: a\na[capture]: a \"x\" | \"x\"",
            "start: a\na[ lazy, capture = \"b\" ]: /x/",
            "start: a\na[stop=\"y\",stop_capture=\"z\"]: /x+/",
        ] {
            assert!(check(text).unwrap_err().to_string().contains("[capture]"), "{text}");
        }
        for text in [
            "start: capture\ncapture: \"x\"",
            "start: capture_all capture \"capture this\"\ncapture_all: \"recapture]\"\ncapture: \"x\"",
            "start: %json {\"properties\": {\"capture\": {}}}",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }
}
