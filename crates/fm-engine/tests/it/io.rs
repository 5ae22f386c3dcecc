//! What the machine reaches: measured where that serves for something, and what `--io auto` makes of it.

use std::{fs, path::Path};

use fm_engine::{
    Engine, Load, Places,
    engine::Planned,
    limits::{self, Limits, ProbeMemory},
    memory_plan::OVERHEAD_BYTES,
    options::EngineOptions,
};
use fm_store::reader::Access;
use fm_testkit::golden::demo_dir;
use serde_json::json;

const MEMORY: u64 = 300_000_000;

fn planned() -> Planned {
    let places = Places { root: "/".into(), cache_dir: None };
    let options = EngineOptions { memory: Some(MEMORY), ..EngineOptions::default() };
    fm_engine::engine::plan(&demo_dir(), &options, Load::default(), &places).unwrap()
}

/// How the demonstration model is read on a machine with so much memory beside the budget, and with
/// a disk that was measured a moment ago.
fn access(dir: &Path, left: u64, disk_bytes_per_s: f64, slots: Option<usize>) -> Access {
    let kib = (MEMORY + left) / 1024;
    fs::create_dir_all(dir.join("proc")).unwrap();
    fs::write(dir.join("proc/meminfo"), format!("MemTotal: {kib} kB\nMemAvailable: {kib} kB\n"))
        .unwrap();
    let measured_at = std::time::SystemTime::now();
    let limits = json!({
        "disk_bytes_per_s": disk_bytes_per_s, "memory_bytes_per_s": 5e10, "age_s": 0.0
    });
    let remembered = json!({"measured_at": measured_at, "limits": limits});
    fs::write(dir.join(limits::file_name(&planned().files)), remembered.to_string()).unwrap();
    let options = EngineOptions {
        memory: Some(MEMORY),
        context: Some(256),
        threads: Some(2),
        slots,
        ..EngineOptions::default()
    };
    let places = Places { root: dir.into(), cache_dir: Some(dir.into()) };
    Engine::open(&demo_dir(), &options, Load::default(), &places).unwrap().reader.access
}

#[test]
fn a_slow_disk_is_read_through_the_page_cache_as_soon_as_that_helps() {
    let dir = tempfile::tempdir().unwrap();
    let experts = planned().plan.experts;
    let half = |disk, slots| access(dir.path(), experts / 2, disk, slots);
    // Not every file system reads directly.
    let direct = access(dir.path(), 0, 1e8, Some(40));
    assert_eq!(half(1e8, Some(40)), Access::Buffered);
    assert_eq!(half(1e10, Some(40)), direct);
    // Experts that are read once do not come back to the page cache.
    assert_eq!(half(1e8, None), direct);
    assert_eq!(access(dir.path(), 2 * experts, 1e10, Some(40)), Access::Buffered);
}

#[cfg(target_os = "linux")]
#[test]
fn before_a_model_is_loaded_that_is_measured_for_which_there_is_room_and_need() {
    let cache = tempfile::tempdir().unwrap();
    // Long enough to say something about the disk, where that can be read directly.
    let long = tempfile::NamedTempFile::new_in(".").unwrap();
    long.as_file().set_len(64 << 20).unwrap();
    let files = [long.path().to_path_buf()];
    let disk = Limits::measure(&files, 1, ProbeMemory::Leave).disk_bytes_per_s.is_some();
    let measured = |memory, slots, cache_dir: Option<&Path>| {
        let places = Places { root: "/".into(), cache_dir: cache_dir.map(Path::to_path_buf) };
        let options =
            EngineOptions { memory: Some(memory), slots, context: Some(256), ..Default::default() };
        let mut planned =
            fm_engine::engine::plan(&demo_dir(), &options, Load::default(), &places).unwrap();
        planned.files.extend_from_slice(&files);
        let limits = Limits::before_loading(&planned, &places);
        [limits.disk_bytes_per_s, limits.memory_bytes_per_s].map(|of| of.is_some())
    };
    assert_eq!(measured(MEMORY, None, None), [false, true], "nothing will be read");
    assert_eq!(measured(MEMORY, Some(6), None), [disk, true]);
    let small = limits::MEMORY_PROBE_BYTES as u64 + OVERHEAD_BYTES - 1;
    assert_eq!(measured(small, Some(6), None), [disk, false], "no room");
    assert_eq!(measured(small + 1, Some(6), Some(cache.path())), [disk, true], "just enough");
    assert_eq!(measured(small, None, Some(cache.path())), [disk, true], "it is remembered");
}
