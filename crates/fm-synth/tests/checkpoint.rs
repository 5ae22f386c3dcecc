//! Small checkpoints through the whole writer, read back by the engine and by the oracle.

#![allow(clippy::unwrap_used)] // a panic is how a test reports a problem

use std::{collections::BTreeMap, fs, ops::ControlFlow, path::Path};

use fm_format::source::Checkpoint;
use fm_model::arch::describe;
use fm_synth::{Bits, Family, Geometry, LinearShape, Progress, Synth, SynthError};
use fm_testkit::{
    oracle::{self, Oracle},
    tiny_checkpoint::{self, Layout, MlxLayout, TinyModel},
};

const WIDTHS: [u8; 7] = [2, 3, 4, 5, 6, 8, 16];
const FAMILIES: [Family; 3] = [Family::Qwen3Moe, Family::Qwen3Next, Family::Qwen3_5Moe];

/// A geometry of a few hundred thousand weights with all peculiarities of its family.
fn miniature(family: Family) -> Geometry {
    let hybrid = family.is_hybrid();
    let linear = LinearShape { key_heads: 2, value_heads: 4, head_dim: 32, conv: 4 };
    Geometry {
        name: "miniature",
        family,
        hidden: 256,
        vocab: 320,
        layers: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        linear: hybrid.then_some(linear),
        full_attention_interval: if hybrid { 2 } else { 1 },
        experts: 12,
        top_k: 3,
        moe_ffn: 64,
        shared_ffn: if hybrid { 128 } else { 0 },
        dense_ffn: 64,
        rope_theta: 1e6,
        partial_rotary: if hybrid { 0.25 } else { 1.0 },
        eps: 1e-6,
        context_max: 4096,
        eos: &[319],
        tape_dims: 64,
        tape_alpha: 0.5,
    }
}

fn synth(geometry: &Geometry, layers: usize, bits: u8, seed: u64) -> Synth<'_> {
    Synth::new(geometry, layers, Bits::new(bits).unwrap(), seed).unwrap()
}

fn write(synth: &Synth<'_>, dir: &Path) {
    synth.write(dir, &mut |_| ControlFlow::Continue(())).unwrap();
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let read = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    };
    entries.map(read).collect()
}

