//! What a conversion does to the file system. Every call is a point at which it may be killed, and
//! the tests kill it at each of them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use fm_format::new_file::sync_dir;

/// A file system that is written to.
pub trait Disk {
    /// Makes a directory, and those above it.
    ///
    /// # Errors
    /// What the system says.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Begins a new, empty file; whatever had the name before is unlinked, never followed.
    ///
    /// # Errors
    /// What the system says.
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>>;

    /// Opens a file to continue it.
    ///
    /// # Errors
    /// What the system says.
    fn append(&self, path: &Path) -> io::Result<Box<dyn OutFile>>;

    /// Renames [`partial`]`(path)` to `path`.
    ///
    /// # Errors
    /// What the system says.
    fn publish(&self, path: &Path) -> io::Result<()>;

    /// Unlinks a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Waits until the names in a directory would survive a power cut.
    ///
    /// # Errors
    /// What the system says.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Bytes that can still be written below an existing path.
    ///
    /// # Errors
    /// What the system says.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// A file being written.
pub trait OutFile {
    /// Adds bytes at the end.
    ///
    /// # Errors
    /// What the system says; some of the bytes may have been added.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Waits until the bytes would survive a power cut.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&mut self) -> io::Result<()>;
}

/// Name of a file while it is being written.
pub fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// The operating system's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(file))
    }

    fn append(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        Ok(Box::new(OpenOptions::new().append(true).open(path)?))
    }

    fn publish(&self, path: &Path) -> io::Result<()> {
        fs::rename(partial(path), path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        sync_dir(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        fs4::available_space(path)
    }
}

impl OutFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}
