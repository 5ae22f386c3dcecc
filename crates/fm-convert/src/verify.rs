//! Re-reads everything and compares it with its checksums.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use fm_format::{
    FormatError,
    container::{
        manifest::Checksum,
        recorded::{Found, Recorded},
    },
    error::FileChange,
    key::ExpertKey,
    source::Checkpoint,
};
use fm_model::arch;

use crate::{error::ConvertError, progress::OnProgress, record};

mod check;

use check::{Check, Known};

/// What was checked, and what was wrong.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Small files.
    pub files: u64,
    /// Tensors of the trunk.
    pub tensors: u64,
    /// Routed experts.
    pub records: u64,
    /// Their parts, each with a checksum of its own.
    pub parts: u64,
    /// Bytes of all of these.
    pub bytes: u64,
    /// How many of them are not what they were.
    pub mismatches: u64,
    /// The first of those.
    pub first: Option<Mismatch>,
    /// Whether it was a container, which its own manifest describes.
    pub is_container: bool,
    /// Whether small files were left out, because an older build recorded the checksums.
    pub small_files_unknown: bool,
    /// Whether weight files have other times of change than when they were recorded.
    pub touched: Touched,
}

/// What became of files that have another time of change than was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touched {
    /// There are none.
    #[default]
    No,
    /// They are the same, and known as they are now.
    Renewed,
    /// They are not the same, or that could not be written down.
    NotRenewed,
}

/// Something that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What it is.
    pub what: Checked,
    /// The file it lies in.
    pub path: PathBuf,
    /// Where it begins there.
    pub offset: u64,
    /// The checksum it had.
    pub expected: Checksum,
    /// The checksum it has.
    pub found: Checksum,
}

/// A thing with a checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// A small file.
    File,
    /// The header of the trunk.
    TrunkHeader,
    /// A tensor of the trunk.
    Tensor {
        /// Its name.
        name: String,
    },
    /// A part of a record.
    Part {
        /// The record.
        key: ExpertKey,
        /// Which of its parts.
        part: Part,
    },
    /// The zeros behind a part.
    Padding {
        /// The record.
        key: ExpertKey,
        /// The part before it.
        part: Part,
    },
}

/// One of the two parts of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `gate_proj` and `up_proj`.
    GateUp,
    /// `down_proj`.
    Down,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GateUp => "gate+up",
            Self::Down => "down",
        })
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("the file"),
            Self::TrunkHeader => f.write_str("the header"),
            Self::Tensor { name } => write!(f, "tensor `{name}`"),
            Self::Part { key, part } => write!(f, "{key}, {part},"),
            Self::Padding { key, part } => write!(f, "the padding of {key}, {part},"),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, path, offset, expected, found } = self;
        let path = path.display();
        write!(f, "{path}: {what} at byte {offset} has checksum {found}, expected {expected}")
    }
}

/// Checks a container against its manifest, or a published checkpoint against what was recorded of
/// it in `cache_dir`. Goes on after a mismatch, to the end.
///
/// # Errors
/// If something cannot be read, if nothing was recorded, or if `report` asks to stop. Wrong bytes
/// are no error here: they are in the report.
pub fn verify(
    dir: &Path,
    cache_dir: Option<&Path>,
    report: &mut OnProgress<'_>,
) -> Result<Report, ConvertError> {
    let checkpoint = Checkpoint::open_unchecked(dir)?;
    let mut spec = arch::describe(&checkpoint)?;
    if let Some(container) = &checkpoint.container {
        let manifest = &container.manifest;
        let files = manifest.files.iter().map(|(name, entry)| (name.clone(), entry.xxh3)).collect();
        let known = Known { tensors: &manifest.trunk.tensors, files: &files };
        let report = Check::new(&checkpoint, &spec.catalog, known, report).run()?;
        return Ok(Report { is_container: true, ..report });
    }
    let found = match cache_dir {
        Some(cache_dir) => Recorded::find(cache_dir, &checkpoint)?,
        None => Found::Absent,
    };
    let recorded = match found {
        Found::Absent => return Err(ConvertError::NotRecorded { dir: dir.into() }),
        Found::Stale(None) => return Err(ConvertError::RecordDamaged { dir: dir.into() }),
        Found::Stale(Some(recorded)) | Found::Current(recorded) => recorded,
    };
    let now = recorded.clone().renewed(&checkpoint)?;
    if let Some(name) = recorded.replaced(&now) {
        let beside = if dir.is_dir() { dir } else { dir.parent().unwrap_or(dir) };
        return Err(ConvertError::Replaced { path: beside.join(name) });
    }
    let fits = recorded.fill(Arc::make_mut(&mut spec.catalog))
        && recorded.tensors.keys().eq(&spec.trunk_tensors);
    match recorded.check_small_files(&checkpoint) {
        // One among others that may be wrong.
        Err(FormatError::RecordedFile { change: FileChange::Other, .. }) if fits => {}
        // Above all, a configuration that was edited and asks for other tensors of the same files.
        checked => checked?,
    }
    if !fits {
        return Err(ConvertError::OtherTensors { dir: dir.into() });
    }
    let files = recorded.small_files.clone().unwrap_or_default();
    let known = Known { tensors: &recorded.tensors, files: &files };
    let report = Check::new(&checkpoint, &spec.catalog, known, report).run()?;
    // Touched, copied or put back, and the same: from now on they are known as they are.
    let renew = |cache_dir: &Path| record::keep(&now, cache_dir, dir).is_ok();
    let touched = match now != recorded {
        false => Touched::No,
        true if report.mismatches == 0 && cache_dir.is_some_and(renew) => Touched::Renewed,
        true => Touched::NotRenewed,
    };
    Ok(Report { small_files_unknown: recorded.small_files.is_none(), touched, ..report })
}

/// Checksums as they should be and as they are.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    expected: Checksum,
    found: Checksum,
}

impl Report {
    /// Notes a mismatch, if it is one; `at` says what, in which file, and where.
    fn compare(&mut self, sums: Sums, at: impl FnOnce() -> (Checked, PathBuf, u64)) {
        let Sums { expected, found } = sums;
        if expected == found {
            return;
        }
        self.mismatches += 1;
        self.first.get_or_insert_with(|| {
            let (what, path, offset) = at();
            Mismatch { what, path, offset, expected, found }
        });
    }
}
