//! Token ids of vocabularies in metadata, against Hugging Face `tokenizers` on the `tokenizer.json`
//! that the metadata were made of: ten thousand lines for every way to split text.

use std::{cell::Cell, fs, path::Path};

use fm_text::{SpecialTokens, TextError, Tokenizer, Vocabulary, vocabulary::kind};
use proptest::{
    collection::vec,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use serde_json::{Value, json};

use super::{
    Pair,
    families::{
        CL100K, DEEPSEEK_LLM, DEEPSEEK_V3, KIMI_K2, O200K, QWEN2, QWEN35, byte_level,
        byte_level_json, sequence, split, to_vocabulary,
    },
    short_lines,
};

const LINES: usize = 10_000;

type Change = fn(&mut Vocabulary);

/// Ours, without and then with the cache.
fn open(vocabulary: &Vocabulary) -> Result<Tokenizer, TextError> {
    let cache = tempfile::tempdir().unwrap();
    let path = Path::new("model.gguf");
    Tokenizer::from_vocabulary(vocabulary, path, Some(cache.path()))?;
    Tokenizer::from_vocabulary(vocabulary, path, Some(cache.path()))
}

/// Checks the first name on many lines, and that the others are other names for the same.
fn check(names: &[&str], normalizer: &Value, steps: Vec<Value>, ignore_merges: bool) {
    let mut json = byte_level_json(normalizer, &sequence(steps));
    json["model"]["ignore_merges"] = json!(ignore_merges);
    add_whole_pieces(&mut json);
    add_added_tokens(&mut json);
    for (name, lines) in names.iter().zip([LINES, 500, 500]) {
        let ours = open(&to_vocabulary(&json, name)).unwrap();
        Pair::with(ours, &json).check(&short_lines(lines, 2));
    }
}

/// Adds tokens that no merge makes; whether text can be one tells `ignore_merges`.
fn add_whole_pieces(json: &mut Value) {
    let words = ["the", " the", "The", "word", "hello", "ing", "xyz", "a", "B", "qqq"];
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let before = vocab.len();
    for (left, right) in words.iter().flat_map(|left| words.map(|right| (left, right))) {
        let id = vocab.len();
        vocab.entry(format!("{left}{right}").replace(' ', "Ġ")).or_insert(json!(id));
    }
    let more = vocab.len() - before;
    assert!(more > 20, "merges make nearly all of them");
}

/// Adds tokens that are cut out first. Some are what merges make as well, some are new.
fn add_added_tokens(json: &mut Value) {
    let texts = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<|im",
        "end|>",
        "é!",
        "<b><|",
        "▁▁<",
    ];
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut next = vocab.len();
    let added: Vec<Value> = texts
        .iter()
        .map(|text| {
            let id = vocab.get(*text).cloned().unwrap_or_else(|| {
                next += 1;
                json!(next - 1)
            });
            json!({"id": id, "content": text, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": text.starts_with("<|")})
        })
        .collect();
    assert!(next > vocab.len() && next < vocab.len() + texts.len(), "some of each");
    json["added_tokens"] = json!(added);
}

fn then_bytes(patterns: &[&str]) -> Vec<Value> {
    patterns.iter().map(|p| split(p)).chain([byte_level(false)]).collect()
}

#[test]
fn qwen2() {
    check(&["qwen2", "deepseek-r1-qwen"], &json!({"type": "NFC"}), then_bytes(&[QWEN2]), false);
}

#[test]
fn qwen35() {
    check(&["qwen35"], &json!({"type": "NFC"}), then_bytes(&[QWEN35]), false);
}

#[test]
fn deepseek_v3() {
    check(&["deepseek-v3"], &Value::Null, then_bytes(&DEEPSEEK_V3), false);
}

#[test]
fn deepseek_llm() {
    let mut steps = then_bytes(&DEEPSEEK_LLM);
    steps.insert(5, json!({"type": "Digits", "individual_digits": true}));
    check(&["deepseek-llm"], &Value::Null, steps, false);
}

#[test]
fn cl100k() {
    check(&["glm4", "chatglm-bpe", "llama-bpe"], &Value::Null, then_bytes(&[CL100K]), true);
}

#[test]
fn o200k() {
    check(&["gpt-4o", "minimax-m2"], &Value::Null, then_bytes(&[O200K]), false);
}

#[test]
fn kimi_k2() {
    check(&["kimi-k2"], &Value::Null, then_bytes(&[&KIMI_K2.join("|")]), true);
}

#[test]
fn gpt2() {
    check(&["gpt-2"], &Value::Null, vec![byte_level(true)], false);
}

/// The golden vocabulary, and the tokenizer that was made of it.
fn pieces() -> (Vocabulary, Value) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/pieces");
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(golden.join(name)).unwrap()).unwrap()
    };
    let columns = read("pieces.json");
    let vocabulary = Vocabulary {
        model: "llama".to_owned(),
        pre: Some("default".to_owned()),
        tokens: serde_json::from_value(columns["tokens"].clone()).unwrap(),
        scores: serde_json::from_value(columns["scores"].clone()).unwrap(),
        token_type: serde_json::from_value(columns["token_type"].clone()).unwrap(),
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        unknown_token_id: Some(0),
        ..Vocabulary::default()
    };
    (vocabulary, read("tokenizer.json"))
}

