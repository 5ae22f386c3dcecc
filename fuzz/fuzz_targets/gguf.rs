//! A GGUF file of any bytes.

#![no_main]

use std::{cell::RefCell, fs};

use fm_format::source::Checkpoint;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static DIR: RefCell<tempfile::TempDir> =
        RefCell::new(tempfile::tempdir_in("/dev/shm").expect("memory for a directory"));
}

fuzz_target!(|data: &[u8]| {
    DIR.with_borrow(|dir| {
        let path = dir.path().join("model.gguf");
        fs::write(&path, data).expect("memory for a file");
        if let Ok(checkpoint) = Checkpoint::open(&path) {
            // Whether it is a model is another question; the answer must not be a panic.
            let _ = fm_model::arch::describe(&checkpoint);
        }
    });
});
