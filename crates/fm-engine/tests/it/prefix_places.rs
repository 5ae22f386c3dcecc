//! Prompts on disk of several fingerprints, of several servers, and out of reach.

use std::{fs, sync::atomic::Ordering};

use fm_engine::schedule::DiskError;

use crate::{
    prefix::{answer, family_dir, request, tokens},
    prefix_disk::{ROOMY, Shelf, bit_for_bit, settled},
};

#[test]
fn another_fingerprint_is_another_place() {
    let dir = family_dir("qwen3_moe");
    let shelf = Shelf::new(ROOMY);
    let scheduler = shelf.start_as(&dir, 1).unwrap();
    answer(&scheduler, request(tokens(1, 140)));
    scheduler.drain().unwrap();
    let other = shelf.start_as(&dir, 2).unwrap();
    assert_eq!(answer(&other, request(tokens(1, 140))).reused, 0);
    other.drain().unwrap();
    assert_eq!(shelf.files().len(), 4, "both are there");
    // Files of one under the name of the other are none of its own.
    let [one, two] = [1, 2].map(|of: u128| shelf.dir.path().join(format!("{of:032x}")));
    for file in fs::read_dir(&one).unwrap().map(|file| file.unwrap().path()) {
        fs::copy(&file, two.join(file.file_name().unwrap())).unwrap();
    }
    let other = shelf.start_as(&dir, 2).unwrap();
    assert_eq!(shelf.notices.lock().unwrap().len(), 1, "the foreign entry");
    other.drain().unwrap();
    assert_eq!(shelf.files().len(), 4);
    // A directory of somebody else that only looks like one of these.
    let foreign = shelf.dir.path().join(format!("{:032x}", 3)).join("photo.jpg");
    fs::create_dir(foreign.parent().unwrap()).unwrap();
    fs::write(&foreign, vec![0; 1 << 20]).unwrap();
    // Where there is no room for both, the one that is not used goes.
    let tight = Shelf { bytes_max: (shelf.bytes() - (1 << 20)) * 2 / 3, ..shelf };
    let scheduler = tight.start_as(&dir, 2).unwrap();
    assert!(answer(&scheduler, request(tokens(1, 140))).restored > 0);
    scheduler.drain().unwrap();
    assert!(!one.exists());
    assert!(foreign.exists());
}

/// What another server of another model uses stays, and counts: all together keep to the limit.
#[test]
fn what_somebody_else_uses_takes_of_the_room() {
    let dir = family_dir("qwen3_moe");
    let shelf = Shelf::new(ROOMY);
    let running = shelf.start_as(&dir, 1).unwrap();
    answer(&running, request(tokens(1, 140)));
    settled(&running, 1);
    let theirs = shelf.files();
    let tight = Shelf { bytes_max: shelf.bytes() * 3 / 2, ..shelf };
    let scheduler = tight.start_as(&dir, 2).unwrap();
    answer(&scheduler, request(tokens(1, 140)));
    scheduler.drain().unwrap();
    assert_eq!(tight.files(), theirs);
    running.drain().unwrap();
}

/// Two servers of other models may make room of the same directory.
#[test]
fn what_somebody_else_has_removed_takes_no_room() {
    let dir = family_dir("qwen3_moe");
    let shelf = Shelf::new(ROOMY);
    let old = shelf.start_as(&dir, 1).unwrap();
    answer(&old, request(tokens(1, 140)));
    old.drain().unwrap();
    let tight = Shelf { bytes_max: shelf.bytes() * 3 / 2, ..shelf };
    let scheduler = tight.start_as(&dir, 2).unwrap();
    fs::remove_dir_all(tight.dir.path().join(format!("{:032x}", 1))).unwrap();
    answer(&scheduler, request(tokens(1, 140)));
    settled(&scheduler, 1);
    let counted = scheduler.activity().prefixes.disk_bytes.load(Ordering::Relaxed);
    scheduler.drain().unwrap();
    assert_eq!(counted, tight.bytes());
}

/// A conversation that has outgrown the bound leaves everybody, and its own earlier turns, what they have.
#[test]
fn what_cannot_fit_costs_nobody_its_place() {
    let dir = family_dir("qwen3_moe");
    let (small, long) = (tokens(1, 70), tokens(2, 240));
    let room = {
        let shelf = Shelf::new(ROOMY);
        let scheduler = shelf.start(&dir);
        answer(&scheduler, request(small.clone()));
        answer(&scheduler, request(long[..120].to_vec()));
        scheduler.drain().unwrap();
        shelf.bytes()
    };
    let shelf = Shelf::new(room + room / 20);
    let scheduler = shelf.start(&dir);
    answer(&scheduler, request(small.clone()));
    answer(&scheduler, request(long[..120].to_vec()));
    settled(&scheduler, 2);
    answer(&scheduler, request(long.clone()));
    scheduler.drain().unwrap();
    let scheduler = shelf.start(&dir);
    assert!(answer(&scheduler, request(small)).restored > 0);
    assert!(answer(&scheduler, request(long)).restored >= 119, "an earlier turn of it");
    scheduler.drain().unwrap();
    assert!(shelf.bytes() <= shelf.bytes_max);
}

#[test]
fn a_directory_in_use_is_left_alone() {
    let dir = family_dir("qwen3_moe");
    let shelf = Shelf::new(ROOMY);
    let scheduler = shelf.start(&dir);
    assert!(matches!(shelf.start_as(&dir, 1), Err(DiskError::InUse { .. })));
    scheduler.drain().unwrap();
    shelf.start(&dir).drain().unwrap();
}

/// A link to itself is a file that the system does not open, and says nothing of what was there.
#[cfg(unix)]
#[test]
fn what_cannot_be_read_for_now_stays() {
    let dir = family_dir("qwen3_moe");
    let asked = request(tokens(1, 140));
    for extension in ["entry", "segment"] {
        let shelf = Shelf::new(ROOMY);
        let scheduler = shelf.start(&dir);
        answer(&scheduler, asked.clone());
        scheduler.drain().unwrap();
        let files = shelf.files();
        let file = files.iter().find(|file| file.extension().unwrap() == extension).unwrap();
        let aside = shelf.dir.path().join("aside");
        let away = || {
            fs::rename(file, &aside).unwrap();
            std::os::unix::fs::symlink(file, file).unwrap();
        };
        // Entries are read at the start, segments when they are asked for.
        if extension == "entry" {
            away();
        }
        let unfinished = file.with_file_name("0123456789abcdef.new");
        fs::write(&unfinished, "half of it").unwrap();
        let scheduler = shelf.start(&dir);
        assert!(!unfinished.exists(), "nobody can want it any more");
        let counted = scheduler.activity().prefixes.disk_bytes.load(Ordering::Relaxed);
        let there = files.iter().map(|file| file.symlink_metadata().unwrap().len());
        assert_eq!(counted, there.sum::<u64>(), "{extension}");
        if extension == "segment" {
            away();
        }
        assert_eq!(answer(&scheduler, asked.clone()).restored, 0, "{extension}");
        let notices = std::mem::take(&mut *shelf.notices.lock().unwrap());
        assert!(notices[0].starts_with("cannot read ") && notices.len() == 1, "{notices:?}");
        scheduler.drain().unwrap();
        assert!(files.iter().all(|file| file.symlink_metadata().is_ok()), "{extension}");
        fs::rename(&aside, file).unwrap();
        let scheduler = shelf.start(&dir);
        let got = answer(&scheduler, asked.clone());
        assert!(got.restored > 0, "{extension}");
        bit_for_bit(&dir, &got, asked.clone(), "read again");
        scheduler.drain().unwrap();
    }
}
