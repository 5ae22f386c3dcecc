//! Halves of characters in JSON: `"\ud83d"` alone is no text, but clients that cut a string between the halves of
//! a character send it.

/// An escape is `\u` and four digits.
const ESCAPE_BYTES: usize = 6;

/// What stands for half a character.
const REPLACEMENT: &[u8] = br"\ufffd";

/// The body with U+FFFD in place of every half that is alone; none if there is none.
pub(crate) fn mended(body: &[u8]) -> Option<Vec<u8>> {
    let mut mended: Option<Vec<u8>> = None;
    let mut at = 0;
    while let Some(found) = body[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        let length =
            match (half(&body[at..]), half(body.get(at + ESCAPE_BYTES..).unwrap_or_default())) {
                (Some(Half::First), Some(Half::Second)) => 2 * ESCAPE_BYTES,
                (Some(_), _) => {
                    let mended = mended.get_or_insert_with(|| body.to_vec());
                    mended[at..at + ESCAPE_BYTES].copy_from_slice(REPLACEMENT);
                    ESCAPE_BYTES
                }
                // Whatever is escaped, its letter begins no escape.
                (None, _) => 2,
            };
        at = (at + length).min(body.len());
    }
    mended
}

enum Half {
    First,
    Second,
}

/// Which half of a character an escape at the start of a text is.
fn half(text: &[u8]) -> Option<Half> {
    let digits = text.strip_prefix(br"\u")?.get(..4)?;
    match u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()? {
        0xd800..=0xdbff => Some(Half::First),
        0xdc00..=0xdfff => Some(Half::Second),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_alone_is_replaced() {
        let cases = [
            (r#""a\ud83d""#, Some(r#""a\ufffd""#)),
            (r#""\uDE00b""#, Some(r#""\ufffdb""#)),
            (r#""\ud83d\ud83d\ude00""#, Some(r#""\ufffd\ud83d\ude00""#)),
            (r#""\ud83d\n""#, Some(r#""\ufffd\n""#)),
            (r#""\ud83d\ude00""#, None),
            (r#""\\ud83d""#, None),
            (r#""\u00e9\ud8""#, None),
            ("\"\\", None),
            (r"\ud83d", Some(r"\ufffd")),
        ];
        for (body, expected) in cases {
            let mended = mended(body.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(mended.as_deref(), expected, "{body}");
        }
    }
}
