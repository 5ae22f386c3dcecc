//! What lies in the directory when it is opened: what is whole is listed, everything else removed.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, DirBuilder, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use fm_model::{
    Runner,
    runner::{PieceBytes, Transfer},
};

use super::{
    Damage, Disk, DiskOptions, EntryId, Notice, Segment,
    entry::{Entry, SEGMENT_HEAD},
    writer::{NEW, Writer},
};
use crate::prefix::{Pin, PrefixCounts};

/// Bytes of an entry that is read at all.
const ENTRY_BYTES_MAX: u64 = 16 << 20;

/// Whoever has locked this file writes and removes beside it.
const LOCK: &str = "lock";

/// Why prompts cannot be kept on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The directory cannot be made, read or locked.
    #[error("cannot keep prompts in {}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another program has it.
    #[error("another server of this model keeps its prompts in {}", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
}

/// The directory of another fingerprint.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) dir: PathBuf,
    pub(super) bytes: u64,
    used: SystemTime,
}

impl Other {
    /// Takes it from whoever might come, if nobody uses it now.
    pub(super) fn take(&self) -> Option<File> {
        lock(&self.dir).ok()
    }
}

/// A directory that nobody but its owner looks into.
fn make_dir(dir: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)?;
    #[cfg(unix)]
    fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    Ok(())
}

/// Takes the directory; the lock ends with the file, however the program ends.
fn lock(dir: &Path) -> Result<File, DiskError> {
    let io_error = |source| DiskError::Io { dir: dir.to_path_buf(), source };
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    let file = options.open(dir.join(LOCK)).map_err(io_error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DiskError::InUse { dir: dir.to_path_buf() }),
        Err(TryLockError::Error(source)) => Err(io_error(source)),
    }
}

/// A file with its size and when it was last of use.
struct Found {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

fn found(dir: &Path) -> io::Result<Vec<Found>> {
    let files = fs::read_dir(dir)?.map(|file| {
        let file = file?;
        let data = file.metadata()?;
        Ok(Found { path: file.path(), bytes: data.len(), used: data.modified()? })
    });
    files.collect()
}

/// The directories of other fingerprints, least recently used last. One with anything else in it, whatever it is
/// called, is somebody else's.
fn others(root: &Path, own: &Path) -> Vec<Other> {
    let dirs = fs::read_dir(root).into_iter().flatten().flatten().map(|dir| dir.path());
    let is_other = |dir: &PathBuf| {
        let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        dir != own && name.len() == 32 && u128::from_str_radix(name, 16).is_ok()
    };
    let mut others: Vec<Other> = dirs
        .filter(is_other)
        .filter_map(|dir| {
            let files = found(&dir).ok()?;
            if !files.iter().all(|file| is_ours(&file.path)) {
                return None;
            }
            let used = files.iter().map(|file| file.used).max().unwrap_or(SystemTime::UNIX_EPOCH);
            Some(Other { bytes: files.iter().map(|file| file.bytes).sum(), used, dir })
        })
        .collect();
    others.sort_by_key(|other| std::cmp::Reverse(other.used));
    others
}

/// The number that a file is called by.
fn number(path: &Path, extension: &str) -> Option<u64> {
    let name = path.file_stem()?.to_str()?;
    let named = path.extension().is_some_and(|own| own == extension) && name.len() == 16;
    named.then(|| u64::from_str_radix(name, 16).ok()).flatten()
}

/// Whether a file is called as those are that prompts are kept in.
fn is_ours(path: &Path) -> bool {
    let kinds = ["entry", "segment", NEW];
    path.file_name() == Some(LOCK.as_ref()) || kinds.iter().any(|of| number(path, of).is_some())
}

/// Removes the directory of another fingerprint, and no file that is not kept there by us.
pub(super) fn remove_dir(dir: &Path) -> io::Result<()> {
    for file in found(dir)?.iter().filter(|file| is_ours(&file.path)) {
        fs::remove_file(&file.path)?;
    }
    fs::remove_dir(dir)
}

impl Disk {
    /// Lists what is there of this fingerprint.
    ///
    /// # Errors
    /// If the directory cannot be used, or is in use.
    pub(crate) fn start(
        options: DiskOptions,
        runner: &dyn Runner,
        counts: Arc<PrefixCounts>,
    ) -> Result<Self, DiskError> {
        let DiskOptions { dir: root, bytes_max, fingerprint, notices } = options;
        let dir = root.join(format!("{fingerprint:032x}"));
        let io_error = |source| DiskError::Io { dir: dir.clone(), source };
        make_dir(&dir).map_err(io_error)?;
        let lock = lock(&dir)?;
        let mut files = found(&dir).map_err(io_error)?;
        files.sort_by_key(|file| file.used);
        let pieces = runner.piece_bytes();
        let writer = Writer::start(pieces.part_max).map_err(io_error)?;
        let mut disk = Self {
            others: others(&root, &dir),
            in_use: Vec::new(),
            bytes_unlisted: 0,
            fingerprint,
            bytes_max,
            pieces,
            forks_anywhere: runner.forks_anywhere(),
            entries: Vec::new(),
            segments: HashMap::new(),
            clock: 0,
            spill: None,
            transfer: Transfer::default(),
            pause: None,
            writer: Some(writer),
            counts,
            notices,
            told_too_large: false,
            _lock: lock,
            dir,
        };
        disk.take(&files);
        // Others need the disk too.
        let free = fs4::available_space(&disk.dir).unwrap_or(u64::MAX);
        disk.bytes_max = bytes_max.min(disk.bytes().saturating_add(free / 2));
        let sessions = disk.entries.len();
        disk.make_room((0, 0), &Pin::Prefilled);
        let sessions = sessions - disk.entries.len();
        if sessions > 0 {
            let (dir, bytes_max) = (disk.dir.clone(), disk.bytes_max);
            (disk.notices)(&Notice::Outgrown { dir, bytes_max, sessions });
        }
        disk.count();
        Ok(disk)
    }

