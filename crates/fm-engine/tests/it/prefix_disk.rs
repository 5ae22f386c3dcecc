//! Prompts that have been computed outlive memory and the program, and no bit differs.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use fm_engine::{
    Engine,
    generate::{Generated, Request},
    options::EngineOptions,
    schedule::{DiskError, DiskOptions, Driven, Job, Scheduler, Update},
};
use fm_testkit::golden::demo_dir;
use tempfile::{TempDir, tempdir};

use crate::{
    harness::{open_at, open_with_marks},
    prefix::{FAMILIES, OPTIONS, answer, family_dir, fresh, is_hybrid, request, tokens},
    schedule::{job, push, until},
};

pub(crate) const ROOMY: u64 = 1 << 30;

/// A directory for prompts, and what was said of it.
pub(crate) struct Shelf {
    pub(crate) dir: TempDir,
    pub(crate) bytes_max: u64,
    pub(crate) notices: Arc<Mutex<Vec<String>>>,
}

impl Shelf {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { dir: tempdir().unwrap(), bytes_max, notices: Arc::default() }
    }

    fn options(&self, fingerprint: u128) -> DiskOptions {
        let notices = Arc::clone(&self.notices);
        DiskOptions {
            dir: self.dir.path().to_path_buf(),
            bytes_max: self.bytes_max,
            fingerprint,
            notices: Arc::new(move |notice| notices.lock().unwrap().push(notice.to_string())),
        }
    }

    /// The model at `dir` as it starts with what lies there.
    pub(crate) fn start(&self, dir: &Path) -> Scheduler {
        self.start_as(dir, 1).unwrap()
    }

    pub(crate) fn start_as(&self, dir: &Path, fingerprint: u128) -> Result<Scheduler, DiskError> {
        self.start_of(open_at(dir, &EngineOptions::default()), fingerprint)
    }

    fn start_of(&self, engine: Engine, fingerprint: u128) -> Result<Scheduler, DiskError> {
        let Engine { runner, .. } = engine;
        let (tokenizer, stats) = (None, fm_engine::local::SharedStats::default());
        let disk = Some(self.options(fingerprint));
        let driven = Driven { runner, tokenizer, stats, disk };
        Scheduler::start(driven, OPTIONS).map_err(|(error, _)| error)
    }

    /// All files but locks.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let dirs = fs::read_dir(self.dir.path()).unwrap().map(|dir| dir.unwrap().path());
        let files = dirs.flat_map(|dir| fs::read_dir(dir).unwrap());
        let files = files.map(|file| file.unwrap().path());
        files.filter(|file| file.extension().is_some()).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files().iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum()
    }
}

pub(crate) fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Waits until everything that is kept is on disk, without ending anything.
pub(crate) fn settled(scheduler: &Scheduler, sessions: usize) {
    let activity = scheduler.activity();
    until(|| activity.prefixes.on_disk.load(Ordering::Relaxed) == sessions);
}

pub(crate) fn bit_for_bit(dir: &Path, got: &Generated, asked: Request, what: &str) {
    let want = fresh(&mut open_at(dir, &EngineOptions::default()), asked);
    assert_eq!(got.logits_hash, want.logits_hash, "{}: {what}", dir.display());
    assert_eq!(got.tokens, want.tokens);
}

#[test]
fn what_nobody_can_go_on_from_is_not_kept() {
    let shelf = Shelf::new(ROOMY);
    let engine = open_with_marks(&demo_dir(), &EngineOptions::default(), 0);
    let scheduler = shelf.start_of(engine, 1).unwrap();
    answer(&scheduler, request(tokens(1, 140)));
    let activity = scheduler.activity();
    until(|| activity.sessions.load(Ordering::Relaxed) == 0);
    scheduler.drain().unwrap();
    assert_eq!(activity.prefixes.kept.load(Ordering::Relaxed), 0);
    assert_eq!(shelf.files(), [] as [PathBuf; 0]);
}

#[test]
fn a_restarted_model_goes_on_where_it_was_bit_for_bit() {
    for family in FAMILIES {
        let dir = family_dir(family);
        let shelf = Shelf::new(ROOMY);
        let base = tokens(1, 140);
        let scheduler = shelf.start(&dir);
        let first = answer(&scheduler, request(base.clone()));
        scheduler.drain().unwrap();
        // Within a block, at its border, at the end of the prompt and of the answer.
        let whole = [base.as_slice(), &first.tokens[..5]].concat();
        for (cut, hybrid) in [(145, 145), (140, 139), (128, 0), (100, 0), (64, 0), (63, 0)] {
            let scheduler = shelf.start(&dir);
            let asked = request([&whole[..cut], &tokens(cut as u64, 20)].concat());
            let got = answer(&scheduler, asked.clone());
            let restored = match (is_hybrid(family), cut) {
                (true, _) => hybrid,
                (false, 63) => 0,
                (false, cut) => cut,
            };
            assert_eq!((got.reused, got.restored), (restored, restored), "{family}: {cut}");
            bit_for_bit(&dir, &got, asked, "restored");
            scheduler.drain().unwrap();
        }
        assert_eq!(*shelf.notices.lock().unwrap(), [""; 0]);
    }
}