fn argmax(logits: &[f64]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

fn deviation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    (values.map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
}

#[test]
fn the_engine_accepts_every_family_in_every_width() {
    for family in FAMILIES {
        let geometry = miniature(family);
        for bits in WIDTHS {
            let dir = tempfile::tempdir().unwrap();
            let synth = synth(&geometry, 3, bits, 1);
            write(&synth, dir.path());
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            let spec = describe(&checkpoint).unwrap_or_else(|e| panic!("{family:?} {bits}: {e}"));
            assert_eq!(spec.model_type, family.model_type());
            assert_eq!((spec.hidden, spec.vocab, spec.layers.len()), (256, 320, 3));
            assert_eq!(checkpoint.bytes(), synth.bytes());
        }
    }
}

/// Name, dtype and shape of every tensor of the language model.
fn tensors(dir: &Path) -> BTreeMap<String, (String, Vec<usize>)> {
    let others = ["mtp.", "model.visual."];
    let all = Checkpoint::open(dir).unwrap().tensors.into_values();
    let own = all.filter(|tensor| !others.iter().any(|other| tensor.name.starts_with(other)));
    own.map(|tensor| (tensor.name, (format!("{:?}", tensor.dtype), tensor.shape))).collect()
}

#[test]
fn tensors_are_called_and_shaped_as_in_checkpoints_checked_against_the_goldens() {
    for family in FAMILIES {
        let geometry = miniature(family);
        let same = match family {
            Family::Qwen3Moe => oracle::Family::Qwen3Moe,
            Family::Qwen3Next => oracle::Family::Qwen3Next,
            Family::Qwen3_5Moe => oracle::Family::Qwen3_5Moe,
        };
        let tiny = TinyModel {
            hidden: geometry.hidden,
            vocab: geometry.vocab,
            layers: 2,
            heads: geometry.heads,
            kv_heads: geometry.kv_heads,
            head_dim: geometry.head_dim,
            experts: geometry.experts,
            top_k: geometry.top_k,
            moe_ffn: geometry.moe_ffn,
            shared_ffn: geometry.shared_ffn,
            linear: tiny_checkpoint::LinearShape {
                key_heads: 2,
                value_heads: 4,
                key_dim: 32,
                value_dim: 32,
                conv: 4,
            },
            full_attention_interval: 2,
            ..TinyModel::new(same)
        };
        for (bits, layout) in [(4, Layout::Mlx(MlxLayout::uniform(4, 64))), (16, Layout::Hf)] {
            let [ours, theirs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
            write(&synth(&geometry, 2, bits, 1), ours.path());
            tiny.write(theirs.path(), &layout, 1);
            assert_eq!(tensors(ours.path()), tensors(theirs.path()), "{family:?} {bits}");
        }
    }
}

#[test]
fn the_oracle_chooses_the_predicted_experts_and_walks_the_tape() {
    for family in FAMILIES {
        let geometry = miniature(family);
        for bits in WIDTHS {
            let dir = tempfile::tempdir().unwrap();
            let synth = synth(&geometry, 4, bits, 1);
            write(&synth, dir.path());
            // Two ranges of the tape, one across its end.
            let tokens: Vec<u32> = (100..108).chain(316..320).chain(0..4).collect();
            let output = oracle::run(dir.path(), &tokens);
            let tape = synth.tape();
            for (layer, out) in output.layers.iter().enumerate() {
                for (token, (found, predicted)) in
                    out.routes.iter().zip(tape.routes(layer, &tokens)).enumerate()
                {
                    assert_eq!(
                        found.experts, predicted.experts,
                        "{family:?} {bits} {layer} {token}"
                    );
                    let scale = found.gap / predicted.gap;
                    assert!((0.4..2.0).contains(&scale), "{family:?} {bits} {layer}: {scale}");
                }
            }
            for (token, logits) in tokens.iter().zip(&output.logits) {
                assert_eq!(
                    argmax(logits),
                    (*token as usize + 1) % tape.steps(),
                    "{family:?} {bits}"
                );
            }
        }
    }
}

#[test]
fn no_layer_writes_the_tape_and_every_layer_matters() {
    for family in FAMILIES {
        let geometry = miniature(family);
        for bits in [2, 4, 16] {
            let dir = tempfile::tempdir().unwrap();
            write(&synth(&geometry, 4, bits, 3), dir.path());
            let output = oracle::run(dir.path(), &[7, 8, 9, 10, 11, 12]);
            for layer in &output.layers {
                for (row, embed) in layer.out.iter().zip(&output.embed) {
                    assert_eq!(row[..64], embed[..64]);
                }
                // Last token, when memories are filled.
                for part in [&layer.mixer_out, &layer.ffn_out] {
                    let size = deviation(part[5][64..].iter().copied());
                    let expected = (1.0 / 8.0_f64).sqrt();
                    assert!((0.3..3.0).contains(&(size / expected)), "{family:?} {bits}: {size}");
                }
            }
        }
    }
}

#[test]
fn activations_stay_sane_through_sixty_layers() {
    for family in FAMILIES {
        let geometry = Geometry { vocab: 5000, experts: 4, top_k: 2, ..miniature(family) };
        let dir = tempfile::tempdir().unwrap();
        write(&synth(&geometry, 60, 4, 1), dir.path());
        let output = Oracle::load(dir.path()).run(&[1, 2, 3, 4]);
        for row in &output.layers[59].out {
            let size = deviation(row[64..].iter().copied());
            assert!((0.7..3.0).contains(&size), "{family:?}: residual of size {size}");
        }
        for (token, row) in output.logits.iter().enumerate() {
            let outside = deviation(row[geometry.tape_tokens()..].iter().copied());
            assert!((0.5..2.0).contains(&outside), "{family:?}: {outside}");
            let all = deviation(row.iter().copied());
            assert!((1.0..4.0).contains(&all), "{family:?}: {all}");
            assert_eq!(argmax(row), token + 2);
        }
    }
}

#[test]
fn the_same_description_writes_the_same_bytes() {
    let geometry = miniature(Family::Qwen3_5Moe);
    let written = |seed, bits| {
        let dir = tempfile::tempdir().unwrap();
        write(&synth(&geometry, 2, bits, seed), dir.path());
        files(dir.path())
    };
    for bits in [4, 16] {
        assert_eq!(written(1, bits), written(1, bits));
        assert_ne!(written(1, bits)["model.safetensors"], written(2, bits)["model.safetensors"]);
    }
}

#[test]
fn config_says_what_was_asked_for() {
    for family in FAMILIES {
        let geometry = miniature(family);
        let dir = tempfile::tempdir().unwrap();
        write(&synth(&geometry, 3, 6, 1), dir.path());
        let names: Vec<String> = files(dir.path()).into_keys().collect();
        let expected = [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "model.safetensors.index.json",
        ];
        assert_eq!(names, expected);
        let config = Checkpoint::open(dir.path()).unwrap().config;
        let text = config.get("text_config").unwrap_or(&config);
        assert_eq!(text["num_hidden_layers"], 3);
        assert_eq!(text["num_experts_per_tok"], 3);
        assert_eq!(config["quantization"]["bits"], 6);
        let prefix = if family == Family::Qwen3_5Moe { "language_model." } else { "" };
        let router = format!("{prefix}model.layers.2.mlp.gate");
        assert_eq!(config["quantization"][router]["bits"], 8);
    }
}

#[test]
fn a_directory_with_something_in_it_is_refused() {
    let geometry = miniature(Family::Qwen3Moe);
    let synth = synth(&geometry, 1, 4, 1);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("precious"), "data").unwrap();
    for path in [dir.path().to_owned(), dir.path().join("precious")] {
        let refused = synth.write(&path, &mut |_| panic!("nothing is written"));
        assert!(matches!(refused, Err(SynthError::Occupied { .. })), "{refused:?}");
    }
    assert_eq!(files(dir.path()).len(), 1);
}

#[test]
fn a_full_disk_is_noticed_before_anything_is_written() {
    let geometry = Geometry { vocab: 1 << 48, ..miniature(Family::Qwen3Moe) };
    let synth = synth(&geometry, 1, 4, 1);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new");
    let refused = synth.write(&target, &mut |_| panic!("nothing is written"));
    let Err(SynthError::DiskFull { needed, available, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(needed, synth.bytes());
    assert!(available > 0 && available < needed);
    assert!(!target.exists());
}

#[test]
fn whoever_stops_it_finds_nothing() {
    let geometry = miniature(Family::Qwen3Moe);
    let synth = synth(&geometry, 2, 4, 1);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new");
    let mut last = Progress { bytes_done: 0, bytes_total: 0 };
    let stopped = synth.write(&target, &mut |progress| {
        last = progress;
        if progress.bytes_done < progress.bytes_total / 2 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    assert!(matches!(stopped, Err(SynthError::Cancelled { .. })), "{stopped:?}");
    assert!(last.bytes_done < last.bytes_total);
    assert!(!target.exists());
    write(&synth, &target);
    assert_eq!(Checkpoint::open(&target).unwrap().bytes(), last.bytes_total);
}

#[test]
fn impossible_wishes_are_named() {
    let geometry = miniature(Family::Qwen3Moe);
    assert!(matches!(Bits::new(7), Err(SynthError::Bits { bits: 7 })));
    let four = Bits::new(4).unwrap();
    for layers in [0, 65] {
        let refused = Synth::new(&geometry, layers, four, 1);
        assert!(matches!(refused, Err(SynthError::Layers { max: 64, .. })), "{refused:?}");
    }
}
