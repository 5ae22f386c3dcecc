//! How text is split before bytes are merged, by `tokenizer.ggml.pre`.
//!
//! The name stands for what `tokenizer.json` of a family says with a normaliser, split patterns and
//! `ignore_merges`. Patterns are those of the families' own files, for the regular expressions of
//! `tokenizers`; other programs approximate them, so where theirs differ these are right.

use serde_json::{Value, json};

use super::{VocabularyError, error};

/// One way to split text.
#[derive(Debug)]
pub(super) struct Split {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Whether text is brought to NFC first.
    nfc: bool,
    steps: &'static [Step],
    /// Whether a piece that is a token is that token, however it would merge (`ignore_merges`).
    pub(super) whole_pieces: bool,
    /// Whether text begins with a beginning of text, unless the file says otherwise.
    pub(super) adds_bos: bool,
}

/// Each step splits the pieces of the one before it.
#[derive(Debug)]
enum Step {
    /// At every match, which is a piece itself.
    Isolate(&'static str),
    /// Every digit alone.
    Digits,
    /// The pattern that belongs to the byte alphabet.
    Gpt2,
}

/// The first pattern of everything since: letters with what is in front of them, digits,
/// everything else, line ends, spaces.
const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with digits one by one.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// And with marks for letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words change where capitals begin.
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with Chinese apart.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const DEEPSEEK_V3: [Step; 3] = [
    Step::Isolate(r"\p{N}{1,3}"),
    Step::Isolate("[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+"),
    Step::Isolate(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    ),
];

const DEEPSEEK_LLM: [Step; 6] = [
    Step::Isolate(r"[\r\n]"),
    Step::Isolate(CASED),
    Step::Isolate(
        "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+",
    ),
    Step::Isolate(r"\s+$"),
    Step::Isolate("[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+"),
    Step::Digits,
];

/// Letters that have a case, as of the Unicode that the pattern was written with.
const CASED: &str = "\\s?[A-Za-z\
    \u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}\
    \u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\
    \u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\
    \u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\
    \u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\
    \u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\
    \u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\
    \u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\
    \u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\
    \u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\
    \u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\
    \u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\
    \u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\
    \u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\
    \u{118a0}-\u{118df}\u{1e900}-\u{1e943}\
    ]+";

const PLAIN: Split =
    Split { names: &[], nfc: false, steps: &[], whole_pieces: false, adds_bos: false };

static SPLITS: [Split; 9] = [
    Split {
        names: &["qwen2", "deepseek-r1-qwen"],
        nfc: true,
        steps: &[Step::Isolate(QWEN2)],
        ..PLAIN
    },
    Split { names: &["qwen35"], nfc: true, steps: &[Step::Isolate(QWEN35)], ..PLAIN },
    Split { names: &["deepseek-v3"], steps: &DEEPSEEK_V3, ..PLAIN },
    Split { names: &["deepseek-llm"], steps: &DEEPSEEK_LLM, ..PLAIN },
    Split {
        names: &["chatglm-bpe", "glm4"],
        steps: &[Step::Isolate(CL100K)],
        whole_pieces: true,
        ..PLAIN
    },
    Split {
        names: &["llama-bpe"],
        steps: &[Step::Isolate(CL100K)],
        whole_pieces: true,
        adds_bos: true,
        ..PLAIN
    },
    Split { names: &["gpt-4o", "minimax-m2"], steps: &[Step::Isolate(O200K)], ..PLAIN },
    Split { names: &["kimi-k2"], steps: &[Step::Isolate(KIMI_K2)], whole_pieces: true, ..PLAIN },
    Split { names: &["gpt-2"], steps: &[Step::Gpt2], ..PLAIN },
];

/// The way to split that has this name.
pub(super) fn find(pre: Option<&str>) -> Result<&'static Split, VocabularyError> {
    let Some(pre) = pre.filter(|pre| *pre != "default") else {
        return Err(VocabularyError::UnsaidPre);
    };
    SPLITS
        .iter()
        .find(|split| split.names.contains(&pre))
        .ok_or_else(|| VocabularyError::UnknownPre { pre: error::shown(pre) })
}

/// All names, for people to read.
pub(super) fn names() -> String {
    SPLITS.iter().flat_map(|split| split.names).copied().collect::<Vec<_>>().join(", ")
}

impl Split {
    pub(super) fn normalizer(&self) -> Value {
        if self.nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    pub(super) fn pre_tokenizer(&self) -> Value {
        let bytes = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                   "use_regex": use_regex})
        };
        let mut steps: Vec<Value> = self
            .steps
            .iter()
            .map(|step| match step {
                Step::Isolate(pattern) => {
                    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                       "invert": false})
                }
                Step::Digits => json!({"type": "Digits", "individual_digits": true}),
                Step::Gpt2 => bytes(true),
            })
            .collect();
        if !matches!(self.steps, [.., Step::Gpt2]) {
            steps.push(bytes(false));
        }
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}