#[test]
fn sentence_piece() {
    let (vocabulary, json) = pieces();
    Pair::with(open(&vocabulary).unwrap(), &json).check(&short_lines(LINES, 3));
    Pair::of(&json).check(&short_lines(2000, 5));
}

#[test]
fn sentence_piece_without_a_space_in_front() {
    let (mut vocabulary, mut json) = pieces();
    vocabulary.add_space_prefix = Some(false);
    json["normalizer"] = json["normalizer"]["normalizers"][1].clone();
    Pair::with(open(&vocabulary).unwrap(), &json).check(&short_lines(LINES, 4));
}

#[test]
fn what_stands_around_a_text() {
    let (mut vocabulary, json) = pieces();
    let from_json = super::open(&json).unwrap();
    let ours = open(&vocabulary).unwrap();
    assert_eq!((ours.prefix(), ours.suffix()), (&[1][..], &[][..]));
    assert_eq!((ours.prefix(), ours.suffix()), (from_json.prefix(), from_json.suffix()));
    vocabulary.add_bos_token = Some(false);
    vocabulary.add_eos_token = Some(true);
    let ours = open(&vocabulary).unwrap();
    assert_eq!((ours.prefix(), ours.suffix()), (&[][..], &[2][..]));

    let json = byte_level_json(&Value::Null, &Value::Null);
    for (pre, prefix) in [("llama-bpe", &[0][..]), ("qwen2", &[])] {
        assert_eq!(open(&to_vocabulary(&json, pre)).unwrap().prefix(), prefix);
    }
}

#[test]
fn everything_that_decides_about_ids_changes_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let (first, _) = pieces();
    let changes: [Change; 6] = [
        |v| v.add_space_prefix = Some(false),
        |v| v.add_bos_token = Some(false),
        |v| v.token_type[3] = kind::CONTROL,
        |v| v.scores.reverse(),
        |v| v.tokens.swap(268, 269),
        |v| v.bos_token_id = Some(2),
    ];
    let fingerprint = |vocabulary: &Vocabulary, cache: Option<&Path>| {
        let ours = Tokenizer::from_vocabulary(vocabulary, Path::new("x"), cache).unwrap();
        let ids = ours.encode("<|im_start|> the boat is in the water", SpecialTokens::AsText);
        let special: Vec<u32> =
            (0..ours.vocab_len() as u32).filter(|id| ours.is_special(*id)).collect();
        (ids.unwrap(), ours.prefix().to_vec(), special)
    };
    let expected = fingerprint(&first, Some(cache.path()));
    for change in changes {
        let mut other = first.clone();
        change(&mut other);
        assert_ne!(fingerprint(&other, None), expected);
        assert_eq!(fingerprint(&other, Some(cache.path())), fingerprint(&other, None));
    }
}

#[test]
fn what_contradicts_itself_is_refused_by_name() {
    let refused = |vocabulary: &Vocabulary, change: Change, words: &[&str]| {
        let mut changed = vocabulary.clone();
        change(&mut changed);
        let error = open(&changed).unwrap_err();
        assert!(matches!(error, TextError::Vocabulary { .. }), "{error:?}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        for word in words {
            assert!(source.contains(word), "{source} does not say {word}");
        }
    };
    let pieces = pieces().0;
    let of_pieces: [(Change, &[&str]); 14] = [
        (|v| v.model = "bert".to_owned(), &["tokenizer.ggml.model", "bert", "llama"]),
        (|v| v.model = "t5".to_owned(), &["tokenizer.ggml.model", "t5"]),
        (|v| v.scores.truncate(899), &["tokenizer.ggml.scores", "899", "900"]),
        (|v| v.token_type.push(1), &["tokenizer.ggml.token_type", "901", "900"]),
        (|v| v.token_type.clear(), &["tokenizer.ggml.token_type", "0 entries"]),
        (|v| v.token_type[7] = 0, &["tokenizer.ggml.token_type", "7"]),
        (|v| v.bos_token_id = Some(900), &["tokenizer.ggml.bos_token_id", "900"]),
        (|v| v.eos_token_ids = vec![900], &["tokenizer.ggml.eos_token_ids", "900"]),
        (|v| v.unknown_token_id = Some(u32::MAX), &["tokenizer.ggml.unknown_token_id"]),
        (|v| v.bos_token_id = None, &["tokenizer.ggml.bos_token_id", "missing"]),
        (|v| v.tokens[400] = v.tokens[300].clone(), &["tokenizer.ggml.tokens", "300", "400"]),
        (|v| v.tokens[400] = "x".repeat(1025), &["tokenizer.ggml.tokens", "1025", "400"]),
        (|v| v.tokens[7] = "<0x>".to_owned(), &["tokenizer.ggml.tokens", "<0x00>"]),
        (|v| v.scores[300] = f32::NAN, &["tokenizer.ggml.scores", "300"]),
    ];
    for (change, words) in of_pieces {
        refused(&pieces, change, words);
    }
    let bytes = to_vocabulary(&byte_level_json(&Value::Null, &Value::Null), "qwen2");
    let of_bytes: [(Change, &[&str]); 8] = [
        (|v| v.pre = Some("granite".to_owned()), &["tokenizer.ggml.pre", "granite", "qwen35"]),
        (|v| v.pre = Some("default".to_owned()), &["tokenizer.ggml.pre", "missing"]),
        (|v| v.pre = None, &["tokenizer.ggml.pre", "missing"]),
        (|v| v.merges.clear(), &["tokenizer.ggml.merges", "missing"]),
        (|v| v.merges[5] = "ab".to_owned(), &["tokenizer.ggml.merges", "5"]),
        (|v| v.merges[5] = "a b c".to_owned(), &["tokenizer.ggml.merges", "5"]),
        (|v| v.merges[5] = "a ☃".to_owned(), &["tokenizer.ggml.merges", "5"]),
        (|v| v.token_type[9] = kind::BYTE, &["tokenizer.ggml.token_type", "9"]),
    ];
    for (change, words) in of_bytes {
        refused(&bytes, change, words);
    }
    assert!(open(&pieces).is_ok() && open(&bytes).is_ok());
}

