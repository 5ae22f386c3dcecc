//! A disk that dies, fills up, fails, or loses its power, at a chosen call.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    rc::Rc,
};

use fm_convert::disk::{Disk, OutFile, partial};

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process is killed: half of a write arrives, nothing after it happens.
    Kill,
    /// The call fails, once.
    Fail,
    /// The call fails if it is a write: the file system is full, once.
    Full,
}

/// What a power cut takes away of what was not synced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerCut {
    /// Names that were made, moved or removed.
    pub(crate) names: Names,
    /// Bytes; zeros come in their place, the worse of the two things file systems do.
    pub(crate) bytes: bool,
}

/// Which of the changes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    None,
    /// Only the first: a file system need not keep the order.
    Oldest,
    All,
}

/// Real files, without the cost of syncing them.
#[derive(Clone, Default)]
pub(crate) struct SimDisk(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    calls: u64,
    writes: u64,
    fault: Option<(u64, Fault)>,
    dead: bool,
    pub(crate) free_bytes: Option<u64>,
    /// Bytes of each file that a power cut leaves, where it is not all of them.
    synced: BTreeMap<PathBuf, u64>,
    /// Changes of names, oldest first, that a power cut undoes.
    pending: Vec<Change>,
}

enum Change {
    Made(PathBuf),
    Renamed { to: PathBuf, replaced: Option<Vec<u8>> },
    Removed(PathBuf, Vec<u8>),
}

impl Change {
    fn dir(&self) -> &Path {
        let (Self::Made(path) | Self::Renamed { to: path, .. } | Self::Removed(path, _)) = self;
        path.parent().unwrap()
    }
}

impl SimDisk {
    pub(crate) fn with_fault(call: u64, fault: Fault) -> Self {
        let disk = Self::default();
        disk.0.borrow_mut().fault = Some((call, fault));
        disk
    }

    pub(crate) fn with_free_bytes(free_bytes: u64) -> Self {
        let disk = Self::default();
        disk.0.borrow_mut().free_bytes = Some(free_bytes);
        disk
    }

    pub(crate) fn calls(&self) -> u64 {
        self.0.borrow().calls
    }

    pub(crate) fn writes(&self) -> u64 {
        self.0.borrow().writes
    }

    /// Takes away what was not synced.
    pub(crate) fn cut_power(&self, cut: PowerCut) {
        let mut state = self.0.borrow_mut();
        if cut.bytes {
            for (path, kept) in &state.synced {
                let Ok(mut bytes) = fs::read(path) else { continue };
                bytes[*kept as usize..].fill(0);
                fs::write(path, bytes).unwrap();
            }
        }
        let lost = match cut.names {
            Names::None => 0,
            Names::Oldest => 1,
            Names::All => usize::MAX,
        };
        let lost = lost.min(state.pending.len());
        for change in state.pending.drain(..lost).rev() {
            match change {
                Change::Made(path) if path.is_dir() => fs::remove_dir_all(path).unwrap(),
                Change::Made(path) => drop(fs::remove_file(path)),
                Change::Renamed { to, replaced } => {
                    fs::rename(&to, partial(&to)).unwrap();
                    replaced.iter().for_each(|bytes| fs::write(&to, bytes).unwrap());
                }
                Change::Removed(path, bytes) => fs::write(path, bytes).unwrap(),
            }
        }
    }

    /// Counts a call; an error if this is the one, or if one before was deadly.
    fn call(&self, is_write: bool) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        if state.dead {
            return Err(io::Error::other("dead"));
        }
        let (call, write) = (state.calls, state.writes);
        state.calls += 1;
        state.writes += u64::from(is_write);
        match state.fault {
            Some((at, Fault::Kill)) if at == call => {
                state.dead = true;
                Err(io::Error::other("killed"))
            }
            Some((at, Fault::Fail)) if at == call => Err(io::Error::other("input/output error")),
            Some((at, Fault::Full)) if is_write && at == write => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    fn change(&self, change: Change) {
        self.0.borrow_mut().pending.push(change);
    }
}

impl Disk for SimDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.call(false)?;
        self.change(Change::Made(path.into()));
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        self.call(false)?;
        self.change(Change::Made(path.into()));
        self.0.borrow_mut().synced.insert(path.into(), 0);
        let _ = fs::remove_file(path);
        OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(SimFile { disk: self.clone(), path: path.into() }))
    }

    fn append(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        self.call(false)?;
        Ok(Box::new(SimFile { disk: self.clone(), path: path.into() }))
    }

    fn publish(&self, path: &Path) -> io::Result<()> {
        self.call(false)?;
        self.change(Change::Renamed { to: path.into(), replaced: fs::read(path).ok() });
        let mut state = self.0.borrow_mut();
        if let Some(kept) = state.synced.remove(&partial(path)) {
            state.synced.insert(path.into(), kept);
        }
        fs::rename(partial(path), path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(false)?;
        self.change(Change::Removed(path.into(), fs::read(path)?));
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.call(false)?;
        self.0.borrow_mut().pending.retain(|change| change.dir() != path);
        Ok(())
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        self.call(false)?;
        Ok(self.0.borrow().free_bytes.unwrap_or(u64::MAX))
    }
}

struct SimFile {
    disk: SimDisk,
    path: PathBuf,
}

impl OutFile for SimFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let dead = self.disk.0.borrow().dead;
        let call = self.disk.call(true);
        let arrived = if call.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        if !dead {
            let mut file = OpenOptions::new().append(true).open(&self.path)?;
            let before = file.metadata()?.len();
            self.disk.0.borrow_mut().synced.entry(self.path.clone()).or_insert(before);
            file.write_all(arrived)?;
        }
        call
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.call(false)?;
        self.disk.0.borrow_mut().synced.remove(&self.path);
        Ok(())
    }
}
