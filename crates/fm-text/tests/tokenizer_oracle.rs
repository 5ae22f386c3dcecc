//! Token ids against Hugging Face `tokenizers`, the definition of what they should be.

use std::path::{Path, PathBuf};

use fm_text::{SpecialTokens, Tokenizer};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

#[test]
fn smoke() {
    let ours = Tokenizer::open(&demo(), None).unwrap();
    let theirs = tokenizers::Tokenizer::from_file(demo().join("tokenizer.json")).unwrap();
    for text in ["Hello world<|im_end|>\n  x <think>"] {
        assert_eq!(ours.encode(text, SpecialTokens::Parse).unwrap(), theirs.encode(text, false).unwrap().get_ids());
    }
    for n in [100_000, 400_000, 500_000, 600_000,900_000,1_100_000, 2_000_000] {
        for ws in [" ", "\n", "a", "A", " \n"] {
        let text = ws.repeat(n) + "x";
        let t = std::time::Instant::now();
        let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ours.encode(&text, SpecialTokens::Parse).map(|v| v.len()).map_err(|e| e.to_string())));
        println!("{n} {ws:?} {r:?} {:?}", t.elapsed());
        }
    }
}
