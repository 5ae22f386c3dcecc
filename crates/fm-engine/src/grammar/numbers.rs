//! Numbers of schemas: what of them a grammar can hold a text to.
//!
//! Whether digits are a multiple of something takes a state of the lexer for every remainder, and
//! `llguidance` visits all of them before the first letter, without a bound. Its limits of a number are
//! exact as far as floats of 64 bits are, and it writes the numbers of `const` and `enum` with 15 digits.

use std::borrow::Cow;

use serde::de::IgnoredAny;

use super::{Grammar, GrammarError};

/// The least common multiple of what the numbers of a schema shall be multiples of, counted in its
/// smallest decimal place: half a second of work.
const DIVISOR_MAX: u128 = 50_000;

/// Decimal places of such a number.
const PLACES_MAX: u32 = 12;

/// Whole numbers up to here are floats of 64 bits.
const EXACT_MAX: u128 = 1 << 53;

/// Digits of a number that a float of 64 bits keeps, whatever they are.
const DIGITS_MAX: usize = 15;

const LIMITS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// Names whose values are written as they are.
const WRITTEN: [&str; 2] = ["const", "enum"];

/// An object with a key that begins so is to `serde_json`'s own reader the JSON in a text, where its feature
/// `raw_value` is on, as the server has it: what stands there, nobody has counted or seen.
pub const HIDDEN_JSON: &str = "$serde_json::private";

/// The schema or schemas of a grammar as a text, if it has any.
fn schemas(grammar: &Grammar) -> Option<Cow<'_, str>> {
    match grammar {
        Grammar::JsonSchema(value) => Some(value.to_string().into()),
        Grammar::Lark(text) | Grammar::Calls(text) if text.contains("%json") => Some(text.into()),
        _ => None,
    }
}

/// Remainders that are told apart, if they can be counted.
fn told_apart(text: &str) -> Option<u128> {
    let divisors: Option<Vec<_>> = numbers_of(text, "multipleOf").map(decimal).collect();
    common_multiple(&divisors?)
}

/// Remainders that a grammar that is taken tells apart.
pub(super) fn remainders(grammar: &Grammar) -> u64 {
    let most = schemas(grammar).and_then(|text| told_apart(&text));
    most.map_or(0, |most| most.min(DIVISOR_MAX) as u64)
}

/// Refuses what would take for ever, or would not be kept to.
pub(super) fn check(grammar: &Grammar) -> Result<(), GrammarError> {
    let Some(text) = schemas(grammar) else { return Ok(()) };
    // Schemas that were read and written have no need to spell the letters of a keyword so.
    if matches!(grammar, Grammar::Lark(_)) && text.contains("\\u") {
        return Err(invalid("a schema within a grammar is written without \\u".to_owned()));
    }
    if text.contains(HIDDEN_JSON) {
        return Err(invalid(format!("a schema has no key that begins with {HIDDEN_JSON}")));
    }
    if told_apart(&text).is_none_or(|most| most > DIVISOR_MAX) {
        let reason = format!(
            "multiples of the numbers in multipleOf are looked for up to {DIVISOR_MAX} only"
        );
        return Err(invalid(reason));
    }
    for name in LIMITS {
        let beyond = |number: &str| match number.parse::<i128>() {
            Ok(whole) => whole.unsigned_abs() > EXACT_MAX,
            Err(_) => number.parse().is_ok_and(|value: f64| value.abs() > EXACT_MAX as f64),
        };
        if let Some(number) = numbers_of(&text, name).find(|number| beyond(number)) {
            return Err(invalid(format!(
                "{name} {number} is beyond 2^53, where numbers are not exact"
            )));
        }
    }
    let limits = LIMITS.into_iter().flat_map(|name| numbers_of(&text, name));
    let written = WRITTEN.into_iter().flat_map(|name| values_of(&text, name)).flat_map(numbers_in);
    if let Some(number) = limits.chain(written).find(|number| !is_kept(number)) {
        return Err(invalid(format!(
            "{number} has more digits than the {DIGITS_MAX} that numbers keep; as a string it keeps all"
        )));
    }
    Ok(())
}

/// Whether a number is written again as it is, but for its form.
fn is_kept(number: &str) -> bool {
    if number.parse::<i128>().is_ok_and(|whole| whole.unsigned_abs() <= EXACT_MAX) {
        return true;
    }
    let mantissa = number.split(['e', 'E']).next().unwrap_or(number);
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').len() <= DIGITS_MAX
}

fn invalid(reason: String) -> GrammarError {
    GrammarError::Invalid { reason }
}

/// The values of this name, with everything behind them.
fn behind<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let quoted = format!("\"{name}\"");
    let places: Vec<usize> =
        text.match_indices(&quoted).map(|(at, name)| at + name.len()).collect();
    places
        .into_iter()
        .filter_map(|at| Some(text[at..].trim_start().strip_prefix(':')?.trim_start()))
}

/// The values of this name.
fn values_of<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    behind(text, name).filter_map(|rest| {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        values.next()?.ok()?;
        Some(&rest[..values.byte_offset()])
    })
}

/// The numbers that are values of this name.
fn numbers_of<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    behind(text, name).filter_map(number_at)
}

