//! Masks against a second opinion, and what is refused.

use std::{collections::BTreeSet, path::Path, sync::mpsc};

use serde_json::Map;

use super::*;

pub(super) fn demo() -> Arc<Tokenizer> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    Arc::new(Tokenizer::open(&dir, None).unwrap())
}

pub(super) fn grammars(tokenizer: &Arc<Tokenizer>) -> Arc<Grammars> {
    grammars_within(tokenizer, Room::default())
}

pub(super) fn grammars_within(tokenizer: &Arc<Tokenizer>, room: Room) -> Arc<Grammars> {
    let eos = tokenizer.token_id("<|im_end|>").unwrap();
    // More rows than tokens, as models have.
    Grammars::new(Arc::clone(tokenizer), tokenizer.vocab_len() + 3, vec![eos], room)
}

/// A second opinion, for languages that can be written down: a token is allowed if some text of the
/// language begins with what is there and the token's bytes.
fn allowed(language: &BTreeSet<Vec<u8>>, text: &[u8], token: &[u8]) -> bool {
    let longer = [text, token].concat();
    !token.is_empty()
        && language.range(longer.clone()..).next().is_some_and(|t| t.starts_with(&longer))
}

fn walk(grammar: &Grammar, language: &[String]) {
    let tokenizer = demo();
    let language: BTreeSet<Vec<u8>> =
        language.iter().map(|text| text.as_bytes().to_vec()).collect();
    let constraint = grammars(&tokenizer).constraint(grammar.clone()).unwrap();
    let long = Duration::from_mins(1);
    for seed in 0..12_usize {
        let mut follower = Follower::start(constraint.clone()).unwrap();
        let mut text = Vec::new();
        while let Some(mask) = follower.mask(long).unwrap() {
            let mut options = Vec::new();
            for token in 0..tokenizer.vocab_len() as u32 + 3 {
                let bytes = tokenizer.token_bytes(token).unwrap_or_default();
                let want = !tokenizer.is_special(token) && allowed(&language, &text, bytes);
                assert_eq!(mask.has(token), want, "{token} {bytes:?} after {text:?}");
                options.extend(want.then_some(token));
            }
            let mut logits = vec![0.0; tokenizer.vocab_len() + 3];
            mask.apply(&mut logits, &[5], &[]);
            assert_eq!(logits[5] == 0.0, language.contains(&text), "the end after {text:?}");
            let token = options[(seed * 7919 + text.len() * 31) % options.len()];
            text.extend_from_slice(tokenizer.token_bytes(token).unwrap());
            follower.accept(token);
        }
        assert!(follower.is_complete(long).unwrap());
        assert!(language.contains(&text), "{text:?}");
    }
}

#[test]
fn a_mask_is_what_keeps_the_text_possible_and_nothing_else() {
    let choices =
        ["Paris", "Par", "the 東京", "é", "e\u{301}", "🚀🚀", "<|im_end|>", "a\nb\"\\", "\n\n"];
    let choices = choices.map(str::to_owned).to_vec();
    walk(&Grammar::Choice(choices.clone()), &choices);

    let mut language = Vec::new();
    for first in ["a", "東", "the ", "é"] {
        for second in ["", "b", "京", "re"] {
            for third in ["", "!", "!!", "!!!"] {
                language.push(format!("{first}{second}{third}"));
            }
        }
    }
    walk(&Grammar::Regex("(?:[a東é]|the )(?:[b京]|re)?!{0,3}".to_owned()), &language);
    let lark = "start: first second? mark\nfirst: \"a\" | \"東\" | \"the \" | \"é\"\n\
                second: \"b\" | \"京\" | \"re\"\nmark: | /!{1,3}/";
    walk(&Grammar::Lark(lark.to_owned()), &language);
}

fn refused(grammar: Grammar) -> GrammarError {
    grammars(&demo()).constraint(grammar).unwrap_err()
}

