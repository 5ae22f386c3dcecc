//! What does not fit is refused, by name.

use std::{
    io::{Cursor, Seek, SeekFrom, Write},
    path::Path,
};

use fm_format::source::{Checkpoint, Files};
use fm_kernels::reference::Reference;
use fm_model::{
    LoadError, Runner,
    arch::{MODEL_TYPES, describe},
    decoder::{Decoder, DecoderOptions},
    load::{Loader, check_tied_head},
    runner::{Batch, RunError, StepError},
};
use fm_testkit::{
    golden::golden_dir,
    tiny_checkpoint::{Family, Layout, MlxLayout, TinyModel},
};
use serde_json::{Value, json};

use crate::harness::{edit_config, feed, open, row};

fn written(layout: &Layout) -> tempfile::TempDir {
    written_as(Family::Qwen3Moe, layout)
}

fn written_as(family: Family, layout: &Layout) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    TinyModel::new(family).write(dir.path(), layout, 1);
    dir
}

fn refusal(dir: &Path) -> String {
    let checkpoint = Checkpoint::open(dir).unwrap();
    describe(&checkpoint).expect_err("it should be refused").to_string()
}

/// MLX writes the dictionary twice.
fn edit_quantization(dir: &Path, edit: impl FnOnce(&mut Value)) {
    edit_config(dir, |config| {
        edit(&mut config["quantization"]);
        config["quantization_config"] = config["quantization"].clone();
    });
}

#[test]
fn an_unknown_family_gets_the_list_of_known_ones() {
    let dir = written(&Layout::Hf);
    edit_config(dir.path(), |config| config["model_type"] = json!("gpt9"));
    assert_eq!(
        refusal(dir.path()),
        format!("model type `gpt9` is not supported; known: {}", MODEL_TYPES.join(", "))
    );
    edit_config(dir.path(), |config| config["model_type"] = json!("qwen2_moe"));
    let message = refusal(dir.path());
    assert!(
        message.contains("`qwen2_moe` is not supported; its nearest relative is `qwen3_moe`"),
        "{message}"
    );
}

#[test]
fn a_missing_tensor_is_named() {
    let dir = written(&Layout::Hf);
    edit_config(dir.path(), |config| config["num_hidden_layers"] = json!(9));
    assert!(refusal(dir.path()).starts_with("tensor `model.layers."), "{}", refusal(dir.path()));
    assert!(refusal(dir.path()).contains("is missing"));
}

#[test]
fn an_extra_tensor_is_named() {
    let dir = written(&Layout::Hf);
    edit_config(dir.path(), |config| config["num_hidden_layers"] = json!(1));
    assert!(refusal(dir.path()).contains("nothing is ignored silently"), "{}", refusal(dir.path()));
}

#[test]
fn a_wrong_shape_shows_both() {
    let dir = written(&Layout::Hf);
    edit_config(dir.path(), |config| config["vocab_size"] = json!(17));
    let message = refusal(dir.path());
    assert!(message.contains("embed_tokens.weight` has shape ["), "{message}");
    assert!(message.contains("the configuration asks for [17, "), "{message}");
}

#[test]
fn bits_that_contradict_the_shapes_show_both() {
    let dir = written(&Layout::Mlx(MlxLayout::uniform(4, 32)));
    edit_quantization(dir.path(), |quantization| quantization["bits"] = json!(8));
    let message = refusal(dir.path());
    assert!(message.contains("its shapes mean 4 bits in groups of 32"), "{message}");
    assert!(message.contains("config.json says 8 bits in groups of 32"), "{message}");
}

#[test]
fn another_quantisation_mode_is_named() {
    let dir = written(&Layout::Mlx(MlxLayout::uniform(4, 32)));
    for mode in ["mxfp4", "nvfp4"] {
        edit_quantization(dir.path(), |quantization| quantization["mode"] = json!(mode));
        let message = refusal(dir.path());
        assert!(message.contains(&format!("is quantised in mode `{mode}`")), "{message}");
        assert!(message.contains("its scales are those of `affine`"), "{message}");
    }
}

