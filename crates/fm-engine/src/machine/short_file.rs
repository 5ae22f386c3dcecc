//! Files in which the system says a few numbers. They stay open and are read again and again, and nothing is allocated
//! for it: the memory of the machine is watched while a model runs.

use std::{fs::File, io, path::Path};

/// A file of at most 8 KB that is always as new as its reader.
#[derive(Debug)]
pub(crate) struct ShortFile(File);

impl ShortFile {
    /// Opens it; `None` where there is none, or none that may be read.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        File::open(path).ok().map(Self)
    }

    /// The number that the file is.
    pub(crate) fn number(&self) -> Option<u64> {
        self.read(|text| text.trim().parse().ok())
    }

    /// The number that follows `name` and spaces on a line of its own.
    pub(crate) fn of_line(&self, name: &str) -> Option<u64> {
        self.read(|text| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
            values.find_map(|value| {
                value.strip_prefix([' ', '\t'])?.split_whitespace().next()?.parse().ok()
            })
        })
    }

    /// The number that follows the first `mark`.
    pub(crate) fn behind(&self, mark: &str) -> Option<u64> {
        self.read(|text| text.split_once(mark)?.1.split_whitespace().next()?.parse().ok())
    }

    /// The number in the field so many fields behind the last `mark`.
    pub(crate) fn field(&self, mark: &str, fields: usize) -> Option<u64> {
        self.read(|text| text.rsplit_once(mark)?.1.split_whitespace().nth(fields)?.parse().ok())
    }

    fn read<T>(&self, take: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        // The longest of these files, `memory.stat`, has about 2 KB.
        let mut bytes = [0; 8192];
        let length = read_start(&self.0, &mut bytes).ok()?;
        take(std::str::from_utf8(&bytes[..length]).ok()?)
    }
}

#[cfg(unix)]
fn read_start(file: &File, into: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, 0)
}

#[cfg(windows)]
fn read_start(file: &File, into: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, 0)
}
