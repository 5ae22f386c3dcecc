//! What a run leaves for the next one: heat, in a file that may be anything.

use std::{fs, path::Path};

use fm_engine::{Engine, Load, Places, options::EngineOptions, warm_start::WarmStart};
use fm_testkit::golden::demo_dir;

use crate::harness::{bits, prompt};

fn open(model: &Path, cache_dir: &Path, warm_start: WarmStart) -> Engine {
    let options = EngineOptions {
        memory: Some(300_000_000),
        context: Some(256),
        threads: Some(2),
        slots: Some(40),
        warm_start: Some(warm_start),
        ..EngineOptions::default()
    };
    let places = Places { root: "/".into(), cache_dir: Some(cache_dir.into()) };
    Engine::open(model, &options, Load::default(), &places).unwrap()
}

/// A run: what it computed, and why it did not know of earlier ones.
fn run(cache_dir: &Path, warm_start: WarmStart) -> (Vec<u32>, Option<String>) {
    let mut engine = open(&demo_dir(), cache_dir, warm_start);
    let session = engine.runner.open(128).unwrap();
    let bits = bits(engine.runner.as_mut(), session, &prompt(), 1);
    (bits, engine.heat_ignored.as_ref().map(ToString::to_string))
}

/// The only file of heat.
fn heat(cache_dir: &Path) -> std::path::PathBuf {
    let files: Vec<_> = fs::read_dir(cache_dir.join("heat")).unwrap().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].as_ref().unwrap().path()
}

#[test]
fn a_run_leaves_heat_and_the_next_one_computes_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (first, ignored) = run(dir.path(), WarmStart::On);
    assert_eq!(ignored, None);
    let left = fs::read(heat(dir.path())).unwrap();
    let (second, ignored) = run(dir.path(), WarmStart::On);
    assert_eq!((first == second, ignored), (true, None));
    // It knew the first one: what both used is hotter.
    assert_ne!(fs::read(heat(dir.path())).unwrap(), left);
}

#[test]
fn off_reads_nothing_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), WarmStart::Off);
    assert!(!dir.path().join("heat").exists());
    // A run that computes nothing has nothing to say.
    drop(open(&demo_dir(), dir.path(), WarmStart::On));
    assert!(!dir.path().join("heat").exists());
}

#[test]
fn a_damaged_or_foreign_file_is_ignored_with_a_reason_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (want, _) = run(dir.path(), WarmStart::On);
    let path = heat(dir.path());
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[100] ^= 1;
    let foreign = fm_store::heat::Heat { layers: vec![vec![1.0; 3]] }.to_bytes(1);
    let cases = [
        (flipped, "it is damaged"),
        (good[..50].to_vec(), "it is damaged"),
        (Vec::new(), "it is damaged"),
        (foreign, "it is of another model or version"),
    ];
    for (bytes, reason) in cases {
        fs::write(&path, bytes).unwrap();
        let (got, ignored) = run(dir.path(), WarmStart::On);
        let ignored = ignored.unwrap();
        assert!(got == want && ignored.ends_with(reason), "{ignored}");
        // Nothing was known, so the same is left as by the first run.
        assert_eq!(fs::read(heat(dir.path())).unwrap(), good);
    }
}