#[test]
fn rows_that_no_token_has_stay_text() {
    let json = byte_level_json(&Value::Null, &sequence(then_bytes(&[CL100K])));
    let mut vocabulary = to_vocabulary(&json, "glm4");
    let last = vocabulary.tokens.len() - 1;
    // Older files call such rows added tokens.
    vocabulary.token_type[last] = kind::USER_DEFINED;
    let ours = open(&vocabulary).unwrap();
    let ids = ours.encode(&vocabulary.tokens[last], SpecialTokens::Parse).unwrap();
    assert!(ids.len() > 1 && ids.iter().all(|&id| (id as usize) < last - 6), "{ids:?}");
    assert_eq!((ours.vocab_len(), ours.token_bytes(last as u32)), (last - 6, None));
}

#[test]
fn a_vocabulary_is_about_as_long_as_its_file() {
    let bytes = byte_level_json(&Value::Null, &Value::Null);
    for (vocabulary, json) in [pieces(), (to_vocabulary(&bytes, "qwen2"), bytes)] {
        let (estimate, length) = (vocabulary.json_bytes(), json.to_string().len() as u64);
        assert!(length * 4 / 5 < estimate && estimate < length * 2, "{estimate} for {length}");
    }
}

/// One thing changed somewhere, as by a broken or hostile file.
fn edit(vocabulary: &mut Vocabulary, (field, at, text): &(usize, usize, String)) {
    fn put<T>(list: &mut [T], at: usize, value: T) {
        let count = list.len().max(1);
        list.get_mut(at % count).into_iter().zip([value]).for_each(|(old, new)| *old = new);
    }
    let (count, at) = (vocabulary.tokens.len(), *at);
    let id = Some(if at % 3 == 0 { count + at } else { at % count } as u32);
    match field {
        0 => put(&mut vocabulary.tokens, at, text.clone()),
        1 => put(&mut vocabulary.token_type, at, (at % 9) as i32 - 1),
        2 => put(&mut vocabulary.scores, at, text.len() as f32 - 3.0),
        3 => put(&mut vocabulary.merges, at, format!("{text} {text}")),
        4 => vocabulary.tokens.swap(at % count, at / 7 % count),
        5 => vocabulary.unknown_token_id = id,
        6 => vocabulary.bos_token_id = id,
        7 => vocabulary.merges.truncate(at % 2000),
        8 => vocabulary.token_type.iter_mut().step_by(at % 50 + 1).for_each(|kind| *kind = 4),
        _ => vocabulary.add_space_prefix = Some(at % 2 == 0),
    }
}

#[test]
fn no_edit_makes_it_panic() {
    let bytes = to_vocabulary(&byte_level_json(&Value::Null, &Value::Null), "glm4");
    let lines = short_lines(20, 6);
    let edits = vec((0..10_usize, 0..5000_usize, "[ -~▁ĠĊé]{0,3}"), 1..5);
    let runner_config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    let opened = Cell::new(0);
    TestRunner::new_with_rng(runner_config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
        .run(&edits, |edits| {
            for mut vocabulary in [bytes.clone(), pieces().0] {
                edits.iter().for_each(|one| edit(&mut vocabulary, one));
                if let Ok(ours) = Tokenizer::from_vocabulary(&vocabulary, Path::new("x"), None) {
                    lines.iter().for_each(|line| drop(ours.encode(line, SpecialTokens::Parse)));
                    opened.set(opened.get() + 1);
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(opened.get() > 30, "nearly all are refused: {} opened", opened.get());
}
