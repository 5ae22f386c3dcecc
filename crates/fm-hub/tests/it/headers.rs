//! Plans are made from headers alone.

use std::{fs, path::Path};

use fm_format::source::Checkpoint;
use fm_hub::{HubError, Selection, peek};
use fm_testkit::{
    golden::demo_dir,
    hub::{Fault, Site},
    tiny_checkpoint::{Family, GgufLayout, Layout, TinyModel},
};

use crate::World;

/// The same tensors at the same places as in `original`, from headers alone. Returns what came.
fn check_peek(site: Site, original: &Checkpoint) -> u64 {
    let world = World::of(site, None);
    let repository = world.list().unwrap();
    let files = Selection::default().choose(&repository).unwrap();
    let dir = tempfile::tempdir().unwrap();
    world.hub.site().sent_bytes = 0;
    let peeked = peek(&world.client, &repository, &files, dir.path()).unwrap();
    let found = Checkpoint::open(&peeked.path).unwrap();
    assert_eq!(found.config, original.config);
    assert_eq!(found.metadata, original.metadata);
    assert_eq!(format!("{:?}", found.tensors), format!("{:?}", original.tensors));
    for file in &files {
        let length = fs::metadata(dir.path().join(&file.name)).unwrap().len();
        assert_eq!(length, file.bytes, "{}", file.name);
    }
    let sent = world.hub.site().sent_bytes;
    // Redirects have bodies, too.
    assert!(sent >= peeked.read_bytes && sent < peeked.read_bytes + 1000, "{sent} {peeked:?}");
    peeked.read_bytes
}

#[test]
fn of_the_demonstration_model_one_hundredth_is_read() {
    let original = Checkpoint::open(&demo_dir()).unwrap();
    let site = Site::of_dir(&demo_dir());
    let index = site.files["model.safetensors.index.json"].len() + site.files["config.json"].len();
    let header = fm_format::source::header_bytes(&demo_dir().join("model.safetensors")).unwrap();
    let read = check_peek(site, &original);
    assert!(read <= (index + header.len() + (32 << 10)) as u64, "{read}");
}

#[test]
fn every_shard_is_read() {
    let dir = tempfile::tempdir().unwrap();
    TinyModel::new(Family::Qwen3Moe).write(dir.path(), &Layout::Hf, 3);
    let original = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(original.files.len(), 3);
    check_peek(Site::of_dir(dir.path()), &original);
}

fn gguf(dir: &Path, parts: usize) -> Checkpoint {
    let layout = GgufLayout { parts, ..GgufLayout::uniform("bf16") };
    TinyModel::new(Family::Qwen3Moe).write_gguf(dir, &layout);
    Checkpoint::open(dir).unwrap()
}

#[test]
fn every_part_of_a_gguf_model_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let original = gguf(dir.path(), 3);
    assert_eq!(original.files.len(), 3);
    check_peek(Site::of_dir(dir.path()), &original);
}

/// As vocabularies make them.
#[test]
fn a_long_gguf_header_comes_in_pieces_and_no_weights_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = gguf(dir.path(), 1).files[0].clone();
    let mut bytes = fs::read(&path).unwrap();
    let pairs = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    bytes[16..24].copy_from_slice(&(pairs + 1).to_le_bytes());
    // A pair of 300,000 bytes in all: weights stay where their alignment wants them.
    let text = 300_000 - (8 + 4 + 4 + 8);
    let pair =
        [&4_u64.to_le_bytes()[..], b"long", &8_u32.to_le_bytes(), &(text as u64).to_le_bytes()];
    let pair = [pair.concat(), vec![b'x'; text]].concat();
    bytes.splice(24..24, pair);
    fs::write(&path, bytes).unwrap();
    let header = fm_format::source::header_bytes(&path).unwrap().len() as u64;
    let read = check_peek(Site::of_dir(dir.path()), &Checkpoint::open(dir.path()).unwrap());
    assert!(header > 300_000 && read < 2 * header, "{read} for a header of {header}");
}

#[test]
fn a_server_without_ranges_is_not_read_to_the_end() {
    let mut site = Site::of_dir(&demo_dir());
    let weights = "model.safetensors".to_owned();
    site.faults.insert(weights.clone(), [Fault::IgnoreRange; 4].into());
    let world = World::of(site, None);
    let repository = world.list().unwrap();
    let files = Selection::default().choose(&repository).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let error = peek(&world.client, &repository, &files, dir.path()).unwrap_err();
    assert!(matches!(&error, HubError::Range { offset, .. } if *offset > 0), "{error}");
}

#[test]
fn a_cut_header_is_asked_for_again_and_not_for_ever() {
    for (cuts, comes) in [(4, true), (5, false)] {
        let mut site = Site::of_dir(&demo_dir());
        site.faults.insert("model.safetensors".to_owned(), vec![Fault::CutAfter(9); cuts].into());
        let world = World::of(site, None);
        let repository = world.list().unwrap();
        let files = Selection::default().choose(&repository).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let peeked = peek(&world.client, &repository, &files, dir.path());
        assert_eq!(peeked.is_ok(), comes, "{peeked:?}");
        if !comes {
            let fits = matches!(peeked, Err(HubError::Cut { at: 0, attempts: 5, .. }));
            assert!(fits, "{peeked:?}");
        }
    }
}

#[test]
fn a_header_that_lies_is_refused() {
    let mut site = Site::of_dir(&demo_dir());
    let weights = site.files.get_mut("model.safetensors").unwrap();
    weights[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let world = World::of(site, None);
    let repository = world.list().unwrap();
    let files = Selection::default().choose(&repository).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let error = peek(&world.client, &repository, &files, dir.path()).unwrap_err();
    assert!(matches!(error, HubError::Format(_)), "{error}");
}
