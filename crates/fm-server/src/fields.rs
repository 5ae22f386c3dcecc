//! A request's JSON, taken apart field by field: what is asked for is checked, and what nobody asked
//! for is found.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
    time::Instant,
};

use fm_engine::grammar::HIDDEN_JSON;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{
    problem::{Problem, Wrong},
    surrogates::mended,
};

/// Values of a body: each takes 72 bytes, and may take two of the body.
const VALUES_MAX: usize = 1 << 18;

/// Lists and objects of a body: each takes some hundred bytes.
const NESTS_MAX: usize = 1 << 16;

/// Messages of a request.
const MESSAGES_MAX: usize = 4096;

/// Bytes of what a client calls something: a model, its conversation, itself. Names are kept with every text.
pub(crate) const NAME_MAX: usize = 1 << 10;

/// The fields that have not been taken yet. `null` is the same as absent, as in both interfaces.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Where in the body they are; nothing if they are the body.
    path: String,
    /// Nothing but of a request that came by the network.
    origin: Option<Origin>,
}

/// Where a request comes from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// Whose it is.
    pub(crate) address: Option<IpAddr>,
    /// When it was there.
    pub(crate) arrived: Instant,
    /// What it is called.
    pub(crate) id: Arc<str>,
}

impl Fields {
    /// Reads a body. Depth is limited by `serde_json` (128).
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Problem> {
        // Editors of Windows write it before a text (RFC 8259, section 8.1).
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let (values, nests) = size(body);
        if values > VALUES_MAX || nests > NESTS_MAX {
            return Err(Problem::BodyTooMany { values: VALUES_MAX, nests: NESTS_MAX });
        }
        match plain_or_mended(body) {
            Ok(Value::Object(map)) => {
                let written = map.values().map(written_values).sum::<usize>();
                if written > VALUES_MAX {
                    return Err(Problem::BodyTooMany { values: VALUES_MAX, nests: NESTS_MAX });
                }
                Ok(Self { map, path: String::new(), origin: None })
            }
            Ok(_) => Err(Problem::Body { source: None }),
            Err(error) if is_deep(&error) => Err(Problem::BodyTooDeep),
            Err(error) => Err(Problem::Body { source: Some(error) }),
        }
    }

    /// Says where the request comes from.
    pub(crate) fn from(self, origin: Origin) -> Self {
        Self { origin: Some(origin), ..self }
    }

    /// Where the request comes from.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// A number for who asks: an address, and what those behind it call themselves or their
    /// conversation.
    pub(crate) fn client(&self) -> u64 {
        let own = [self.peek("user"), self.peek("safety_identifier"), self.peek("session_id")];
        let metadata = self.peek("metadata").and_then(|metadata| metadata.get("user_id"));
        let name = own.into_iter().flatten().chain(metadata).find_map(Value::as_str);
        let mut hasher = DefaultHasher::new();
        let address = self.origin.as_ref().and_then(|origin| origin.address);
        (address, name).hash(&mut hasher);
        hasher.finish()
    }

