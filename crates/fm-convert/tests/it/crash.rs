//! Whatever happens at whatever call: the next run makes the container that an undisturbed run
//! makes, and before that nothing pretends to be one.

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use fm_convert::{Conversion, ConvertError, Outcome};
use fm_format::{FormatError, source::Checkpoint};

use crate::{
    harness::{Case, assert_same, files_in},
    sim_disk::{Fault, Names, PowerCut, SimDisk},
};

/// A checkpoint, its container, and how many calls that took.
struct Undisturbed {
    case: Case,
    files: BTreeMap<PathBuf, Vec<u8>>,
    calls: u64,
    writes: u64,
}

impl Undisturbed {
    fn new() -> Self {
        let case = Case::small();
        let disk = SimDisk::default();
        case.convert_on(&disk).unwrap();
        let (files, calls, writes) = (files_in(&case.out()), disk.calls(), disk.writes());
        assert!(calls > 60 && writes > 20, "{calls} calls, {writes} writes");
        let undisturbed = Self { case, files, calls, writes };
        undisturbed.start_over();
        undisturbed
    }

    fn start_over(&self) {
        fs::remove_dir_all(self.case.out()).unwrap();
    }

    /// Half a conversion is never opened as a model; a whole one is whole.
    fn assert_honest(&self, when: &str) {
        match Checkpoint::open(&self.case.out()) {
            Ok(_) => {
                let mut files = files_in(&self.case.out());
                files.remove(Path::new("convert.journal"));
                assert!(files == self.files, "{when}: a container that is not whole");
            }
            Err(
                FormatError::Unfinished { .. }
                | FormatError::NoModel { .. }
                | FormatError::NotThere { .. },
            ) => {}
            Err(error) => panic!("{when}: {error}"),
        }
    }

    fn assert_finishes(&self, when: &str) {
        let outcome = self.case.convert_on(&SimDisk::default());
        outcome.unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_same(&self.case.out(), &self.files, when);
    }
}

#[test]
fn killed_at_every_call() {
    let undisturbed = Undisturbed::new();
    for call in 0..undisturbed.calls {
        let when = format!("killed at call {call}");
        let killed = undisturbed.case.convert_on(&SimDisk::with_fault(call, Fault::Kill));
        assert!(killed.is_err(), "{when}");
        undisturbed.assert_honest(&when);
        undisturbed.assert_finishes(&when);
        undisturbed.start_over();
    }
}

#[test]
fn killed_at_every_call_and_again_at_another() {
    let undisturbed = Undisturbed::new();
    for first in 0..undisturbed.calls {
        for second in (first % 7..undisturbed.calls).step_by(7) {
            let when = format!("killed at call {first}, then at call {second}");
            for call in [first, second] {
                // A run that resumes makes fewer calls and may be done before.
                let _ = undisturbed.case.convert_on(&SimDisk::with_fault(call, Fault::Kill));
                undisturbed.assert_honest(&when);
            }
            undisturbed.assert_finishes(&when);
            undisturbed.start_over();
        }
    }
}

#[test]
fn a_container_that_lost_a_file_is_mended_after_every_call() {
    let undisturbed = Undisturbed::new();
    for call in 0.. {
        let when = format!("killed at call {call}");
        undisturbed.assert_finishes("before");
        fs::remove_file(undisturbed.case.out().join("experts/layer-002.bin")).unwrap();
        let disk = SimDisk::with_fault(call, Fault::Kill);
        let done = undisturbed.case.convert_on(&disk).is_ok();
        if Checkpoint::open(&undisturbed.case.out()).is_ok() {
            undisturbed.assert_honest(&when);
        }
        undisturbed.assert_finishes(&when);
        if done {
            assert!(call > 20, "{call} calls");
            break;
        }
    }
}

#[test]
fn power_cut_at_every_call() {
    let undisturbed = Undisturbed::new();
    for (names, bytes) in [
        (Names::Oldest, false),
        (Names::Oldest, true),
        (Names::All, false),
        (Names::None, true),
        (Names::All, true),
    ] {
        let cut = PowerCut { names, bytes };
        for call in 0..=undisturbed.calls {
            let when = format!("{cut:?} at call {call}");
            let disk = SimDisk::with_fault(call, Fault::Kill);
            let done = undisturbed.case.convert_on(&disk).is_ok();
            assert_eq!(done, call == undisturbed.calls, "{when}");
            disk.cut_power(cut);
            if done {
                assert_same(&undisturbed.case.out(), &undisturbed.files, &when);
            }
            undisturbed.assert_honest(&when);
            undisturbed.assert_finishes(&when);
            undisturbed.start_over();
        }
    }
}

