//! A tiny checkpoint looks like the ones that the official tools wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use fm_testkit::{
    golden::golden_dir,
    tiny_checkpoint::{Family, Layout, MlxLayout, TinyModel},
};
use safetensors::SafeTensors;
use serde_json::Value;

/// Name, type and shape of every tensor.
fn tensors(dir: &Path) -> BTreeMap<String, String> {
    let bytes = fs::read(dir.join("model.safetensors")).expect("a checkpoint in one file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let line = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        (name, format!("{:?} {:?}", view.dtype(), view.shape()))
    };
    file.tensors().into_iter().map(line).collect()
}

fn config(dir: &Path) -> Value {
    let text = fs::read_to_string(dir.join("config.json")).expect("a checkpoint has a config");
    serde_json::from_str(&text).expect("a config is JSON")
}

/// Paths of all keys, `text_config.head_dim` and the like.
fn keys(value: &Value, path: &str) -> BTreeSet<String> {
    let Some(object) = value.as_object() else { return BTreeSet::new() };
    let inner = object.iter().flat_map(|(key, value)| {
        let path = format!("{path}.{key}");
        let below = keys(value, &path);
        below.into_iter().chain([path])
    });
    inner.collect()
}

/// Not all that describes a real vision tower is worth writing.
fn is_vision(key: &str) -> bool {
    key.starts_with(".vision_config")
}

/// The goldens' shapes are [`TinyModel::new`]'s.
fn written(family: Family, layout: &Layout) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    TinyModel::new(family).write(dir.path(), layout, 1);
    dir
}

#[test]
fn hf_checkpoints_have_the_tensors_and_keys_of_published_ones() {
    for (name, family) in Family::ALL {
        let golden = golden_dir(name).join("hf");
        let dir = written(family, &Layout::Hf);
        let mut found = tensors(dir.path());
        let expected = tensors(&golden);
        // More decoys than the goldens have are welcome.
        found.retain(|name, _| {
            let decoy = name.starts_with("mtp.") || name.starts_with("model.visual.");
            !decoy || expected.contains_key(name)
        });
        let keep = |name: &String| !name.starts_with("mtp.") && !name.starts_with("model.visual.");
        let missing: Vec<_> =
            expected.iter().filter(|(n, s)| keep(n) && found.get(*n) != Some(s)).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
        assert!(found.keys().all(|name| expected.contains_key(name)), "{name}: unknown tensors");

        let (found, expected) = (keys(&config(dir.path()), ""), keys(&config(&golden), ""));
        let missing: Vec<_> = expected.difference(&found).filter(|key| !is_vision(key)).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}

#[test]
fn mlx_checkpoints_have_the_tensors_and_rules_of_converted_ones() {
    for (name, family) in Family::ALL {
        let golden = golden_dir(name).join("mlx-4bit");
        let dir = written(family, &Layout::Mlx(MlxLayout::uniform(4, 32)));
        assert_eq!(tensors(dir.path()), tensors(&golden), "{name}");
        let (found, expected) = (config(dir.path()), config(&golden));
        assert_eq!(found["quantization"], expected["quantization"], "{name}");
        let missing: Vec<_> = keys(&expected, "").difference(&keys(&found, "")).cloned().collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}
