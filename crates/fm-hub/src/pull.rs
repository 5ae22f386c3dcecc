//! Downloads: several files at once, each going on where it stopped, none believed unchecked.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    at_once::at_once,
    cache::{Cache, INCOMPLETE},
    checksum::Sum,
    client::{ATTEMPTS, Client, Range, backoff},
    error::{HubError, at},
    repository::{RemoteFile, Repository},
};

/// Files that come at the same time.
const FILES_AT_ONCE: usize = 6;
/// Bytes between two looks at whether the user still wants it.
const PIECE_BYTES: usize = 1 << 17;

/// A download of chosen files of a repository into a cache.
#[derive(Clone, Copy, Debug)]
pub struct Pull<'a> {
    /// Where from.
    pub client: &'a Client,
    /// Where to.
    pub cache: &'a Cache,
    /// Of what.
    pub repository: &'a Repository,
    /// Which files.
    pub files: &'a [RemoteFile],
}

/// What a download takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Length of all files.
    pub bytes: u64,
    /// How much of it is here.
    pub here: u64,
    /// Bytes that the disk has room for.
    pub free: u64,
}

impl Need {
    /// Bytes still to come.
    pub fn missing(&self) -> u64 {
        self.bytes - self.here
    }
}

/// What happens meanwhile. Threads report at the same time.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A file begins, or goes on after the bytes that are here.
    Begin {
        /// The file.
        file: &'a RemoteFile,
        /// Bytes of it that are here.
        here: u64,
    },
    /// Bytes of a file came, or some that had come before were read for its checksum.
    Bytes {
        /// The file.
        file: &'a RemoteFile,
        /// How many of it are here.
        here: u64,
    },
    /// The connection broke; the file goes on from here.
    Again {
        /// The file.
        file: &'a RemoteFile,
        /// Bytes that are kept.
        here: u64,
        /// What happened.
        source: &'a io::Error,
    },
    /// A file came with other bytes than were published, and is fetched again.
    Corrupt {
        /// The file.
        file: &'a RemoteFile,
        /// The checksum of what came.
        found: &'a str,
        /// Where it lies now.
        kept: &'a Path,
    },
    /// A file is here and is what was published.
    Done {
        /// The file.
        file: &'a RemoteFile,
    },
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The snapshot's directory.
    pub path: PathBuf,
    /// Files that were not here before.
    pub fetched: u64,
}

