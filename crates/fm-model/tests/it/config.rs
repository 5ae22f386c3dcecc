//! Where `config.json` says two things, the right one counts.

use std::path::Path;

use fm_format::source::Checkpoint;
use fm_model::{
    arch::describe,
    spec::{MixerSpec, ModelSpec},
};
use fm_testkit::tiny_checkpoint::{Family, Layout, TinyModel};
use serde_json::json;

use crate::harness::edit_config;

fn described(dir: &Path) -> ModelSpec {
    describe(&Checkpoint::open(dir).unwrap()).unwrap_or_else(|error| panic!("{error}"))
}

/// Every third layer attends, whatever `full_attention_interval` says.
fn layer_types_decide_over_the_interval(family: Family) {
    let model = TinyModel { full_attention_interval: 3, ..TinyModel::new(family) };
    let dir = tempfile::tempdir().unwrap();
    model.write(dir.path(), &Layout::Hf, 1);
    let attends = [false, false, true, false];
    let kinds = attends.map(|attends| if attends { "full_attention" } else { "linear_attention" });
    edit_config(dir.path(), |config| {
        let nested = config.get("text_config").is_some();
        let text = if nested { &mut config["text_config"] } else { config };
        text["layer_types"] = json!(kinds);
        text["full_attention_interval"] = json!(4);
    });
    let layers = described(dir.path()).layers;
    let found: Vec<bool> =
        layers.iter().map(|layer| matches!(layer.mixer, MixerSpec::Attention(_))).collect();
    assert_eq!(found, attends);
}

mod qwen3_next {
    #[test]
    fn layer_types_decide_over_the_interval() {
        super::layer_types_decide_over_the_interval(super::Family::Qwen3Next);
    }
}

mod qwen3_5_moe {
    use super::*;

    #[test]
    fn layer_types_decide_over_the_interval() {
        super::layer_types_decide_over_the_interval(Family::Qwen3_5Moe);
    }

    #[test]
    fn the_outer_tie_word_embeddings_decides() {
        for tied in [false, true] {
            let model = TinyModel { tie_embeddings: tied, ..TinyModel::new(Family::Qwen3_5Moe) };
            let dir = tempfile::tempdir().unwrap();
            model.write(dir.path(), &Layout::Hf, 1);
            edit_config(dir.path(), |config| {
                config["text_config"]["tie_word_embeddings"] = json!(!tied);
            });
            assert_eq!(described(dir.path()).head.is_none(), tied);
        }
    }
}
