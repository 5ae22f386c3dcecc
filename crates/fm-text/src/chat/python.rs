//! The Python that templates were written against, where the engine's own rules differ.

use minijinja::{
    Environment, Error, ErrorKind, State, Value,
    value::{ValueKind, from_args},
};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::json;
use crate::tokenizer::guard::unguarded;

/// Characters of a refusal that are told: it may quote the message that it is about.
const MESSAGE_CHARS: usize = 500;

/// What a template said with `raise_exception`, in one line of a bounded length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RaisedException {
    /// The template's own words.
    pub message: String,
}

impl RaisedException {
    fn new(said: &str) -> RaisedException {
        let said = unguarded(said);
        let mut seen = said.chars().map(|c| if c.is_control() { ' ' } else { c });
        let mut message: String = seen.by_ref().take(MESSAGE_CHARS).collect();
        message.extend(seen.next().map(|_| '…'));
        RaisedException { message }
    }

    /// The exception that caused `error`, if one did.
    pub(super) fn find(error: &Error) -> Option<&RaisedException> {
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            if let Some(raised) = error.downcast_ref() {
                return Some(raised);
            }
            cause = error.source();
        }
        None
    }
}

/// Adds everything that `transformers` and Python have and the engine has not.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, _, value| Ok(out.write_str(&text(value))?));
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", |value: &Value| text(value));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let raised = RaisedException::new(&text(message));
        Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(raised))
    });
}

/// `len(value)`; what is undefined has no items.
fn length(value: &Value) -> Result<usize, Error> {
    let none = if value.is_undefined() { Some(0) } else { None };
    value.len().or(none).ok_or_else(|| {
        let detail = format!("a value of kind {} has no length", value.kind());
        Error::new(ErrorKind::InvalidOperation, detail)
    })
}

/// Has a length and can be indexed; in Python that includes strings and mappings.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Bytes, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Bytes | Seq | Map | Undefined)
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

/// String methods that `minijinja-contrib` lacks, then those it has.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, args);
    };
    match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.split_once(separator).unwrap_or((text, ""));
            let found = if before.len() < text.len() { separator } else { "" };
            Ok(Value::from_iter([before, found, after]))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.rsplit_once(separator).unwrap_or(("", text));
            let found = if after.len() < text.len() { separator } else { "" };
            Ok(Value::from_iter([before, found, after]))
        }
        "rsplit" => {
            let (separator, splits): (&str, Option<usize>) = from_args(args)?;
            let count = splits.map_or(usize::MAX, |splits| splits.saturating_add(1));
            let mut parts: Vec<&str> = text.rsplitn(count, separator).collect();
            parts.reverse();
            Ok(Value::from_iter(parts))
        }
        _ => unknown_method_callback(state, value, name, args),
    }
}

/// `str(value)`; what is undefined is empty.
pub(super) fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_undefined() => String::new(),
        None => repr(value),
    }
}

/// `repr(value)`
fn repr(value: &Value) -> String {
    let listed = |items: Vec<String>| items.join(", ");
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::String => value.as_str().map(repr_str).unwrap_or_default(),
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::Seq if value.is_tuple() => {
            let items: Vec<_> = items().map(|item| repr(&item)).collect();
            let comma = if items.len() == 1 { "," } else { "" };
            format!("({}{comma})", listed(items))
        }
        ValueKind::Seq => format!("[{}]", listed(items().map(|item| repr(&item)).collect())),
        ValueKind::Map if value.as_object().is_some() => {
            let entry = |key: Value| {
                let value = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key), repr(&value))
            };
            format!("{{{}}}", listed(items().map(entry).collect()))
        }
        // The engine already writes True, False, None and integers as Python does.
        _ => value.to_string(),
    }
}

/// `repr` of a string: single quotes unless that takes more escapes.
fn repr_str(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => out.extend([format!("\\x{:02x}", u32::from(c))]),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// `repr` of a float: the shortest digits that read back the same, with an exponent below 1e-4
/// and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if number == 0.0 || (-4..16).contains(&exponent) {
        return format!("{number:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> String {
        let mut environment = Environment::new();
        install(&mut environment);
        environment.render_str(source, ()).unwrap()
    }

    #[test]
    fn values_print_as_in_python() {
        // Expected values: CPython 3.11.
        assert_eq!(
            render(r#"{{ [1, 2.0, true, none, "a'b", "c\n", {"k": [1e-5]}, []] }}"#),
            r#"[1, 2.0, True, None, "a'b", 'c\n', {'k': [1e-05]}, []]"#
        );
        assert_eq!(render("{{ 1e20 | string ~ x ~ true }}"), "1e+20True");
        assert_eq!(render("{{ (1, 'x') }}{{ (1,) }}"), "(1, 'x')(1,)");
    }

    #[test]
    fn floats_print_as_in_python() {
        let cases = [(0.1, "0.1"), (-0.0, "-0.0"), (1e15, "1000000000000000.0"), (1e16, "1e+16")];
        let small = [(1.5e-5, "1.5e-05"), (1e-4, "0.0001"), (1.25e300, "1.25e+300"), (3.0, "3.0")];
        for (number, expected) in cases.into_iter().chain(small) {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn what_is_undefined_has_length_zero() {
        assert_eq!(render("{{ x | length }}{{ 'é€' | length }}{{ [1] | count }}"), "021");
    }

    #[test]
    fn python_string_methods_work() {
        assert_eq!(render("{{ 'abcab'.removeprefix('ab') ~ 'abc'.removesuffix('bc') }}"), "caba");
        assert_eq!(
            render("{{ 'a=b=c'.partition('=') }}{{ 'a'.rpartition('=') }}"),
            "['a', '=', 'b=c']['', '', 'a']"
        );
        assert_eq!(
            render("{{ 'a.b.c'.rsplit('.', 1) }}{{ 'a.b'.rsplit('.') }}"),
            "['a.b', 'c']['a', 'b']"
        );
    }

    #[test]
    fn tests_agree_with_python_about_what_is_a_sequence() {
        let source = "{% for v in ['s', [1], {'a': 1}, 3, none, x] %}\
            {{ v is sequence }}{{ v is iterable }}{{ v is mapping }}{{ v is string }} {% endfor %}";
        assert_eq!(
            render(source),
            "TrueTrueFalseTrue TrueTrueFalseFalse TrueTrueTrueFalse FalseFalseFalseFalse \
             FalseFalseFalseFalse TrueTrueFalseFalse "
        );
    }
}