    /// The fields of an object within the body, with dots and indices.
    pub(crate) fn of(value: Value, path: impl Into<String>) -> Result<Self, Problem> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { map, path, origin: None }),
            _ => Err(Wrong::Kind("an object").at(path)),
        }
    }

    /// Where a field is in the body.
    pub(crate) fn path_of(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// What has not been taken.
    pub(crate) fn all(self) -> Map<String, Value> {
        self.map
    }

    /// Adds a field, unless the body has it.
    pub(crate) fn add(&mut self, field: &str, value: &str) {
        if self.peek(field).is_none() {
            self.map.insert(field.to_owned(), value.into());
        }
    }

    /// A field that stays where it is.
    pub(crate) fn peek(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, field: &str) -> Result<Option<String>, Problem> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Wrong::Kind("a string").at(self.path_of(field))),
        }
    }

    /// A text that is short.
    pub(crate) fn name(&mut self, field: &str) -> Result<Option<String>, Problem> {
        match self.text(field)? {
            Some(name) if name.len() > NAME_MAX => {
                Err(Wrong::Long(NAME_MAX).at(self.path_of(field)))
            }
            name => Ok(name),
        }
    }

    pub(crate) fn flag(&mut self, field: &str) -> Result<Option<bool>, Problem> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(Wrong::Kind("true or false").at(self.path_of(field))),
        }
    }

    pub(crate) fn float(
        &mut self,
        field: &str,
        range: RangeInclusive<f32>,
    ) -> Result<Option<f32>, Problem> {
        self.take(field).map(|value| float(&value, &self.path_of(field), &range)).transpose()
    }

    /// A whole number; `1.0` is one, as in JSON.
    pub(crate) fn count(
        &mut self,
        field: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let whole = value.as_f64().filter(|number| number.fract() == 0.0);
        let Some(number) = whole else {
            return Err(Wrong::Kind("a whole number").at(self.path_of(field)));
        };
        let exact = value.as_u64().or((number >= 0.0).then_some(number as u64));
        let within = exact.filter(|count| range.contains(count));
        let wrong = || Wrong::Range(*range.start() as f64, *range.end() as f64);
        within.map(Some).ok_or_else(|| wrong().at(self.path_of(field)))
    }

    /// Any whole number, negative ones and `1.0` too; −1 is none, as clients of other engines mean it.
    pub(crate) fn seed(&mut self) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take("seed").filter(|value| value.as_f64() != Some(-1.0)) else {
            return Ok(None);
        };
        let signed = || value.as_i64().map(i64::cast_unsigned);
        let seed = value.as_u64().or_else(signed).or_else(|| bits(value.as_f64()?));
        seed.map(Some)
            .ok_or_else(|| Wrong::Kind("a whole number of 64 bits").at(self.path_of("seed")))
    }

    /// A string, or a list of up to `max`; none of them empty.
    pub(crate) fn texts(&mut self, field: &str, max: usize) -> Result<Vec<String>, Problem> {
        let list = match self.take(field) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list,
            Some(one) => vec![one],
        };
        if list.len() > max {
            return Err(Wrong::Many(max).at(self.path_of(field)));
        }
        let texts = list.into_iter().map(|value| match value {
            Value::String(text) if text.is_empty() => Err(Wrong::Empty.at(self.path_of(field))),
            Value::String(text) => Ok(text),
            _ => Err(Wrong::Kind("a string or a list of strings").at(self.path_of(field))),
        });
        texts.collect()
    }

    pub(crate) fn list(&mut self, field: &str, max: usize) -> Result<Option<Vec<Value>>, Problem> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(list)) if list.len() <= max => Ok(Some(list)),
            Some(Value::Array(_)) => Err(Wrong::Many(max).at(self.path_of(field))),
            Some(_) => Err(Wrong::Kind("a list").at(self.path_of(field))),
        }
    }

    /// `messages`, of which there is one at least.
    pub(crate) fn messages(&mut self) -> Result<Vec<Value>, Problem> {
        match self.list("messages", MESSAGES_MAX)? {
            None => Err(Wrong::Missing.at("messages")),
            Some(list) if list.is_empty() => Err(Wrong::Empty.at("messages")),
            Some(list) => Ok(list),
        }
    }

    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Map<String, Value>>, Problem> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(Wrong::Kind("an object").at(self.path_of(field))),
        }
    }

    /// Refuses a field that would change the answer, unless it says what is done anyway.
    pub(crate) fn refuse(
        &mut self,
        field: &str,
        what: &'static str,
        harmless: impl Fn(&Value) -> bool,
    ) -> Result<(), Problem> {
        match self.take(field) {
            Some(value) if !harmless(&value) => {
                Err(Wrong::Unsupported(what).at(self.path_of(field)))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what is left, but for fields that never change an answer.
    pub(crate) fn end(mut self, tolerated: &[&str]) -> Result<(), Problem> {
        self.map.retain(|field, value| !value.is_null() && !tolerated.contains(&field.as_str()));
        match self.map.keys().next() {
            Some(field) => Err(Wrong::Unknown.at(self.path_of(field))),
            None => Ok(()),
        }
    }
}

/// A whole number that has a point or an exponent.
fn bits(number: f64) -> Option<u64> {
    let whole = number.fract() == 0.0;
    // As a float, `u64::MAX` is the number after it.
    if whole && (0.0..u64::MAX as f64).contains(&number) {
        return Some(number as u64);
    }
    let negative = whole && (i64::MIN as f64..0.0).contains(&number);
    negative.then_some((number as i64).cast_unsigned())
}

/// Reads JSON as [`Plain`] does: whatever comes from a client, and the JSON within its texts.
pub(crate) fn plain(text: &[u8]) -> serde_json::Result<Value> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = Plain.deserialize(&mut json)?;
    json.end()?;
    Ok(value)
}

/// The same; where halves of characters are in the way, they are mended.
pub(crate) fn plain_or_mended(text: &[u8]) -> serde_json::Result<Value> {
    plain(text).or_else(|error| match mended(text) {
        Some(mended) => plain(&mended),
        None => Err(error),
    })
}

/// JSON as it is written, without [`HIDDEN_JSON`] keys.
struct Plain;

impl<'de> DeserializeSeed<'de> for Plain {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Plain {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = list.next_element_seed(Self)? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if key.starts_with(HIDDEN_JSON) {
                return Err(de::Error::custom(format!("no key begins with {HIDDEN_JSON}")));
            }
            all.insert(key, map.next_value_seed(Self)?);
        }
        Ok(all.into())
    }
}

