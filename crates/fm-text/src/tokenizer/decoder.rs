//! What `decoder` of `tokenizer.json` does to text, beyond spelling tokens.
//!
//! Tokens are spelled as bytes here, byte by byte or with spaces for `▁`, which is what two kinds of decoders
//! come to. One of them ends with a step that takes the first space away, because an encoder put it there. What
//! spells otherwise is refused: text would differ from the model's own.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What is taken away where a text begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Start {
    /// Nothing.
    #[default]
    Kept,
    /// A space.
    Space,
    /// All spaces of the first token.
    Spaces,
}

impl Start {
    /// Takes it from the first token that has bytes.
    pub(crate) fn of(self, bytes: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Kept => bytes.into(),
            Self::Space => bytes.strip_prefix(b" ").unwrap_or(bytes).into(),
            Self::Spaces => bytes.iter().copied().filter(|byte| *byte != b' ').collect(),
        }
    }

    /// What a decoder does, where `chars` says that tokens are spelled in characters; else each stands for a
    /// byte. A file without one says nothing of text.
    pub(super) fn of_decoder(decoder: &Value, chars: bool) -> Result<Start, &'static str> {
        let steps = match decoder["type"].as_str() {
            None if decoder.is_null() => return Ok(Start::Kept),
            Some("Sequence") => decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice),
            _ => std::slice::from_ref(decoder),
        };
        let mut start = Start::Kept;
        let (mut spells, mut joined) = (false, false);
        for step in steps {
            // Behind the end of the words there is nothing left to do.
            if start != Start::Kept && step["type"] != "Fuse" {
                return Err(name(step));
            }
            match step["type"].as_str() {
                Some("ByteLevel") if !chars => spells = true,
                Some("Replace") if chars && puts_spaces(step) => spells = true,
                Some("Metaspace") if chars && step["replacement"] == "▁" => {
                    spells = true;
                    start = if prepends(step) { Start::Spaces } else { Start::Kept };
                }
                Some("ByteFallback") if chars => {}
                Some("Fuse") => joined = true,
                Some("Strip") if joined && takes_first_space(step) => start = Start::Space,
                Some("Strip") if step["start"] == 0 && step["stop"] == 0 => {}
                _ => return Err(name(step)),
            }
        }
        if spells { Ok(start) } else { Err("a decoder that does not spell its tokens") }
    }
}

/// The decoder that equals what is done, for files that are made.
pub(crate) fn of_pieces(start: Start) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if start != Start::Kept {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

fn puts_spaces(step: &Value) -> bool {
    step["pattern"]["String"] == "▁" && step["content"] == " "
}

fn takes_first_space(step: &Value) -> bool {
    step["content"] == " " && step["start"] == 1 && step["stop"] == 0
}

/// Older files say it with a truth value.
fn prepends(step: &Value) -> bool {
    match step["prepend_scheme"].as_str() {
        Some(scheme) => scheme != "never",
        None => step["add_prefix_space"] != false,
    }
}

fn name(step: &Value) -> &'static str {
    match step["type"].as_str() {
        Some("BPEDecoder") => "the decoder `BPEDecoder`",
        Some("ByteFallback") => "the decoder `ByteFallback` of bytes",
        Some("ByteLevel") => "the decoder `ByteLevel` of characters",
        Some("CTC") => "the decoder `CTC`",
        Some("Metaspace") => "a decoder `Metaspace` that is not known",
        Some("Replace") => "a decoder `Replace` that is not known",
        Some("Sequence") => "a decoder `Sequence` within another",
        Some("Strip") => "a decoder `Strip` that is not known",
        Some("WordPiece") => "the decoder `WordPiece`",
        _ => "a decoder that is not known",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(steps: &[Value]) -> Value {
        json!({"type": "Sequence", "decoders": steps})
    }

    #[test]
    fn decoders_that_spell_what_is_spelled_are_known() {
        let read = Start::of_decoder;
        assert_eq!(read(&Value::Null, true), Ok(Start::Kept));
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": true});
        assert_eq!(read(&bytes, false), Ok(Start::Kept));
        assert_eq!(read(&sequence(std::slice::from_ref(&bytes)), false), Ok(Start::Kept));
        for start in [Start::Kept, Start::Space] {
            assert_eq!(read(&of_pieces(start), true), Ok(start));
        }
        let metaspace = |more: Value| {
            let mut step = json!({"type": "Metaspace", "replacement": "▁"});
            step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(&step, true)
        };
        assert_eq!(metaspace(json!({"prepend_scheme": "never"})), Ok(Start::Kept));
        assert_eq!(metaspace(json!({"add_prefix_space": false})), Ok(Start::Kept));
        assert_eq!(metaspace(json!({"prepend_scheme": "first"})), Ok(Start::Spaces));
        assert_eq!(metaspace(json!({"add_prefix_space": true})), Ok(Start::Spaces));
    }

    #[test]
    fn other_decoders_are_refused_by_name() {
        let steps = of_pieces(Start::Space)["decoders"].as_array().unwrap().clone();
        let strip = steps[3].clone();
        let replaced = json!({"type": "Replace", "pattern": {"String": "_"}, "content": " "});
        let more = json!({"type": "Strip", "content": " ", "start": 2, "stop": 0});
        for (decoder, chars, named) in [
            (json!({"type": "WordPiece"}), false, "WordPiece"),
            (json!({"type": "BPEDecoder", "suffix": "</w>"}), true, "BPEDecoder"),
            (json!({"type": "CTC"}), true, "CTC"),
            (json!({"type": "Other"}), true, "not known"),
            (json!({"type": "ByteLevel"}), true, "ByteLevel"),
            (sequence(&steps), false, "Replace"),
            (sequence(&[strip, steps[0].clone()]), true, "Strip"),
            (sequence(&[steps[0].clone(), steps[2].clone(), more]), true, "Strip"),
            (sequence(&[&steps[..], &steps[..1]].concat()), true, "Replace"),
            (sequence(&[replaced]), true, "Replace"),
            (sequence(&steps[1..3]), true, "does not spell"),
            (sequence(&[]), false, "does not spell"),
        ] {
            let refused = Start::of_decoder(&decoder, chars).unwrap_err();
            assert!(refused.contains(named), "{decoder}: {refused}");
        }
    }
}
