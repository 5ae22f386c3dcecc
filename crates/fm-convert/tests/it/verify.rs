//! Every byte of a container has a checksum, and a published checkpoint can get them.

use std::{fs, path::Path, time::Duration};

use fm_convert::{
    ConvertError,
    record::record,
    verify::{Checked, Part, Report, Touched, verify},
};
use fm_format::{
    container::recorded::{Found, Recorded},
    key::{ExpertIndex, ExpertKey, LayerIndex},
    source::Checkpoint,
};
use fm_model::arch::describe;
use fm_testkit::tiny_checkpoint::{Family, Layout, MlxLayout, TinyModel};

use crate::harness::{Case, files_in, go_on};

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn key(layer: u16, expert: u16) -> ExpertKey {
    ExpertKey { layer: LayerIndex(layer), expert: ExpertIndex(expert) }
}

#[test]
fn a_sound_container_is_read_to_the_last_byte() {
    let case = Case::small();
    case.convert().unwrap();
    let report = verify(&case.out(), None, &mut go_on).unwrap();
    assert!(report.is_container && !report.small_files_unknown);
    let Report { files, records, parts, mismatches, first, bytes, tensors, .. } = report;
    assert_eq!((files, records, parts, mismatches, first), (4, 10, 20, 0, None));
    let mut all = files_in(&case.out());
    all.remove(Path::new("manifest.json"));
    assert_eq!(bytes as usize, all.values().map(Vec::len).sum::<usize>());
    assert_eq!(tensors as usize, Checkpoint::open(&case.out()).unwrap().tensors.len());
}

/// The promise that nothing escapes: flips in steps of a prime, over every file.
#[test]
fn a_flipped_bit_anywhere_is_found_or_refused() {
    let case = Case::small();
    case.convert().unwrap();
    for (name, bytes) in files_in(&case.out()) {
        let path = case.out().join(&name);
        // A manifest has fields that a flip leaves meaningful (the source's fingerprint).
        if name.ends_with("manifest.json") {
            continue;
        }
        let step = (bytes.len() / 40).max(1) | 1;
        for at in (0..bytes.len()).step_by(step) {
            flip(&path, at);
            let found = verify(&case.out(), None, &mut go_on);
            assert!(
                found.as_ref().map_or(true, |report| report.mismatches > 0),
                "{} byte {at}: {found:?}",
                name.display()
            );
            flip(&path, at);
        }
    }
    assert_eq!(verify(&case.out(), None, &mut go_on).unwrap().mismatches, 0);
}

#[test]
fn a_mismatch_names_layer_expert_part_file_and_offset() {
    let case = Case::small();
    case.convert().unwrap();
    let checkpoint = Checkpoint::open(&case.out()).unwrap();
    let layout = describe(&checkpoint).unwrap().catalog.layer(LayerIndex(2)).layout;
    let path = case.out().join("experts/layer-002.bin");
    let record = 3 * layout.bytes();
    let (second, weights) = (layout.first_part_bytes(), layout.gate.bytes() + layout.up.bytes());
    assert!(weights < second, "there is padding");
    let key = key(2, 3);
    let cases = [
        (7, 0, Checked::Part { key, part: Part::GateUp }),
        (second + 7, second, Checked::Part { key, part: Part::Down }),
        (second - 1, weights, Checked::Padding { key, part: Part::GateUp }),
    ];
    for (at, offset, what) in cases {
        flip(&path, record + at);
        let first = verify(&case.out(), None, &mut go_on).unwrap().first.unwrap();
        assert_eq!((&first.what, &first.path), (&what, &path));
        assert_eq!(first.offset as usize, record + offset);
        assert!(first.to_string().contains("layer 2 expert 3"), "{first}");
        flip(&path, record + at);
    }
}

/// The same bytes under another dtype: every tensor has its checksum, and is another tensor.
#[test]
fn the_header_of_the_trunk_is_checked_too() {
    let case = Case::small();
    case.convert().unwrap();
    let path = case.out().join("trunk.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|text| text == b"\"BF16\",").unwrap();
    bytes[at..at + 7].copy_from_slice(b"\"F16\", ");
    fs::write(&path, bytes).unwrap();
    let report = verify(&case.out(), None, &mut go_on).unwrap();
    assert_eq!((report.mismatches, report.first.unwrap().what), (1, Checked::TrunkHeader));
}

#[test]
fn verification_goes_on_after_a_mismatch() {
    let case = Case::small();
    case.convert().unwrap();
    flip(&case.out().join("tokenizer.json"), 2);
    flip(&case.out().join("experts/layer-000.bin"), 2);
    let end = fs::metadata(case.out().join("trunk.safetensors")).unwrap().len() as usize;
    flip(&case.out().join("trunk.safetensors"), end - 1);
    let report = verify(&case.out(), None, &mut go_on).unwrap();
    assert_eq!((report.mismatches, report.records), (3, 10));
    assert_eq!(report.first.unwrap().what, Checked::File);
}

