//! A file that stands beside its place until it is complete: neither a failure nor a crash costs the
//! earlier file, and a failure leaves nothing.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use tempfile::TempPath;

/// What is written, and where it belongs. Until it is finished it has a name that nobody else's file has, so that
/// two who write the same file do not write into each other's; dropped, it is gone.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    temporary: TempPath,
    file: BufWriter<File>,
}

impl NewFile {
    /// Begins what is to be the file `path`. It has the permissions of the file whose place it takes, else those of
    /// any new file.
    ///
    /// # Errors
    /// If the file beside it cannot be made, or something else than a file is in its place.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::create_with(path, 0o666)
    }

    /// The same for what is nobody else's business: where there was no file, only its owner can read it.
    ///
    /// # Errors
    /// As [`NewFile::create`].
    pub fn create_private(path: &Path) -> io::Result<Self> {
        Self::create_with(path, 0o600)
    }

    fn create_with(path: &Path, mode: u32) -> io::Result<Self> {
        // Renaming would put the file in the place of a link, or of a device.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let earlier = fs::metadata(&path).ok();
        if earlier.is_none() && path.is_symlink() {
            let message = "this is a link to nothing; remove it or choose another name";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if earlier.as_ref().is_some_and(|found| !found.is_file()) {
            let message = "this is no regular file; choose another name";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let (Some(name), Some(dir)) = (path.file_name(), path.parent()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this names no file"));
        };
        let mut prefix = name.to_owned();
        prefix.push(".");
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let make = |path: &Path| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
            #[cfg(not(unix))]
            let _ = mode; // who may read it is what the directory says
            options.open(path)
        };
        let mut builder = tempfile::Builder::new();
        let made = builder.prefix(&prefix).suffix(".new").make_in(dir, make)?;
        let (file, temporary) = made.into_parts();
        if let Some(earlier) = earlier {
            file.set_permissions(earlier.permissions())?;
        }
        Ok(Self { path, temporary, file: BufWriter::new(file) })
    }

    /// Puts the finished file in its place.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        self.temporary.persist(&self.path).map_err(|error| error.error)
    }
}

/// Makes the names in a directory survive a power cut. Windows opens no directories and keeps names with their files.
///
/// # Errors
/// What the system says.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(windows) { Ok(()) } else { File::open(dir)?.sync_all() }
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
        // A pipe has a name that leads to it, and none of its own.
        #[cfg(target_os = "linux")]
        {
            let (_reader, writer) = io::pipe().unwrap();
            let pipe = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
            let refused = NewFile::create(Path::new(&pipe)).unwrap_err().to_string();
            assert!(refused.starts_with("this is no regular file"), "{refused}");
        }
        // What the system says, without the name that nobody chose.
        let missing = NewFile::create(&dir.path().join("none/file")).unwrap_err();
        assert_eq!(
            missing.raw_os_error(),
            File::create(dir.path().join("none/x")).unwrap_err().raw_os_error()
        );
    }

    #[test]
    fn two_who_write_one_file_write_two() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("file.new"));
        fs::write(&other, "of somebody else").unwrap();
        let mut files = [1, 2].map(|_| NewFile::create(&path).unwrap());
        for (file, text) in files.iter_mut().zip(["first", "second and longer"]) {
            file.write_all(text.as_bytes()).unwrap();
        }
        for (file, text) in files.into_iter().zip(["first", "second and longer"]) {
            file.finish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "of somebody else");
        assert_eq!(names(dir.path()), ["file", "file.new"]);
    }

    #[cfg(unix)]
    #[test]
    fn whoever_could_not_read_the_earlier_file_cannot_read_the_new_one() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = dir.path().join("file");
        NewFile::create_private(&path).unwrap().finish().unwrap();
        assert_eq!(mode(&path), 0o600);
        NewFile::create(&path).unwrap().finish().unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        NewFile::create_private(&path).unwrap().finish().unwrap();
        assert_eq!(mode(&path), 0o640);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&path, "earlier").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let nowhere = dir.path().join("nowhere");
        std::os::unix::fs::symlink(dir.path().join("gone"), &nowhere).unwrap();
        let refused = NewFile::create(&nowhere).unwrap_err().to_string();
        assert!(refused.contains("link to nothing"), "{refused}");
        fs::remove_file(nowhere).unwrap();
        let mut file = NewFile::create(&link).unwrap();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(names(dir.path()), ["file", "link"]);
    }
}