    /// Lists entries whose segments are there, and removes all other files; where an entry cannot be read now, only those
    /// that cannot be of it.
    fn take(&mut self, files: &[Found]) {
        for file in files {
            if let Some(segment) = number(&file.path, "segment") {
                self.segments.insert(segment, Segment { bytes: file.bytes, references: 0 });
            }
        }
        let mut all_read = true;
        for file in files {
            let Some(id) = number(&file.path, "entry") else { continue };
            let path = file.path.clone();
            match self.read(file) {
                Ok(entry) => {
                    let pin = entry.name.clone().map_or(Pin::None, Pin::Conversation);
                    self.list(EntryId(id), Arc::new(entry), file.bytes, pin);
                }
                Err(source) if source.is_lasting() => {
                    (self.notices)(&Notice::Damaged { path, source });
                }
                Err(source) => {
                    all_read = false;
                    (self.notices)(&Notice::NotRead { path, source });
                }
            }
        }
        self.segments.retain(|_, segment| segment.references > 0);
        let listed: HashSet<u64> = self.entries.iter().map(|listed| listed.id.0).collect();
        for file in files {
            let known = number(&file.path, "entry").is_some_and(|id| listed.contains(&id));
            let segment = number(&file.path, "segment");
            let needed = segment.is_some_and(|name| self.segments.contains_key(&name));
            let is_lock = file.path.file_name() == Some(LOCK.as_ref());
            if !is_ours(&file.path) || is_lock || known || needed {
                continue;
            }
            if all_read || number(&file.path, NEW).is_some() {
                // What cannot be removed is tried again at the next start.
                let _ = fs::remove_file(&file.path);
            } else {
                self.bytes_unlisted += file.bytes;
            }
        }
    }

    /// An entry all of whose pieces lie within their segments.
    fn read(&self, file: &Found) -> Result<Entry, Damage> {
        if file.bytes > ENTRY_BYTES_MAX {
            return Err(Damage::Foreign);
        }
        let bytes = fs::read(&file.path)?;
        let entry = Entry::from_bytes(&bytes, self.fingerprint, self.pieces);
        let entry = entry.ok_or(Damage::Foreign)?;
        if self.holds(&entry) { Ok(entry) } else { Err(Damage::Foreign) }
    }

    fn holds(&self, entry: &Entry) -> bool {
        let PieceBytes { block, memories, .. } = self.pieces;
        let marks = entry.marks.iter().map(|mark| (mark.1, memories));
        let spans =
            entry.spans.iter().map(|span| (span.at, block.saturating_mul(u64::from(span.blocks))));
        marks.chain(spans).all(|(at, bytes)| {
            let there = self.segments.get(&at.segment).map_or(0, |segment| segment.bytes);
            at.offset >= SEGMENT_HEAD as u64 && at.offset.saturating_add(bytes) <= there
        })
    }
}
