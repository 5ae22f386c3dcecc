//! What the cache holds, and what leaves it.

use std::{fs, path::Path};

use fm_hub::{Cache, HubError, ModelName};
use fm_testkit::hub::COMMIT;

use crate::{World, site};

fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

fn touch(path: &Path, bytes: usize) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, vec![1; bytes]).unwrap();
}

#[test]
fn a_model_is_listed_found_and_removed() {
    let world = World::of(site(), None);
    let pulled = world.pull().unwrap();
    let other = world.cache.root().join("models--other--model/blobs/x");
    touch(&other, 5);
    let listed = world.cache.list().unwrap();
    let rows: Vec<_> =
        listed.iter().map(|c| (c.id.to_string(), c.revision.as_str(), c.bytes)).collect();
    let bytes = 1_000_000 + 5000 + 19;
    assert_eq!(
        rows,
        [("other/model".to_owned(), "", 5), ("pebble/demo".to_owned(), "main", bytes)]
    );
    assert_eq!(listed[1].path.as_ref(), Some(&pulled.path));
    assert_eq!(world.cache.resolve(&name(&format!("pebble/demo@{COMMIT}"))).unwrap(), pulled.path);
    // What stands beside the bytes: the name of the commit.
    let freed = world.cache.remove(&name("pebble/demo").id, None).unwrap();
    assert_eq!(freed, bytes + COMMIT.len() as u64);
    assert!(!world.cache.root().join("models--pebble--demo").exists());
    assert!(!world.cache.root().join(".locks/models--pebble--demo").exists());
    assert!(other.exists());
    let error = world.cache.remove(&name("pebble/demo").id, None).unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn nothing_outside_the_cache_is_removed() {
    let world = World::of(site(), None);
    let outside = world.dir.path().join("outside");
    touch(&outside.join("precious"), 100);
    let root = world.cache.root();
    fs::create_dir_all(root.join("models--a--b/snapshots/x")).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("models--a--b/snapshots/x/link")).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("models--c--d")).unwrap();
    assert_eq!(world.cache.remove(&name("a/b").id, None).unwrap(), 0);
    drop(world.cache.remove(&name("c/d").id, None));
    assert!(outside.join("precious").exists());
}

#[cfg(unix)]
#[test]
fn a_link_to_nothing_is_a_model_that_is_not_whole() {
    let world = World::of(site(), None);
    let snapshot = world.cache.root().join("models--a--b/snapshots/x");
    touch(&snapshot.join("config.json"), 3);
    assert!(world.cache.list().unwrap()[0].path.is_some());
    std::os::unix::fs::symlink("../../blobs/gone", snapshot.join("w.safetensors")).unwrap();
    assert!(world.cache.list().unwrap()[0].path.is_none());
}

#[test]
fn a_relative_cache_that_is_not_there_yet_has_the_room_of_the_working_directory() {
    let cache = Cache::new("models-to-be/hub".into());
    assert!(!cache.root().exists() && cache.free_bytes().unwrap() > 0);
}

#[test]
fn every_name_of_a_commit_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("models--a--b");
    touch(&repo.join("snapshots").join(COMMIT).join("config.json"), 3);
    for name in ["main", "v1.0", "refs/pr/1"] {
        let file = repo.join("refs").join(name);
        touch(&file, 0);
        fs::write(file, COMMIT).unwrap();
    }
    let listed = Cache::new(dir.path().to_path_buf()).list().unwrap();
    let revisions: Vec<&str> = listed.iter().map(|cached| cached.revision.as_str()).collect();
    assert_eq!(revisions, ["main", "refs/pr/1", "v1.0"]);
    assert!(listed.iter().all(|cached| cached.path.is_some() && cached.bytes == 3));
}

#[test]
fn a_gguf_model_is_found_wherever_it_lies_and_chosen_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path().to_path_buf());
    let repo = dir.path().join("models--a--b");
    let snapshot = repo.join("snapshots").join(COMMIT);
    touch(&repo.join("refs/main"), 0);
    fs::write(repo.join("refs/main"), format!("{COMMIT}\n")).unwrap();
    let parts = [1, 2].map(|part| snapshot.join(format!("Q4/x-Q4-0000{part}-of-00002.gguf")));
    parts.iter().for_each(|part| touch(part, 4));
    touch(&snapshot.join("mmproj-F16.gguf"), 4);
    touch(&snapshot.join("config.json"), 4);
    // macOS leaves these on disks that are not its own.
    touch(&snapshot.join("._x-Q8.gguf"), 4);
    touch(&repo.join("refs/._main"), 4);
    let [listed] = &cache.list().unwrap()[..] else { panic!("one revision") };
    assert_eq!(listed.revision, "main");
    assert_eq!(cache.resolve(&name("a/b")).unwrap(), parts[0]);
    let whole = snapshot.join("x-Q8.gguf");
    touch(&whole, 9);
    let error = cache.resolve(&name("a/b")).unwrap_err();
    assert!(matches!(&error, HubError::Several { variants, .. } if variants.len() == 2), "{error}");
    assert_eq!(cache.resolve(&name("a/b/x-Q8.gguf")).unwrap(), whole);
    assert_eq!(cache.resolve(&name("a/b/Q4")).unwrap(), parts[0]);
    assert_eq!(cache.resolve(&name("a/b@main/Q4")).unwrap(), parts[0]);
    let error = cache.resolve(&name("a/b@main/Q5")).unwrap_err();
    assert!(matches!(error, HubError::FileNotCached { .. }), "{error}");
    assert_eq!(error.to_string(), "a/b is here without Q5");
    for missing in ["a/b@v2", "a/b@v2/Q5"] {
        let error = cache.resolve(&name(missing)).unwrap_err();
        assert_eq!(error.to_string(), "a/b is here, but not its revision v2");
        assert!(matches!(error, HubError::RevisionNotCached { name, .. } if name == missing));
    }
    let error = cache.resolve(&name("a/c")).unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
}

