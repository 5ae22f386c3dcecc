//! A configuration and a safetensors file of any bytes: the input is both, with a zero byte between.

#![no_main]

use std::{cell::RefCell, fs};

use fm_format::source::Checkpoint;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static DIR: RefCell<tempfile::TempDir> =
        RefCell::new(tempfile::tempdir_in("/dev/shm").expect("memory for a directory"));
}

fuzz_target!(|data: &[u8]| {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(0);
    let (config, tensors) = data.split_at(end);
    DIR.with_borrow(|dir| {
        fs::write(dir.path().join("config.json"), config).expect("memory for a file");
        let tensors = tensors.get(1..).unwrap_or_default();
        fs::write(dir.path().join("model.safetensors"), tensors).expect("memory for a file");
        if let Ok(checkpoint) = Checkpoint::open(dir.path()) {
            // Whether it is a model is another question; the answer must not be a panic.
            let _ = fm_model::arch::describe(&checkpoint);
        }
    });
});