#[test]
fn an_error_at_every_call() {
    let undisturbed = Undisturbed::new();
    for call in 0..undisturbed.calls {
        let when = format!("an error at call {call}");
        let failed = undisturbed.case.convert_on(&SimDisk::with_fault(call, Fault::Fail));
        let error = failed.expect_err(&when);
        assert!(
            matches!(error, ConvertError::Write { .. } | ConvertError::Read { .. }),
            "{when}: {error}"
        );
        undisturbed.assert_honest(&when);
        undisturbed.assert_finishes(&when);
        undisturbed.start_over();
    }
}

#[test]
fn a_file_system_that_is_full_at_every_write() {
    let undisturbed = Undisturbed::new();
    for write in 0..undisturbed.writes {
        let when = format!("full at write {write}");
        let failed = undisturbed.case.convert_on(&SimDisk::with_fault(write, Fault::Full));
        let error = failed.expect_err(&when);
        assert!(matches!(error, ConvertError::DiskFull { .. }), "{when}: {error}");
        let files = files_in(&undisturbed.case.out());
        let left = files.keys().find(|path| path.extension().is_some_and(|e| e == "partial"));
        assert_eq!(left, None, "{when}: no half file keeps the space");
        undisturbed.assert_honest(&when);
        undisturbed.assert_finishes(&when);
        undisturbed.start_over();
    }
}

/// Stops before the manifest is written: everything else is finished.
fn stop_at_the_manifest(undisturbed: &Undisturbed) -> SimDisk {
    let disk = SimDisk::with_fault(undisturbed.writes - 1, Fault::Full);
    assert!(undisturbed.case.convert_on(&disk).is_err());
    disk
}

#[test]
fn finished_layers_are_not_written_again_not_even_after_a_power_cut() {
    let undisturbed = Undisturbed::new();
    let disk = stop_at_the_manifest(&undisturbed);
    disk.cut_power(PowerCut { names: Names::All, bytes: true });
    let layer = undisturbed.case.out().join("experts/layer-000.bin");
    let before = fs::metadata(&layer).unwrap().modified().unwrap();
    let mut first = None;
    let (source, out) = (undisturbed.case.source(), undisturbed.case.out());
    let conversion = Conversion { checkpoint: &source, out: &out, buffer_bytes: 1 };
    let outcome = conversion.run_on(&SimDisk::default(), &mut |progress| {
        first.get_or_insert(progress);
        ControlFlow::Continue(())
    });
    let Ok(Outcome::Converted { bytes, bytes_resumed }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(bytes, bytes_resumed);
    let first = first.unwrap();
    assert_eq!((first.bytes_done, first.bytes_total, first.eta), (bytes, bytes, None));
    assert_eq!(fs::metadata(&layer).unwrap().modified().unwrap(), before);
    assert_same(&out, &undisturbed.files, "resumed at the manifest");
}

#[test]
fn a_finished_file_that_lost_its_end_is_written_again() {
    let undisturbed = Undisturbed::new();
    stop_at_the_manifest(&undisturbed);
    for name in ["experts/layer-002.bin", "trunk.safetensors", "config.json"] {
        let path = undisturbed.case.out().join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[1..]).unwrap();
    }
    undisturbed.assert_finishes("shortened");
}

#[test]
fn a_journal_is_believed_up_to_its_first_damaged_line() {
    let undisturbed = Undisturbed::new();
    stop_at_the_manifest(&undisturbed);
    let path = undisturbed.case.out().join("convert.journal");
    let journal = fs::read_to_string(&path).unwrap();
    // One digit of a layer's last checksum, which is valid JSON all the same.
    let at = journal.rfind("\"]").unwrap() - 1;
    let digit = if journal.as_bytes()[at] == b'0' { "1" } else { "0" };
    let damaged = format!("{}{digit}{}", &journal[..at], &journal[at + 1..]);
    for text in [damaged, journal[..at].to_owned(), format!("{journal}\0\0\0\n")] {
        fs::write(&path, text).unwrap();
        undisturbed.assert_finishes("damaged");
        undisturbed.start_over();
        stop_at_the_manifest(&undisturbed);
    }
}
