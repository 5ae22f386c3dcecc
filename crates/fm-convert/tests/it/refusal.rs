//! What a conversion refuses, and that it leaves everything as it was.

use std::{fs, ops::ControlFlow, path::Path};

use fm_convert::{Conversion, ConvertError, record::record};
use fm_format::{FormatError, source::Checkpoint};

use crate::{
    harness::{Case, assert_same, convert, files_in, go_on},
    sim_disk::{Fault, SimDisk},
};

/// Stops a conversion in its middle.
fn interrupt(case: &Case) {
    let disk = SimDisk::default();
    case.convert_on(&disk).unwrap();
    fs::remove_dir_all(case.out()).unwrap();
    let late = disk.calls() * 3 / 4; // among the layers
    assert!(case.convert_on(&SimDisk::with_fault(late, Fault::Kill)).is_err());
}

#[test]
fn a_directory_with_somebody_elses_files_is_left_alone() {
    let case = Case::small();
    for name in ["notes.txt", "config.json", "manifest.json", ".hidden", "trunk.safetensors"] {
        fs::create_dir(case.out()).unwrap();
        fs::write(case.out().join(name), "{}").unwrap();
        let before = files_in(&case.out());
        let error = case.convert().unwrap_err();
        let entry_is_named =
            matches!(&error, ConvertError::Occupied { entry, .. } if entry.ends_with(name));
        let unfinished = matches!(&error, ConvertError::Format(FormatError::Unfinished { .. }));
        assert!(entry_is_named || unfinished, "{name}: {error}");
        assert_same(&case.out(), &before, name);
        fs::remove_dir_all(case.out()).unwrap();
    }
}

#[test]
fn somebody_elses_file_amid_half_a_conversion_is_left_alone() {
    let case = Case::small();
    interrupt(&case);
    for name in ["notes.txt", "experts/layer-003.bin", "experts/layer-0.bin"] {
        fs::write(case.out().join(name), "mine").unwrap();
        let before = files_in(&case.out());
        let error = case.convert().unwrap_err();
        assert!(
            matches!(&error, ConvertError::InTheWay { entry, .. } if entry.ends_with(name)),
            "{name}: {error}"
        );
        assert!(error.to_string().contains("remove it, and the conversion goes on"), "{error}");
        assert_same(&case.out(), &before, name);
        fs::remove_file(case.out().join(name)).unwrap();
    }
    case.convert().unwrap();
}