/// A published checkpoint with a cache directory beside it.
struct Published {
    case: Case,
}

impl Published {
    fn new(layout: &Layout) -> Self {
        let model = TinyModel { layers: 2, ..TinyModel::new(Family::Qwen3Moe) };
        Self { case: Case::new(&model, layout, 2) }
    }

    fn cache(&self) -> std::path::PathBuf {
        self.case.dir.path().join("cache")
    }

    fn record(&self) {
        let written = record(&self.case.source(), &self.cache(), &mut go_on).unwrap();
        assert!(written.path.starts_with(self.cache()) && written.records == 12);
    }

    fn verify(&self) -> Result<Report, ConvertError> {
        verify(&self.case.source(), Some(&self.cache()), &mut go_on)
    }

    fn find(&self) -> Found {
        let checkpoint = Checkpoint::open(&self.case.source()).unwrap();
        Recorded::find(&self.cache(), &checkpoint).unwrap()
    }

    fn shard(&self) -> std::path::PathBuf {
        self.case.source().join("model-00002-of-00002.safetensors")
    }

    /// Changes bytes as a failing disk does: nobody is told.
    fn rot(&self, at: usize) {
        let modified = fs::metadata(self.shard()).unwrap().modified().unwrap();
        flip(&self.shard(), at);
        let file = fs::File::options().write(true).open(self.shard()).unwrap();
        file.set_modified(modified).unwrap();
    }
}

#[test]
fn recorded_checksums_are_those_of_the_container() {
    for layout in [Layout::Hf, Layout::Mlx(MlxLayout::uniform(4, 32))] {
        let published = Published::new(&layout);
        assert!(matches!(published.find(), Found::Absent));
        published.record();
        let Found::Current(recorded) = published.find() else { panic!("just recorded") };
        let mut catalog =
            describe(&Checkpoint::open(&published.case.source()).unwrap()).unwrap().catalog;
        assert!(recorded.fill(std::sync::Arc::make_mut(&mut catalog)));
        published.case.convert().unwrap();
        let container = Checkpoint::open(&published.case.out()).unwrap();
        let expected = describe(&container).unwrap().catalog;
        for (layer, expected) in catalog.layers.iter().zip(&expected.layers) {
            let sums = |layer: &fm_format::record::LayerRecords| {
                layer.records.iter().map(|record| record.checksums.unwrap()).collect::<Vec<_>>()
            };
            assert_eq!(layer.as_ref().map(sums), expected.as_ref().map(sums));
        }
        let manifest = container.container.unwrap().manifest;
        assert_eq!(recorded.tensors, manifest.trunk.tensors);
        let files = manifest.files.into_iter().map(|(name, entry)| (name, entry.xxh3)).collect();
        assert_eq!(recorded.small_files, Some(files));
    }
}

#[test]
fn a_rotten_bit_of_a_published_checkpoint_is_found() {
    for layout in [Layout::Hf, Layout::Mlx(MlxLayout::uniform(4, 32))] {
        let published = Published::new(&layout);
        assert!(matches!(published.verify(), Err(ConvertError::NotRecorded { .. })));
        published.record();
        let report = published.verify().unwrap();
        assert_eq!((report.records, report.parts, report.mismatches), (12, 24, 0));
        let checkpoint = Checkpoint::open(&published.case.source()).unwrap();
        let catalog = describe(&checkpoint).unwrap().catalog;
        let pieces = &catalog.record(key(1, 4)).pieces;
        let extent = pieces.last().unwrap().extent; // of down
        assert!(catalog.path(extent.file).ends_with("model-00002-of-00002.safetensors"));
        published.rot(extent.offset as usize + 9);
        let first = published.verify().unwrap().first.unwrap();
        assert_eq!(first.what, Checked::Part { key: key(1, 4), part: Part::Down });
        assert_eq!(first.path, published.shard());
    }
}

