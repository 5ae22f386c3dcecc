//! A container holds what the checkpoint held, byte for byte.

use std::{collections::BTreeMap, fs, path::Path};

use fm_convert::{Conversion, Outcome, Phase};
use fm_format::{
    record::{LayerRecords, Record},
    source::{Checkpoint, Files},
};
use fm_model::{
    arch::{MODEL_TYPES, config, describe},
    load::{read_matrix, read_vector},
    spec::{FfnSpec, MatrixRef, MixerSpec, MlpSpec, ModelSpec, Projection, VectorRef},
};
use fm_testkit::{
    golden::golden_dir,
    tiny_checkpoint::{Family, Float, Layout, MlxLayout, SmallFloats, TinyModel},
    ugly::{ugly_gguf_models, ugly_mlx_models, ugly_models, ugly_packed_models},
};

use crate::harness::{Case, assert_same, convert, files_in, go_on};

#[test]
fn what_hugging_face_publishes_is_all_there() {
    for (i, (name, model)) in ugly_models().into_iter().enumerate() {
        let case = Case::new(&model, &Layout::Hf, 1 + i % 3);
        case.convert().unwrap();
        assert_same_model(name, &case.source(), &case.out());
    }
}

#[test]
fn what_mlx_publishes_is_all_there() {
    for (i, (name, model, layout)) in ugly_mlx_models().into_iter().enumerate() {
        let case = Case::new(&model, &Layout::Mlx(layout), 1 + i % 3);
        case.convert().unwrap();
        assert_same_model(name, &case.source(), &case.out());
    }
}