/// A program that is killed ends without a word: what lies there then is what a copy has.
#[test]
fn what_has_ended_is_on_disk_soon_without_anybody_asking() {
    for family in ["deepseek_v3", "qwen3_next"] {
        let dir = family_dir(family);
        let (shelf, copy) = (Shelf::new(ROOMY), Shelf::new(ROOMY));
        let scheduler = shelf.start(&dir);
        let base = tokens(1, 150);
        answer(&scheduler, request(base.clone()));
        settled(&scheduler, 1);
        for file in shelf.files() {
            let to = copy.dir.path().join(file.strip_prefix(shelf.dir.path()).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(file, to).unwrap();
        }
        let again = copy.start(&dir);
        let asked = request([base.as_slice(), &tokens(2, 9)].concat());
        let got = answer(&again, asked.clone());
        assert!(got.restored >= 149, "{family}: {}", got.restored);
        bit_for_bit(&dir, &got, asked, "killed");
        again.drain().unwrap();
        scheduler.drain().unwrap();
    }
}

#[test]
fn what_had_to_leave_memory_is_read_again() {
    for dir in [family_dir("qwen3_moe"), family_dir("qwen3_next"), demo_dir()] {
        let shelf = Shelf::new(ROOMY);
        let scheduler = shelf.start(&dir);
        let activity = scheduler.activity();
        let long = |seed| request(tokens(seed, 230));
        let ends: Vec<_> = (0..8).map(|seed| push(&scheduler, long(seed))).collect();
        let first: Vec<_> = ends.iter().map(|ends| ends.recv().unwrap().unwrap()).collect();
        assert!(count(&activity.prefixes.evicted) > 3);
        for (seed, first) in (0..).zip(&first) {
            let again = answer(&scheduler, long(seed));
            assert_eq!(again.logits_hash, first.logits_hash, "{} {seed}", dir.display());
            assert!(again.reused >= 229, "{} {seed}: {}", dir.display(), again.reused);
        }
        assert!(count(&activity.prefixes.restored_tokens) > 3 * 229);
        scheduler.drain().unwrap();
    }
}

#[test]
fn damage_is_found_removed_and_computed_again() {
    let mut seen = 0;
    for family in ["qwen3_moe", "qwen3_next"] {
        let dir = family_dir(family);
        let base = tokens(1, 140);
        let asked = request([base.as_slice(), &tokens(2, 9)].concat());
        let damages: [fn(&mut Vec<u8>); 6] = [
            |bytes| bytes[3] ^= 1,
            |bytes| bytes[12] ^= 1,
            |bytes| *bytes.last_mut().unwrap() ^= 1,
            |bytes| bytes.iter_mut().skip(32).step_by(500).for_each(|byte| *byte ^= 16),
            |bytes| bytes.truncate(bytes.len() - 1),
            Vec::clear,
        ];
        for (at, damage) in damages.iter().enumerate() {
            for extension in ["entry", "segment"] {
                let shelf = Shelf::new(ROOMY);
                let scheduler = shelf.start(&dir);
                answer(&scheduler, request(base.clone()));
                scheduler.drain().unwrap();
                let files = shelf.files();
                assert_eq!(files.len(), 2, "{files:?}");
                let file = files.iter().find(|file| file.extension().unwrap() == extension);
                let mut bytes = fs::read(file.unwrap()).unwrap();
                damage(&mut bytes);
                fs::write(file.unwrap(), bytes).unwrap();
                let scheduler = shelf.start(&dir);
                let got = answer(&scheduler, asked.clone());
                assert_eq!((got.reused, got.restored), (0, 0), "{family} {at} {extension}");
                bit_for_bit(&dir, &got, asked.clone(), "damaged");
                settled(&scheduler, 1);
                let notices = std::mem::take(&mut *shelf.notices.lock().unwrap());
                assert_eq!(notices.len(), 1, "{notices:?}");
                assert!(notices[0].starts_with("removed the damaged "), "{notices:?}");
                scheduler.drain().unwrap();
                assert!(files.iter().all(|file| !file.exists()), "{family} {at} {extension}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 24);
}

/// As a backup may bring them back that mixes files up. All of them are whole.
#[test]
fn segments_that_have_changed_places_are_found_out() {
    let (dir, shelf) = (family_dir("qwen3_next"), Shelf::new(ROOMY));
    let texts = [1, 2].map(|seed| tokens(seed, 140));
    let scheduler = shelf.start(&dir);
    texts.iter().for_each(|text| drop(answer(&scheduler, request(text.clone()))));
    scheduler.drain().unwrap();
    let is_segment = |file: &PathBuf| file.extension().unwrap() == "segment";
    let segments: Vec<PathBuf> = shelf.files().into_iter().filter(is_segment).collect();
    let [a, b] = [0, 1].map(|at| fs::read(&segments[at]).unwrap());
    [(0, b), (1, a)].iter().for_each(|(at, bytes)| fs::write(&segments[*at], bytes).unwrap());
    let scheduler = shelf.start(&dir);
    for text in texts {
        let asked = request([text, tokens(3, 9)].concat());
        let got = answer(&scheduler, asked.clone());
        assert_eq!((got.reused, got.restored), (0, 0));
        bit_for_bit(&dir, &got, asked, "mixed up");
    }
    assert_eq!(shelf.notices.lock().unwrap().len(), 2);
}

#[test]
fn a_torn_write_leaves_nothing_that_is_used() {
    let dir = family_dir("qwen3_moe");
    let shelf = Shelf::new(ROOMY);
    let scheduler = shelf.start(&dir);
    answer(&scheduler, request(tokens(1, 140)));
    scheduler.drain().unwrap();
    let files = shelf.files();
    let place = files[0].parent().unwrap();
    // Before the segment was renamed, and before its entry was.
    let segment = files.iter().find(|file| file.extension().unwrap() == "segment").unwrap();
    fs::copy(segment, place.join("00000000000000aa.new")).unwrap();
    fs::copy(segment, place.join("00000000000000ab.segment")).unwrap();
    let scheduler = shelf.start(&dir);
    assert_eq!(shelf.files().len(), 2);
    assert!(answer(&scheduler, request(tokens(1, 140))).restored > 0);
    scheduler.drain().unwrap();
    assert_eq!(*shelf.notices.lock().unwrap(), [""; 0]);
}

#[test]
fn prompts_that_begin_alike_are_read_once() {
    for family in FAMILIES {
        let dir = family_dir(family);
        let shelf = Shelf::new(ROOMY);
        let base = tokens(1, 150);
        let scheduler = shelf.start(&dir);
        answer(&scheduler, request(base.clone()));
        scheduler.drain().unwrap();
        let scheduler = shelf.start(&dir);
        let asked: Vec<_> = (0..3)
            .map(|seed| request([base.as_slice(), &tokens(10 + seed, 30)].concat()))
            .collect();
        let (jobs, ends): (Vec<Job>, Vec<_>) = asked.iter().cloned().map(job).unzip();
        scheduler.queue().push(jobs).unwrap();
        let mut restored = 0;
        for (ends, asked) in ends.iter().zip(asked) {
            let got = ends.recv().unwrap().unwrap();
            assert!(got.reused >= 149, "{family}: {}", got.reused);
            restored += got.restored;
            bit_for_bit(&dir, &got, asked, "together");
        }
        assert!((149..=150).contains(&restored), "{family}: {restored}");
        scheduler.drain().unwrap();
    }
}

/// The system prompt of many conversations is in memory: only what follows is read.
#[test]
fn what_is_in_memory_is_not_read() {
    let dir = family_dir("qwen3_moe");
    let shelf = Shelf::new(ROOMY);
    let base = tokens(1, 70);
    let long = [base.as_slice(), &tokens(2, 130)].concat();
    let scheduler = shelf.start(&dir);
    answer(&scheduler, request(long.clone()));
    scheduler.drain().unwrap();
    let scheduler = shelf.start(&dir);
    // Too little of it to be worth reading: a block of the long text is computed.
    answer(&scheduler, request([&base[..63], &tokens(3, 5)].concat()));
    answer(&scheduler, request([&base[..66], &tokens(4, 5)].concat()));
    let asked = request([long.as_slice(), &tokens(5, 5)].concat());
    let got = answer(&scheduler, asked.clone());
    assert_eq!((got.reused, got.restored), (200, 136), "one block was there");
    bit_for_bit(&dir, &got, asked, "partly in memory");
    scheduler.drain().unwrap();
}

#[test]
fn the_next_turn_writes_what_is_new() {
    for family in ["qwen3_moe", "qwen3_next"] {
        let dir = family_dir(family);
        let shelf = Shelf::new(ROOMY);
        let scheduler = shelf.start(&dir);
        let mut text = tokens(1, 190);
        let said = answer(&scheduler, request(text.clone())).tokens;
        settled(&scheduler, 1);
        let written = |scheduler: &Scheduler| count(&scheduler.activity().prefixes.spilled_bytes);
        let first = written(&scheduler);
        text.extend(&said[..5]);
        text.extend(tokens(2, 10));
        answer(&scheduler, request(text.clone()));
        until(|| written(&scheduler) > first && shelf.files().len() == 3);
        let second = written(&scheduler) - first;
        if !is_hybrid(family) {
            assert!(second * 2 < first, "{family}: {second} after {first}");
        }
        settled(&scheduler, 1);
        scheduler.drain().unwrap();
        let scheduler = shelf.start(&dir);
        text.extend(tokens(3, 10));
        let asked = request(text);
        let got = answer(&scheduler, asked.clone());
        assert!(got.restored >= 199, "{family}: {}", got.restored);
        bit_for_bit(&dir, &got, asked, "of two segments");
        scheduler.drain().unwrap();
    }
}

#[test]
fn who_leaves_while_the_prompt_is_read_leaves_nothing_behind() {
    let dir = family_dir("qwen3_moe");
    let shelf = Shelf::new(ROOMY);
    let base = tokens(1, 150);
    let scheduler = shelf.start(&dir);
    answer(&scheduler, request(base.clone()));
    scheduler.drain().unwrap();
    let scheduler = shelf.start(&dir);
    for _ in 0..10 {
        let mut started = false;
        let listener = Box::new(move |update: Update<'_>| {
            let leaves = started;
            started |= matches!(update, Update::Started);
            if leaves { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        scheduler.queue().push(vec![Job { request: request(base.clone()), listener }]).unwrap();
    }
    let ends: Vec<_> = (0..3).map(|seed| push(&scheduler, request(tokens(seed, 200)))).collect();
    ends.iter().for_each(|ends| drop(ends.recv().unwrap().unwrap()));
    let restored = count(&scheduler.activity().prefixes.restored_tokens);
    assert_eq!(restored, 150, "for the one who stayed and begins like it");
    scheduler.drain().unwrap();
}

#[cfg(unix)]
#[test]
fn nobody_else_looks_into_it() {
    use std::os::unix::fs::PermissionsExt;
    let shelf = Shelf::new(ROOMY);
    let scheduler = shelf.start(&family_dir("qwen3_moe"));
    answer(&scheduler, request(tokens(1, 140)));
    scheduler.drain().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for file in shelf.files() {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        assert_eq!(mode(file.parent().unwrap()), 0o700);
    }
}

#[test]
fn a_disk_that_takes_nothing_more_stops_nobody() {
    let dir = family_dir("qwen3_moe");
    let shelf = Shelf::new(ROOMY);
    let scheduler = shelf.start(&dir);
    // The directory has gone: no file can be made in it.
    let place = shelf.dir.path().join(format!("{:032x}", 1));
    fs::remove_dir_all(&place).unwrap();
    fs::write(&place, "").unwrap();
    for seed in 0..3 {
        let asked = request(tokens(seed, 140));
        let got = answer(&scheduler, asked.clone());
        bit_for_bit(&dir, &got, asked, "without a disk");
    }
    until(|| !shelf.notices.lock().unwrap().is_empty());
    scheduler.drain().unwrap();
    let notices = shelf.notices.lock().unwrap().join("\n");
    assert!(
        notices.starts_with("cannot keep prompts in ") && notices.lines().count() == 1,
        "{notices}"
    );
}

#[test]
fn a_disk_that_takes_something_again_is_written_to_again() {
    let dir = family_dir("qwen3_moe");
    let shelf = Shelf::new(ROOMY);
    let scheduler = shelf.start(&dir);
    let failures = |scheduler: &Scheduler| count(&scheduler.activity().prefixes.write_failures);
    let place = shelf.dir.path().join(format!("{:032x}", 1));
    fs::remove_dir_all(&place).unwrap();
    fs::write(&place, "").unwrap();
    answer(&scheduler, request(tokens(1, 140)));
    // While nobody asks for anything, it is tried again by itself.
    until(|| failures(&scheduler) >= 2);
    fs::remove_file(&place).unwrap();
    fs::create_dir(&place).unwrap();
    settled(&scheduler, 1);
    assert_eq!(shelf.notices.lock().unwrap().len(), 1, "said once");
    // What fails later is told again.
    fs::remove_dir_all(&place).unwrap();
    answer(&scheduler, request(tokens(2, 140)));
    until(|| shelf.notices.lock().unwrap().len() == 2);
    fs::create_dir(&place).unwrap();
    scheduler.drain().unwrap();
    assert_eq!(shelf.files().len(), 2, "written at the end, without waiting");
}
