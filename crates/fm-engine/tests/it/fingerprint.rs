//! What must not continue each other, and what may.

use std::{collections::HashSet, fs, path::Path};

use fm_engine::{backends::DeviceChoice, options::EngineOptions};
use fm_kernels::backend::{KvFormat, Numerics};
use fm_testkit::golden::{copy_files, demo_dir};

use crate::harness::open_at;

fn state(options: &EngineOptions, program: Option<&Path>) -> u128 {
    state_of(&demo_dir(), options, program)
}

fn state_of(dir: &Path, options: &EngineOptions, program: Option<&Path>) -> u128 {
    open_at(dir, options).state_fingerprint(program)
}

#[test]
fn what_rounds_otherwise_is_told_apart_and_what_does_not_is_not() {
    let usual = EngineOptions::default;
    let settings = [
        usual(),
        EngineOptions { kv: KvFormat::F16, ..usual() },
        EngineOptions { top_k: Some(2), ..usual() },
        EngineOptions { numerics: Some(Numerics::Int8), ..usual() },
        EngineOptions { numerics: Some(Numerics::F32), ..usual() },
        EngineOptions { device: DeviceChoice::Reference, ..usual() },
    ];
    let states: HashSet<u128> = settings.iter().map(|options| state(options, None)).collect();
    assert_eq!(states.len(), 6);
    assert!(states.contains(&state(&usual(), None)), "the same settings");
    let threads = EngineOptions { threads: Some(1), slots: Some(6), ..usual() };
    assert!(states.contains(&state(&threads, None)), "threads and slots change no bit");
    let own = EngineOptions { top_k: Some(4), ..usual() };
    assert!(states.contains(&state(&own, None)), "the model's own number of experts");
    let other = demo_dir().join("config.json");
    assert!(!states.contains(&state(&usual(), Some(&other))), "another program");
}

#[test]
fn a_configuration_that_was_edited_is_another_model_though_the_weights_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    copy_files(&demo_dir(), dir.path());
    let path = dir.path().join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut states = HashSet::from([state_of(dir.path(), &EngineOptions::default(), None)]);
    for (field, value) in [
        ("rope_theta", "1e7"),
        ("partial_rotary_factor", "0.5"),
        ("rms_norm_eps", "0.01"),
        ("num_experts_per_tok", "1"),
    ] {
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        let value = serde_json::from_str(value).unwrap();
        let text_config = &mut config["text_config"];
        let home = match text_config["rope_parameters"].get(field) {
            Some(_) => &mut text_config["rope_parameters"],
            None => text_config,
        };
        assert!(home.get(field).is_some_and(|usual| *usual != value), "{field}");
        home[field] = value;
        fs::write(&path, config.to_string()).unwrap();
        assert!(states.insert(state_of(dir.path(), &EngineOptions::default(), None)), "{field}");
    }
}
