//! The tokenizer of the demonstration model over its held-out conversations, there and back, and what it
//! takes to open it from `tokenizer.json` and from what was kept of it.
//!
//! ```text
//! cargo bench -p fm-text --bench tokenizer
//! ```

#![allow(missing_docs)] // the macros of criterion write functions without

use std::{fs, hint::black_box, path::PathBuf};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fm_text::{Detokenizer, SpecialText, SpecialTokens, Tokenizer};

fn workspace(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn there_and_back(criterion: &mut Criterion) {
    let tokenizer = Tokenizer::open(&workspace("models/demo"), None).expect("it is a tokenizer");
    let text = workspace("tools/demo-model/heldout.txt");
    let text = fs::read_to_string(text).expect("the text is there");
    let ids = tokenizer.encode(&text, SpecialTokens::Parse).expect("all of it has tokens");
    let mut group = criterion.benchmark_group("tokenizer");
    group.throughput(Throughput::Bytes(text.len() as u64)).sample_size(20);
    group.bench_function("encode", |bencher| {
        bencher.iter(|| tokenizer.encode(black_box(&text), SpecialTokens::Parse));
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| {
            let mut detokenizer = Detokenizer::new(&tokenizer, SpecialText::Keep);
            let lengths = ids.iter().map(|id| detokenizer.push(*id).map_or(0, str::len));
            lengths.sum::<usize>()
        });
    });
    group.finish();
}

fn open(criterion: &mut Criterion) {
    let cache = tempfile::tempdir().expect("a directory for what is kept");
    let model = workspace("models/demo");
    let mut group = criterion.benchmark_group("open");
    group.sample_size(20);
    for (name, kept) in [("tokenizer.json", None), ("kept", Some(cache.path()))] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| Tokenizer::open(black_box(&model), kept).expect("it is a tokenizer"));
        });
    }
    group.finish();
}

criterion_group!(benches, there_and_back, open);
criterion_main!(benches);
