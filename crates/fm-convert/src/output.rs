//! The directory a container goes into: whose it is, and what is in it already.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use fm_format::container::{
    self, COPIED, EXPERTS, JOURNAL, MANIFEST, TEMPLATES, TRUNK, layer_file, manifest::Fingerprint,
};

use crate::{
    disk::{Disk, partial},
    error::ConvertError,
    journal::{self, Finished},
    staged::refusal,
};

/// What was found.
pub(crate) enum State {
    /// Nothing, or what precedes the first entry of a journal.
    Empty,
    /// An interrupted conversion, or a container that has lost files.
    Begun(Fingerprint, Vec<Finished>),
    /// A container.
    Finished(Fingerprint),
}

/// Keeps other converters out while it lives; ends with the process, however that ends.
pub(crate) struct Lock {
    _held: File,
}

#[cfg(not(windows))]
pub(crate) fn lock(out: &Path) -> Result<Lock, ConvertError> {
    let dir = File::open(out).map_err(|source| ConvertError::Read { path: out.into(), source })?;
    match dir.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Err(ConvertError::Busy { out: out.into() }),
        // A file system without locks is used by one converter at a time.
        Ok(()) | Err(fs::TryLockError::Error(_)) => Ok(Lock { _held: dir }),
    }
}

/// A file that nobody else may open, and that goes with whoever holds it: Windows locks no directories.
#[cfg(windows)]
pub(crate) fn lock(out: &Path) -> Result<Lock, ConvertError> {
    use std::os::windows::fs::OpenOptionsExt;
    const GENERIC_WRITE: u32 = 0x4000_0000;
    const DELETE: u32 = 0x0001_0000;
    const FILE_FLAG_DELETE_ON_CLOSE: u32 = 0x0400_0000;
    const ERROR_SHARING_VIOLATION: i32 = 32;
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    options.access_mode(GENERIC_WRITE | DELETE).share_mode(0);
    options.custom_flags(FILE_FLAG_DELETE_ON_CLOSE);
    match options.open(out.join(LOCK)) {
        Ok(file) => Ok(Lock { _held: file }),
        Err(error) if error.raw_os_error() == Some(ERROR_SHARING_VIOLATION) => {
            Err(ConvertError::Busy { out: out.into() })
        }
        Err(source) => Err(ConvertError::Read { path: out.into(), source }),
    }
}

/// Name of that file.
const LOCK: &str = "convert.lock";

/// Looks at `out` and refuses whatever no conversion has put there.
pub(crate) fn inspect(out: &Path, layers: usize) -> Result<State, ConvertError> {
    let mut entries = entries(out)?;
    entries.retain(|entry| !(cfg!(windows) && *entry == out.join(LOCK)));
    let has = |name: &str| entries.contains(&out.join(name));
    let begun = has(JOURNAL);
    let occupied = |entry: &PathBuf| {
        let (out, entry) = (out.into(), entry.into());
        if begun {
            ConvertError::InTheWay { out, entry }
        } else {
            ConvertError::Occupied { out, entry }
        }
    };
    if has(MANIFEST) {
        let manifest = container::manifest(out)?.ok_or_else(|| occupied(&out.join(MANIFEST)))?;
        let mut finished = Finished::all_of(&manifest);
        let all = finished.len();
        finished.retain(|finished| finished.is_there(out));
        if finished.len() < all {
            return Ok(State::Begun(manifest.source, finished));
        }
        container::open(out)?;
        return Ok(State::Finished(manifest.source));
    }
    let known = if begun { known_files(out, layers) } else { vec![partial(&out.join(JOURNAL))] };
    let below = [EXPERTS, TEMPLATES].map(|name| out.join(name));
    let mut found: Vec<_> = entries.into_iter().filter(|entry| !below.contains(entry)).collect();
    for dir in below {
        if is_dir(&dir) {
            found.extend(self::entries(&dir)?);
            if !begun {
                return Err(occupied(&dir));
            }
        } else if dir.symlink_metadata().is_ok() {
            return Err(occupied(&dir));
        }
    }
    let is_file = |path: &Path| path.symlink_metadata().is_ok_and(|is| is.is_file());
    if let Some(entry) = found.iter().find(|entry| !known.contains(entry) || !is_file(entry)) {
        return Err(occupied(entry));
    }
    if !begun {
        return Ok(State::Empty);
    }
    let (source, finished) = journal::read(out)?;
    Ok(State::Begun(source, finished))
}

/// Removes files that an interrupted conversion had not finished.
pub(crate) fn remove_partials(
    disk: &dyn Disk,
    out: &Path,
    layers: usize,
) -> Result<(), ConvertError> {
    let known = known_files(out, layers);
    let partials = known.iter().filter(|path| path.extension().is_some_and(|e| e == "partial"));
    for path in partials.filter(|path| path.symlink_metadata().is_ok()) {
        disk.remove(path).map_err(|source| refusal(path, 0, source))?;
    }
    Ok(())
}

/// Every file that a conversion may leave behind when it is interrupted.
fn known_files(out: &Path, layers: usize) -> Vec<PathBuf> {
    let top = COPIED.into_iter().chain([TRUNK, MANIFEST, JOURNAL]).map(|name| out.join(name));
    let layers = (0..layers).map(|layer| out.join(EXPERTS).join(layer_file(layer)));
    top.chain(layers).flat_map(|path| [partial(&path), path]).collect()
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, ConvertError> {
    let read_error = |source| ConvertError::Read { path: dir.into(), source };
    let listed = fs::read_dir(dir).map_err(read_error)?;
    listed.map(|entry| Ok(entry.map_err(read_error)?.path())).collect()
}

/// Whether a directory of this name is there; a link to one is not.
fn is_dir(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|is| is.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_converter_and_then_another() {
        let out = tempfile::tempdir().unwrap();
        let first = lock(out.path()).unwrap();
        assert!(matches!(lock(out.path()), Err(ConvertError::Busy { .. })));
        assert!(matches!(inspect(out.path(), 1), Ok(State::Empty)), "a lock is in nobody's way");
        drop(first);
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
        lock(out.path()).unwrap();
    }
}
