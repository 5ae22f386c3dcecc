//! A file that is either there as a whole or not at all.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    disk::{Disk, OutFile, partial},
    error::ConvertError,
};

/// A file under its temporary name.
pub(crate) struct Staged {
    path: PathBuf,
    file: Box<dyn OutFile>,
    bytes: u64,
}

/// Writes `path` under a temporary name, syncs it and gives it its name. Whatever `write` returns
/// becomes true together with the file. After an error nothing is left of it.
pub(crate) fn write_file<T>(
    disk: &dyn Disk,
    path: &Path,
    write: impl FnOnce(&mut Staged) -> Result<T, ConvertError>,
) -> Result<T, ConvertError> {
    let file = disk.create(&partial(path)).map_err(|source| refusal(path, 0, source))?;
    let mut staged = Staged { path: path.into(), file, bytes: 0 };
    let written = write(&mut staged).and_then(|written| {
        let bytes = staged.bytes;
        let refused = |source| refusal(path, bytes, source);
        staged.file.sync().map_err(refused)?;
        disk.publish(path).map_err(refused)?;
        sync_parent(disk, path)?;
        Ok(written)
    });
    if written.is_err() {
        // What counts is the error above; a file system without space should not keep half a layer.
        let _ = disk.remove(&partial(path));
    }
    written
}

impl Staged {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), ConvertError> {
        self.file.write(bytes).map_err(|source| refusal(&self.path, self.bytes, source))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Makes the name of a file survive a power cut.
pub(crate) fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<(), ConvertError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    disk.sync_dir(parent).map_err(|source| refusal(parent, 0, source))
}

/// Tells a full file system from one that is broken.
pub(crate) fn refusal(path: &Path, bytes: u64, source: io::Error) -> ConvertError {
    let path = path.into();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ConvertError::DiskFull { path, bytes, source }
        }
        _ => ConvertError::Write { path, source },
    }
}
