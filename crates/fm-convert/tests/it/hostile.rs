//! A manifest is a file from the internet: whatever it says, it is checked before it is believed.

use std::{fs, path::Path};

use fm_format::{FormatError, source::Checkpoint};
use fm_model::{LoadError, arch::describe};
use serde_json::{Value, json};

use crate::harness::Case;

type Edit = fn(&mut Value);

/// Opens the container after an edit of its manifest.
fn opened(edit: impl FnOnce(&mut Value)) -> Result<Checkpoint, FormatError> {
    let case = Case::small();
    case.convert().unwrap();
    edit_json(&case.out().join("manifest.json"), edit);
    Checkpoint::open(&case.out())
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn refusal(edit: impl FnOnce(&mut Value)) -> FormatError {
    opened(edit).map(|_| ()).expect_err("it should be refused")
}

#[test]
fn an_unchanged_manifest_is_accepted_in_any_formatting() {
    assert!(opened(|_| ()).is_ok());
}

#[test]
fn another_version_is_refused_by_number() {
    let error = refusal(|manifest| {
        manifest["version"] = json!(7);
        manifest["layers"] = json!("in a format of the future");
    });
    assert!(error.to_string().contains("format version 7, this build reads version 0"), "{error}");
}

#[test]
fn an_unknown_format_is_refused_by_name() {
    let error = refusal(|manifest| manifest["layers"][0]["up"]["format"] = json!("q9_z"));
    assert!(error.to_string().contains("layer 0 has the unknown format `q9_z`"), "{error}");
}

#[test]
fn numbers_that_contradict_each_other_or_the_files_are_named() {
    let huge = u64::MAX;
    let edits = [
        ("record_bytes", json!(4096)),
        ("record_bytes", json!(huge)),
        ("experts", json!(4)),
        ("experts", json!(0)),
        ("experts", json!(huge)),
        ("bytes", json!(huge)),
        ("bytes", json!(0)),
    ];
    for (field, value) in edits {
        let error = refusal(|manifest| manifest["layers"][2][field] = value.clone());
        let FormatError::ManifestNumber { layer: 2, field: named, .. } = error else {
            panic!("{field} {value}: {error}")
        };
        assert_eq!(named, field);
    }
    for (matrix, field, value) in [
        ("gate", "rows", json!(0)),
        ("gate", "rows", json!(huge)),
        ("up", "cols", json!(0)),
        ("down", "cols", json!(1_u64 << 40)),
    ] {
        let error = refusal(|manifest| manifest["layers"][0][matrix][field] = value.clone());
        assert!(matches!(error, FormatError::ManifestNumber { .. }), "{matrix}.{field}: {error}");
    }
}

#[test]
fn columns_that_do_not_tile_into_blocks_are_refused() {
    let error = refusal(|manifest| {
        manifest["layers"][0]["down"] = json!({"rows": 64, "cols": 33, "format": "affine4_g32"});
    });
    assert!(matches!(error, FormatError::ManifestNumber { field: "cols", .. }), "{error}");
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["../../etc/passwd", "layer-002.bin", "/layer-000.bin", "", "layer-000.bin/"] {
        let error = refusal(|manifest| manifest["layers"][0]["file"] = json!(name));
        assert!(matches!(error, FormatError::ManifestFile { .. }), "{name}: {error}");
    }
    for name in ["../source/config.json", "/etc/passwd", "trunk.safetensors", "README.md"] {
        let entry = json!({"bytes": 1, "xxh3": "0000000000000000"});
        let error = refusal(|manifest| manifest["files"][name] = entry);
        assert!(matches!(error, FormatError::ManifestFile { .. }), "{name}: {error}");
    }
}

#[test]
fn tensors_are_those_of_the_trunk() {
    let error = refusal(|manifest| {
        manifest["trunk"]["tensors"]["extra.weight"] = json!("0000000000000000");
    });
    assert!(error.to_string().contains("`extra.weight`"), "{error}");
    let error = refusal(|manifest| {
        manifest["trunk"]["tensors"].as_object_mut().unwrap().remove("model.norm.weight");
    });
    assert!(error.to_string().contains("`model.norm.weight`"), "{error}");
}

#[test]
fn unknown_fields_and_malformed_checksums_are_refused() {
    let edits: [Edit; 5] = [
        |manifest| manifest["layers"][0]["codebook"] = json!([1, 2]),
        |manifest| manifest["layers"][0]["checksums"][1] = json!("123"),
        |manifest| manifest["layers"][0]["checksums"][1] = json!(123),
        |manifest| manifest["source"] = json!("FF"),
        |manifest| manifest["version"] = json!("0"),
    ];
    for edit in edits {
        let error = refusal(edit);
        assert!(matches!(error, FormatError::Json { .. }), "{error}");
    }
}

#[test]
fn files_that_are_missing_or_of_another_length_are_named() {
    for name in ["experts/layer-000.bin", "trunk.safetensors", "tokenizer.json"] {
        let case = Case::small();
        case.convert().unwrap();
        let path = case.out().join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes.push(0);
        fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(&case.out()).unwrap_err();
        assert!(
            matches!(&error, FormatError::FileLength { path, .. } if path.ends_with(name)),
            "{name}: {error}"
        );
        fs::remove_file(&path).unwrap();
        let error = Checkpoint::open(&case.out()).unwrap_err();
        assert!(
            matches!(&error, FormatError::Io { path, .. } if path.ends_with(name)),
            "{name}: {error}"
        );
    }
}

/// The same length and still JSON: only the checksum tells.
#[test]
fn small_files_that_are_not_those_that_were_converted_are_named() {
    for (name, from, to) in [
        ("config.json", "\"rope_theta\": 1", "\"rope_theta\": 9"),
        ("tokenizer.json", "1.0", "1.1"),
        ("trunk.safetensors", "\"BF16\",", "\"F16\", "),
    ] {
        let case = Case::small();
        case.convert().unwrap();
        Checkpoint::open(&case.out()).unwrap();
        let path = case.out().join(name);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(&case.out()).expect_err(name);
        let is_named = match &error {
            FormatError::FileCorrupt { path, .. } => path.ends_with(name) && name.ends_with("json"),
            FormatError::HeaderCorrupt { path, .. } => path.ends_with(name),
            _ => false,
        };
        assert!(is_named && error.hint().unwrap().contains("flash-moe verify"), "{name}: {error}");
        Checkpoint::open_unchecked(&case.out()).unwrap();
    }
}

#[test]
fn a_manifest_of_absurd_length_is_not_read() {
    let case = Case::small();
    case.convert().unwrap();
    let file = fs::File::options().write(true).open(case.out().join("manifest.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = Checkpoint::open(&case.out()).unwrap_err();
    assert!(matches!(error, FormatError::ManifestLength { .. }), "{error}");
}

#[test]
fn a_manifest_of_another_program_means_nothing() {
    let case = Case::small();
    for text in ["{}", "[1]", r#"{"container":"docker","version":2}"#] {
        fs::write(case.source().join("manifest.json"), text).unwrap();
        assert!(Checkpoint::open(&case.source()).unwrap().container.is_none(), "{text}");
    }
}

#[test]
fn layers_that_config_json_does_not_ask_for_are_refused() {
    // Dense layers by list: 1. The container has records for 0 and 2.
    let edits: [(_, Edit); 4] = [
        (1, |config| config["mlp_only_layers"] = json!([])),
        (0, |config| config["moe_intermediate_size"] = json!(48)),
        (0, |config| config["num_experts"] = json!(4)),
        (0, |config| config["hidden_size"] = json!(65)),
    ];
    for (at, edit) in edits {
        let case = Case::small();
        case.convert().unwrap();
        let config = case.out().join("config.json");
        let length = fs::read(&config).unwrap().len();
        edit_json(&config, edit);
        pad(&config, length);
        let error = describe(&Checkpoint::open_unchecked(&case.out()).unwrap()).unwrap_err();
        match error {
            LoadError::Container { layer, .. } => assert_eq!(layer, at),
            LoadError::Shape { .. } | LoadError::MissingTensor { .. } => {}
            error => panic!("{error}"),
        }
    }
}

#[test]
fn records_without_a_layer_are_refused() {
    let case = Case::small();
    case.convert().unwrap();
    edit_json(&case.out().join("manifest.json"), |manifest| {
        manifest["layers"].as_array_mut().unwrap().push(Value::Null);
    });
    let error = describe(&Checkpoint::open(&case.out()).unwrap()).unwrap_err();
    assert!(matches!(error, LoadError::Container { layer: 3, .. }), "{error}");
}

#[test]
fn an_unknown_publisher_is_named() {
    let case = Case::small();
    case.convert().unwrap();
    edit_json(&case.out().join("manifest.json"), |m| m["publisher"] = json!("somebody"));
    let error = describe(&Checkpoint::open(&case.out()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("unknown publisher `somebody`"), "{error}");
}

/// JSON may end with spaces; the manifest knows the length.
fn pad(path: &Path, length: usize) {
    let mut text = fs::read(path).unwrap();
    assert!(text.len() <= length);
    text.resize(length, b' ');
    fs::write(path, text).unwrap();
}
