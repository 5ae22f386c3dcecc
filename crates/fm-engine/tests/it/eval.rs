//! Perplexity, KL and agreement on the demonstration model, held to sums of their own; and with
//! them the bound of every numerics.

use std::fs;

use fm_engine::{
    Engine, EngineError,
    backends::{DeviceChoice, Numerics},
    eval::{
        Computed, Cutting, EvalError, Logits, Text, Window,
        dump::{DumpHeader, DumpReader, DumpWriter},
        evaluate,
        score::Evaluation,
    },
    options::EngineOptions,
};
use fm_testkit::golden::{demo_bf16_dir, demo_dir, workspace_dir};
use fm_text::SpecialTokens;

use crate::harness::{bits, open, open_at};

const CUTTING: Cutting = Cutting { window: 128, warm_up: 32 };

/// The first conversations of the held-out text.
fn held_out(engine: &Engine, conversations: usize) -> Text {
    let text = fs::read_to_string(workspace_dir().join("tools/demo-model/heldout.txt")).unwrap();
    let tokenizer = engine.tokenizer.as_ref().unwrap();
    let documents = text.split("<|endoftext|>").take(conversations);
    let documents = documents.map(|text| tokenizer.encode(text, SpecialTokens::Parse).unwrap());
    Text::new(tokenizer.prefix(), &documents.collect::<Vec<_>>(), CUTTING).unwrap()
}

/// A source of logits that a test brings, instead of a whole engine.
struct Rows {
    vocab: usize,
    row: Vec<f32>,
}

impl Logits for Rows {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn rows_max(&self) -> usize {
        5
    }

    fn begin(&mut self, _: &Window) -> Result<(), EngineError> {
        Ok(())
    }

    fn next(&mut self, rows: usize) -> Result<&[f32], EngineError> {
        self.row = vec![0.0; rows * self.vocab];
        Ok(&self.row)
    }
}

