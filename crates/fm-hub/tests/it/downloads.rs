//! Downloads where nothing is lost: whole, in part, at once, and again.

use std::{fs, ops::ControlFlow, sync::Mutex, time::Duration};

use fm_hub::HubError;
use fm_testkit::hub::{Fault, sha256_digits};

use crate::{WEIGHTS, WEIGHTS_BYTES, World, below, site, with_faults, word};

#[test]
fn a_model_comes_whole_and_only_what_is_needed() {
    let world = World::of(site(), None);
    let pulled = world.pull().unwrap();
    assert_eq!(pulled.fetched, 3);
    assert_eq!(below(&pulled.path), ["config.json", WEIGHTS, "tokenizer.json"]);
    for file in ["config.json", WEIGHTS, "tokenizer.json"] {
        world.check(&pulled, file);
    }
    let link = fs::read_link(pulled.path.join(WEIGHTS)).unwrap();
    let digits = sha256_digits(&world.hub.site().files[WEIGHTS]);
    assert_eq!(link.to_str().unwrap(), format!("../../blobs/{digits}"));
    assert_eq!(world.leftovers(), [""; 0]);
    let resolved = world.cache.resolve(&"pebble/demo".parse().unwrap()).unwrap();
    assert_eq!(resolved, pulled.path);
}

#[test]
fn a_second_run_downloads_nothing() {
    let world = World::of(site(), None);
    world.pull().unwrap();
    world.hub.take_requests();
    assert_eq!(world.pull().unwrap().fetched, 0);
    let requests = world.hub.take_requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert!(requests[0].path.starts_with("/api/models/"), "{requests:?}");
}

#[test]
fn files_that_are_no_links_are_here_as_well() {
    let world = World::of(site(), None);
    let pulled = world.pull().unwrap();
    for file in below(&pulled.path) {
        let path = pulled.path.join(file);
        let blob = fs::canonicalize(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::rename(blob, &path).unwrap();
    }
    world.hub.take_requests();
    assert_eq!(world.pull().unwrap(), fm_hub::Pulled { fetched: 0, ..pulled.clone() });
    assert_eq!(world.hub.take_requests().len(), 1);
    world.check(&pulled, WEIGHTS);
}

#[test]
fn a_cut_connection_goes_on_where_it_ended() {
    let faults = [Fault::CutAfter(300_000), Fault::CutAfter(200_000)];
    let world = World::of(with_faults(WEIGHTS, faults), None);
    let words = Mutex::new(Vec::new());
    let pulled = world
        .pull_telling(&|event| {
            words.lock().unwrap().extend(word(event).filter(|word| word.contains(WEIGHTS)));
            ControlFlow::Continue(())
        })
        .unwrap();
    world.check(&pulled, WEIGHTS);
    let ranges = [None, Some("bytes=300000-"), Some("bytes=500000-")];
    assert_eq!(world.ranges_of(WEIGHTS), ranges.map(|range| range.map(str::to_owned)));
    let weights = |word: &str| word.replace('W', WEIGHTS);
    let expected =
        ["begin W at 0", "again W at 300000", "again W at 500000", "done W"].map(weights);
    assert_eq!(*words.lock().unwrap(), expected);
    // Progress was made each time: the waits do not grow.
    assert_eq!(*world.pauses.lock().unwrap(), [Duration::from_secs(1); 2]);
}

#[test]
fn an_interrupted_download_is_continued_by_the_next() {
    let world = World::of(site(), None);
    let error = world
        .pull_telling(&|event| match event {
            fm_hub::Event::Bytes { file, here } if file.name == WEIGHTS && *here > 200_000 => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })
        .unwrap_err();
    assert!(matches!(error, HubError::Cancelled), "{error}");
    assert!(world.cache.resolve(&"pebble/demo".parse().unwrap()).is_err(), "nothing is half there");
    let here = fs::metadata(world.part_of_the_weights()).unwrap().len();
    assert!(here > 200_000 && here < WEIGHTS_BYTES as u64, "{here}");
    world.hub.take_requests();
    let pulled = world.pull().unwrap();
    assert_eq!(world.ranges_of(WEIGHTS), [Some(format!("bytes={here}-"))]);
    world.check(&pulled, WEIGHTS);
}

#[test]
fn files_come_at_the_same_time() {
    let mut site = site();
    for file in [WEIGHTS, "config.json", "tokenizer.json"] {
        site.faults.insert(file.to_owned(), [Fault::Meet(3)].into());
    }
    let world = World::of(site, None);
    assert_eq!(world.pull().unwrap().fetched, 3);
}

#[test]
fn a_server_that_cannot_go_on_is_asked_for_everything() {
    let faults = [Fault::CutAfter(300_000), Fault::IgnoreRange];
    let world = World::of(with_faults(WEIGHTS, faults), None);
    let pulled = world.pull().unwrap();
    world.check(&pulled, WEIGHTS);

    let faults = [Fault::CutAfter(300_000), Fault::Status(416, "")];
    let world = World::of(with_faults(WEIGHTS, faults), None);
    let pulled = world.pull().unwrap();
    world.check(&pulled, WEIGHTS);
    assert_eq!(world.ranges_of(WEIGHTS), [None, Some("bytes=300000-".to_owned()), None]);
}

#[test]
fn a_connection_that_never_gets_further_is_given_up() {
    let world = World::of(with_faults(WEIGHTS, [Fault::CutAfter(0); 9]), None);
    let error = world.pull().unwrap_err();
    assert!(
        matches!(&error, HubError::Cut { file, at: 0, attempts: 5, .. } if file == WEIGHTS),
        "{error}"
    );
    let waits: Vec<u64> = world.pauses.lock().unwrap().iter().map(Duration::as_secs).collect();
    assert_eq!(waits, [2, 4, 8, 16]);
}

#[test]
fn a_busy_server_is_given_the_time_it_asks_for() {
    let faults = [Fault::Status(429, "Retry-After: 17"), Fault::Status(503, "")];
    let world = World::of(with_faults(WEIGHTS, faults), None);
    let pulled = world.pull().unwrap();
    world.check(&pulled, WEIGHTS);
    let waits: Vec<u64> = world.pauses.lock().unwrap().iter().map(Duration::as_secs).collect();
    assert_eq!(waits, [17, 2]);
}

#[test]
fn two_programs_do_not_write_the_same_file() {
    let world = World::of(site(), None);
    let digits = sha256_digits(&world.hub.site().files[WEIGHTS]);
    let locks = world.cache.root().join(".locks/models--pebble--demo");
    fs::create_dir_all(&locks).unwrap();
    let other = fs::File::create(locks.join(format!("{digits}.lock"))).unwrap();
    other.lock().unwrap();
    let error = world.pull().unwrap_err();
    assert!(matches!(&error, HubError::Busy { file, .. } if file == WEIGHTS), "{error}");
    drop(other);
    world.pull().unwrap();
}
