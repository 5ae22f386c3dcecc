//! Token ids against Hugging Face `tokenizers`, the definition of what they should be.
//!
//! The tokenizer of the demonstration model, and variations of it that have what published
//! tokenizers have: other split patterns, other added tokens, vocabularies with tokens that no
//! merge reaches, the Llama lineage.

// A test fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used)]

mod oracle;

use std::{env, fs, path::PathBuf};

use fm_text::{SpecialTokens, Tokenizer};
use serde_json::{Value, json};

use self::oracle::{Pair, demo_json, lines};

/// Checks a variation of the demonstration tokenizer on many lines.
fn check(change: impl FnOnce(&mut Value)) {
    let mut json = demo_json();
    change(&mut json);
    Pair::of(&json).check(&lines(1000));
}

/// Adds tokens to the vocabulary.
fn add_tokens(json: &mut Value, texts: &[&str]) {
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    for (id, text) in (vocab.len()..).zip(texts) {
        assert!(vocab.insert((*text).to_owned(), json!(id)).is_none(), "{text} is there already");
    }
    // The library numbers added tokens from the end of the vocabulary, whatever the file says.
    for token in json["added_tokens"].as_array_mut().unwrap() {
        token["id"] = json!(token["id"].as_u64().unwrap() + texts.len() as u64);
    }
}

/// Adds merges across the borders at which split patterns differ: without them, text that is
/// split elsewhere may become the same tokens.
fn add_merges_across_borders(json: &mut Value) {
    let pairs = [("1", "2"), ("12", "3"), ("123", "4"), ("Ċ", "the"), ("ĉ", "the"), ("!", "the")];
    let more = [
        ("Ġ", "Ġ"),
        ("ĠĠ", "the"),
        ("'", "s"),
        ("the", "'s"),
        ("a", "B"),
        ("!", "Ċ"),
        ("Ċ", "Ġ"),
        ("B", "a"),
    ];
    for (left, right) in pairs.into_iter().chain(more) {
        let whole = format!("{left}{right}");
        if json["model"]["vocab"].get(&whole).is_none() {
            add_tokens(json, &[&whole]);
        }
        json["model"]["merges"].as_array_mut().unwrap().push(json!([left, right]));
    }
}

fn split_by(json: &mut Value, patterns: &[&str]) {
    add_merges_across_borders(json);
    let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let mut steps: Vec<Value> = patterns.iter().map(split).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    steps.push(bytes);
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": steps});
}

#[test]
fn the_demonstration_tokenizer() {
    Pair::of(&demo_json()).check(&lines(4000));
}

#[test]
fn every_character_there_is() {
    // Planes 4 to 13 and the private ones from 15 on are each all the same.
    let planes = (0..0x3_3480).chain(0xE_0000..0xE_0200).chain((0x4_0000..0x11_0000).step_by(997));
    let all: Vec<char> = planes.filter_map(char::from_u32).collect();
    // Alone between letters, so that one line holds many independent cases.
    let line = |chars: &[char]| chars.iter().flat_map(|&c| ['a', c, 'e']).collect::<String>();
    let lines: Vec<String> = all.chunks(97).map(line).collect();
    Pair::of(&demo_json()).check(&lines);
}

#[test]
fn split_patterns_of_published_models() {
    // Qwen2 and Qwen3; cl100k; o200k and gpt-oss; DeepSeek-V3.
    const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const DEEPSEEK: [&str; 3] = [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ];
    for pattern in [QWEN2, CL100K, O200K] {
        check(|json| split_by(json, &[pattern]));
    }
    check(|json| {
        split_by(json, &DEEPSEEK);
        json["normalizer"] = json!({"type": "Sequence", "normalizers": []});
    });
}

#[test]
fn plain_byte_level_splits_as_gpt2() {
    for prefix in [false, true] {
        check(|json| {
            add_merges_across_borders(json);
            json["normalizer"] = Value::Null;
            json["pre_tokenizer"] = json!({
                "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true,
            });
        });
    }
}

#[test]
fn added_tokens_with_every_flag() {
    let token = |id: u32, content: &str, flag: &str, special: bool| {
        let mut token = json!({
            "id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special,
        });
        token[flag] = json!(true);
        token
    };
    check(|json| {
        let added = json["added_tokens"].as_array_mut().unwrap();
        added.push(token(2048, "<mask>", "lstrip", true));
        added.push(token(2049, "<sep>", "rstrip", false));
        added.push(token(2050, "word", "single_word", false));
        added.push(token(2051, "é!", "normalized", false));
        added.push(token(2052, "<tool", "special", true));
        added.push(token(2053, "<|im", "special", false));
        added.push(token(2054, "end|>", "normalized", true));
    });
}