#[test]
fn what_cannot_be_followed_is_refused_with_the_reason() {
    let invalid = |grammar, word: &str| match refused(grammar) {
        GrammarError::Invalid { reason } => {
            assert!(reason.contains(word), "{reason}");
            assert!(!reason.contains("backtrace") && !reason.contains('\n'), "{reason}");
        }
        error => panic!("{error:?}"),
    };
    let schema = |value| Grammar::JsonSchema(value);
    let regex = |text: &str| Grammar::Regex(text.to_owned());
    let lark = |text: &str| Grammar::Lark(text.to_owned());
    invalid(schema(json!({"type": "wizard"})), "wizard");
    invalid(schema(json!({"type": "é".repeat(100)})), "é");
    invalid(schema(json!({"type": "string", "not": {"const": "a"}})), "not");
    invalid(schema(json!({"oneOf": [{"type": "string"}, {"minLength": 3}]})), "anyOf always");
    invalid(schema(json!({"$ref": "http://example.com/schema"})), "$ref");
    invalid(schema(json!({"$ref": "#/$defs/none"})), "none");
    invalid(schema(json!([1])), "object");
    let few = json!({"type": "array", "minItems": 2, "maxItems": 1});
    invalid(
        schema(json!({"type": "object", "properties": {"a": few}, "required": ["a"]})),
        "minItems",
    );
    let many: Map<_, _> = (0..400).map(|at| (format!("p{at}"), json!({"type": "null"}))).collect();
    invalid(schema(json!({"type": "object", "properties": many})), "keys that may come first");
    invalid(regex("(a"), "unclosed");
    invalid(regex("(?=a)b"), "look-ahead");
    invalid(regex(r"(a)\1"), "backreference");
    for special in ["<|im_end|>", "<|im_start|>", "<|nothing|>"] {
        let (GrammarError::Invalid { reason } | GrammarError::Stuck { reason }) =
            refused(lark(&format!("start: {special}")))
        else {
            panic!("{special} is refused for what it is");
        };
        assert!(!reason.contains("panic"), "{special}: {reason}");
    }
    invalid(lark("start: missing"), "missing");
    invalid(lark("start \"a\""), "1(");
    for nothing in [regex(""), regex(r"[^\s\S]"), Grammar::Choice(Vec::new())] {
        assert_eq!(refused(nothing), GrammarError::Nothing);
    }
    assert_eq!(refused(schema(json!({"$ref": "#"}))), GrammarError::Nothing);
    let mut deep = json!({"type": "string"});
    for _ in 0..40 {
        deep = json!({"type": "array", "items": deep});
    }
    assert!(grammars(&demo()).constraint(schema(deep.clone())).is_ok());
    for _ in 0..25 {
        deep = json!({"type": "array", "items": deep});
    }
    assert_eq!(refused(schema(deep)), GrammarError::TooDeep { max: DEPTH_MAX });
    let nested = format!("start: {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000));
    assert_eq!(refused(lark(&nested)), GrammarError::TooDeep { max: BRACKETS_MAX });
    let allowed = format!("start: {}\"a\"{}", "(".repeat(20), ")".repeat(20));
    assert_eq!(grammars(&demo()).constraint(lark(&allowed)).map(drop), Ok(()));
    let long = regex(&"a".repeat(BYTES_MAX + 1));
    let max = BYTES_MAX;
    assert_eq!(refused(long), GrammarError::TooLong { bytes: max + 1, max });
}

/// Whether a text is one of a schema.
fn is_of(schema: &Value, text: &str) -> bool {
    let constraint = grammars(&demo()).constraint(Grammar::JsonSchema(schema.clone())).unwrap();
    let (mut matcher, words) = (constraint.matcher(), constraint.grammars.words().unwrap());
    let tokens = words.factory.tok_env().tok_trie().greedy_tokenize(text.as_bytes());
    let taken = tokens.into_iter().all(|token| {
        let taken = !matcher.is_stopped() && matcher.count_allowed(&[token]).unwrap() == 1;
        taken && matcher.consume_token(token).is_ok()
    });
    taken && (matcher.is_stopped() || matcher.is_accepting())
}

/// A class that has all control letters is no class of quotes.
#[test]
fn a_pattern_lets_no_letter_through_that_it_does_not_have() {
    let pattern = |text: &str| json!({"type": "string", "pattern": text});
    for (text, taken, not) in [
        (r#"^[^"]{2}$"#, r#""a\\""#, r#""a\"""#),
        (r"^[^/\\]{2}$", r#""a\"""#, r#""a\\""#),
        (r#"^[^"\n]{2}$"#, r#""a\t""#, r#""a\"""#),
        (r"^[\x00-\x1f]{1}$", r#""\u0001""#, r#""\"""#),
        (r"^\p{Cc}$", r#""\n""#, r#""\\""#),
    ] {
        assert!(is_of(&pattern(text), taken), "{text}: {taken}");
        assert!(!is_of(&pattern(text), not), "{text}: {not}");
    }
    let keys = json!({"type": "object", "patternProperties": {"^[^\"]$": {}}, "additionalProperties": false});
    assert!(is_of(&keys, r#"{"\\": 1}"#) && !is_of(&keys, r#"{"\"": 1}"#));
}

#[test]
fn a_uuid_has_the_version_that_is_asked_for() {
    let schema = json!({"type": "string", "format": "uuid4"});
    assert!(is_of(&schema, r#""ffee206f-affe-4fea-9fea-0123456789ab""#));
    assert!(!is_of(&schema, r#""ffee206f-affe-1fea-9fea-0123456789ab""#));
}

#[test]
fn white_space_is_a_few_spaces_or_a_line_that_ends() {
    let list = json!({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 1});
    let deep = format!("[\n{}1\r\n]", " ".repeat(40));
    for (text, taken) in
        [("[1]", true), ("[  1\n]", true), (&deep, true), ("[\n\n1]", false), ("[     1]", false)]
    {
        assert_eq!(is_of(&list, text), taken, "{text}");
    }
}

#[test]
fn a_keyword_that_a_draft_does_not_have_is_kept_to_all_the_same() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array", "prefixItems": [{"type": "integer"}], "minItems": 1, "maxItems": 1,
    });
    assert!(is_of(&schema, "[1]") && !is_of(&schema, "[\"a\"]"));
}

#[test]
fn what_asks_for_nothing_is_taken() {
    let schema = json!({
        "type": "object", "propertyNames": {"type": "string"},
        "properties": {
            "a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": false},
            "b": {"type": "string", "format": "uuid4"},
            "c": {"type": "string", "format": "path"},
        },
    });
    assert_eq!(grammars(&demo()).constraint(Grammar::JsonSchema(schema)).map(drop), Ok(()));
}

#[test]
fn a_number_that_something_follows_can_be_left_by_its_comma() {
    let tokenizer = demo();
    let schema = |first: Value| {
        Grammar::JsonSchema(json!({
            "type": "object", "required": ["a", "b"], "additionalProperties": false,
            "properties": {"a": first, "b": {"type": "boolean"}},
        }))
    };
    let way_out = |first: Value, text: &str| {
        let constraint = grammars(&tokenizer).constraint(schema(first)).unwrap();
        let mut follower = Follower::start(constraint).unwrap();
        for token in tokenizer.encode(text, fm_text::SpecialTokens::AsText).unwrap() {
            assert!(follower.mask(COMPILE_WAIT).unwrap().is_some(), "{text}");
            follower.accept(token);
        }
        assert!(follower.mask(COMPILE_WAIT).unwrap().is_some(), "{text}");
        follower.way_out()
    };
    assert_eq!(way_out(json!({"type": "integer"}), "{\"a\": 70"), Some(WayOut::Comma));
    assert_eq!(way_out(json!({"type": "number"}), "{\"a\": 7.0"), Some(WayOut::Comma));
    assert_eq!(way_out(json!({"type": "integer"}), "{\"a\": 70, \"b\": "), None);
    let long = json!({"type": "string", "minLength": 5});
    assert_eq!(way_out(long.clone(), "{\"a\": \"7"), None, "a string that may not end yet");
    assert_eq!(way_out(long, "{\"a\": \"70000"), Some(WayOut::Close(b'"')));
}

#[test]
fn a_thread_that_is_gone_is_an_error_and_one_that_is_late_is_none() {
    let (tell, told) = mpsc::sync_channel(1);
    let (say, heard) = mpsc::sync_channel(2);
    let mut follower = Follower::of(tell, heard);
    assert!(follower.mask(Duration::ZERO).unwrap().is_none());
    assert!(!follower.is_complete(Duration::ZERO).unwrap());
    drop((say, told));
    follower.accept(1);
    assert_eq!(follower.mask(Duration::ZERO).map(drop), Err(GrammarError::Gone));
    assert_eq!(follower.is_complete(Duration::ZERO), Err(GrammarError::Gone));
}

#[test]
fn a_token_that_the_thread_has_no_room_for_is_an_error_and_no_mask_of_another_text() {
    let (tell, _told) = mpsc::sync_channel(1);
    let (say, heard) = mpsc::sync_channel(2);
    let mut follower = Follower::of(tell, heard);
    follower.accept(1);
    follower.accept(2);
    say.send(Heard::Complete).map_err(drop).unwrap();
    assert_eq!(follower.is_complete(Duration::ZERO), Err(GrammarError::Unheard));
    assert_eq!(follower.mask(Duration::ZERO).map(drop), Err(GrammarError::Unheard));
}

#[test]
fn what_was_compiled_of_late_is_not_compiled_again() {
    let grammars = grammars(&demo());
    let schema = |first: &str, second: &str| {
        let text = format!(r#"{{"properties": {{"{first}": {{}}, "{second}": {{}}}}}}"#);
        Grammar::JsonSchema(serde_json::from_str(&text).unwrap())
    };
    let compile = |grammar| grammars.constraint(grammar).unwrap();
    let same = |one: &Constraint, other: &Constraint| Arc::ptr_eq(&one.compiled, &other.compiled);
    let first = compile(schema("a", "b"));
    assert!(same(&first, &compile(schema("a", "b"))));
    // Equal as JSON, but texts come in another order.
    assert!(!same(&first, &compile(schema("b", "a"))));
    let lark = "start: \"x\"".to_owned();
    assert!(!same(&compile(Grammar::Lark(lark.clone())), &compile(Grammar::Calls(lark))));
    for at in 0..100 {
        compile(Grammar::Regex(format!("a{{{at},}}b")));
    }
    assert_eq!(grammars.recent.len(), recent::ENTRIES_MAX);
    assert!(!same(&first, &compile(schema("a", "b"))), "the oldest are gone");
    assert!(follower::Follower::start(first).unwrap().mask(COMPILE_WAIT).unwrap().is_some());
}