/// What `f` does with the logits of an engine over a text.
fn with<T>(engine: &mut Engine, text: &Text, f: impl FnOnce(&mut Computed<'_>) -> T) -> T {
    let context = engine.plan.context;
    f(&mut Computed::new(engine.runner.as_mut(), text, context, &|| false))
}

fn compare(engine: &mut Engine, other: &mut Engine, text: &Text) -> Evaluation {
    with(engine, text, |ours| {
        with(other, text, |theirs| evaluate(text, ours, Some(theirs), None, &mut |_| {}))
    })
    .unwrap()
}

#[test]
fn perplexity_is_that_of_logits_summed_up_by_hand() {
    let mut engine = open(&EngineOptions::default());
    let tokens = held_out(&engine, 4).tokens()[..333].to_vec();
    let text = Text::new(&[], std::slice::from_ref(&tokens), CUTTING).unwrap();
    let found =
        with(&mut engine, &text, |model| evaluate(&text, model, None, None, &mut |_| {}).unwrap());
    // The same windows, taken in otherwise, and a softmax without a maximum.
    let (mut loss, mut counted) = (0.0, 0);
    let vocab = engine.runner.vocab();
    for (first, scored) in [(0, 1..128), (96, 128..224), (192, 224..320), (288, 320..333)] {
        let session = engine.runner.open(256).unwrap();
        let fed = &tokens[first..scored.end];
        let all = bits(engine.runner.as_mut(), session, fed, 7);
        engine.runner.close(session);
        for target in scored {
            let row = all[(target - 1 - first) * vocab..].iter().take(vocab);
            let row: Vec<f64> = row.map(|bits| f64::from(f32::from_bits(*bits))).collect();
            let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
            loss -= (row[tokens[target] as usize].exp() / sum).ln();
            counted += 1;
        }
    }
    assert_eq!((found.windows, found.scored_tokens, counted), (4, 332, 332));
    let expected = (loss / 332.0).exp();
    assert!((found.perplexity.value / expected - 1.0).abs() < 1e-12, "{found:?} {expected}");
    assert!((1.0..3.0).contains(&expected), "the model knows this world: {expected}");
    let (low, high) = (found.perplexity.low.unwrap(), found.perplexity.high.unwrap());
    assert!(low < expected && expected < high);
}

/// Invariant 13, on both demonstration models: no numerics is further from `f32` than this.
const KL_MAX: f64 = 1e-3;

/// Share of tokens that must be the same with the text given, where numerics have to be asked for:
/// all others take every token that `f32` takes.
const AGREEMENT_MIN: f64 = 0.99;

#[test]
fn every_numerics_keeps_the_bound() {
    for dir in [demo_dir(), demo_bf16_dir()] {
        let options = |numerics| EngineOptions {
            numerics: Some(numerics),
            device: DeviceChoice::Auto,
            ..EngineOptions::default()
        };
        let mut f32 = open_at(&dir, &options(Numerics::F32));
        let text = held_out(&f32, 4);
        for numerics in Numerics::ALL {
            let mut engine = open_at(&dir, &options(*numerics));
            let distance = compare(&mut engine, &mut f32, &text).against.unwrap();
            assert!(distance.kl.value <= KL_MAX, "{numerics}: {distance:?}");
            assert!(distance.top1_agreement.value >= AGREEMENT_MIN, "{numerics}: {distance:?}");
            if *numerics != Numerics::Int8 {
                assert_eq!(distance.top1_differences, 0, "{numerics}: {distance:?}");
            }
            if *numerics == Numerics::F32 {
                assert_eq!((distance.kl_max, distance.top1_differences), (0.0, 0));
            }
        }
    }
}

#[test]
fn a_planted_difference_is_seen() {
    let mut engine = open(&EngineOptions::default());
    let mut fewer = open(&EngineOptions { top_k: Some(2), ..EngineOptions::default() });
    let text = held_out(&engine, 8);
    let distance = compare(&mut fewer, &mut engine, &text).against.unwrap();
    assert!(distance.kl.value > KL_MAX && distance.kl.low.unwrap() > 0.0, "{distance:?}");
    assert!(distance.kl_max > distance.kl.value && distance.top1_differences > 0, "{distance:?}");
    // KL is not symmetric, the rest is.
    let back = compare(&mut engine, &mut fewer, &text).against.unwrap();
    assert!((back.kl.value - distance.kl.value).abs() > 1e-6);
    assert_eq!(back.top1_differences, distance.top1_differences);
    assert!((back.loss_difference.value + distance.loss_difference.value).abs() < 1e-12);
}

#[test]
fn other_vocabularies_are_refused_before_a_row_is_compared() {
    let mut engine = open(&EngineOptions::default());
    let text = held_out(&engine, 1);
    let mut other = Rows { vocab: 2047, row: Vec::new() };
    let error = with(&mut engine, &text, |model| {
        evaluate(&text, model, Some(&mut other), None, &mut |_| {}).unwrap_err()
    });
    assert!(matches!(error, EngineError::Eval(EvalError::Vocabularies { .. })), "{error}");
    assert!(other.row.is_empty());
}

#[test]
fn a_last_token_beyond_the_vocabulary_is_an_error_like_any_other() {
    let mut engine = open(&EngineOptions::default());
    let beyond = engine.runner.vocab() as u32;
    for document in [[5, 6, beyond], [5, beyond, 6]] {
        let text = Text::new(&[], &[document.to_vec()], CUTTING).unwrap();
        let scored =
            with(&mut engine, &text, |model| evaluate(&text, model, None, None, &mut |_| {}));
        let said = scored.unwrap_err().to_string();
        let want = format!("token {beyond} is not in the vocabulary of {beyond} tokens");
        assert_eq!(said, want, "{document:?}");
    }
}

/// Dumps uniform logits over a made-up text.
fn dump(path: &std::path::Path, text: &Text) {
    let mut rows = Rows { vocab: 64, row: Vec::new() };
    let header = DumpHeader::new("model".to_owned(), "f32", &[], 64, text);
    let mut dump = DumpWriter::create(path, &header).unwrap();
    evaluate(text, &mut rows, None, Some(&mut dump), &mut |_| {}).unwrap();
    dump.finish().unwrap();
}

fn held_to(path: &std::path::Path, text: &Text) -> Result<Evaluation, EngineError> {
    let mut rows = Rows { vocab: 64, row: Vec::new() };
    let mut dump = DumpReader::open(path)?;
    dump.check(text)?;
    evaluate(text, &mut rows, Some(&mut dump), None, &mut |_| {})
}

fn numbers(count: u32, cutting: Cutting) -> Text {
    let (first, rest): (Vec<u32>, Vec<u32>) = (0..count).partition(|i| *i < 30);
    let rest = rest.into_iter().map(|i| i % 64).collect();
    Text::new(&[1], &[first, rest], cutting).unwrap()
}

#[test]
fn a_dump_gives_back_what_was_written_and_only_to_its_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    let cutting = Cutting { window: 20, warm_up: 4 };
    let text = numbers(100, cutting);
    dump(&path, &text);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    let found = held_to(&path, &text).unwrap();
    assert!((found.perplexity.value - 64.0).abs() < 1e-9);
    let distance = found.against.unwrap();
    assert_eq!((distance.kl_max, distance.top1_differences), (0.0, 0));
    for (other, what) in [
        (numbers(99, cutting), "text, --split or tokenizer"),
        (numbers(100, Cutting { warm_up: 5, ..cutting }), "--window or --warm-up"),
        (
            Text::new(&[1], &[text.tokens().to_vec()], cutting).unwrap(),
            "text, --split or tokenizer",
        ),
    ] {
        let error = held_to(&path, &other).unwrap_err();
        assert!(error.to_string().ends_with(what), "{error}");
        assert!(error.hint().is_some());
    }
}

#[test]
fn a_damaged_dump_is_an_error_wherever_it_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    let text = numbers(100, Cutting { window: 20, warm_up: 4 });
    dump(&path, &text);
    let whole = fs::read(&path).unwrap();
    // Windows of 19 and 11 rows, then of 19, 15, 15, 15 and 6.
    let first = whole.len() - 7 * 8 - 4 * 64 * 100;
    let end = first + 4 * 64 * 19 + 8;
    let mut damaged = Vec::new();
    for at in [0, 8, 12, 16, 24, first - 1, first, end - 1, whole.len() - 1] {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        damaged.push(flipped);
    }
    damaged.extend([0, 7, 30, whole.len() - 1].map(|len| whole[..len].to_vec()));
    damaged.push([&whole[..], &[0]].concat());
    for (case, bytes) in damaged.iter().enumerate() {
        fs::write(&path, bytes).unwrap();
        let error = held_to(&path, &text).unwrap_err();
        assert!(error.hint().is_some(), "{case}: {error}");
        if (6..9).contains(&case) {
            let window = if case == 8 { 6 } else { 0 };
            let found = format!("is corrupt in window {window}:");
            assert!(error.to_string().contains(&found), "{case}: {error}");
        }
    }
}