#[test]
fn tokens_that_no_merge_reaches() {
    // Each can be a piece of split text, or the end or start of one.
    let texts = ["Ġxyz", "qqq", "xyz", "Ġ(x", "fnfn", "ĊĊĊĊĊĊ", "Ġworldxyz"];
    check(|json| add_tokens(json, &texts));
    check(|json| {
        add_tokens(json, &texts);
        json["model"]["ignore_merges"] = json!(true);
    });
}

#[test]
fn merges_written_as_one_string() {
    check(|json| {
        for merge in json["model"]["merges"].as_array_mut().unwrap() {
            let joined = format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap());
            *merge = json!(joined);
        }
    });
}

#[test]
fn the_llama_lineage() {
    let prepend = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    let variations = [
        (prepend, Value::Null),
        (Value::Null, metaspace("first", false)),
        (Value::Null, metaspace("always", true)),
        (Value::Null, metaspace("never", true)),
    ];
    for (normalizer, splitter) in variations {
        Pair::of(&oracle::llama_json(&normalizer, &splitter)).check(&lines(1000));
    }
}

#[test]
fn what_could_not_be_exact_is_refused() {
    let refused = |change: fn(&mut Value)| {
        let mut json = demo_json();
        change(&mut json);
        oracle::open(&json).is_err()
    };
    assert!(refused(|json| json["model"]["dropout"] = json!(0.1)));
    assert!(refused(|json| json["model"]["continuing_subword_prefix"] = json!("##")));
    assert!(refused(
        |json| json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = json!(true)
    ));
    assert!(refused(|json| json["normalizer"] = json!({
        "type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": []}]
    })));
    assert!(!refused(|_| ()));
}

#[test]
fn very_long_runs_neither_fail_nor_panic() {
    let tokenizer = oracle::open(&demo_json()).unwrap();
    let ids = |text: &str| tokenizer.encode(text, SpecialTokens::Parse);
    for run in ["a", "A", "é", "1", "-", "\u{301}"] {
        assert!(ids(&run.repeat(1_100_000)).is_ok());
    }
    assert!(ids(&(" ".repeat(fm_text::tokenizer::SPACES_MAX) + "x")).is_ok());
    let refused = ids(&("é".to_owned() + &" ".repeat(1_100_000) + "x"));
    assert!(matches!(
        refused,
        Err(fm_text::TextError::SpacesTooLong { offset: 2, chars: 1_100_000, .. })
    ));
}

#[test]
fn the_goldens_of_the_python_library() {
    let Some(goldens) = env::var_os("FLASH_MOE_CHAT_GOLDENS").map(PathBuf::from) else {
        #[allow(clippy::print_stderr)] // the only way to say that nothing was tested
        {
            eprintln!("skipped: FLASH_MOE_CHAT_GOLDENS is not set");
        }
        return;
    };
    let read = |name: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(goldens.join(name)).unwrap()).unwrap()
    };
    let tokenizer = Tokenizer::open(&goldens.join("tokenizer"), None).unwrap();
    let cases = read("encode.json");
    for case in cases.as_array().unwrap() {
        let ids = tokenizer.encode(case["text"].as_str().unwrap(), SpecialTokens::Parse).unwrap();
        assert_eq!(json!(ids), case["ids"], "{}", case["text"]);
        for skip in [false, true] {
            let decoded = oracle::decode(&tokenizer, &ids, skip);
            assert_eq!(json!(decoded), case[if skip { "decoded_skip" } else { "decoded" }]);
        }
    }

    // Pieces cannot be seen from outside: where no token crosses a border and every piece is
    // encoded alone, the ids of the pieces put together are the ids of the text.
    for pattern in read("pretokenize.json").as_array().unwrap() {
        let mut json = demo_json();
        split_by(&mut json, &[pattern["regex"].as_str().unwrap()]);
        json["normalizer"] = Value::Null;
        json["added_tokens"] = json!([]);
        let tokenizer = oracle::open(&json).unwrap();
        let ids =
            |text: &Value| tokenizer.encode(text.as_str().unwrap(), SpecialTokens::Parse).unwrap();
        for case in pattern["cases"].as_array().unwrap() {
            let pieces = case["pieces"].as_array().unwrap();
            let expected: Vec<u32> = pieces.iter().flat_map(ids).collect();
            assert_eq!(ids(&case["text"]), expected, "{}", case["text"]);
        }
    }
}
