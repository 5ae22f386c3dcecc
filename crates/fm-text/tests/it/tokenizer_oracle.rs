//! Token ids against Hugging Face `tokenizers`, the definition of what they should be, by its recorded answers.
//!
//! The tokenizer of the demonstration model, and variations of it that have what published
//! tokenizers have: other split patterns, other added tokens, vocabularies with tokens that no
//! merge reaches, the Llama lineage.

use std::{env, fs, path::PathBuf};

use fm_text::{SpecialTokens, Tokenizer};
use serde_json::{Value, json};

use crate::oracle::{
    self, Pair, demo_json,
    families::{CL100K, DEEPSEEK_V3, O200K, QWEN2},
    library::{self, Way},
    lines,
};

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
fn every_character_among_marks() {
    // Between a mark that goes last and one that goes first, and twice in a row: whether it moves
    // or composes is a matter of the version of Unicode. The last two compose in later ones.
    let chars = (0xA0..0x2_0000).chain(0x2_F800..0x2_FA20).filter_map(char::from_u32);
    let text = |c: char| format!("a\u{315}{c}\u{327}e{c}{c} ");
    let mut lines: Vec<String> = chars.map(text).collect();
    lines.extend(["\u{16d63}\u{16d67}".to_owned(), "\u{11382}\u{113c9}".to_owned()]);
    let lines: Vec<String> = lines.chunks(97).map(<[String]>::concat).collect();
    for form in ["NFC", "NFKC"] {
        let mut json = demo_json();
        json["normalizer"] = json!({"type": form});
        Pair::of(&json).check(&lines);
    }
}

#[test]
fn split_patterns_of_published_models() {
    for pattern in [QWEN2, CL100K, O200K] {
        check(|json| split_by(json, &[pattern]));
    }
    check(|json| {
        split_by(json, &DEEPSEEK_V3);
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
fn every_way_to_split_at_a_pattern() {
    let patterns =
        [json!({"Regex": r"\p{N}|[a-z]+"}), json!({"String": " "}), json!({"String": "é"})];
    let behaviours = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    let lines = lines(150);
    for (behaviour, invert) in behaviours.into_iter().flat_map(|b| [(b, false), (b, true)]) {
        for pattern in &patterns {
            let mut json = demo_json();
            add_merges_across_borders(&mut json);
            json["pre_tokenizer"]["pretokenizers"][0] = json!({
                "type": "Split", "pattern": pattern, "behavior": behaviour, "invert": invert,
            });
            if invert && behaviour.starts_with("Merged") {
                assert!(oracle::open(&json).is_err(), "{behaviour} inverted");
            } else {
                Pair::of(&json).check(&lines);
            }
        }
    }
    for step in [
        json!({"type": "Digits", "individual_digits": true}),
        json!({"type": "Digits", "individual_digits": false}),
        json!({"type": "Punctuation", "behavior": "Isolated"}),
        json!({"type": "Whitespace"}),
    ] {
        check(|json| {
            add_merges_across_borders(json);
            json["pre_tokenizer"]["pretokenizers"][0] = step;
        });
    }
}

#[test]
fn merges_that_make_one_token_in_several_ways() {
    // Which of its merges finishes a token, and how early, depends on what it is made of.
    check(|json| {
        add_merges_across_borders(json);
        let vocab = json["model"]["vocab"].as_object().unwrap().clone();
        let mut merges = Vec::new();
        for text in vocab.keys() {
            let splits = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
            let known = splits.filter(|(l, r)| vocab.contains_key(*l) && vocab.contains_key(*r));
            merges.extend(known.map(|(left, right)| json!([left, right])));
        }
        // In an order that has nothing to do with how long they are or how often they occur.
        merges.sort_by_key(|pair| xxhash_rust::xxh3::xxh3_64(pair.to_string().as_bytes()));
        json["model"]["merges"] = json!(merges);
    });
}

#[test]
fn a_text_is_neither_cut_nor_filled_up() {
    let mut json = demo_json();
    let ids = |json: &Value| {
        let text = "one two three four five six seven";
        oracle::open(json).unwrap().encode(text, SpecialTokens::Parse).unwrap()
    };
    let expected = ids(&json);
    json["truncation"] =
        json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({
        "strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "!",
    });
    assert_eq!(ids(&json), expected);
}

#[test]
fn what_stands_around_a_text() {
    let template = |before: &[&str], after: &[&str]| {
        let token = |text: &&str| json!({"SpecialToken": {"id": text, "type_id": 0}});
        let mut single: Vec<Value> = before.iter().map(token).collect();
        single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
        single.extend(after.iter().map(token));
        let tokens = ["<|im_start|>", "<|im_end|>"].iter().zip(2040..).map(|(text, id)| {
            ((*text).to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}))
        });
        json!({"type": "TemplateProcessing", "single": single, "pair": single,
               "special_tokens": Value::Object(tokens.collect())})
    };
    let (start, end) = ("<|im_start|>", "<|im_end|>");
    let both = json!({"type": "Sequence", "processors": [
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true}),
        template(&[start], &[])]});
    let processors =
        [Value::Null, both, template(&[start, end], &[]), template(&[end], &[start, end])];
    for processor in processors {
        let mut json = demo_json();
        json["post_processor"] = processor;
        let ours = oracle::open(&json).unwrap();
        let text = ours.encode("Hello", SpecialTokens::Parse).unwrap();
        let framed = [ours.prefix(), &text, ours.suffix()].concat();
        library::check(&json, Way::Framed, &["Hello".to_owned()], &[framed]);
    }
    // The configuration has the last word.
    let dir = tempfile::tempdir().unwrap();
    let mut json = demo_json();
    json["post_processor"] = template(&[start], &[end]);
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    for (add_bos, prefix) in [(false, vec![]), (true, vec![2041])] {
        let config = json!({"bos_token": end, "add_bos_token": add_bos});
        fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let ours = Tokenizer::open(dir.path(), None).unwrap();
        assert_eq!((ours.prefix(), ours.suffix()), (&prefix[..], &[][..]));
    }
}

