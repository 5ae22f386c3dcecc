//! A container whose manifest says anything about files that are there.

#![no_main]

use std::{cell::RefCell, fs, path::Path};

use fm_format::source::Checkpoint;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static DIR: RefCell<tempfile::TempDir> = RefCell::new(container());
}

/// The files of the seed: a trunk of one tensor, a layer of two records.
fn container() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").expect("memory for a directory");
    let write = |name: &Path, bytes: &[u8]| {
        fs::write(dir.path().join(name), bytes).expect("memory for a file");
    };
    let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  "#;
    let mut trunk = (header.len() as u64).to_le_bytes().to_vec();
    trunk.extend(header);
    trunk.extend([0; 8]);
    write(Path::new("trunk.safetensors"), &trunk);
    write(Path::new("config.json"), br#"{"model_type":"qwen3_moe"}"#);
    fs::create_dir(dir.path().join("experts")).expect("memory for a directory");
    write(Path::new("experts/layer-000.bin"), &[0; 16384]);
    dir
}

fuzz_target!(|data: &[u8]| {
    DIR.with_borrow(|dir| {
        fs::write(dir.path().join("manifest.json"), data).expect("memory for a file");
        if let Ok(checkpoint) = Checkpoint::open(dir.path()) {
            // Whether it is a model is another question; the answer must not be a panic.
            let _ = fm_model::arch::describe(&checkpoint);
        }
    });
});