/// Who hears of events, and may end the download.
pub type Report<'a> = &'a (dyn Fn(&Event<'_>) -> ControlFlow<()> + Sync);

impl Pull<'_> {
    /// How much is to be done. Nothing is asked of the network.
    ///
    /// # Errors
    /// If the disk does not say how much room it has.
    pub fn need(&self) -> Result<Need, HubError> {
        let here = self.files.iter().map(|file| self.here(file).min(file.bytes)).sum();
        let bytes = self.files.iter().map(|file| file.bytes).sum();
        Ok(Need { bytes, here, free: self.cache.free_bytes()? })
    }

    /// Fetches what is missing; the snapshot and its name appear when everything is there.
    ///
    /// # Errors
    /// If the disk has too little room, before anything is fetched; if a file cannot be had or is
    /// corrupt twice. What has come is kept, and the next call goes on from it.
    pub fn run(&self, report: Report<'_>) -> Result<Pulled, HubError> {
        let need = self.need()?;
        if need.missing() > need.free {
            let (dir, needed) = (self.cache.root().to_path_buf(), need.missing());
            return Err(HubError::NoSpace { dir, needed, free: need.free });
        }
        let blobs = self.cache.blob(&self.repository.id, "");
        fs::create_dir_all(&blobs).map_err(at(&blobs))?;
        let fetched = self.fetch_all(report)?;
        let path = self.publish()?;
        Ok(Pulled { path, fetched })
    }

    /// Bytes of a file that are in the cache, whole or not.
    fn here(&self, file: &RemoteFile) -> u64 {
        if self.is_here(file) {
            return file.bytes;
        }
        fs::metadata(self.blob(file).with_extension(INCOMPLETE)).map_or(0, |part| part.len())
    }

    /// Whether a file is in the cache as a whole: as a blob or, where there are no links, in its snapshot.
    fn is_here(&self, file: &RemoteFile) -> bool {
        let places = [self.blob(file), self.named(file)];
        places.iter().any(|path| fs::metadata(path).is_ok_and(|found| found.len() == file.bytes))
    }

    /// Where the snapshot has a file.
    fn named(&self, file: &RemoteFile) -> PathBuf {
        let Repository { id, commit, .. } = self.repository;
        self.cache.snapshot_dir(id, commit).join(&file.name)
    }

    fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.cache.blob(&self.repository.id, file.checksum.digits())
    }

    fn fetch_all(&self, report: Report<'_>) -> Result<u64, HubError> {
        let stop = AtomicBool::new(false);
        // One failure ends all: the others stop at their next piece.
        let report = |event: &Event<'_>| {
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { report(event) }
        };
        at_once(self.files, FILES_AT_ONCE, &stop, |file| self.fetch(file, &report).map(u64::from))
    }

    /// Makes sure that a file is here. Whether it had to be fetched.
    fn fetch(&self, file: &RemoteFile, report: Report<'_>) -> Result<bool, HubError> {
        let (blob, id) = (self.blob(file), &self.repository.id);
        if self.is_here(file) {
            tell(report, &Event::Done { file })?;
            return Ok(false);
        }
        let path = self.cache.lock(id, file.checksum.digits());
        let _lock = lock(&file.name, &path)?;
        let partial = blob.with_extension(INCOMPLETE);
        let mut twice = false;
        while !self.is_here(file) {
            let found = Download { pull: self, file, partial: &partial, report }.run()?;
            if found == file.checksum.digits() {
                fs::rename(&partial, &blob).map_err(at(&blob))?;
                break;
            }
            let kept = blob.with_extension("corrupt");
            fs::rename(&partial, &kept).map_err(at(&kept))?;
            if twice {
                let (file, expected) = (file.name.clone(), file.checksum.digits().to_owned());
                return Err(HubError::Corrupt { file, expected, found, kept });
            }
            tell(report, &Event::Corrupt { file, found: &found, kept: &kept })?;
            twice = true;
        }
        tell(report, &Event::Done { file })?;
        Ok(true)
    }

    /// Links the snapshot's names to the blobs, and the revision to the snapshot.
    fn publish(&self) -> Result<PathBuf, HubError> {
        let Repository { id, revision, commit, .. } = self.repository;
        let snapshot = self.cache.snapshot_dir(id, commit);
        for (i, file) in self.files.iter().enumerate() {
            let path = self.named(file);
            let parent = path.parent().unwrap_or(&snapshot);
            fs::create_dir_all(parent).map_err(at(parent))?;
            let up = "../".repeat(2 + file.name.matches('/').count());
            let target = PathBuf::from(format!("{up}blobs/{}", file.checksum.digits()));
            let blob = self.blob(file);
            if !blob.exists() && path.is_file() {
                continue; // it was put there, see `put`
            }
            if let Err(error) = link(&target, &path) {
                let is_last = !self.files[i + 1..].iter().any(|it| it.checksum == file.checksum);
                put(error, &blob, is_last, &path).map_err(at(&path))?;
            }
        }
        if revision != commit {
            let path = self.cache.reference(id, revision);
            let parent = path.parent().unwrap_or(&path);
            fs::create_dir_all(parent).map_err(at(parent))?;
            fs::write(&path, commit).map_err(at(&path))?;
        }
        Ok(snapshot)
    }
}

fn tell(report: Report<'_>, event: &Event<'_>) -> Result<(), HubError> {
    match report(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(HubError::Cancelled),
    }
}

/// One file on its way to where it is kept until it is whole.
struct Download<'a> {
    pull: &'a Pull<'a>,
    file: &'a RemoteFile,
    partial: &'a Path,
    report: Report<'a>,
}

/// A partial file and the checksum of what is in it.
struct Partial {
    opened: File,
    sum: Sum,
    here: u64,
}

