//! A file that stands beside its place until it is complete: neither a failure nor a crash costs the
//! earlier file, and a failure leaves nothing.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// What is written, and where it belongs.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
}

impl NewFile {
    /// Begins what is to be the file `path`.
    ///
    /// # Errors
    /// If the file beside it cannot be made, or something else than a file is in its place.
    pub fn create(path: &Path) -> io::Result<Self> {
        // Renaming would put the file in the place of a link, or of a device.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            let message = "this is no regular file; choose another name";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let file = BufWriter::new(File::create(&temporary)?);
        Ok(Self { path, temporary, file })
    }

    /// Puts the finished file in its place.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for NewFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // There is none if it was finished; if it was not, nobody can use it.
        let _ = fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|entry| name(entry).unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_a_finished_file_takes_the_place_of_the_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "earlier").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(
            (fs::read(&path).unwrap(), names(dir.path())),
            (b"earlier".to_vec(), vec!["file".to_owned()])
        );
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), names(dir.path())),
            (b"whole".to_vec(), vec!["file".to_owned()])
        );
        NewFile::create(dir.path()).unwrap_err();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&path, "earlier").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut file = NewFile::create(&link).unwrap();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(names(dir.path()), ["file", "link"]);
    }
}