#[test]
fn words_about_packing_have_to_be_readable_and_to_agree() {
    let module = "model.layers.1.self_attn.q_proj";
    let edits: [(&[&str], Value, &str); 9] = [
        (&["quantization", "mode"], json!(3), "`quantization.mode` in config.json is 3"),
        (&["quantization", "bits"], json!("8"), "`quantization.bits` in config.json is \"8\""),
        (&["quantization", "bits"], json!(4.0), "`quantization.bits` in config.json is 4.0"),
        (&["quantization", "group_size"], json!([32]), "`quantization.group_size` in config.json"),
        (
            &["quantization", module],
            json!({"bits": true}),
            ".self_attn.q_proj.bits` in config.json",
        ),
        (&["quantization_config", "bits"], json!(3), "`quantization_config.bits` is `3`"),
        (
            &["quantization_config", "mode"],
            json!("mxfp4"),
            "`quantization.mode` in the configuration is `\"affine\"` and `quantization_config.mode`",
        ),
        (&["quantization_config"], json!(7), "`quantization_config` is `7`"),
        (&["quantization"], Value::Null, "`quantization_config.bits` in config.json is \"4\""),
    ];
    for (path, value, expected) in edits {
        let dir = written(&Layout::Mlx(MlxLayout::uniform(4, 32)));
        edit_quantization(dir.path(), |quantization| {
            quantization["mode"] = json!("affine");
            if let ["quantization", key] = path {
                quantization[*key] = value.clone();
            }
        });
        edit_config(dir.path(), |config| match path {
            ["quantization_config", key] => config["quantization_config"][*key] = value,
            ["quantization"] => {
                config["quantization"] = value;
                config["quantization_config"]["bits"] = json!("4");
            }
            [whole] => config[*whole] = value,
            _ => {}
        });
        let message = refusal(dir.path());
        assert!(message.contains(expected), "{path:?}: {message}");
    }
    // What publishers of fp8 leave behind says nothing of the same things.
    let dir = written(&Layout::Mlx(MlxLayout::uniform(4, 32)));
    edit_config(dir.path(), |config| {
        config["quantization_config"] = json!({"quant_method": "fp8", "fmt": "e4m3", "bits": 4});
    });
    describe(&Checkpoint::open(dir.path()).unwrap()).unwrap();
}

/// They would round activations, or run another network.
#[test]
fn what_makes_another_program_compute_something_else_is_refused() {
    for (field, value, other) in [
        ("quantize_activations", json!(true), "mlx-lm"),
        ("model_file", json!("mine.py"), "mlx-lm"),
        ("dual_chunk_attention_config", json!({"chunk_size": 262_144}), "vLLM"),
    ] {
        let dir = written(&Layout::Mlx(MlxLayout::uniform(4, 32)));
        for silent in [Value::Null, json!(false)] {
            edit_config(dir.path(), |config| config[field] = silent);
            describe(&Checkpoint::open(dir.path()).unwrap()).unwrap();
        }
        edit_config(dir.path(), |config| config[field] = value.clone());
        let message = refusal(dir.path());
        assert!(
            message.contains(&format!("`{field}` in the configuration is {value}")),
            "{message}"
        );
        assert!(message.contains(&format!("{other} would")), "{message}");
    }
}

/// transformers with peft would add it to the weights.
#[test]
fn an_adapter_beside_the_weights_is_refused() {
    let dir = written(&Layout::Hf);
    std::fs::write(dir.path().join("adapter_config.json"), "{}").unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("adapter_config.json describes an adapter"), "{error}");
    assert!(error.hint().unwrap().contains("merge the adapter"));
}

#[test]
fn fields_without_meaning_are_refused() {
    let edits: [(&str, Value); 18] = [
        ("num_local_experts", json!(5)),
        ("partial_rotary_factor", json!(0.5)),
        ("rope_parameters", json!({"rope_theta": 1e4, "partial_rotary_factor": 0.5})),
        ("hidden_act", json!("gelu")),
        ("num_key_value_heads", json!(0)),
        ("num_experts_per_tok", json!(1000)),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 4.0})),
        ("decoder_sparse_step", json!(0)),
        ("hidden_size", json!("wide")),
        // Times the head dimension that is 64 again, if it were to wrap around.
        ("num_attention_heads", json!((1_u64 << 60) + 4)),
        ("moe_intermediate_size", json!((1_u64 << 63) + 32)),
        ("rms_norm_eps", json!(-1.0)),
        ("rms_norm_eps", json!(1e300)),
        ("rope_theta", Value::Null),
        ("rope_scaling", json!({"factor": 4.0})),
        (
            "rope_scaling",
            json!({
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                "attention_factor": 1e19,
            }),
        ),
        ("attention_bias", json!("yes")),
    ];
    for (field, value) in edits {
        let dir = written(&Layout::Hf);
        edit_config(dir.path(), |config| config[field] = value);
        let message = refusal(dir.path());
        assert!(message.contains("the configuration"), "{field}: {message}");
    }
}

