//! Bytes, names and lengths that are not to be trusted.

use std::{fs, ops::ControlFlow, sync::Mutex};

use fm_hub::{HubError, ModelName, Repository};
use fm_testkit::hub::{Fault, sha256_digits};

use crate::{WEIGHTS, WEIGHTS_BYTES, World, site, with_faults, word};

#[test]
fn wrong_bytes_are_said_kept_aside_and_fetched_again() {
    let world = World::of(with_faults(WEIGHTS, [Fault::Flip(77)]), None);
    let words = Mutex::new(Vec::new());
    let pulled = world
        .pull_telling(&|event| {
            words.lock().unwrap().extend(word(event).filter(|word| word.contains(WEIGHTS)));
            ControlFlow::Continue(())
        })
        .unwrap();
    world.check(&pulled, WEIGHTS);
    assert!(words.lock().unwrap().contains(&format!("corrupt {WEIGHTS}")), "{words:?}");
    assert_eq!(world.ranges_of(WEIGHTS), [None, None]);
    let digits = sha256_digits(&world.hub.site().files[WEIGHTS]);
    assert_eq!(world.leftovers(), [format!("{digits}.corrupt")]);
}

#[test]
fn wrong_bytes_twice_are_an_error_with_both_checksums() {
    let world = World::of(with_faults(WEIGHTS, [Fault::Flip(77), Fault::Flip(78)]), None);
    let error = world.pull().unwrap_err();
    let mut wrong = world.hub.site().files[WEIGHTS].clone();
    let right = sha256_digits(&wrong);
    wrong[78] ^= 1;
    match &error {
        HubError::Corrupt { file, expected, found, kept } => {
            assert_eq!((file.as_str(), expected), (WEIGHTS, &right));
            assert_eq!(*found, sha256_digits(&wrong));
            assert!(fs::read(kept).unwrap() == wrong, "what came is kept");
        }
        other => panic!("{other}"),
    }
    assert!(world.cache.resolve(&"pebble/demo".parse().unwrap()).is_err());
    // Bytes that turned wrong do not stand in the way of right ones.
    let pulled = world.pull().unwrap();
    world.check(&pulled, WEIGHTS);
}

#[test]
fn small_files_are_checked_by_the_checksum_of_git() {
    let world = World::of(with_faults("config.json", [Fault::Flip(3); 2]), None);
    let error = world.pull().unwrap_err();
    assert!(matches!(&error, HubError::Corrupt { file, .. } if file == "config.json"), "{error}");
}

#[test]
fn a_part_that_turned_wrong_on_the_disk_is_fetched_again() {
    let world = World::of(with_faults(WEIGHTS, [Fault::CutAfter(500_000)]), None);
    let error = world.pull_telling(&|event| match event {
        fm_hub::Event::Again { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(error, Err(HubError::Cancelled)));
    let part = world.part_of_the_weights();
    let mut bytes = fs::read(&part).unwrap();
    bytes[1000] ^= 1;
    fs::write(&part, bytes).unwrap();
    world.hub.take_requests();
    let pulled = world.pull().unwrap();
    world.check(&pulled, WEIGHTS);
    assert_eq!(world.ranges_of(WEIGHTS), [Some("bytes=500000-".to_owned()), None]);
}

#[test]
fn a_part_longer_than_the_file_is_forgotten() {
    let world = World::of(site(), None);
    let digits = sha256_digits(&world.hub.site().files[WEIGHTS]);
    let blobs = world.cache.root().join("models--pebble--demo/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{digits}.incomplete")), vec![0; WEIGHTS_BYTES + 1]).unwrap();
    let pulled = world.pull().unwrap();
    world.check(&pulled, WEIGHTS);
}

#[test]
fn names_that_lead_out_are_refused_before_anything_is_written() {
    let names =
        ["../x.json", "/etc/x.json", "a/../../x.json", "a\\..\\x.json", "C:x.json", "a//b", "."];
    for name in names {
        let mut site = site();
        site.files.insert(name.to_owned(), vec![1]);
        let world = World::of(site, None);
        let error = world.pull().unwrap_err();
        assert!(matches!(&error, HubError::FileName { file, .. } if file == name), "{error}");
        assert!(!world.cache.root().exists(), "{name}");
    }
}

#[test]
fn a_disk_without_room_is_said_before_anything_is_written() {
    let mut site = site();
    site.claimed.insert(WEIGHTS.to_owned(), 1 << 60);
    let world = World::of(site, None);
    let error = world.pull().unwrap_err();
    match error {
        HubError::NoSpace { needed, free, .. } => {
            assert!(needed > 1 << 60 && free < 1 << 60, "{needed} {free}");
        }
        other => panic!("{other}"),
    }
    assert!(!world.cache.root().exists());
    assert_eq!(world.asked_for(WEIGHTS).len(), 0);
}

#[test]
fn a_file_shorter_than_its_listing_is_no_file() {
    let mut site = site();
    site.claimed.insert(WEIGHTS.to_owned(), WEIGHTS_BYTES as u64 + 1);
    let world = World::of(site, None);
    let error = world.pull().unwrap_err();
    assert!(matches!(&error, HubError::Cut { file, .. } if file == WEIGHTS), "{error}");
}

#[test]
fn an_unknown_revision_is_said() {
    let world = World::of(site(), None);
    let name: ModelName = "pebble/demo".parse().unwrap();
    let error = Repository::open(&world.client, &name.id, "v9").unwrap_err();
    assert!(matches!(error, HubError::Revision { .. }), "{error}");
}