#[cfg(unix)]
#[test]
fn links_are_never_followed() {
    let case = Case::small();
    let elsewhere = case.dir.path().join("elsewhere");
    let precious = case.dir.path().join("precious");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(&precious, "mine").unwrap();
    let links = [
        ("experts", &elsewhere),
        ("trunk.safetensors", &precious),
        ("config.json.partial", &precious),
    ];
    for (name, target) in links {
        interrupt(&case);
        let link = case.out().join(name);
        let _ = fs::remove_dir_all(&link);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).unwrap();
        let error = case.convert().unwrap_err();
        assert!(matches!(error, ConvertError::InTheWay { .. }), "{name}: {error}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "{name}");
        assert_eq!(fs::read(&precious).unwrap(), b"mine", "{name}");
        fs::remove_dir_all(case.out()).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_link_to_nothing_is_no_file_to_do_without() {
    let case = Case::small();
    let path = case.source().join("generation_config.json");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("../blobs/gone", &path).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let recorded = record(&case.source(), cache.path(), &mut go_on).map(drop);
    for error in [case.convert().map(drop), recorded].map(Result::unwrap_err) {
        assert!(
            matches!(&error, ConvertError::Format(FormatError::Io { path, .. })
                if path.ends_with("generation_config.json")),
            "{error}"
        );
    }
}

#[test]
fn what_git_lfs_leaves_in_place_of_a_configuration_is_named() {
    let case = Case::small();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    fs::write(case.source().join("config.json"), pointer).unwrap();
    let error = case.convert().unwrap_err();
    assert!(matches!(error, ConvertError::Format(FormatError::LfsPointer { .. })), "{error}");
}

#[test]
fn a_file_in_place_of_the_directory_is_left_alone() {
    let case = Case::small();
    fs::write(case.out(), "mine").unwrap();
    let error = case.convert().unwrap_err();
    assert!(matches!(error, ConvertError::Read { .. }), "{error}");
    assert_eq!(fs::read(case.out()).unwrap(), b"mine");
}

/// Same names, same headers, other weights: what a fine-tuned model is.
fn change_one_weight(case: &Case) {
    let checkpoint = Checkpoint::open(&case.source()).unwrap();
    let extent = checkpoint.tensors["model.layers.1.self_attn.q_proj.weight"].extent;
    let path = &checkpoint.files[extent.file.0 as usize];
    let mut bytes = fs::read(path).unwrap();
    bytes[(extent.offset + extent.bytes / 2) as usize] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_container_of_another_checkpoint_is_left_alone() {
    let case = Case::small();
    case.convert().unwrap();
    let before = files_in(&case.out());
    change_one_weight(&case);
    let error = case.convert().unwrap_err();
    assert!(matches!(error, ConvertError::OtherSource { .. }), "{error}");
    assert_same(&case.out(), &before, "finished");
}

#[test]
fn half_a_container_of_another_checkpoint_is_not_continued() {
    for change in [change_one_weight as fn(&Case), |case| {
        fs::write(case.source().join("tokenizer.json"), r#"{"version":"2.0"}"#).unwrap();
    }] {
        let case = Case::small();
        interrupt(&case);
        let before = files_in(&case.out());
        change(&case);
        let error = case.convert().unwrap_err();
        assert!(matches!(error, ConvertError::OtherSource { .. }), "{error}");
        assert_same(&case.out(), &before, "begun");
    }
}

#[test]
fn the_source_is_no_place_for_a_container() {
    let case = Case::small();
    let before = files_in(&case.source());
    for out in ["", "container", "deep/below/it", "../source/again"] {
        let error = convert(&case.source(), &case.source().join(out)).unwrap_err();
        assert!(matches!(error, ConvertError::InsideSource { .. }), "{out}: {error}");
    }
    assert_same(&case.source(), &before, "refused");
}

#[test]
fn a_container_is_not_converted_again() {
    let case = Case::small();
    case.convert().unwrap();
    let error = convert(&case.out(), &case.dir.path().join("again")).unwrap_err();
    assert!(matches!(error, ConvertError::ContainerSource { .. }), "{error}");
}

#[test]
fn too_little_space_is_noticed_before_anything_is_written() {
    let case = Case::small();
    let error = case.convert_on(&SimDisk::with_free_bytes(300_000)).unwrap_err();
    let ConvertError::NoSpace { needed, free: 300_000, .. } = error else { panic!("{error}") };
    assert!(!case.out().exists());
    fs::create_dir(case.out()).unwrap();
    let refused = case.convert_on(&SimDisk::with_free_bytes(300_000));
    assert!(matches!(refused, Err(ConvertError::NoSpace { .. })), "{refused:?}");
    assert!(files_in(&case.out()).is_empty());
    assert!(error.to_string().contains(&format!("free at least {}", needed - 300_000)), "{error}");
    case.convert_on(&SimDisk::with_free_bytes(needed)).unwrap();
    let written: usize = files_in(&case.out()).values().map(Vec::len).sum();
    assert!(written as u64 <= needed, "{written} bytes in {needed}");
}

#[test]
fn resuming_needs_space_only_for_the_rest() {
    let case = Case::small();
    let error = case.convert_on(&SimDisk::with_free_bytes(0)).unwrap_err();
    let ConvertError::NoSpace { needed: all, .. } = error else { panic!("{error}") };
    interrupt(&case);
    fs::write(case.out().join("experts/layer-002.bin.partial"), "half").unwrap();
    let error = case.convert_on(&SimDisk::with_free_bytes(0)).unwrap_err();
    let ConvertError::NoSpace { needed: rest, .. } = error else { panic!("{error}") };
    assert!(rest < all, "{rest} of {all}");
    let files = files_in(&case.out());
    let left = files.keys().find(|path| path.extension().is_some_and(|e| e == "partial"));
    assert_eq!(left, None, "what will be written again does not take up space");
}

#[cfg(not(windows))] // where a file locks, see `output::lock`
#[test]
fn one_converter_at_a_time() {
    let case = Case::small();
    fs::create_dir(case.out()).unwrap();
    let other = fs::File::open(case.out()).unwrap();
    other.lock().unwrap();
    let error = case.convert().unwrap_err();
    assert!(matches!(error, ConvertError::Busy { .. }), "{error}");
    drop(other);
    case.convert().unwrap();
}

#[test]
fn half_a_conversion_says_so_and_how_to_finish_it() {
    let case = Case::small();
    interrupt(&case);
    let error = Checkpoint::open(&case.out()).unwrap_err();
    assert!(matches!(error, FormatError::Unfinished { .. }), "{error}");
    assert!(error.to_string().contains("run convert again to resume it"), "{error}");
}

#[test]
fn a_damaged_journal_is_not_believed() {
    let case = Case::small();
    interrupt(&case);
    let journal = case.out().join("convert.journal");
    let mut text = fs::read(&journal).unwrap();
    text[30] ^= 1;
    fs::write(&journal, text).unwrap();
    let error = case.convert().unwrap_err();
    assert!(matches!(error, ConvertError::Journal { .. }), "{error}");
}

#[test]
fn a_caller_may_stop_at_any_report_and_go_on_later() {
    let case = Case::small();
    let (source, out) = (case.source(), case.out());
    let conversion = Conversion { checkpoint: &source, out: &out, buffer_bytes: 1 };
    conversion.run(&mut go_on).unwrap();
    let expected = files_in(&out);
    fs::remove_dir_all(&out).unwrap();
    let mut patience = 0;
    loop {
        let mut reports = 0;
        let outcome = conversion.run(&mut |_| {
            reports += 1;
            if reports > patience { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match outcome {
            Ok(_) => break,
            Err(ConvertError::Cancelled) => patience += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(patience > 5, "{patience}");
    assert_same(&out, &expected, "stopped many times");
}

#[test]
fn a_checkpoint_that_cannot_be_run_is_not_converted() {
    let case = Case::small();
    fs::write(case.source().join("config.json"), r#"{"model_type":"gpt9"}"#).unwrap();
    assert!(matches!(case.convert(), Err(ConvertError::Load(_))));
    let nothing = Path::new("/nonexistent");
    assert!(matches!(convert(nothing, &case.out()), Err(ConvertError::Format(_))));
    assert!(!case.out().exists());
}