#[test]
fn what_could_not_be_exact_is_refused() {
    let refused = |json: Value, change: fn(&mut Value)| {
        let mut changed = json.clone();
        change(&mut changed);
        assert_ne!(json, changed);
        assert!(oracle::open(&json).is_ok());
        assert!(oracle::open(&changed).is_err(), "{}", changed["pre_tokenizer"]);
    };
    let demo: [fn(&mut Value); 15] = [
        |json| json["added_tokens"][0]["content"] = json!("a".repeat(1 << 16)),
        |json| json["model"]["vocab"]["a".repeat(1 << 16)] = json!(5000),
        |json| {
            let id = json["added_tokens"][0]["id"].as_u64().unwrap();
            let text = json["added_tokens"][0]["content"].as_str().unwrap().to_owned();
            json["model"]["vocab"][text] = json!(id + 5000);
        },
        |json| json["model"]["dropout"] = json!(0.1),
        |json| json["model"]["continuing_subword_prefix"] = json!("##"),
        |json| json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = json!(true),
        |json| {
            json["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": []}]});
        },
        |json| json["normalizer"] = json!({"type": "NFD"}),
        |json| json["normalizer"] = json!({"type": "Lowercase"}),
        |json| {
            json["normalizer"] =
                json!({"type": "Replace", "pattern": {"String": "a"}, "content": "$1"});
        },
        |json| json["pre_tokenizer"]["pretokenizers"][0] = json!({"type": "WhitespaceSplit"}),
        |json| json["post_processor"] = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": [], "special_tokens": {}}),
        |json| json["added_tokens"][0]["id"] = json!(u32::MAX),
        |json| json["model"]["merges"].as_array_mut().unwrap().push(json!(["the", "zzz"])),
        |json| {
            json["model"]["vocab"].as_object_mut().unwrap().remove("~");
            json["model"]["merges"]
                .as_array_mut()
                .unwrap()
                .retain(|m| !m.to_string().contains('~'));
        },
    ];
    demo.into_iter().for_each(|change| refused(demo_json(), change));
    let llama: [fn(&mut Value); 4] = [
        |json| drop(json["model"]["vocab"].as_object_mut().unwrap().remove("<0xF0>")),
        |json| {
            json["model"]["unk_token"] = Value::Null;
            json["model"]["byte_fallback"] = json!(false);
        },
        |json| {
            json["model"]["unk_token"] = json!("<nowhere>");
            json["model"]["byte_fallback"] = json!(false);
        },
        |json| {
            json["model"]["vocab"]["<0x41>a"] = json!(5000);
            json["model"]["merges"].as_array_mut().unwrap().push(json!(["<0x41>", "a"]));
        },
    ];
    let plain = || oracle::llama_json(&Value::Null, &Value::Null);
    llama.into_iter().for_each(|change| refused(plain(), change));
}

