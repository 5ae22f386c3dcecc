//! The `tojson` filter of `transformers`: `json.dumps(x, ensure_ascii=False)`.
//!
//! Keys keep their order, nothing is escaped for HTML, separators are `", "` and `": "`. A prompt
//! with other spaces is another prompt.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args},
};

use super::python;

/// The arguments of `json.dumps` that templates can reach.
struct Style {
    ensure_ascii: bool,
    /// One level; nothing means all on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let style = Style::from_arguments(&arguments.into_values())?;
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}

impl Style {
    fn from_arguments(arguments: &[Value]) -> Result<Style, Error> {
        let (positional, named): (&[Value], Kwargs) = from_args(arguments)?;
        let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
            let value = match positional.get(index) {
                Some(value) => Some(value.clone()),
                None => named.get(name)?,
            };
            Ok(value.filter(|value: &Value| !value.is_none() && !value.is_undefined()))
        };
        let indent = argument(1, "indent")?.map(|indent| match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent).unwrap_or(0)),
        });
        let separators = argument(2, "separators")?;
        let separator = |index: usize, default: &str| match &separators {
            None => Ok(default.to_owned()),
            Some(pair) => pair.get_item_by_index(index).map(|text| python::text(&text)),
        };
        let style = Style {
            ensure_ascii: argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true()),
            item_separator: separator(0, if indent.is_some() { "," } else { ", " })?,
            key_separator: separator(1, ": ")?,
            indent,
            sort_keys: argument(3, "sort_keys")?.is_some_and(|value| value.is_true()),
        };
        named.assert_all_used()?;
        Ok(style)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        let is_map = value.kind() == ValueKind::Map;
        if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return self.write_scalar(out, value);
        }
        // The items of a mapping are its keys.
        let mut items = value.try_iter()?.collect::<Vec<_>>();
        if is_map && self.sort_keys {
            items.sort();
        }
        out.push(if is_map { '{' } else { '[' });
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.break_line(out, depth + 1);
            if is_map {
                self.write_key(out, item)?;
                out.push_str(&self.key_separator);
                self.write(out, &value.get_item(item)?, depth + 1)?;
            } else {
                self.write(out, item, depth + 1)?;
            }
        }
        if !items.is_empty() {
            self.break_line(out, depth);
        }
        out.push(if is_map { '}' } else { ']' });
        Ok(())
    }

    fn break_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn write_scalar(&self, out: &mut String, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&number(f64::try_from(value.clone())?)),
            ValueKind::String => self.write_str(out, value.as_str().unwrap_or_default()),
            kind => {
                let detail = format!("a value of kind {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    /// Keys that are no strings become some, as in Python.
    fn write_key(&self, out: &mut String, key: &Value) -> Result<(), Error> {
        if let Some(text) = key.as_str() {
            self.write_str(out, text);
            return Ok(());
        }
        out.push('"');
        self.write_scalar(out, key)?;
        out.push('"');
        Ok(())
    }

    fn write_str(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    let mut utf16 = [0; 2];
                    let units = c.encode_utf16(&mut utf16).iter();
                    out.extend(units.map(|unit| format!("\\u{unit:04x}")));
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Python's JSON knows infinities.
fn number(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        python::float(number)
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context, value::Serde};
    use serde_json::json;

    use super::*;

    fn render(source: &str) -> Result<String, Error> {
        let mut environment = Environment::new();
        environment.add_filter("tojson", tojson);
        let x = json!({"b": "<é&'🚀\u{1}\u{7f}\n\"\\>", "a": [1, 2.5, 1e-7, true, null, {}, []]});
        environment.render_str(source, context!(x => Value::from(Serde(x))))
    }

    // Expected values: CPython 3.11, json.dumps.
    #[test]
    fn writes_what_python_writes() {
        assert_eq!(
            render("{{ x | tojson }}").unwrap(),
            "{\"b\": \"<é&'🚀\\u0001\u{7f}\\n\\\"\\\\>\", \"a\": [1, 2.5, 1e-07, true, null, {}, []]}"
        );
        assert_eq!(
            render("{{ x.b | tojson(ensure_ascii=true) }}").unwrap(),
            r#""<\u00e9&'\ud83d\ude80\u0001\u007f\n\"\\>""#
        );
        assert_eq!(
            render("{{ {'b': [1, {}], 'a': 2} | tojson(indent=2, sort_keys=true) }}").unwrap(),
            "{\n  \"a\": 2,\n  \"b\": [\n    1,\n    {}\n  ]\n}"
        );
        assert_eq!(render("{{ [1, 2] | tojson(False, 0) }}").unwrap(), "[\n1,\n2\n]");
        assert_eq!(
            render("{{ {1: 2, none: 3} | tojson(separators=(',', ':')) }}").unwrap(),
            r#"{"1":2,"null":3}"#
        );
    }

    #[test]
    fn what_is_undefined_is_an_error_and_so_is_an_unknown_argument() {
        assert!(render("{{ y | tojson }}").is_err());
        assert!(render("{{ x | tojson(indentation=2) }}").is_err());
    }
}
