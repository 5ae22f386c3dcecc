//! Kept sessions on disk: they outlive memory, and the program.
//!
//! ```text
//! DIR/FINGERPRINT/lock         whoever has it writes and removes here
//!                 ID.entry     tokens, and where each piece is
//!                 ID.segment   pieces: what one session had that none before it has
//! ```
//! Another fingerprint (model, numerics, device, build of the program) is another directory, and is never
//! read. What is torn or has a wrong checksum is removed, and its prompt is computed. What cannot be read because the
//! system is short of something stays.

mod entry;
mod files;
mod pause;
mod source;
mod spill;
mod writer;

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use fm_model::runner::{PieceBytes, Transfer};

use self::{
    entry::Entry,
    files::Other,
    pause::Pause,
    spill::Spill,
    writer::{Order, Writer},
};
pub use self::{files::DiskError, source::Damage};
pub(crate) use self::{source::Source, spill::Spilled, writer::BUFFERS};
use super::{Pin, PrefixCounts, common, make_way};
use crate::bytes::Bytes;

/// Buffers of those who read and write, beside the parts of sessions that are in them.
pub(crate) const BUFFERS_BYTES: u64 =
    (BUFFERS * writer::BUFFER_BYTES + source::READ_BYTES + 4 * TOKENS_MAX) as u64;

/// Tokens of all sessions on disk: their list is in memory, 4 MiB.
const TOKENS_MAX: usize = 1 << 20;

/// Tokens that are worth reading from disk.
pub(crate) const WORTH_READING: u32 = 64;

/// Sessions on disk.
const ENTRIES_MAX: usize = 4096;

/// Where prompts are kept on disk, and how much of it they may take.
#[derive(Clone)]
pub struct DiskOptions {
    /// A directory of their own; models share it.
    pub dir: PathBuf,
    /// Bytes of all files in it.
    pub bytes_max: u64,
    /// See [`crate::Engine::state_fingerprint`].
    pub fingerprint: u128,
    /// Hears what went wrong.
    pub notices: Notices,
}

impl std::fmt::Debug for DiskOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { dir, bytes_max, .. } = self;
        f.debug_struct("DiskOptions")
            .field("dir", dir)
            .field("max", bytes_max)
            .finish_non_exhaustive()
    }
}

/// Hears what went wrong with prompts on disk; must not block.
pub type Notices = Arc<dyn Fn(&Notice) + Send + Sync>;

/// What went wrong with prompts on disk. Nobody waits for it, and no answer changes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Notice {
    /// Something kept cannot be used.
    #[error("removed the damaged {}; its prompt is computed again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Damage,
    },
    /// Something kept cannot be read for now. It stays.
    #[error("cannot read {} now; its prompt is computed", path.display())]
    NotRead {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: Damage,
    },
    /// Writing failed. It is tried again now and then, and told when it fails after it has succeeded.
    #[error("cannot keep prompts in {}; trying again now and then", dir.display())]
    NotWritten {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There was more at the start than there may be.
    #[error("removed {sessions} kept prompts: {} may take {} now", dir.display(), Bytes(*bytes_max))]
    Outgrown {
        /// The directory.
        dir: PathBuf,
        /// Bytes of all files in it.
        bytes_max: u64,
        /// How many were removed.
        sessions: usize,
    },
    /// A session that would not fit if it were alone. Said once.
    #[error(
        "a prompt of {} is not kept in {}, which may take {}", Bytes(*bytes), dir.display(), Bytes(*bytes_max)
    )]
    TooLarge {
        /// The directory.
        dir: PathBuf,
        /// Bytes of all files in it.
        bytes_max: u64,
        /// Bytes of the session.
        bytes: u64,
    },
}

/// Name of a session on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId(u64);

#[derive(Debug)]
struct Listed {
    id: EntryId,
    entry: Arc<Entry>,
    /// Of the entry's own file.
    bytes: u64,
    pin: Pin,
    used: u64,
    /// Whether the writer has yet to be told of its file that it was of use: one order each.
    touched: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Segment {
    bytes: u64,
    /// By entries, and by whoever reads or writes one.
    references: usize,
}

/// See the module.
pub(crate) struct Disk {
    dir: PathBuf,
    fingerprint: u128,
    bytes_max: u64,
    pieces: PieceBytes,
    forks_anywhere: bool,
    /// Bounds: [`ENTRIES_MAX`], [`TOKENS_MAX`].
    entries: Vec<Listed>,
    segments: HashMap<u64, Segment>,
    /// What other fingerprints have, least recently used last.
    others: Vec<Other>,
    /// Those of them that somebody uses: there is less room for this one.
    in_use: Vec<Other>,
    /// Files that may belong to what cannot be read for now.
    bytes_unlisted: u64,
    clock: u64,
    spill: Option<Spill>,
    /// What one moves by; there is one at a time.
    transfer: Transfer,
    /// Since writing has failed.
    pause: Option<Pause>,
    /// Nothing once its thread has gone.
    writer: Option<Writer>,
    counts: Arc<PrefixCounts>,
    notices: Notices,
    /// Whether [`Notice::TooLarge`] has been said.
    told_too_large: bool,
    /// Held as long as this is.
    _lock: File,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("dir", &self.dir).finish_non_exhaustive()
    }
}