/// Small files decide about arithmetic and tokens as weights do.
#[test]
fn a_small_file_that_is_another_is_named() {
    let published = Published::new(&Layout::Hf);
    published.record();
    let sound = published.verify().unwrap();
    assert_eq!((sound.files, sound.mismatches, sound.small_files_unknown), (4, 0, false));
    let Found::Current(recorded) = published.find() else { panic!("just recorded") };
    let check = || {
        let checkpoint = Checkpoint::open(&published.case.source()).unwrap();
        recorded.check_small_files(&checkpoint).map_err(|error| error.to_string())
    };
    check().unwrap();
    for name in ["config.json", "tokenizer.json"] {
        let path = published.case.source().join(name);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text} ")).unwrap();
        assert!(check().unwrap_err().contains(&format!("{name} had other bytes")));
        let report = published.verify().unwrap();
        let first = report.first.unwrap();
        assert_eq!((report.mismatches, first.what, first.path), (1, Checked::File, path.clone()));
        fs::write(&path, text).unwrap();
    }
    check().unwrap();
    let path = published.case.source().join("tokenizer.json");
    let text = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(published.verify().unwrap_err().to_string().contains("tokenizer.json is gone"));
    fs::write(&path, text).unwrap();
    let added = published.case.source().join("chat_template.jinja");
    fs::write(&added, "{{ 1 }}").unwrap();
    let error = published.verify().unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja was not there"), "{error}");
    assert_eq!(check().unwrap_err(), error);
    published.record();
    assert_eq!(published.verify().unwrap().files, sound.files + 1);
}

/// Another number of layers asks for other tensors of the same files: it is not the weights that were replaced.
#[test]
fn a_configuration_that_asks_for_other_tensors_is_named_too() {
    let published = Published::new(&Layout::Hf);
    published.record();
    let path = published.case.source().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["tie_word_embeddings"] = true.into();
    fs::write(&path, config.to_string()).unwrap();
    let error = published.verify().unwrap_err().to_string();
    assert!(error.contains("config.json had other bytes"), "{error}");
}

#[test]
fn a_record_without_small_files_is_read() {
    let published = Published::new(&Layout::Hf);
    published.record();
    let path = Recorded::path(&published.cache(), &published.case.source()).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record.as_object_mut().unwrap().remove("small_files").unwrap();
    fs::write(&path, record.to_string()).unwrap();
    flip(&published.case.source().join("tokenizer.json"), 1);
    let report = published.verify().unwrap();
    assert_eq!((report.files, report.mismatches, report.small_files_unknown), (0, 0, true));
}

#[test]
fn replaced_files_and_other_catalogs_make_checksums_stale() {
    let published = Published::new(&Layout::Hf);
    published.record();
    let Found::Current(recorded) = published.find() else { panic!("just recorded") };
    let mut other = describe(&Checkpoint::open(&Case::small().source()).unwrap()).unwrap().catalog;
    assert!(!recorded.fill(std::sync::Arc::make_mut(&mut other)), "three layers are not two");
    assert!(other.layers.iter().flatten().all(|l| l.records.iter().all(|r| r.checksums.is_none())));

    let touch = || {
        let file = fs::File::options().write(true).open(published.shard()).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_modified(modified + Duration::from_secs(1)).unwrap();
        assert!(matches!(published.find(), Found::Stale(Some(_))));
    };
    // The same bytes are the same file.
    touch();
    let report = published.verify().unwrap();
    assert_eq!((report.touched, report.mismatches), (Touched::Renewed, 0));
    assert!(matches!(published.find(), Found::Current(_)), "it is known as it is now");
    assert_eq!(published.verify().unwrap().touched, Touched::No);
    // Other ones are named, as often as one asks.
    let bytes = fs::metadata(published.shard()).unwrap().len() as usize;
    flip(&published.shard(), bytes - 1);
    touch();
    for _ in 0..2 {
        let report = published.verify().unwrap();
        assert_eq!((report.touched, report.mismatches), (Touched::NotRenewed, 1));
        assert_eq!(report.first.unwrap().path, published.shard());
    }
    let file = fs::File::options().append(true).open(published.shard()).unwrap();
    file.set_len(bytes as u64 + 8).unwrap();
    let refused = published.verify().unwrap_err().to_string();
    assert!(refused.contains(&*published.shard().to_string_lossy()), "{refused}");
}

#[test]
fn a_damaged_record_in_the_cache_is_stale_not_fatal() {
    let published = Published::new(&Layout::Hf);
    published.record();
    let path = Recorded::path(&published.cache(), &published.case.source()).unwrap();
    for text in ["", "{", "{}", "[]"] {
        fs::write(&path, text).unwrap();
        assert!(matches!(published.find(), Found::Stale(None)), "{text:?}");
        assert!(matches!(published.verify(), Err(ConvertError::RecordDamaged { .. })));
    }
}

#[test]
fn a_container_needs_no_recording() {
    let case = Case::small();
    case.convert().unwrap();
    let cache = case.dir.path().join("cache");
    let refused = record(&case.out(), &cache, &mut go_on);
    assert!(matches!(refused, Err(ConvertError::ContainerSource { .. })));
}
