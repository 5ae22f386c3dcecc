//! Parameters that are written as bare text, as JSON.

use serde_json::Value;

use super::definitions::{Kind, Kinds};

/// The JSON of a parameter; the text as a string if it is not what the schema says, which whoever is
/// called can say better than a call that is none.
pub(super) fn to_json(text: &str, kinds: Kinds) -> String {
    // What may be a text is this text, unless it may be nothing too.
    let may_be_null = kinds.are_unknown() || kinds.has(Kind::Null) || !kinds.has(Kind::String);
    if may_be_null && is_null(text) {
        return "null".to_owned();
    }
    // As it stands, however long it is.
    if (kinds.has(Kind::Integer) || kinds.has(Kind::Number)) && is_whole(text.trim()) {
        return text.trim().to_owned();
    }
    let value = if kinds.is_text() { None } else { read(text.trim(), kinds) };
    value.map_or_else(|| quoted(text), |value| value.to_string())
}

/// Nothing, as JSON writes it in any case, or as templates do that print Python's values.
fn is_null(text: &str) -> bool {
    text.eq_ignore_ascii_case("null") || text == "None"
}

/// A whole number as JSON writes it.
fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let begins = digits == "0" || !digits.starts_with('0');
    begins && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a text that begins like this may yet be nothing.
pub(super) fn may_become_null(text: &str) -> bool {
    "null".starts_with(&text.to_ascii_lowercase()) || "None".starts_with(text)
}

/// A JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The inside of a JSON string: any split of a text gives the same.
pub(super) fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// JSON, else what Python writes, if it is of a kind that may be.
fn read(text: &str, kinds: Kinds) -> Option<Value> {
    let value = serde_json::from_str(text).ok().or_else(|| python(text))?;
    match value {
        Value::Bool(_) => kinds.has(Kind::Boolean).then_some(value),
        Value::Array(_) => kinds.has(Kind::Array).then_some(value),
        Value::Object(_) => kinds.has(Kind::Object).then_some(value),
        Value::Number(ref number) => {
            // `3.0` is a whole number, as in JSON schemas.
            let whole = number.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15);
            match (number.is_f64(), whole) {
                (true, Some(whole)) if kinds.has(Kind::Integer) => Some(Value::from(whole as i64)),
                (true, _) => kinds.has(Kind::Number).then_some(value),
                (false, _) => {
                    (kinds.has(Kind::Integer) || kinds.has(Kind::Number)).then_some(value)
                }
            }
        }
        Value::Null => (kinds.has(Kind::Null) || !kinds.has(Kind::String)).then_some(value),
        Value::String(_) => None,
    }
}

/// A Python literal of numbers, strings, lists, dictionaries and constants.
fn python(text: &str) -> Option<Value> {
    let mut json = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if matches!(first, '\'' | '"') {
            let (string, after) = python_string(&rest[1..], first)?;
            json.push_str(&quoted(&string));
            rest = after;
            continue;
        }
        let word = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        if word == 0 {
            json.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        json.push_str(match &rest[..word] {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            other => other,
        });
        rest = &rest[word..];
    }
    serde_json::from_str(&json).ok()
}

/// A string up to its closing quote, and what follows.
fn python_string(text: &str, quote: char) -> Option<(String, &str)> {
    let mut string = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Some((string, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => string.push('\n'),
                't' => string.push('\t'),
                'r' => string.push('\r'),
                c @ ('\\' | '\'' | '"') => string.push(c),
                c => string.extend(['\\', c]),
            },
            c => string.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn json(text: &str, schema: &Value) -> String {
        to_json(text, Kinds::of(schema, &json!({})))
    }

    #[test]
    fn the_schema_says_what_a_parameter_is() {
        let (whole, number) = (json!({"type": "integer"}), json!({"type": "number"}));
        let cases = [
            ("3", &whole, "3"),
            ("3.0", &whole, "3"),
            (" 3\n", &whole, "3"),
            ("3.5", &whole, "\"3.5\""),
            ("abc", &whole, "\"abc\""),
            ("", &whole, "\"\""),
            (" \"3\"", &whole, r#"" \"3\"""#),
            ("3", &number, "3"),
            ("-2.5e3", &number, "-2500.0"),
            ("True", &json!({"type": "boolean"}), "true"),
            ("false", &json!({"type": "boolean"}), "false"),
            ("1", &json!({"type": "boolean"}), "\"1\""),
            ("NULL", &whole, "null"),
            ("null", &json!({}), "null"),
            ("Null", &json!({"type": ["string", "null"]}), "null"),
            ("Null", &json!({"type": "string"}), "\"Null\""),
            ("null", &json!({"type": ["string", "integer"]}), "\"null\""),
            ("None", &json!({"type": ["integer", "null"]}), "null"),
            ("None", &json!({"type": ["string", "null"]}), "null"),
            (" None\n", &whole, "null"),
            ("none", &json!({"type": ["string", "null"]}), "\"none\""),
            ("None", &json!({"type": "string"}), "\"None\""),
            (
                "{'a': True, \"b\": 'it\\'s'}",
                &json!({"type": "object"}),
                r#"{"a":true,"b":"it's"}"#,
            ),
            ("[1, None]", &json!({"type": "array"}), "[1,null]"),
            ("[1", &json!({"type": "array"}), "\"[1\""),
            ("5", &json!({"type": "string"}), "\"5\""),
            ("5", &json!({}), "\"5\""),
            (" a\n", &json!({"type": ["string", "null"]}), "\" a\\n\""),
            ("5", &json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "5"),
            ("5a", &json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "\"5a\""),
        ];
        for (text, schema, expected) in cases {
            assert_eq!(json(text, schema), expected, "{text} {schema}");
        }
    }

    #[test]
    fn numbers_of_any_size_stay_what_they_are() {
        let whole = json!({"type": "integer"});
        assert_eq!(json("9007199254740993", &whole), "9007199254740993");
        assert_eq!(json("1e300", &whole), "\"1e300\"");
        let long = "-6599999999997199888886222624215";
        assert_eq!([json(long, &whole), json("007", &whole)], [long, "\"007\""]);
    }
}