fn segment_path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(format!("{segment:016x}.segment"))
}

fn entry_path(dir: &Path, id: EntryId) -> PathBuf {
    dir.join(format!("{:016x}.entry", id.0))
}

impl Disk {
    /// The session on disk that a text beginning with `tokens` takes most from, and how much.
    pub(crate) fn find(&self, tokens: &[u32]) -> Option<(EntryId, u32)> {
        let usable = self.entries.iter().map(|listed| {
            let common = common(&listed.entry.tokens, tokens) as u32;
            (listed.entry.usable(common, self.forks_anywhere), listed.used, listed.id)
        });
        let (usable, _, id) = usable.max_by_key(|(usable, used, _)| (*usable, *used))?;
        (usable > 0).then_some((id, usable))
    }

    /// Reads a session; its segments stay until it is given to [`Disk::close`].
    pub(crate) fn open(&mut self, id: EntryId) -> Option<Source> {
        self.touch(id);
        let entry = Arc::clone(&self.entries.iter().find(|listed| listed.id == id)?.entry);
        self.hold(&entry);
        Some(Source {
            entry,
            dir: self.dir.clone(),
            fingerprint: self.fingerprint,
            bytes: self.pieces,
            open: None,
            piece: None,
        })
    }

    /// Ends reading. With damage that lasts, the session and all that share the damaged segment are removed.
    pub(crate) fn close(&mut self, source: &Source, damage: Option<Damage>) {
        if let Some(damage) = damage {
            let place = source.piece.and_then(|piece| source.entry.place(piece, self.pieces));
            let next = source.entry.segments().next().unwrap_or_default();
            let segment = place.map_or(next, |place| place.segment);
            self.damaged(&source.entry, segment, damage);
        }
        self.release(&source.entry);
        self.count();
    }

    fn damaged(&mut self, entry: &Arc<Entry>, segment: u64, damage: Damage) {
        let path = segment_path(&self.dir, segment);
        if !damage.is_lasting() {
            return (self.notices)(&Notice::NotRead { path, source: damage });
        }
        (self.notices)(&Notice::Damaged { path, source: damage });
        self.counts.damaged.fetch_add(1, Ordering::Relaxed);
        let spoiled = |listed: &Listed| {
            Arc::ptr_eq(&listed.entry, entry) || listed.entry.segments().any(|of| of == segment)
        };
        while let Some(at) = self.entries.iter().position(spoiled) {
            self.remove(at);
        }
    }

    /// It is of use: others go first.
    pub(crate) fn touch(&mut self, id: EntryId) {
        self.clock += 1;
        let clock = self.clock;
        let Some(listed) = self.entries.iter_mut().find(|listed| listed.id == id) else { return };
        listed.used = clock;
        let touched = Arc::clone(&listed.touched);
        if !touched.swap(true, Ordering::Relaxed) {
            self.order(Order::Touch(entry_path(&self.dir, id), touched));
        }
    }

    /// Lists a session whose files are there.
    fn list(&mut self, id: EntryId, entry: Arc<Entry>, bytes: u64, pin: Pin) {
        self.hold(&entry);
        self.make_way(&pin);
        self.clock += 1;
        let (used, touched) = (self.clock, Arc::default());
        self.entries.push(Listed { id, entry, bytes, pin, used, touched });
        self.count();
    }

    /// See [`make_way`].
    fn make_way(&mut self, pin: &Pin) {
        make_way(self.entries.iter_mut().map(|listed| (&mut listed.pin, listed.used)), pin);
    }

    fn hold(&mut self, entry: &Entry) {
        for segment in entry.segments() {
            if let Some(segment) = self.segments.get_mut(&segment) {
                segment.references += 1;
            }
        }
    }

