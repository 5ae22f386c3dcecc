//! Checkpoints to convert, and directories to compare.

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use fm_convert::{Conversion, ConvertError, Outcome, Progress, disk::Disk};
use fm_testkit::tiny_checkpoint::{Family, Layout, TinyModel};
use tempfile::TempDir;

/// Small enough that every layer takes several batches.
pub(crate) const BUFFER_BYTES: usize = 40_000;

/// A directory, in memory if possible: syncing to a disk would be most of the tests' time.
pub(crate) fn workplace() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A checkpoint and a place for its container.
pub(crate) struct Case {
    pub(crate) dir: TempDir,
}

impl Case {
    pub(crate) fn new(model: &TinyModel, layout: &Layout, shards: usize) -> Self {
        let case = Self { dir: workplace() };
        model.write(&case.source(), layout, shards);
        fs::write(case.source().join("tokenizer.json"), r#"{"version":"1.0"}"#).unwrap();
        fs::write(case.source().join("README.md"), "not copied").unwrap();
        let templates = case.source().join("additional_chat_templates");
        fs::create_dir(&templates).unwrap();
        fs::write(templates.join("tool_use.jinja"), "{{ tools }}").unwrap();
        fs::write(templates.join("rag.jinja"), "not copied").unwrap();
        case
    }

    /// Three layers, the middle one dense, in two files.
    pub(crate) fn small() -> Self {
        let model = TinyModel {
            layers: 3,
            experts: 5,
            moe_ffn: 40, // both parts of a record end in padding
            mlp_only_layers: vec![1],
            ..TinyModel::new(Family::Qwen3Moe)
        };
        Self::new(&model, &Layout::Hf, 2)
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    pub(crate) fn convert(&self) -> Result<Outcome, ConvertError> {
        convert(&self.source(), &self.out())
    }

    pub(crate) fn convert_on(&self, disk: &dyn Disk) -> Result<Outcome, ConvertError> {
        let (source, out) = (self.source(), self.out());
        let conversion = Conversion { checkpoint: &source, out: &out, buffer_bytes: BUFFER_BYTES };
        conversion.run_on(disk, &mut go_on)
    }
}

pub(crate) fn convert(source: &Path, out: &Path) -> Result<Outcome, ConvertError> {
    Conversion { checkpoint: source, out, buffer_bytes: BUFFER_BYTES }.run(&mut go_on)
}

pub(crate) fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Every file below a directory with its bytes.
pub(crate) fn files_in(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    collect(dir, dir, &mut found);
    found
}

fn collect(root: &Path, dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(root, &path, found);
        } else {
            found.insert(path.strip_prefix(root).unwrap().into(), fs::read(&path).unwrap());
        }
    }
}

/// As `assert_eq`, without showing megabytes.
pub(crate) fn assert_same(found: &Path, expected: &BTreeMap<PathBuf, Vec<u8>>, when: &str) {
    let found = files_in(found);
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(expected), "{when}");
    for (path, bytes) in &found {
        assert!(*bytes == expected[path], "{when}: {} differs", path.display());
    }
}