/// Whether the bytes that stand for a head are those of the embedding decides.
#[test]
fn a_head_beside_an_embedding_that_serves_as_one_is_its_copy_or_refused() {
    for layout in [Layout::Hf, Layout::Mlx(MlxLayout::uniform(4, 32))] {
        let dir = written(&layout);
        edit_config(dir.path(), |config| config["tie_word_embeddings"] = json!(true));
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let spec = describe(&checkpoint).unwrap();
        let files = Files::new(checkpoint.files.clone());
        let error = check_tied_head(&files, &spec).expect_err("the head is another one");
        let message = error.to_string();
        assert!(
            message.contains("`lm_head.") && message.contains("tie_word_embeddings"),
            "{message}"
        );
        let refused = Decoder::load(
            &Loader::new(&Reference::open(), &files, 1),
            &spec,
            DecoderOptions { rows_max: 1, logits_rows_max: 1, short_rows_max: 0, top_k: None },
        );
        assert!(matches!(refused, Err(LoadError::TiedHead { .. })));

        let tensors: Vec<_> =
            checkpoint.tensors.iter().filter(|(name, _)| name.starts_with("lm_head.")).collect();
        for (name, head) in tensors {
            let embed = name.replace("lm_head.", "model.embed_tokens.");
            let bytes = files.read_extent(checkpoint.tensors[&embed].extent).unwrap();
            let mut file = std::fs::File::options().write(true).open(&checkpoint.files[0]).unwrap();
            file.seek(SeekFrom::Start(head.extent.offset)).unwrap();
            file.write_all(&bytes).unwrap();
        }
        check_tied_head(&files, &spec).unwrap();
    }
    let dir = written(&Layout::Hf);
    rename(dir.path(), "lm_head.weight", "lm_head.wright");
    edit_config(dir.path(), |config| config["tie_word_embeddings"] = json!(true));
    assert!(refusal(dir.path()).contains("`lm_head.wright`"), "{}", refusal(dir.path()));
}

/// The name of every tensor that ends like this, in the headers of a checkpoint's files, becomes another one.
fn rename(dir: &Path, end: &str, other: &str) {
    assert_eq!(end.len(), other.len(), "headers keep their length");
    let (end, other) = (format!("{end}\""), format!("{other}\""));
    for file in std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()) {
        let mut bytes = std::fs::read(&file).unwrap();
        let starts: Vec<usize> = bytes
            .windows(end.len())
            .enumerate()
            .filter(|(_, window)| *window == end.as_bytes())
            .map(|(at, _)| at)
            .collect();
        starts.iter().for_each(|at| bytes[*at..][..end.len()].copy_from_slice(other.as_bytes()));
        std::fs::write(&file, bytes).unwrap();
    }
}

#[test]
fn what_families_would_guess_has_to_be_said() {
    for (family, fields) in [
        (Family::GptOss, &["rope_scaling", "rope_parameters"][..]),
        (Family::DeepseekV3, &["n_group", "topk_group"]),
        (Family::Glm4MoeLite, &["n_group", "topk_group"]),
    ] {
        let dir = written_as(family, &Layout::Hf);
        let silent = |config: &mut Value| {
            let config = config.as_object_mut().unwrap();
            fields.iter().for_each(|field| drop(config.remove(*field)));
        };
        edit_config(dir.path(), silent);
        let expected = format!("`{}` in the configuration is `missing`", fields[0]);
        assert!(refusal(dir.path()).contains(&expected), "{}", refusal(dir.path()));
        edit_config(dir.path(), |config| config[fields[0]] = Value::Null);
        describe(&Checkpoint::open(dir.path()).unwrap()).unwrap();
    }
}