/// The number that a text begins with.
fn number_at(text: &str) -> Option<&str> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && !"+-.eE".contains(letter));
    let number = &text[..end.unwrap_or(text.len())];
    (!number.is_empty()).then_some(number)
}

/// The numbers within a value, but not those within its strings.
fn numbers_in(value: &str) -> impl Iterator<Item = &str> {
    let (mut in_text, mut escaped) = (false, false);
    let apart = move |letter: char| {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = in_text,
            '"' => in_text = !in_text,
            _ => {}
        }
        in_text || !(letter.is_ascii_digit() || "+-.eE".contains(letter))
    };
    let is_number = |part: &&str| part.contains(|letter: char| letter.is_ascii_digit());
    value.split(apart).filter(is_number)
}

/// A number as digits and decimal places, if there are not too many of either.
fn decimal(number: &str) -> Option<(u128, u32)> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits: u128 =
        format!("{}{fraction}", whole.trim_start_matches(['-', '+'])).parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?.checked_sub(exponent.parse().ok()?)?;
    match u32::try_from(places) {
        Ok(places) => (places <= PLACES_MAX).then_some((digits, places)),
        Err(_) => Some((digits.checked_mul(10_u128.checked_pow(places.unsigned_abs())?)?, 0)),
    }
}

/// The least common multiple, in the smallest place of any of them. Zero is a multiple of everything.
fn common_multiple(numbers: &[(u128, u32)]) -> Option<u128> {
    let places = numbers.iter().map(|(_, places)| *places).max().unwrap_or(0);
    numbers.iter().filter(|(digits, _)| *digits != 0).try_fold(1_u128, |most, (digits, own)| {
        let number = digits.checked_mul(10_u128.checked_pow(places - own)?)?;
        (most / divisor(most, number)).checked_mul(number)
    })
}

/// The greatest common divisor.
fn divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn taken(schema: Value) -> bool {
        check(&Grammar::JsonSchema(schema)).is_ok()
    }

    fn multiple(of: &Value) -> Value {
        json!({"properties": {"a": {"type": "number", "multipleOf": of}}})
    }

    #[test]
    fn multiples_cost_as_much_as_there_are_remainders() {
        for of in [json!(0.01), json!(5), json!(1e3), json!(50_000), json!(0.125), json!(0)] {
            assert!(taken(multiple(&of)), "{of}");
        }
        for of in [json!(9_699_690), json!(50_001), json!(1e30), json!(123.4567), json!(1e-300)] {
            assert!(!taken(multiple(&of)), "{of}");
        }
        let all = |a: u32, b: u32| json!({"allOf": [{"multipleOf": a}, {"multipleOf": b}]});
        assert!(taken(all(100, 250)));
        assert!(!taken(all(9973, 9967)), "together they have 99 million remainders");
    }

    #[test]
    fn limits_are_exact_or_refused() {
        for limit in [json!(9_007_199_254_740_992_u64), json!(-5), json!(1.5), json!("a text")] {
            assert!(taken(json!({"type": "integer", "minimum": limit})), "{limit}");
        }
        for limit in [json!(9_007_199_254_740_993_u64), json!(u64::MAX), json!(-1e30)] {
            assert!(!taken(json!({"type": "integer", "exclusiveMaximum": limit})), "{limit}");
        }
        let named = json!({"properties": {"minimum": {"type": "integer"}}});
        assert!(taken(named), "a property may have any name");
    }

    #[test]
    fn numbers_that_would_be_written_otherwise_are_refused() {
        for kept in [
            json!(9_007_199_254_740_992_u64),
            json!(-0.1),
            json!(1e300),
            json!("1180000000000000001"),
        ] {
            assert!(taken(json!({"const": kept})), "{kept}");
            assert!(taken(json!({"enum": ["a \" 1180000000000000001", kept, null]})), "{kept}");
        }
        for lost in
            [json!(1_180_000_000_000_000_001_u64), json!(u64::MAX), json!(123_456_789.123_456_79)]
        {
            assert!(!taken(json!({"const": {"id": lost}})), "{lost}");
            assert!(!taken(json!({"enum": [1, "\\", lost]})), "{lost}");
            assert!(!taken(json!({"minimum": lost})), "{lost}");
            assert!(taken(json!({"type": "integer", "default": lost})), "nobody writes {lost}");
        }
    }

    #[test]
    fn no_schema_is_hidden_in_a_text() {
        let hidden = r#"{"$serde_json::private::RawValue": "{\"multipleOf\": 20000003}"}"#;
        assert!(!taken(json!({"properties": {"a": {HIDDEN_JSON: "{}"}}})));
        assert!(check(&Grammar::Lark(format!("start: %json {hidden}"))).is_err());
        assert!(check(&Grammar::Calls(format!("start: %json {hidden}"))).is_err());
    }

    #[test]
    fn schemas_within_grammars_are_seen() {
        let lark = |schema: &str| check(&Grammar::Lark(format!("start: %json {schema}"))).is_ok();
        assert!(lark(r#"{"multipleOf": 7}"#));
        assert!(!lark(r#"{"multipleOf" : 9699690}"#));
        assert!(!lark(r#"{"multiple\u004ff": 9699690}"#));
    }
}