/// Two quantisations, one of them in two parts, in two revisions that share a file.
#[cfg(unix)]
#[test]
fn each_of_several_models_is_listed_found_and_removed_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path().to_path_buf());
    let repo = dir.path().join("models--a--b");
    let outside = dir.path().join("outside.gguf");
    touch(&outside, 1000);
    let link = |commit: &str, file: &str, blob: &Path| {
        let path = repo.join("snapshots").join(commit).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(blob, path).unwrap();
    };
    let blob = |name: &str, bytes: usize| {
        let blob = repo.join("blobs").join(name);
        touch(&blob, bytes);
        blob
    };
    let (first, second) = (blob("first", 10), blob("second", 20));
    let (eight, config, other) = (blob("eight", 300), blob("config", 7), blob("other", 4000));
    for commit in ["old", "new"] {
        link(commit, "Q4/x-Q4-00001-of-00002.gguf", &first);
        link(commit, "Q4/x-Q4-00002-of-00002.gguf", &second);
        link(commit, "config.json", &config);
    }
    link("new", "x-Q8.gguf", &eight);
    link("new", "copy.gguf", &eight);
    link("old", "x-Q8.gguf", &other);
    link("old", "elsewhere.gguf", &outside);
    let elsewhere = dir.path().join("elsewhere");
    touch(&elsewhere.join("precious.gguf"), 1000);
    std::os::unix::fs::symlink(&elsewhere, repo.join("snapshots/linked")).unwrap();
    let error = cache.remove(&name("a/b").id, Some("precious.gguf")).unwrap_err();
    assert!(matches!(error, HubError::FileNotCached { .. }), "{error}");
    fs::remove_file(repo.join("snapshots/linked")).unwrap();
    let rows = || {
        let listed = cache.list().unwrap();
        let rows = listed.into_iter().filter(|row| row.revision == "new");
        rows.map(|row| (row.file.unwrap_or_default(), row.bytes)).collect::<Vec<_>>()
    };
    let four = "Q4/x-Q4-00001-of-00002.gguf";
    let all = [(four, 30), ("copy.gguf", 300), ("x-Q8.gguf", 300)];
    assert_eq!(rows(), all.map(|(file, bytes)| (file.to_owned(), bytes)));
    let id = name("a/b").id;
    // One that did not come keeps no other from being whole.
    link("new", "y.gguf", &repo.join("blobs/gone"));
    let whole: Vec<bool> = cache
        .list()
        .unwrap()
        .iter()
        .filter(|row| row.revision == "new")
        .map(|row| row.path.is_some())
        .collect();
    assert_eq!(whole, [true, true, true, false]);
    cache.remove(&id, Some("y.gguf")).unwrap();
    // Its blob in the new revision is that of the copy, too.
    assert_eq!(cache.size(&id, Some("x-Q8.gguf")).unwrap(), 4000);
    assert_eq!(cache.remove(&id, Some("x-Q8.gguf")).unwrap(), 4000);
    assert!(!other.exists() && eight.exists());
    assert_eq!(cache.remove(&id, Some("elsewhere.gguf")).unwrap(), 0);
    assert!(outside.exists(), "what links only point to stays");
    assert_eq!(cache.remove(&id, Some(four)).unwrap(), 30);
    assert!(!first.exists() && !second.exists() && config.exists());
    assert_eq!(cache.list().unwrap().len(), 2);
    let error = cache.remove(&id, Some(four)).unwrap_err();
    assert!(matches!(error, HubError::FileNotCached { .. }), "{error}");
    let error = cache.remove(&id, Some("config.json")).unwrap_err();
    assert!(matches!(error, HubError::FileNotCached { .. }), "{error}");
    assert_eq!(cache.resolve(&name("a/b@new")).unwrap(), repo.join("snapshots/new/copy.gguf"));
}