#[test]
fn a_bias_has_to_be_there_where_it_is_announced_and_nowhere_else() {
    let layouts = [Layout::Hf, Layout::Mlx(MlxLayout::uniform(4, 32))];
    for layout in &layouts {
        for module in ["q_proj", "k_proj", "v_proj", "o_proj", "mlp.router"] {
            let dir = written_as(Family::GptOss, layout);
            rename(dir.path(), &format!("{module}.bias"), &format!("{module}.gone"));
            let message = refusal(dir.path());
            assert!(message.contains(&format!("{module}.bias` is missing")), "{message}");
        }
        let dir = written_as(Family::GptOss, layout);
        edit_config(dir.path(), |config| config["attention_bias"] = json!(false));
        let message = refusal(dir.path());
        assert!(message.contains("nothing is ignored silently"), "{message}");
        let dir = written(layout);
        edit_config(dir.path(), |config| config["attention_bias"] = json!(true));
        assert!(refusal(dir.path()).contains("q_proj.bias` is missing"));
    }
}

#[test]
fn every_family_refuses_what_it_has_no_meaning_for() {
    use Family::{GptOss, MinimaxM2, Mixtral};
    let edits: [(Family, &str, Value, (&str, &str)); 16] = [
        (Mixtral, "partial_rotary_factor", json!(0.5), ("partial_rotary_factor", "0.5")),
        (GptOss, "partial_rotary_factor", json!(0.5), ("partial_rotary_factor", "0.5")),
        (GptOss, "swiglu_alpha", json!(0), ("swiglu_alpha", "0")),
        (Mixtral, "num_local_experts", json!(0), ("num_local_experts", "0")),
        (Mixtral, "num_experts_per_tok", json!(7), ("num_experts_per_tok", "7")),
        (Mixtral, "sliding_window", json!(0), ("sliding_window", "0")),
        (MinimaxM2, "scoring_func", json!("softmax"), ("scoring_func", "`softmax`")),
        (MinimaxM2, "qk_norm_type", json!("per_head"), ("qk_norm_type", "`per_head`")),
        (MinimaxM2, "shared_intermediate_size", json!(8), ("shared_intermediate_size", "8")),
        (MinimaxM2, "attn_type_list", json!([1, 0, 1, 1]), ("attn_type_list", "0")),
        (MinimaxM2, "rotary_dim", json!(7), ("rotary_dim", "7")),
        (MinimaxM2, "partial_rotary_factor", json!(0.25), ("rotary_dim", "8")),
        (GptOss, "layer_types", json!(["full_attention"]), ("layer_types", "1")),
        (GptOss, "layer_types", json!(vec!["chunked"; 4]), ("layer_types", "`chunked`")),
        (GptOss, "sliding_window", Value::Null, ("sliding_window", "0")),
        (GptOss, "swiglu_limit", json!(-1.0), ("swiglu_limit", "-1")),
    ];
    for (family, field, value, (named, found)) in edits {
        let dir = written_as(family, &Layout::Hf);
        edit_config(dir.path(), |config| config[field] = value);
        let message = refusal(dir.path());
        let expected = format!("`{named}` in the configuration is {found};");
        assert!(message.contains(&expected), "{field}: {message}");
    }
}

/// Its scales say `mxfp4`, whatever the configuration says.
#[test]
fn scales_of_one_byte_need_their_mode() {
    let dir = written_as(Family::GptOss, &Layout::Mlx(MlxLayout::uniform(4, 32)));
    edit_quantization(dir.path(), |quantization| quantization["mode"] = json!("mxfp8"));
    let message = refusal(dir.path());
    assert!(message.contains("is quantised in mode `mxfp8`"), "{message}");
    assert!(message.contains("its scales are those of `mxfp4`"), "{message}");
    let dir = written_as(Family::GptOss, &Layout::Mlx(MlxLayout::uniform(4, 32)));
    edit_quantization(dir.path(), |quantization| quantization["group_size"] = json!(64));
    let message = refusal(dir.path());
    assert!(message.contains("its shapes mean 4 bits in groups of 32"), "{message}");
}