#[test]
fn what_a_gguf_file_has_is_all_there() {
    for (name, model, layout) in ugly_gguf_models() {
        let (source, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        model.write_gguf(source.path(), &layout);
        convert(source.path(), out.path()).unwrap();
        assert_same_model(name, source.path(), out.path());
        assert!(matches!(convert(source.path(), out.path()), Ok(Outcome::AlreadyDone)), "{name}");
    }
}

#[test]
fn what_vendors_publish_in_small_floats_is_all_there() {
    let model = TinyModel { hidden: 160, layers: 2, ..TinyModel::new(Family::DeepseekV3) };
    let plain = || Layout::Mlx(MlxLayout::default());
    for (layout, packing) in [
        (Layout::Hf, SmallFloats::Fp8(Float::F32)),
        (Layout::Hf, SmallFloats::Fp8(Float::Bf16)),
        (plain(), SmallFloats::Nvfp4),
        (plain(), SmallFloats::Mxfp8),
    ] {
        let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        model.write(&dir.path().join("from"), &layout, 1);
        packing.repack(&dir.path().join("from"), dir.path());
        let source = dir.path().join("packed");
        convert(&source, out.path()).unwrap();
        assert_same_model(&format!("{packing:?}"), &source, out.path());
    }
}

#[test]
fn packed_files_become_the_container_of_their_checkpoint() {
    for (name, model, layout, experts) in ugly_packed_models() {
        let [mlx, packed, out, expected] = [(); 4].map(|()| tempfile::tempdir().unwrap());
        model.write(mlx.path(), &Layout::Mlx(layout.clone()), 1);
        model.write_packed(packed.path(), &layout, experts);
        convert(mlx.path(), expected.path()).unwrap();
        convert(packed.path(), out.path()).unwrap();
        assert_same_model(name, packed.path(), out.path());
        let weights = |dir: &Path| {
            let mut files = files_in(dir);
            files.remove(Path::new("manifest.json")).unwrap(); // names the files it was made of
            files
        };
        assert!(weights(out.path()) == weights(expected.path()), "{name}");
        assert!(matches!(convert(packed.path(), out.path()), Ok(Outcome::AlreadyDone)), "{name}");
    }
}

#[test]
fn packed_files_without_a_configuration_become_a_container_with_one() {
    let (_, model, layout, experts) = ugly_packed_models().remove(0);
    let [source, out] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    model.write_packed(source.path(), &layout, experts);
    fs::remove_file(source.path().join("config.json")).unwrap();
    convert(source.path(), out.path()).unwrap();
    let [packed, container] = [source.path(), out.path()].map(|dir| Checkpoint::open(dir).unwrap());
    let config = config(&packed).unwrap();
    assert_eq!(container.config, *config);
    assert_eq!(config["model_type"], "qwen3_5_moe");
    let [expected, found] = [&packed, &container].map(|checkpoint| describe(checkpoint).unwrap());
    assert_eq!(found.trunk_tensors, expected.trunk_tensors);
    // Another trunk is another source.
    let path = source.path().join("model_weights.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(path, format!("{text} ")).unwrap();
    assert!(convert(source.path(), out.path()).is_err());
}

#[test]
fn the_goldens_and_the_demo_models_are_all_there() {
    let models = golden_dir("qwen3_moe").join("../../models");
    let golden = MODEL_TYPES.iter().map(|family| golden_dir(family));
    let golden = golden.flat_map(|dir| ["hf", "mlx-4bit", "mlx-mixed"].map(|l| dir.join(l)));
    for source in golden.chain(["demo", "demo-bf16"].map(|demo| models.join(demo))) {
        let out = tempfile::tempdir().unwrap();
        convert(&source, out.path()).unwrap();
        assert_same_model(&source.display().to_string(), &source, out.path());
    }
}

/// Only the experts' names tell that such a checkpoint is mlx-lm's; its norms are stored as `1 + w`.
#[test]
fn a_publisher_that_only_its_experts_betray_is_remembered() {
    for family in [Family::Qwen3Next, Family::Qwen3_5Moe] {
        let model = TinyModel { full_attention_interval: 1, ..TinyModel::new(family) };
        let case = Case::new(&model, &Layout::Mlx(MlxLayout::default()), 1);
        case.convert().unwrap();
        assert_same_model("all attention", &case.source(), &case.out());
    }
}

fn assert_same_model(name: &str, published: &Path, container: &Path) {
    let open = |dir: &Path| {
        let checkpoint = Checkpoint::open(dir).unwrap_or_else(|error| panic!("{name}: {error}"));
        let spec = describe(&checkpoint).unwrap_or_else(|error| panic!("{name}: {error}"));
        (Files::new(spec.catalog.files.clone()), checkpoint, spec)
    };
    let (expected, found) = (open(published), open(container));
    assert!(expected.1.container.is_none() && found.1.container.is_some());
    assert_eq!(found.1.config, expected.1.config, "{name}");
    assert_eq!(found.1.metadata, expected.1.metadata, "{name}");
    assert_eq!(found.2.trunk_tensors, expected.2.trunk_tensors, "{name}");
    let names: Vec<_> = found.1.tensors.keys().cloned().collect();
    assert_eq!(names, expected.2.trunk_tensors, "{name}: nothing else is in the trunk");
    assert!(
        trunk(&expected.0, &expected.2) == trunk(&found.0, &found.2),
        "{name}: the trunk differs"
    );
    let layers = expected.2.catalog.layers.iter().zip(&found.2.catalog.layers);
    assert_eq!(expected.2.catalog.layers.len(), found.2.catalog.layers.len(), "{name}");
    for (index, (expected_layer, found_layer)) in layers.enumerate() {
        let at = format!("{name}: layer {index}");
        match (expected_layer, found_layer) {
            (None, None) => {}
            (Some(expected_layer), Some(found_layer)) => {
                assert_eq!(expected_layer.layout, found_layer.layout, "{at}");
                assert!(
                    records(&expected.0, expected_layer) == records(&found.0, found_layer),
                    "{at}"
                );
                assert_checksums(&found.0, found_layer);
            }
            _ => panic!("{at} has routed experts in one of them"),
        }
    }
}

/// Assembled records; the padding is zero before, so that a container's padding shows.
fn records(files: &Files, layer: &LayerRecords) -> Vec<Vec<u8>> {
    let assemble = |record: &Record| {
        let mut slot = vec![0; layer.layout.bytes()];
        for piece in &record.pieces {
            layer.place(piece, &files.read_extent(piece.extent).unwrap(), &mut slot);
        }
        slot
    };
    layer.records.iter().map(assemble).collect()
}

fn assert_checksums(files: &Files, layer: &LayerRecords) {
    for (record, bytes) in layer.records.iter().zip(records(files, layer)) {
        assert_eq!(record.checksums, Some(layer.layout.checksums(&bytes)));
        let [piece] = record.pieces.as_slice() else { panic!("one read fetches a record") };
        assert!(piece.extent.offset.is_multiple_of(4096) && piece.extent.bytes % 4096 == 0);
    }
}

/// Every matrix and vector of the trunk as it is loaded, with what it means.
type Trunk = (BTreeMap<String, (String, Vec<u8>)>, BTreeMap<String, (String, Vec<u32>)>);

fn trunk(files: &Files, spec: &ModelSpec) -> Trunk {
    let mut named = Named::default();
    named.matrix("embed", &spec.embed);
    spec.head.iter().for_each(|head| named.matrix("head", head));
    named.vector("final_norm", &spec.final_norm);
    for (index, layer) in spec.layers.iter().enumerate() {
        named.prefix = format!("{index}.");
        named.vector("mixer_norm", &layer.mixer_norm);
        named.vector("ffn_norm", &layer.ffn_norm);
        named.mixer(&layer.mixer);
        match &layer.ffn {
            FfnSpec::Mlp(mlp) => named.mlp("mlp", mlp),
            FfnSpec::Moe(moe) => {
                named.projection("router", &moe.router);
                moe.choice_bias.iter().for_each(|bias| named.vector("choice_bias", bias));
                if let Some(biases) = &moe.biases {
                    let all = [("gate", &biases.gate), ("up", &biases.up), ("down", &biases.down)];
                    all.into_iter().for_each(|(name, bias)| {
                        named.vector(&format!("biases.{name}"), bias);
                    });
                }
                if let Some(shared) = &moe.shared {
                    named.mlp("shared", &shared.mlp);
                    shared.gate.iter().for_each(|gate| named.matrix("shared_gate", gate));
                }
            }
        }
    }
    let matrices = named.matrices.into_iter().map(|(name, matrix)| {
        let means = format!("{:?} {:?} {}", matrix.shape, matrix.rows, matrix.source_rows);
        (name, (means, read_matrix(files, &matrix).unwrap().to_vec()))
    });
    let vectors = named.vectors.into_iter().map(|(name, vector)| {
        let means = format!("{:?} {:?} {:?}", vector.dtype, vector.transform, vector.rows);
        let values = read_vector(files, &vector).unwrap();
        (name, (means, values.into_iter().map(f32::to_bits).collect()))
    });
    (matrices.collect(), vectors.collect())
}

#[derive(Default)]
struct Named {
    prefix: String,
    matrices: BTreeMap<String, MatrixRef>,
    vectors: BTreeMap<String, VectorRef>,
}

impl Named {
    fn matrix(&mut self, name: &str, matrix: &MatrixRef) {
        self.matrices.insert(format!("{}{name}", self.prefix), matrix.clone());
    }

    fn vector(&mut self, name: &str, vector: &VectorRef) {
        self.vectors.insert(format!("{}{name}", self.prefix), vector.clone());
    }

    fn projection(&mut self, name: &str, projection: &Projection) {
        self.matrix(name, &projection.weight);
        projection.bias.iter().for_each(|bias| self.vector(name, bias));
    }

    fn mlp(&mut self, name: &str, mlp: &MlpSpec) {
        for (part, matrix) in [("gate", &mlp.gate), ("up", &mlp.up), ("down", &mlp.down)] {
            self.matrix(&format!("{name}.{part}"), matrix);
        }
    }

    fn mixer(&mut self, mixer: &MixerSpec) {
        match mixer {
            MixerSpec::Attention(spec) => {
                let all = [("q", &spec.q), ("k", &spec.k), ("v", &spec.v), ("o", &spec.o)];
                all.into_iter().for_each(|(name, projection)| self.projection(name, projection));
                spec.gate.iter().for_each(|gate| self.projection("gate", gate));
                spec.sinks.iter().for_each(|sinks| self.vector("sinks", sinks));
                spec.q_norm.iter().for_each(|norm| self.vector("q_norm", norm));
                spec.k_norm.iter().for_each(|norm| self.vector("k_norm", norm));
            }
            MixerSpec::Mla(spec) => {
                if let Some(q_a) = &spec.q_a {
                    self.projection("q_a", &q_a.projection);
                    self.vector("q_a_norm", &q_a.norm);
                }
                self.projection("q", &spec.q);
                self.projection("kv_a", &spec.kv_a);
                self.vector("kv_a_norm", &spec.kv_a_norm);
                self.matrix("k_b", &spec.k_b);
                self.matrix("v_b", &spec.v_b);
                self.projection("o", &spec.o);
            }
            MixerSpec::DeltaNet(spec) => {
                let matrices = [("qkv", &spec.qkv), ("z", &spec.z), ("b", &spec.b), ("a", &spec.a)];
                matrices.into_iter().for_each(|(name, matrix)| self.matrix(name, matrix));
                self.matrix("out", &spec.out);
                self.vector("conv", &spec.conv);
                self.vector("neg_a", &spec.neg_a);
                self.vector("dt_bias", &spec.dt_bias);
                self.vector("norm", &spec.norm);
            }
        }
    }
}

#[test]
fn the_trunk_is_a_safetensors_file_like_any_other() {
    let case = Case::small();
    case.convert().unwrap();
    let bytes = fs::read(case.out().join("trunk.safetensors")).unwrap();
    let (header_bytes, _) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert!((8 + header_bytes).is_multiple_of(64), "the data begins at a multiple of 64");
    let trunk = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut seen = 0;
    for file in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        let bytes = fs::read(case.source().join(file)).unwrap();
        let published = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, tensor) in published.tensors() {
            if let Ok(found) = trunk.tensor(&name) {
                assert_eq!(found, tensor, "{name}");
                seen += 1;
            } else {
                assert!(name.contains(".experts."), "{name} is a routed expert's");
            }
        }
    }
    assert_eq!(seen, trunk.len());
}

