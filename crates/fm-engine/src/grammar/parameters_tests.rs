//! Parameters of calls in tags, as schemas say what they are.

use serde_json::{Value, json};

use super::{
    calls_tests::{Start, Verdict, dialect, read, with_calls},
    tests::demo,
};

/// One call with these parameters in Qwen3-Coder's tags.
fn in_tags(parameters: &[(&str, &str)]) -> String {
    let each = |(key, value): &(&str, &str)| format!("<parameter={key}>\n{value}\n</parameter>\n");
    let all = parameters.iter().map(each).collect::<Vec<_>>().concat();
    format!("<tool_call>\n<function=f>\n{all}</function>\n</tool_call>")
}

fn tool_of(parameters: &Value) -> Vec<Value> {
    vec![json!({"type": "function", "function": {"name": "f", "parameters": parameters}})]
}

#[test]
fn parameters_are_found_wherever_a_schema_names_them() {
    let own = json!({"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n"]});
    let grammars = super::tests::grammars(&demo());
    let roots = [
        json!({"$ref": "#/$defs/own", "$defs": {"own": own}, "properties": {}, "type": "object"}),
        json!({"allOf": [{"$ref": "#/$defs/own"}], "$defs": {"own": own}}),
        json!({"anyOf": [own]}),
        json!({"allOf": [{"properties": {"n": {"type": "integer"}}}, {"properties": {"s": {}}, "required": ["n"]}]}),
    ];
    for root in roots {
        let tools = tool_of(&root);
        assert_eq!(dialect("qwen_xml").keeps_to(&root), Ok(()), "{root}");
        let lark = with_calls(&tools, |calls| dialect("qwen_xml").calls_alone(calls, "")).unwrap();
        let start = Start::of(&grammars, &lark);
        let whole = in_tags(&[("n", "6"), ("s", "6")]);
        assert_eq!(start.verdict(&whole), Verdict::Whole, "{root}");
        for other in [in_tags(&[]), in_tags(&[("n", "six")]), in_tags(&[("n", "6"), ("t", "x")])] {
            assert!(matches!(start.verdict(&other), Verdict::Refused(_)), "{root}: {other}");
        }
        let (calls, _) = read(dialect("qwen_xml"), &tools, &whole);
        assert_eq!(calls, [("f".to_owned(), r#"{"n": 6, "s": "6"}"#.to_owned())], "{root}");
    }
}

#[test]
fn what_a_schema_says_of_all_parameters_together_lets_any_arguments_through() {
    let two = json!({"a": {"type": "integer"}, "b": {}});
    let roots = [
        json!({"properties": two, "minProperties": 1}),
        json!({"properties": two, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"properties": two, "required": ["c"], "additionalProperties": false}),
        json!({"patternProperties": {"^x": {}}, "minProperties": 1}),
        json!({"oneOf": [{"properties": two}, {"properties": {"c": {}}}]}),
        json!({"properties": {"a>b": {}}}),
        json!({"properties": {"a": {"enum": [" x"]}}}),
        json!({"$ref": "#/$defs/none"}),
    ];
    let grammars = super::tests::grammars(&demo());
    for root in roots {
        assert!(dialect("qwen_xml").keeps_to(&root).is_err(), "{root}");
        assert_eq!(dialect("hermes").keeps_to(&root), Ok(()), "its calls are JSON");
        let tools = tool_of(&root);
        let lark = with_calls(&tools, |calls| dialect("qwen_xml").calls_alone(calls, "")).unwrap();
        let start = Start::of(&grammars, &lark);
        assert_eq!(start.verdict(&in_tags(&[("a", "6"), ("x", "y")])), Verdict::Whole, "{root}");
    }
    let kept = [
        json!({"properties": two, "required": ["a"], "minProperties": 1, "maxProperties": 2}),
        json!({"properties": two, "required": ["c"], "propertyNames": {"type": "string"}}),
    ];
    for root in kept {
        assert_eq!(dialect("qwen_xml").keeps_to(&root), Ok(()), "{root}");
    }
}

#[test]
fn strings_to_choose_from_are_found_behind_references_and_choices() {
    let grammars = super::tests::grammars(&demo());
    let schemas = [
        (json!({"$ref": "#/$defs/unit"}), &["C", "F"][..]),
        (json!({"allOf": [{"$ref": "#/$defs/unit"}]}), &["C", "F"]),
        (json!({"const": "C"}), &["C"]),
        (json!({"oneOf": [{"const": "C"}, {"const": "F"}]}), &["C", "F"]),
        (json!({"anyOf": [{"enum": ["C", "F"]}, {"type": "null"}]}), &["C", "F", "null"]),
        (json!({"type": ["string", "null"], "enum": ["C", null]}), &["C", "null"]),
        (json!({"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "integer"}]}), &["C", "F", "15"]),
        (json!({"allOf": [{"enum": ["C", "F"]}, {"enum": ["F", "K"]}]}), &["F"]),
    ];
    for (schema, good) in schemas {
        let root = json!({"properties": {"u": schema}, "$defs": {"unit": {"type": "string", "enum": ["C", "F"]}}});
        let tools = tool_of(&root);
        assert_eq!(dialect("qwen_xml").keeps_to(&root), Ok(()), "{root}");
        let lark = with_calls(&tools, |calls| dialect("qwen_xml").calls_alone(calls, "")).unwrap();
        let start = Start::of(&grammars, &lark);
        for text in ["C", "F", "K", "null", "15", "Celsius"] {
            let whole = start.verdict(&in_tags(&[("u", text)])) == Verdict::Whole;
            assert_eq!(whole, good.contains(&text), "{schema}: {text}");
        }
    }
}

#[test]
fn references_name_any_place_and_booleans_are_those_that_are_left() {
    let parameters = json!({
        "type": "object",
        "properties": {
            "n": {"type": "integer", "maximum": 9},
            "m": {"$ref": "#/properties/n"},
            "kids": {"type": "array", "items": {"$ref": "#"}},
            "yes": {"type": "boolean", "const": true},
            "any": {"type": "boolean"},
        },
        "additionalProperties": false,
    });
    let tools = tool_of(&parameters);
    let grammars = super::tests::grammars(&demo());
    let lark = with_calls(&tools, |calls| dialect("qwen_xml").calls_alone(calls, "")).unwrap();
    let start = Start::of(&grammars, &lark);
    for (key, value, taken) in [
        ("m", "7", true),
        ("m", "70", false),
        ("kids", r#"[{"n": 1, "kids": [{"m": 2}]}]"#, true),
        ("kids", "[[]]", false),
        ("kids", r#"[{"m": 70}]"#, false),
        ("yes", "true", true),
        ("yes", "false", false),
        ("any", "False", true),
    ] {
        let verdict = start.verdict(&in_tags(&[(key, value)]));
        assert_eq!(verdict == Verdict::Whole, taken, "{key} {value}: {verdict:?}");
    }
}