#[test]
fn scaled_positions_need_all_their_numbers_and_no_contradiction() {
    let whole = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let edits: [(&str, Value, &str); 8] = [
        ("factor", json!(0.5), "`factor` in the configuration is 0.5"),
        ("original_max_position_embeddings", Value::Null, "`original_max_position_embeddings`"),
        ("beta_slow", json!(64), "`beta_fast` in the configuration is 32"),
        ("mscale", json!(0.7), "`mscale_all_dim` in the configuration is `missing`"),
        ("mscale_all_dim", json!(0.7), "`mscale` in the configuration is `missing`"),
        ("attention_factor", json!(0), "`attention_factor` in the configuration is 0"),
        ("rope_type", json!("linear"), "`type` in the configuration is `yarn`"),
        ("type", json!("llama3"), "`rope_type` in the configuration is `llama3`"),
    ];
    for (field, value, expected) in edits {
        let dir = written(&Layout::Hf);
        edit_config(dir.path(), |config| {
            config["rope_scaling"] = whole.clone();
            config["rope_scaling"][field] = value;
        });
        let message = refusal(dir.path());
        assert!(message.contains(expected), "{field}: {message}");
    }
    let dir = written(&Layout::Hf);
    edit_config(dir.path(), |config| {
        config["rope_scaling"] = whole.clone();
        let theta = config["rope_theta"].clone();
        config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": theta});
    });
    assert!(refusal(dir.path()).contains("`rope_scaling`"), "{}", refusal(dir.path()));
}

#[test]
fn a_batch_that_makes_no_sense_is_refused_and_changes_nothing() {
    let mut runner = open(&golden_dir("qwen3_next").join("hf"), Reference::open());
    let session = runner.open(10).unwrap();
    let other = runner.open(10).unwrap();
    let closed = runner.open(10).unwrap();
    runner.close(closed);
    let mut step = |rows: Vec<_>| {
        let batch = Batch { rows, hidden_layer: None };
        runner.step(&batch, &mut |_| std::ops::ControlFlow::Continue(())).err()
    };
    let error = step(vec![row(session, 1, 3)]);
    assert!(matches!(error, Some(StepError::Position { expected: 0, found: 3, .. })));
    let error = step(vec![row(session, 1, 0), row(session, 1, 2)]);
    assert!(matches!(error, Some(StepError::Position { expected: 1, found: 2, .. })));
    let error = step(vec![row(session, 1, 0), row(other, 1, 0), row(session, 1, 1)]);
    assert!(matches!(error, Some(StepError::Position { .. })));
    assert!(matches!(step(vec![row(session, 304, 0)]), Some(StepError::UnknownToken { .. })));
    assert!(matches!(step(vec![row(closed, 1, 0)]), Some(StepError::UnknownSession { .. })));
    let mut within = vec![row(session, 1, 0), row(session, 2, 1)];
    within[0].wants.checkpoint = true;
    assert!(matches!(step(within), Some(StepError::CheckpointWithin { position: 0, .. })));
    let full: Vec<_> = (0..11).map(|at| row(session, 1, at)).collect();
    assert!(matches!(step(full), Some(StepError::ContextFull { context_max: 10, .. })));
    assert!(step(vec![]).is_none(), "an empty batch is no work");
    assert_eq!(runner.position(session).unwrap(), 0);
}

#[test]
fn a_saved_session_of_another_model_or_with_a_flipped_bit_is_refused() {
    let mut runner = open(&golden_dir("qwen3_next").join("hf"), Reference::open());
    let session = runner.open(64).unwrap();
    feed(&mut runner, session, &[1, 2, 3], 3);
    let mut file = Vec::new();
    runner.save(session, &mut file).unwrap();
    for at in [9, 40, file.len() / 2, file.len() - 1] {
        let mut damaged = file.clone();
        damaged[at] ^= 4;
        let error = runner.load(64, &mut Cursor::new(damaged)).unwrap_err();
        assert!(matches!(error, RunError::File(_)), "byte {at}: {error}");
    }
    let short = runner.load(64, &mut Cursor::new(&file[..file.len() - 5])).unwrap_err();
    assert!(matches!(short, RunError::File(_)), "{short}");
    assert!(runner.load(2, &mut Cursor::new(&file)).is_err(), "three tokens do not fit two");
    assert!(runner.load(64, &mut Cursor::new(&file)).is_ok());
}