/// Whether the reader gave up because of the depth: it has no other word for that.
fn is_deep(error: &serde_json::Error) -> bool {
    error.is_syntax() && error.to_string().starts_with("recursion limit")
}

/// How many values, and lists and objects, a body has at most.
fn size(body: &[u8]) -> (usize, usize) {
    let (mut values, mut nests, mut in_text, mut escaped) = (1, 0, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b',' if !in_text => values += 1,
            b'[' | b'{' if !in_text => {
                values += 1;
                nests += 1;
            }
            _ => {}
        }
    }
    (values, nests)
}

/// Values that are written in texts, as arguments and schemas are, and become values.
fn written_values(value: &Value) -> usize {
    match value {
        Value::String(text) if text.trim_start().starts_with(['{', '[']) => size(text.as_bytes()).0,
        Value::Array(all) => all.iter().map(written_values).sum(),
        Value::Object(all) => all.values().map(written_values).sum(),
        _ => 0,
    }
}

/// A number within a range. JSON has no NaN; a number too large for f32 is out of every range.
pub(crate) fn float(
    value: &Value,
    field: &str,
    range: &RangeInclusive<f32>,
) -> Result<f32, Problem> {
    let number = value.as_f64().ok_or_else(|| Wrong::Kind("a number").at(field))? as f32;
    if range.contains(&number) {
        return Ok(number);
    }
    // The nearest number of f64 to one of f32 has digits that nobody wrote.
    let [start, end] = [range.start(), range.end()].map(|bound| (f64::from(*bound) * 1e6).round());
    Err(Wrong::Range(start / 1e6, end / 1e6).at(field))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn numbers_are_whole_and_within_bounds_or_refused() {
        for good in ["3", "3.0", "3e0"] {
            let mut fields = fields(&format!("{{\"n\": {good}}}"));
            assert_eq!(fields.count("n", 1..=8).unwrap(), Some(3));
        }
        for bad in ["-1", "0", "9", "1.5", "1e300", "18446744073709551616", "\"3\"", "[3]", "true"]
        {
            let mut fields = fields(&format!("{{\"n\": {bad}}}"));
            assert!(fields.count("n", 1..=8).is_err(), "{bad}");
        }
        for bad in ["-0.1", "2.1", "1e300", "\"1\""] {
            let mut fields = fields(&format!("{{\"t\": {bad}}}"));
            assert!(fields.float("t", 0.0..=2.0).is_err(), "{bad}");
        }
        assert!(Fields::parse(b"{\"t\": NaN}").is_err());
        assert_eq!(fields("{\"t\": null}").float("t", 0.0..=2.0).unwrap(), None);
    }

    #[test]
    fn half_a_character_is_read_as_none() {
        let mut cut = fields(r#"{"a": "x\ud83d", "b": "\ud83d\ude00"}"#);
        assert_eq!(cut.text("a").unwrap().as_deref(), Some("x\u{fffd}"));
        assert_eq!(cut.text("b").unwrap().as_deref(), Some("😀"));
        assert!(Fields::parse(br#"{"a": "\ud83d"#).is_err());
    }

    #[test]
    fn a_seed_is_any_whole_number_of_64_bits() {
        for (good, seed) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("-1", None),
            ("-1.0", None),
            ("1.0", Some(1)),
            ("-2e0", Some(u64::MAX - 1)),
            ("-9223372036854775808", Some(1 << 63)),
            ("1e19", Some(10_000_000_000_000_000_000)),
        ] {
            let mut fields = fields(&format!("{{\"seed\": {good}}}"));
            assert_eq!(fields.seed().unwrap(), seed, "{good}");
        }
        for bad in
            ["0.5", "18446744073709551616", "-9223372036854775809e1", "1e300", "\"1\"", "true"]
        {
            assert!(fields(&format!("{{\"seed\": {bad}}}")).seed().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_nobody_took_is_named() {
        let mut some = fields(r#"{"a": 1, "user": "u", "b": 2}"#);
        some.take("a");
        assert_eq!(some.end(&["user"]).unwrap_err().field(), Some("b"));
        assert!(fields(r#"{"c": null}"#).end(&[]).is_ok(), "null is absent");
        let inside = || Fields::of(json!({"n": {"m": 1}}), "a[2]").unwrap();
        assert_eq!(inside().end(&[]).unwrap_err().field(), Some("a[2].n"));
        assert_eq!(inside().text("n").unwrap_err().field(), Some("a[2].n"));
        let mut outer = inside();
        let inner = Fields::of(outer.take("n").unwrap(), outer.path_of("n")).unwrap();
        assert_eq!(inner.end(&[]).unwrap_err().field(), Some("a[2].n.m"));
        for many in ["1,".repeat(VALUES_MAX), "[],".repeat(NESTS_MAX), "{},".repeat(NESTS_MAX)] {
            let parsed = Fields::parse(format!("{{\"a\": [{many}1]}}").as_bytes());
            assert!(matches!(parsed, Err(Problem::BodyTooMany { .. })), "{}", &many[..2]);
            let text = format!("{{\"a\": \"\\\\\\\"{many}\"}}");
            assert!(Fields::parse(text.as_bytes()).is_ok(), "a text may spell anything");
        }
        // Arguments of calls are objects in texts, and many together are one.
        for (calls, values, fit) in
            [(1, VALUES_MAX, false), (8, VALUES_MAX / 7, false), (8, VALUES_MAX / 9, true)]
        {
            let arguments = format!(r#"{{\"a\": [{}1]}}"#, "1,".repeat(values));
            let calls = vec![format!(r#"{{"arguments": "{arguments}"}}"#); calls].join(",");
            let parsed = Fields::parse(format!(r#"{{"calls": [{calls}]}}"#).as_bytes());
            assert_eq!(parsed.is_ok(), fit, "{values}");
        }
        let list = format!(r#"{{"schema": "[{}1]"}}"#, "1,".repeat(VALUES_MAX));
        assert!(matches!(Fields::parse(list.as_bytes()), Err(Problem::BodyTooMany { .. })));
        // What `serde_json` means by this key is not what a client may mean.
        let hidden = "1,".repeat(9);
        let hidden = format!(r#"{{"a": {{"$serde_json::private::RawValue": "[{hidden}1]"}}}}"#);
        assert!(matches!(Fields::parse(hidden.as_bytes()), Err(Problem::Body { .. })));
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        assert!(matches!(Fields::parse(deep.as_bytes()), Err(Problem::BodyTooDeep)));
    }
}
