//! Where fuzzing begins: bodies that are answered, and what has been found.

use std::{collections::HashSet, fs};

use fm_server::Reader;
use fm_testkit::golden::workspace_dir;

use crate::harness::reader;

/// What files for a path are called.
const KINDS: [(&str, &str); 7] = [
    ("/v1/chat/completions", "chat"),
    ("/v1/completions", "completions"),
    ("/v1/responses", "responses"),
    ("/v1/messages", "messages"),
    ("/v1/messages/count_tokens", "count"),
    ("/tokenize", "tokenize"),
    ("/detokenize", "detokenize"),
];

/// The first byte of a file says which interface its body is for; its name says so to people.
#[test]
fn bodies_that_fuzzing_begins_with_are_taken_on_every_path() {
    let (reader, scheduler) = reader();
    let paths: Vec<&str> = Reader::paths().collect();
    let mut seen = HashSet::new();
    for file in fs::read_dir(workspace_dir().join("fuzz/corpus/requests")).unwrap() {
        let file = file.unwrap();
        let bytes = fs::read(file.path()).unwrap();
        let (which, body) = bytes.split_first().unwrap();
        let path = paths[usize::from(*which) % paths.len()];
        let name = file.file_name().into_string().unwrap();
        // What fuzzing has found here has a hash for its name, and is read without a panic.
        let Some((kind, _)) = name.split_once('_') else {
            assert!(reader.takes(path, body).is_some());
            continue;
        };
        assert!(KINDS.contains(&(path, kind)), "{name} is for {path}");
        // What has been found to hang is refused.
        assert_eq!(reader.takes(path, body), Some(!name.ends_with("looped")), "{name}");
        seen.insert(path);
    }
    assert_eq!(seen.len(), paths.len(), "{seen:?}");
    assert_eq!(reader.takes("/v1/nothing", b"{}"), None);
    scheduler.drain().unwrap();
}
