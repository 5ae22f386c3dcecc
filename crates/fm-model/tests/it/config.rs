//! Where `config.json` says two things, the right one counts.

use std::path::Path;

use fm_format::source::Checkpoint;
use fm_model::{
    arch::describe,
    spec::{MixerSpec, ModelSpec, RopeScaling, Yarn},
};
use fm_testkit::tiny_checkpoint::{Family, Layout, TinyModel};
use serde_json::{Value, json};

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

/// `YaRN` in either home, with the amplitude of the paper, of a pair of `mscale`s, or as given.
#[test]
fn scaled_positions_are_read_from_either_home() {
    let yarn = json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 64});
    let whole = Yarn {
        factor: 4.0,
        original_max_position_embeddings: 64.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: 1.0 + 0.1 * 4.0_f64.ln(),
        score_factor: 1.0,
    };
    let pair = json!({"mscale": 2.0, "mscale_all_dim": 0.5, "truncate": false, "beta_fast": 16});
    let sharper = 1.0 + 0.05 * 4.0_f64.ln();
    let of_pair = Yarn {
        beta_fast: 16.0,
        truncate: false,
        attention_factor: (1.0 + 0.2 * 4.0_f64.ln()) / sharper,
        score_factor: sharper * sharper,
        ..whole
    };
    let given = json!({"attention_factor": 1.5, "beta_slow": 2});
    let as_given = Yarn { beta_slow: 2.0, attention_factor: 1.5, ..whole };
    for home in ["rope_scaling", "rope_parameters"] {
        for (more, want) in [(json!({}), whole), (pair.clone(), of_pair), (given.clone(), as_given)]
        {
            let dir = tempfile::tempdir().unwrap();
            TinyModel::new(Family::Qwen3Moe).write(dir.path(), &Layout::Hf, 1);
            edit_config(dir.path(), |config| {
                config[home] = yarn.clone();
                for (key, value) in more.as_object().unwrap() {
                    config[home][key] = value.clone();
                }
            });
            let spec = described(dir.path());
            let MixerSpec::Attention(attention) = &spec.layers[0].mixer else { panic!("attends") };
            assert_eq!(attention.rotary.scaling, RopeScaling::Yarn(want), "{home} {more}");
        }
    }
}

mod qwen3_moe {
    use super::*;

    #[test]
    fn experts_are_counted_under_either_name_and_not_differently_under_both() {
        let dir = tempfile::tempdir().unwrap();
        let model = TinyModel::new(Family::Qwen3Moe);
        model.write(dir.path(), &Layout::Hf, 1);
        let usual = format!("{:?}", described(dir.path()).layers);
        edit_config(dir.path(), |config| config["num_local_experts"] = json!(model.experts));
        assert_eq!(format!("{:?}", described(dir.path()).layers), usual);
        edit_config(dir.path(), |config| {
            config.as_object_mut().unwrap().remove("num_experts");
        });
        assert_eq!(format!("{:?}", described(dir.path()).layers), usual);
    }
}

mod gpt_oss {
    use super::*;
    use fm_kernels::backend::{Activation, Clamp};
    use fm_model::spec::FfnSpec;

    #[test]
    fn the_steepness_of_the_activation_is_the_models() {
        let dir = tempfile::tempdir().unwrap();
        TinyModel::new(Family::GptOss).write(dir.path(), &Layout::Hf, 1);
        let steepness = || match &described(dir.path()).layers[0].ffn {
            FfnSpec::Moe(moe) => match moe.activation {
                Activation::Clamped(Clamp { alpha, .. }) => alpha,
                Activation::Silu => panic!("another activation"),
            },
            FfnSpec::Mlp(mlp) => panic!("{mlp:?}"),
        };
        assert_eq!(steepness(), 1.702, "the family's, where nobody says another");
        edit_config(dir.path(), |config| config["swiglu_alpha"] = json!(1.25));
        assert_eq!(steepness(), 1.25);
    }
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
    fn the_language_half_may_have_been_saved_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        TinyModel::new(Family::Qwen3_5Moe).write(dir.path(), &Layout::Hf, 1);
        let whole = described(dir.path());
        edit_config(dir.path(), |config| {
            *config = config["text_config"].take();
            config["model_type"] = json!("qwen3_5_moe_text");
        });
        let half = described(dir.path());
        assert_eq!(half.model_type, whole.model_type);
        assert_eq!(format!("{:?}", half.layers), format!("{:?}", whole.layers));
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

/// Anything else would be another network.
#[test]
fn gates_of_linear_attention_are_silu() {
    for family in [Family::Qwen3Next, Family::Qwen3_5Moe] {
        let dir = tempfile::tempdir().unwrap();
        TinyModel::new(family).write(dir.path(), &Layout::Hf, 1);
        let with = |gate: Value| {
            edit_config(dir.path(), |config| {
                let nested = config.get("text_config").is_some();
                let text = if nested { &mut config["text_config"] } else { config };
                text["output_gate_type"] = gate;
            });
            describe(&Checkpoint::open(dir.path()).unwrap()).map_err(|error| error.to_string())
        };
        for silu in [json!("silu"), json!("swish"), Value::Null] {
            with(silu).unwrap();
        }
        let error = with(json!("sigmoid")).unwrap_err();
        assert!(error.contains("`output_gate_type` in the configuration is `sigmoid`"), "{error}");
    }
}