impl Download<'_> {
    /// Fetches what is missing. Returns the checksum of everything.
    fn run(&self) -> Result<String, HubError> {
        let Self { pull, file, .. } = self;
        let mut partial = self.open()?;
        let url = pull.client.file_url(&pull.repository.id, &pull.repository.commit, &file.name);
        // Getting somewhere again after a new start is no progress.
        let (mut attempt, mut furthest) = (1, partial.here);
        while partial.here < file.bytes {
            let Err(source) = self.receive(&url, &mut partial)? else { break };
            attempt = if partial.here > furthest { 1 } else { attempt + 1 };
            furthest = furthest.max(partial.here);
            if attempt > ATTEMPTS {
                let (at, attempts) = (partial.here, ATTEMPTS);
                let (file, bytes) = (file.name.clone(), file.bytes);
                return Err(HubError::Cut { file, at, bytes, attempts, source });
            }
            self.tell(&Event::Again { file, here: partial.here, source: &source })?;
            pull.client.pause(backoff(attempt))?;
        }
        partial.opened.sync_all().map_err(at(self.partial))?;
        Ok(partial.sum.digits())
    }

    fn tell(&self, event: &Event<'_>) -> Result<(), HubError> {
        tell(self.report, event)
    }

    /// What has come before, added up.
    fn open(&self) -> Result<Partial, HubError> {
        let Self { file, partial: path, .. } = self;
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).open(path);
        let opened = opened.map_err(at(*path))?;
        let here = opened.metadata().map_err(at(*path))?.len();
        let mut partial = Partial { opened, sum: file.checksum.begin(file.bytes), here: 0 };
        if here > file.bytes {
            self.restart(&mut partial)?;
            return Ok(partial);
        }
        self.tell(&Event::Begin { file, here })?;
        let mut piece = vec![0; PIECE_BYTES];
        while partial.here < here {
            let read = partial.opened.read(&mut piece).map_err(at(*path))?;
            if read == 0 {
                // Somebody has cut it meanwhile: the rest comes again.
                break;
            }
            partial.sum.add(&piece[..read]);
            partial.here += read as u64;
            self.tell(&Event::Bytes { file, here })?;
        }
        Ok(partial)
    }

    /// Forgets what has come.
    fn restart(&self, partial: &mut Partial) -> Result<(), HubError> {
        partial.opened.set_len(0).map_err(at(self.partial))?;
        partial.opened.rewind().map_err(at(self.partial))?;
        partial.sum = self.file.checksum.begin(self.file.bytes);
        partial.here = 0;
        self.tell(&Event::Begin { file: self.file, here: 0 })
    }

    /// One answer, until it is over. The inner error is the connection's: another may do better.
    fn receive(&self, url: &str, partial: &mut Partial) -> Result<Result<(), io::Error>, HubError> {
        let Self { pull, file, .. } = self;
        let offset = partial.here;
        let range = (offset > 0).then_some(Range { offset, bytes: None });
        let answer = pull.client.get(&pull.repository.id, url, range)?;
        if range.is_some() && matches!(answer.status().as_u16(), 200 | 416) {
            // This server cannot go on; what it sends, if anything, is the whole file.
            self.restart(partial)?;
            if answer.status() == 416 {
                return Ok(Err(io::Error::other("the server has no bytes there")));
            }
        } else if !range.unwrap_or(Range { offset: 0, bytes: None }).is_answered_by(&answer) {
            return Err(HubError::Range { url: url.to_owned(), offset });
        }
        let mut body = answer.into_body().into_reader().take(file.bytes - partial.here);
        let mut piece = vec![0; PIECE_BYTES];
        while partial.here < file.bytes {
            let read = match body.read(&mut piece) {
                Ok(0) => return Ok(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => read,
                Err(source) => return Ok(Err(source)),
            };
            partial.opened.write_all(&piece[..read]).map_err(at(self.partial))?;
            partial.sum.add(&piece[..read]);
            partial.here += read as u64;
            self.tell(&Event::Bytes { file, here: partial.here })?;
        }
        Ok(Ok(()))
    }
}

/// Keeps other programs from the same file; `huggingface_hub` takes the same lock.
fn lock(file: &str, path: &Path) -> Result<File, HubError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(at(parent))?;
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let lock = lock.map_err(at(path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            Err(HubError::Busy { file: file.to_owned(), lock: path.into() })
        }
        Err(TryLockError::Error(source)) => Err(at(path)(source)),
    }
}

/// Makes `path` a link to `target`, in one step for whoever looks.
fn link(target: &Path, path: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".link");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(target, Path::new(&fresh))?;
    fs::rename(&fresh, path)
}

/// Makes `path` the file itself where a file system has no links (exFAT) or only privileged users may make them
/// (Windows), as `huggingface_hub` does; `is_last` of those that want this blob. `error` is what a link met with.
fn put(error: io::Error, blob: &Path, is_last: bool, path: &Path) -> io::Result<()> {
    let refused = [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported];
    if !refused.contains(&error.kind()) && !is_privilege_missing(&error) {
        return Err(error);
    }
    if is_last { fs::rename(blob, path) } else { fs::copy(blob, path).map(drop) }
}

/// Windows' `ERROR_PRIVILEGE_NOT_HELD`, for which Rust has no kind.
fn is_privilege_missing(error: &io::Error) -> bool {
    cfg!(windows) && error.raw_os_error() == Some(1314)
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    // Its links are not followed across the other separator.
    std::os::windows::fs::symlink_file(target.components().collect::<PathBuf>(), link)?;
    // Wine 8 says that it did, and did not.
    link.symlink_metadata().map(drop).map_err(|_| io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_put_where_links_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let [blob, first, second] = ["blob", "first", "second"].map(|name| dir.path().join(name));
        fs::write(&blob, "bytes").unwrap();
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        put(refused(), &blob, false, &first).unwrap();
        put(refused(), &blob, true, &second).unwrap();
        for path in [&first, &second] {
            assert_eq!(fs::read_to_string(path).unwrap(), "bytes");
        }
        assert!(!blob.exists(), "nothing is kept twice");
        assert!(put(io::ErrorKind::StorageFull.into(), &first, true, &second).is_err());
    }
}