/// The example in the documentation, and with it the bytes of format version 0: when this fails
/// for a reason, the version changes, too.
#[test]
fn the_example_in_the_documentation_is_true() {
    let document = include_str!("../../../../docs/container.md");
    let (_, example) = document.split_once("```json\n").unwrap();
    let (example, text) = example.split_once("```").unwrap();
    let out = tempfile::tempdir().unwrap();
    convert(&golden_dir("qwen3_moe").join("mlx-4bit"), out.path()).unwrap();
    let manifest = fs::read_to_string(out.path().join("manifest.json")).unwrap();
    let mut lines = manifest.lines();
    for line in example.lines().filter(|line| line.trim() != "…") {
        assert!(lines.any(|found| found == line), "the manifest has no more line `{line}`");
    }
    let records = fs::read(out.path().join("experts/layer-000.bin")).unwrap();
    let digits = |byte: &u8| {
        [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
    };
    let hex = |bytes: &[u8]| bytes.iter().flat_map(digits).collect::<String>();
    let text: String = text.split_whitespace().collect();
    assert!(text.contains(&format!("00000000{}", hex(&records[..20]))), "the first block");
    assert!(text.contains(&format!("`{}`", hex(&records[8192..8196]))), "the second record");
    assert!(records[2560..4096].iter().all(|byte| *byte == 0), "zeros between the parts");
}

#[test]
fn bytes_depend_neither_on_buffers_nor_on_the_number_of_runs() {
    let case = Case::small();
    case.convert().unwrap();
    let expected = files_in(&case.out());
    let one_by_one = case.dir.path().join("one-by-one");
    let source = case.source();
    let conversion = Conversion { checkpoint: &source, out: &one_by_one, buffer_bytes: 1 };
    conversion.run(&mut go_on).unwrap();
    assert_same(&one_by_one, &expected, "records one by one");

    // A copy of a checkpoint is the same checkpoint.
    let copy = case.dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for (name, bytes) in files_in(&case.source()) {
        let path = copy.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let before = fs::metadata(case.out().join("manifest.json")).unwrap().modified().unwrap();
    assert_eq!(convert(&copy, &case.out()).unwrap(), Outcome::AlreadyDone);
    assert_same(&case.out(), &expected, "a second run");
    let after = fs::metadata(case.out().join("manifest.json")).unwrap().modified().unwrap();
    assert_eq!(before, after, "nothing was written");
}

#[test]
fn the_source_is_left_alone_and_the_container_runs_without_it() {
    let case = Case::small();
    let before = files_in(&case.source());
    case.convert().unwrap();
    assert_same(&case.source(), &before, "after a conversion");
    fs::remove_dir_all(case.source()).unwrap();
    let checkpoint = Checkpoint::open(&case.out()).unwrap();
    describe(&checkpoint).unwrap();
    let names: Vec<_> =
        files_in(&case.out()).into_keys().map(|p| p.display().to_string()).collect();
    let expected = [
        "additional_chat_templates/tool_use.jinja",
        "config.json",
        "experts/layer-000.bin",
        "experts/layer-002.bin",
        "generation_config.json",
        "manifest.json",
        "tokenizer.json",
        "trunk.safetensors",
    ];
    assert_eq!(names, expected);
}

#[test]
fn progress_ascends_to_all_bytes_and_knows_the_end() {
    let case = Case::small();
    let (source, out) = (case.source(), case.out());
    let mut reports = Vec::new();
    let conversion = Conversion { checkpoint: &source, out: &out, buffer_bytes: 1 };
    let outcome = conversion
        .run(&mut |progress| {
            reports.push(progress);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert!(reports.windows(2).all(|pair| pair[0].bytes_done <= pair[1].bytes_done));
    let last = reports.last().unwrap();
    assert_eq!((last.bytes_done, last.phase), (last.bytes_total, Phase::Manifest));
    assert_eq!(last.eta, Some(std::time::Duration::ZERO));
    let written: usize = files_in(&out).values().map(Vec::len).sum();
    let manifest = fs::metadata(out.join("manifest.json")).unwrap().len();
    let bytes = written as u64 - manifest;
    assert_eq!(outcome, Outcome::Converted { bytes, bytes_resumed: 0 });
    assert_eq!(last.bytes_total, bytes);
}