#[test]
fn models_other_than_bpe_are_refused_by_name() {
    let models = [
        json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}),
        json!({"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1}}),
    ];
    for model in models {
        let refused = oracle::open(&json!({"model": model})).unwrap_err().to_string();
        assert!(refused.contains("a model other than BPE"), "{refused}");
    }
    let broken = oracle::open(&json!({"model": {"type": "BPE", "vocab": []}})).unwrap_err();
    assert!(matches!(broken, fm_text::TextError::Json { .. }), "{broken}");
}

#[test]
fn normalized_added_tokens_are_refused_where_splitting_changes_the_text() {
    let normalized = |json: &mut Value| json["added_tokens"][2]["normalized"] = json!(true);
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let mut llama = oracle::llama_json(&Value::Null, &metaspace);
    let mut bytes = demo_json();
    bytes["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    for json in [&mut llama, &mut bytes] {
        Pair::of(json).check(&lines(200));
        normalized(json);
        let refused = oracle::open(json).unwrap_err().to_string();
        assert!(refused.contains("normalized added tokens"), "{refused}");
    }
    // Where nothing is changed as text is split, such tokens are found.
    let mut plain = demo_json();
    normalized(&mut plain);
    Pair::of(&plain).check(&lines(200));
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
    // These patterns match no marks of layout and no private characters, so that a run of them is searched for at
    // each of its characters.
    let mut json = demo_json();
    split_by(&mut json, &DEEPSEEK_V3);
    let tokenizer = oracle::open(&json).unwrap();
    for run in ["\0", "\u{200d}", "\u{e000}"] {
        let text = run.repeat(400_000);
        let ids = tokenizer.encode(&text, SpecialTokens::Parse).unwrap();
        assert_eq!(oracle::decode(&tokenizer, &ids, false), text);
    }
}

/// Gemma has dozens of them.
#[test]
fn added_tokens_of_spaces_are_spaces_in_the_llama_lineage() {
    let mut json = oracle::llama_json(&Value::Null, &Value::Null);
    let mut add = |text: &str| {
        let id = json["model"]["vocab"][text].as_u64().unwrap_or(5000);
        let token = json!({"id": id, "content": text, "normalized": false, "special": false});
        json["added_tokens"].as_array_mut().unwrap().push(token);
        id as u32
    };
    let (two, five) = (add("▁▁"), add("▁▁▁▁▁"));
    let tokenizer = oracle::open(&json).unwrap();
    assert_eq!(tokenizer.token_bytes(two), Some(&b"  "[..]));
    assert_eq!(tokenizer.token_bytes(five), Some(&b"     "[..]));
    let ids = tokenizer.encode("a▁▁▁▁▁b", SpecialTokens::Parse).unwrap();
    assert!(ids.contains(&five));
    assert_eq!(oracle::decode(&tokenizer, &ids, false).trim_start(), "a     b");
    assert_eq!(tokenizer.token_id("▁▁"), Some(two));
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
