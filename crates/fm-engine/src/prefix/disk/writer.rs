//! The thread that writes: the scheduler copies into buffers and never waits for a disk.
//!
//! ```text
//! segment: NAME.new, data …, sync, rename ──► entry: NAME.new, sync, rename ──► Ended
//! ```
//! An entry is renamed when all that it names is on disk, so what a crash leaves is whole or unnamed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use super::files::remove_dir;

/// Buffers between the scheduler and the thread.
pub(crate) const BUFFERS: usize = 3;

/// A buffer is handed over when so much is in it.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// What the thread is asked to do, in this order. Bound: data by the buffers, everything else by the number
/// of files that there are; touches by that of entries, each of which has one at most.
#[derive(Debug)]
pub(super) enum Order {
    /// A segment begins.
    Begin(PathBuf),
    /// It goes on.
    Data(Vec<u8>),
    /// It is complete, if one has begun; then this is its entry.
    End(PathBuf, Vec<u8>),
    /// It will not be needed.
    Cancel,
    Remove(PathBuf),
    /// With its lock, which keeps a server out that comes meanwhile.
    RemoveDir(PathBuf, File),
    /// It was of use just now. Put back to false before that is done.
    Touch(PathBuf, Arc<AtomicBool>),
}

/// What the thread says.
#[derive(Debug)]
pub(super) enum Reply {
    Buffer(Vec<u8>),
    /// How an order to end went.
    Ended(io::Result<()>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Writer {
    /// Closed when the thread shall end.
    orders: Option<Sender<Order>>,
    replies: Receiver<Reply>,
    /// Bound: [`BUFFERS`].
    free: Vec<Vec<u8>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread, with buffers for parts of up to `part_max` bytes.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub(super) fn start(part_max: usize) -> io::Result<Self> {
        let (orders, from_scheduler) = mpsc::channel();
        let (to_scheduler, replies) = mpsc::channel();
        let builder = thread::Builder::new().name("prefixes".to_owned());
        let thread = builder.spawn(move || work(&from_scheduler, &to_scheduler))?;
        let free = (0..BUFFERS).map(|_| Vec::with_capacity(BUFFER_BYTES + part_max)).collect();
        Ok(Self { orders: Some(orders), replies, free, thread: Some(thread) })
    }

    pub(super) fn order(&self, order: Order) {
        // A thread that has gone is told by what it does not say.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }

    /// An empty buffer, if one is free.
    pub(super) fn buffer(&mut self) -> Option<Vec<u8>> {
        self.free.pop()
    }

    /// Takes a buffer back that was not handed over.
    pub(super) fn give_back(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.free.push(buffer);
    }

    /// Hears what the thread says, waiting so long for it. Says how an order to end went, if that is it.
    pub(super) fn hear(&mut self, wait: Duration) -> Heard {
        match self.replies.recv_timeout(wait) {
            Ok(Reply::Buffer(buffer)) => {
                self.give_back(buffer);
                Heard::Buffer
            }
            Ok(Reply::Ended(result)) => Heard::Ended(result),
            Err(mpsc::RecvTimeoutError::Timeout) => Heard::Nothing,
            Err(mpsc::RecvTimeoutError::Disconnected) => Heard::Gone,
        }
    }
}

/// See [`Writer::hear`].
#[derive(Debug)]
pub(super) enum Heard {
    Nothing,
    Buffer,
    Ended(io::Result<()>),
    /// The thread has ended: nothing more is written.
    Gone,
}

impl Drop for Writer {
    /// Waits until all orders are done.
    fn drop(&mut self) {
        drop(self.orders.take());
        self.thread.take().map(JoinHandle::join);
    }
}

/// What a file is called that is not complete.
pub(super) const NEW: &str = "new";

/// The name of a file that is not complete.
pub(super) fn temporary(path: &Path) -> PathBuf {
    path.with_extension(NEW)
}

/// A new file that nobody but its owner reads.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn finish(file: File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    drop(file);
    fs::rename(temporary(path), path)
}

fn work(orders: &Receiver<Order>, replies: &Sender<Reply>) {
    let mut segment: Option<(PathBuf, io::Result<File>)> = None;
    let discard = |segment: Option<(PathBuf, io::Result<File>)>| {
        segment.map(|(path, _)| fs::remove_file(temporary(&path)))
    };
    // What cannot be removed or touched stays as it is, and is found at the next start.
    while let Ok(order) = orders.recv() {
        match order {
            Order::Begin(path) => {
                let file = create(&temporary(&path));
                segment = Some((path, file));
            }
            Order::Data(buffer) => {
                if let Some((_, open)) = &mut segment
                    && let Ok(file) = open
                    && let Err(error) = file.write_all(&buffer)
                {
                    *open = Err(error);
                }
                let _ = replies.send(Reply::Buffer(buffer));
            }
            Order::End(entry, bytes) => {
                let written = end(segment.take(), &entry, &bytes);
                let _ = replies.send(Reply::Ended(written));
            }
            Order::Cancel => drop(discard(segment.take())),
            Order::Remove(path) => drop(fs::remove_file(path)),
            Order::RemoveDir(path, lock) => {
                drop(remove_dir(&path));
                drop(lock);
            }
            Order::Touch(path, ordered) => {
                ordered.store(false, Ordering::Relaxed);
                drop(touch(&path));
            }
        }
    }
    discard(segment);
}

/// Makes a segment what it is called, then its entry.
fn end(segment: Option<(PathBuf, io::Result<File>)>, entry: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut names = vec![temporary(entry)];
    let write = || {
        if let Some((path, file)) = segment {
            names.push(temporary(&path));
            names.push(path.clone());
            finish(file?, &path)?;
        }
        let mut file = create(&temporary(entry))?;
        file.write_all(bytes)?;
        finish(file, entry)
    };
    let written = write();
    if written.is_err() {
        names.iter().for_each(|name| drop(fs::remove_file(name)));
    }
    written
}

fn touch(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_modified(SystemTime::now())
}
