//! Ours and the library's side by side, and text that finds differences.

pub(crate) mod families;
pub(crate) mod library;
mod vocabularies;

use std::{collections::BTreeMap, fs, path::Path};

use fm_text::{Detokenizer, SpecialText, SpecialTokens, TextError, Tokenizer};
use serde_json::{Value, json};

use self::library::Way;

/// `tokenizer.json` of the demonstration model.
pub(crate) fn demo_json() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Ours, without and then with the cache.
pub(crate) fn open(json: &Value) -> Result<Tokenizer, TextError> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    Tokenizer::open(dir.path(), Some(dir.path()))?;
    Tokenizer::open(dir.path(), Some(dir.path()))
}

pub(crate) fn decode(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let special = if skip_special { SpecialText::Skip } else { SpecialText::Keep };
    let mut detokenizer = Detokenizer::new(tokenizer, special);
    let mut text = String::new();
    for &id in ids {
        text.push_str(detokenizer.push(id).unwrap());
    }
    text + detokenizer.finish()
}

/// Our tokenizer, and the file of which the library makes its own.
pub(crate) struct Pair {
    ours: Tokenizer,
    json: Value,
}

impl Pair {
    pub(crate) fn of(json: &Value) -> Pair {
        Pair::with(open(json).unwrap(), json)
    }

    /// A tokenizer of ours that was made of something else.
    pub(crate) fn with(ours: Tokenizer, json: &Value) -> Pair {
        Pair { ours, json: json.clone() }
    }

    /// Asserts equal ids, with control tokens parsed and as text.
    pub(crate) fn check(self, lines: &[String]) {
        let ids = |special| -> Vec<Vec<u32>> {
            lines.iter().map(|line| self.ours.encode(line, special).unwrap()).collect()
        };
        library::check(&self.json, Way::Parse, lines, &ids(SpecialTokens::Parse));
        // The library reads what is called special as text, and nothing else.
        let mut called = self.json.clone();
        for token in called["added_tokens"].as_array_mut().unwrap() {
            let content = token["content"].as_str().unwrap();
            let has_sign = content.contains(|c: char| c.is_ascii_punctuation());
            token["special"] = (token["special"] == true || has_sign).into();
        }
        library::check(&called, Way::AsText, lines, &ids(SpecialTokens::AsText));
    }
}

/// A small vocabulary with byte fallback, as `SentencePiece` makes them.
pub(crate) fn llama_json(normalizer: &Value, splitter: &Value) -> Value {
    let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    vocab.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    vocab.extend(('a'..='z').chain("▁.,!?'\"()0123456789éß東京".chars()).map(String::from));
    let mut merges = Vec::new();
    let pairs = "▁ ▁|▁▁ ▁▁|t h|▁ th|th e|▁th e|i n|in g|▁ w|o r|▁w or|l d|▁wor ld|e r|a n|an d|▁ and\
                 |東 京|1 2|12 3|▁ a|l l|ll o|h e|he llo|▁ hello|' s|. .|.. .|. ▁|, ▁|▁ (|n d";
    for pair in pairs.split('|') {
        let (left, right) = pair.split_once(' ').unwrap();
        merges.push(json!([left, right]));
        let joined = format!("{left}{right}");
        if !vocab.contains(&joined) {
            vocab.push(joined);
        }
    }
    let vocab: BTreeMap<&String, usize> = vocab.iter().zip(0..).collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": normalizer, "pre_tokenizer": splitter, "post_processor": null,
        "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": merges,
        },
    })
}

/// What lines are made of.
const FRAGMENTS: &[&str] = &[
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{85}",
    "\u{b}",
    "the",
    " the",
    "The",
    "THE",
    " world",
    "word",
    "hello",
    "ing",
    "I'm",
    "we'LL",
    "can't",
    "'s",
    "'Ve",
    "xyz",
    " xyz",
    "qqq",
    "ab12",
    " (x",
    "fnfn",
    "a",
    "B",
    "é",
    "e\u{301}",
    "ü",
    "A\u{30a}",
    "\u{212b}",
    "ﬁ",
    "ß",
    "\u{1e9b}\u{323}",
    "q\u{307}\u{323}",
    "\u{301}",
    "\u{200d}",
    "\u{200b}",
    "\u{feff}",
    "नमस्ते",
    "ন",
    "สวัสดี",
    "한국",
    "\u{1112}\u{1161}\u{11ab}",
    "東京",
    "は日本",
    "中文。",
    "ー",
    "Привет",
    "ελληνικά",
    "שלום",
    "مرحبا",
    "🚀",
    "👩‍👩‍👧",
    "🇩🇪",
    "👍🏽",
    "𝔘𝔫",
    "½",
    "²",
    "Ⅷ",
    "٣",
    "1",
    "12",
    "123",
    "1234567",
    "3.14",
    "-1e5",
    ".",
    "...",
    ",",
    "!",
    "?!",
    "()",
    "{}",
    "[0]",
    "=>",
    "==",
    "//",
    "/*",
    "\"",
    "'",
    "\\",
    "$",
    "€",
    "£",
    "—",
    "_",
    "snake_case",
    "camelCase",
    "HTTPServer",
    "fn main() {",
    "println!(\"{}\");",
    "    return x;\n",
    "<",
    ">",
    "<b>",
    "|>",
    "<|",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start|",
    "<think>",
    "</think>",
    "\n</think>\n\n",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "<mask>",
    "<sep>",
    "end|>",
    "<tool",
    "é!",
    "e\u{301}!",
    "<s>",
    "</s>",
    "<unk>",
    "▁",
    "▁▁",
    "\0",
    "\u{1}",
    "\u{7f}",
    "\u{fffd}",
    "\u{10ffff}",
    "\u{e000}",
];

/// Random lines, always the same ones.
pub(crate) fn lines(count: usize) -> Vec<String> {
    random_lines(count, SplitMix { state: 7, repeats_max: 300 })
}

/// The same without very long runs, so that there can be many of them.
pub(crate) fn short_lines(count: usize, seed: u64) -> Vec<String> {
    random_lines(count, SplitMix { state: seed, repeats_max: 8 })
}

fn random_lines(count: usize, mut random: SplitMix) -> Vec<String> {
    (0..count)
        .map(|_| {
            let fragments = 1 + random.below(24);
            (0..fragments).map(|_| random.fragment()).collect()
        })
        .collect()
}

/// Steele, Lea, Flood, 2014.
struct SplitMix {
    state: u64,
    repeats_max: usize,
}

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Mostly a fragment, sometimes letters, a run or any character at all.
    fn fragment(&mut self) -> String {
        match self.below(16) {
            0 => (0..=self.below(9)).map(|_| self.letter()).collect(),
            1 => FRAGMENTS[self.below(FRAGMENTS.len())].repeat(1 + self.below(self.repeats_max)),
            2 => char::from_u32(self.below(0x3_0000) as u32).map(String::from).unwrap_or_default(),
            _ => FRAGMENTS[self.below(FRAGMENTS.len())].to_owned(),
        }
    }

    fn letter(&mut self) -> char {
        char::from(b"etaoinshrdlucmfwypvbgkjqxz"[self.below(26)])
    }
}
