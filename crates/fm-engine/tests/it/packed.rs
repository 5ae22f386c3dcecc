//! Packed files of the first flash-moe through the engine: their own tokenizer, and its ends.

use std::fs;

use fm_engine::{Engine, EngineError, Load, options::EngineOptions};
use fm_testkit::{
    golden::demo_dir,
    tiny_checkpoint::{Family, MlxLayout, TinyModel, tokenizer_bin},
};
use fm_text::{SpecialTokens, Tokenizer};

use crate::harness::{open_at, places};

pub(crate) fn packed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let model = TinyModel {
        vocab: 2048,
        layers: 2,
        moe_ffn: 64,
        shared_ffn: 64,
        seed: 130,
        ..TinyModel::new(Family::Qwen3_5Moe)
    };
    model.write_packed(dir.path(), &MlxLayout::uniform(4, 64), "packed_experts");
    for name in ["config.json", "generation_config.json"] {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let json = fs::read(demo_dir().join("tokenizer.json")).unwrap();
    let json = serde_json::from_slice(&json).unwrap();
    fs::write(dir.path().join("tokenizer.bin"), tokenizer_bin(&json)).unwrap();
    dir
}

#[test]
fn the_binary_tokenizer_has_the_ids_of_the_one_it_was_made_of() {
    let dir = packed();
    let engine = open_at(dir.path(), &EngineOptions::default());
    let (ours, theirs) = (engine.tokenizer.unwrap(), Tokenizer::open(&demo_dir(), None).unwrap());
    let text =
        "It's 12 o'clock — né, naïve?\n\n  <|im_start|>user\nHi <think>\u{1f916}</think><|im_end|>";
    for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
        let ids = theirs.encode(text, special).unwrap();
        assert_eq!(ours.encode(text, special).unwrap(), ids);
        assert!(ids.len() > 20);
    }
    assert!(engine.template.is_none());
    // <|endoftext|> and <|im_end|>, which nothing but their texts says.
    assert_eq!(engine.eos, [2039, 2041]);
}

#[test]
fn a_broken_binary_tokenizer_is_an_error_and_a_foreign_one_is_none() {
    let dir = packed();
    let path = dir.path().join("tokenizer.bin");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let options = EngineOptions { memory: Some(300_000_000), ..EngineOptions::default() };
    let opened = Engine::open(dir.path(), &options, Load::default(), &places());
    let Err(EngineError::Text(error)) = opened else { panic!("{opened:?}") };
    assert!(error.to_string().contains("tokenizer.bin"), "{error}");
    fs::write(&path, b"some other program's").unwrap();
    assert!(open_at(dir.path(), &EngineOptions::default()).tokenizer.is_none());
}