    /// Removes segments that nobody needs any more.
    fn release(&mut self, entry: &Entry) {
        for name in entry.segments() {
            if let Some(segment) = self.segments.get_mut(&name) {
                segment.references = segment.references.saturating_sub(1);
                if segment.references == 0 {
                    self.segments.remove(&name);
                    self.order(Order::Remove(segment_path(&self.dir, name)));
                }
            }
        }
    }

    /// Removes a session. The entry goes before its segments.
    fn remove(&mut self, at: usize) {
        let listed = self.entries.swap_remove(at);
        self.order(Order::Remove(entry_path(&self.dir, listed.id)));
        self.release(&listed.entry);
        self.count();
    }

    fn order(&self, order: Order) {
        if let Some(writer) = &self.writer {
            writer.order(order);
        }
    }

    /// Bytes of all files.
    fn bytes(&self) -> u64 {
        let entries: u64 = self.entries.iter().map(|listed| listed.bytes).sum();
        let segments: u64 = self.segments.values().map(|segment| segment.bytes).sum();
        let others: u64 = self.others.iter().map(|other| other.bytes).sum();
        entries + segments + others + self.bytes_that_stay()
    }

    /// What nobody here can make room of.
    fn bytes_that_stay(&self) -> u64 {
        self.in_use.iter().map(|other| other.bytes).sum::<u64>() + self.bytes_unlisted
    }

    /// Makes room for a session, of others of no higher rank. Says whether there is; where there cannot be, nothing goes.
    fn make_room(&mut self, (bytes, tokens): (u64, usize), pin: &Pin) -> bool {
        // Whoever used them may have removed them.
        self.in_use.retain(|other| other.dir.is_dir());
        let (stays, entries, listed) = self.stays(pin);
        let fits = stays + bytes <= self.bytes_max;
        if !fits || entries >= ENTRIES_MAX || listed + tokens > TOKENS_MAX {
            return false;
        }
        loop {
            let listed: usize = self.entries.iter().map(|listed| listed.entry.tokens.len()).sum();
            let too_large = self.bytes() + bytes > self.bytes_max;
            let too_many = self.entries.len() >= ENTRIES_MAX || listed + tokens > TOKENS_MAX;
            if !too_large && !too_many {
                return true;
            }
            if too_large && let Some(other) = self.others.pop() {
                match other.take() {
                    Some(lock) => self.order(Order::RemoveDir(other.dir, lock)),
                    None if other.dir.is_dir() => self.in_use.push(other),
                    // Somebody else has removed it.
                    None => {}
                }
                continue;
            }
            let least = self.entries.iter().enumerate();
            let least = least.min_by_key(|(_, listed)| (listed.pin.rank(), listed.used));
            match least {
                Some((at, listed)) if listed.pin.rank() <= pin.rank() => {
                    self.remove(at);
                    self.counts.evicted_from_disk.fetch_add(1, Ordering::Relaxed);
                }
                _ => return false,
            }
        }
    }

    /// Says of the first session that fits in no case that it does not.
    fn tell_if_too_large(&mut self, bytes: u64) {
        if bytes > self.bytes_max && !self.told_too_large {
            self.told_too_large = true;
            let (dir, bytes_max) = (self.dir.clone(), self.bytes_max);
            (self.notices)(&Notice::TooLarge { dir, bytes_max, bytes });
        }
    }

    /// What there is when all that is of no higher rank has gone: bytes, entries, and their tokens. Others' directories
    /// may all go, for all that is known before they are tried.
    fn stays(&self, pin: &Pin) -> (u64, usize, usize) {
        let mut references: HashMap<u64, usize> =
            self.segments.iter().map(|(name, segment)| (*name, segment.references)).collect();
        let (mut bytes, mut entries, mut tokens) = (self.bytes_that_stay(), 0, 0);
        for listed in &self.entries {
            if listed.pin.rank() > pin.rank() {
                bytes += listed.bytes;
                entries += 1;
                tokens += listed.entry.tokens.len();
            } else {
                for name in listed.entry.segments() {
                    references.entry(name).and_modify(|count| *count = count.saturating_sub(1));
                }
            }
        }
        let held = self.segments.iter().filter(|(name, _)| references[name] > 0);
        (bytes + held.map(|(_, segment)| segment.bytes).sum::<u64>(), entries, tokens)
    }

    fn count(&self) {
        let counts = &self.counts;
        counts.on_disk.store(self.entries.len(), Ordering::Relaxed);
        counts.disk_bytes.store(self.bytes(), Ordering::Relaxed);
    }
}
