//! Slots: page-aligned memory in chunks, written by one reader at a time or read through leases.
//!
//! One atomic word per slot ([`word`]) decides who may touch its bytes: a writer ([`Buffer`]), any
//! number of readers ([`Lease`]), or nobody. Everything else in this crate relies on that word and on
//! nothing cleverer, so all reasoning about memory is here and there.
//!
//! Memory comes in chunks that are mapped one by one, so that they can be given back one by one
//! when the machine starts to page.

mod word;

use std::{
    fmt, io,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::Arc,
};

use self::word::Word;
use crate::error::StoreError;

/// What the kernel maps at once where it can. A direct read into memory that lies in one piece is one
/// segment for the device; into pages of 4096 bytes the same read was measured to take three times
/// as long (`docs/experiments/0020-huge-page-reads.md`).
const HUGE: usize = 2 << 20;

/// All slots of one size.
#[derive(Debug)]
pub(crate) struct Slab {
    record_bytes: usize,
    slot_bytes: usize,
    slots: usize,
    slots_per_chunk: usize,
    /// Bound: `slots / slots_per_chunk`, rounded up. `None` was given back.
    chunks: Vec<Option<Arc<Chunk>>>,
}

impl Slab {
    /// Maps `slots` slots of `slot_bytes`, a multiple of the page size, whose first `record_bytes` are
    /// leased, in chunks of at most `chunk_bytes` or one slot; pages are charged when they are first
    /// written.
    pub(crate) fn open(
        (record_bytes, slot_bytes): (usize, usize),
        slots: usize,
        chunk_bytes: usize,
    ) -> Result<Self, StoreError> {
        let slots_per_chunk = slots_per_chunk(slot_bytes, slots, chunk_bytes);
        let chunks = vec![None; slots.div_ceil(slots_per_chunk)];
        let mut slab = Self { record_bytes, slot_bytes, slots, slots_per_chunk, chunks };
        for chunk in 0..slab.chunks.len() {
            slab.map(chunk)?;
        }
        Ok(slab)
    }

    /// Chunks, mapped or not.
    pub(crate) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// Whether the memory of a chunk is there.
    pub(crate) fn is_mapped(&self, chunk: usize) -> bool {
        self.chunks[chunk].is_some()
    }

    /// The slots of a chunk.
    pub(crate) fn slots_of(&self, chunk: usize) -> std::ops::Range<u32> {
        let first = chunk * self.slots_per_chunk;
        first as u32..(first + self.slots_per_chunk).min(self.slots) as u32
    }

    /// Bytes of a chunk.
    pub(crate) fn chunk_bytes(&self, chunk: usize) -> usize {
        self.slots_of(chunk).len() * self.slot_bytes
    }

    /// Maps a chunk that is not there.
    pub(crate) fn map(&mut self, chunk: usize) -> Result<(), StoreError> {
        let chunk_slots = self.slots_of(chunk).len();
        let pages = Pages::map(chunk_slots * self.slot_bytes)?;
        let words = (0..chunk_slots).map(|_| Word::idle()).collect();
        let Self { record_bytes, slot_bytes, .. } = *self;
        let chunk_of_slots = Chunk { pages, record_bytes, slot_bytes, words };
        self.chunks[chunk] = Some(Arc::new(chunk_of_slots));
        Ok(())
    }

    /// Gives a chunk back; its memory goes when the last lease on it does.
    pub(crate) fn unmap(&mut self, chunk: usize) {
        self.chunks[chunk] = None;
    }

    /// Whether nobody reads or writes a slot.
    pub(crate) fn is_idle(&self, slot: u32) -> bool {
        let (chunk, at) = self.chunk(slot);
        chunk.words[at].is_idle()
    }

    /// Shares the bytes of a slot, unless they are being written.
    pub(crate) fn lease(&self, slot: u32) -> Option<Lease> {
        let (chunk, at) = self.chunk(slot);
        chunk.words[at].read().then(|| Lease { chunk: Arc::clone(chunk), at })
    }

    /// Takes a slot for writing, unless somebody uses it.
    pub(crate) fn write(&self, slot: u32) -> Option<Buffer> {
        let (chunk, at) = self.chunk(slot);
        chunk.words[at].write().then(|| Buffer { chunk: Arc::clone(chunk), at })
    }

    fn chunk(&self, slot: u32) -> (&Arc<Chunk>, usize) {
        let slot = slot as usize;
        let chunk = self.chunks[slot / self.slots_per_chunk].as_ref();
        (chunk.expect("slots of released chunks are not handed out"), slot % self.slots_per_chunk)
    }
}

/// How many slots to map together: at most `chunk_bytes` or one, and as many as fill whole huge pages
/// best.
fn slots_per_chunk(slot_bytes: usize, slots: usize, chunk_bytes: usize) -> usize {
    let most = (chunk_bytes / slot_bytes).clamp(1, slots.max(1));
    if most * slot_bytes < HUGE {
        return most;
    }
    // Bytes outside whole huge pages, per slot.
    let outside = |slots: &usize| (slots * slot_bytes % HUGE) / slots;
    (most.div_ceil(2)..=most).rev().min_by_key(outside).unwrap_or(most)
}

/// Slots that are mapped together.
struct Chunk {
    pages: Pages,
    /// At most `slot_bytes`.
    record_bytes: usize,
    slot_bytes: usize,
    words: Box<[Word]>,
}

impl Chunk {
    /// Where a slot starts. The bounds check of `words` is the proof that it lies in `pages`.
    fn start(&self, at: usize) -> NonNull<u8> {
        assert!(at < self.words.len(), "the slot belongs to its chunk");
        // SAFETY: `pages` holds `words.len()` slots of `slot_bytes` each, and `at` is one of them.
        unsafe { self.pages.start.add(at * self.slot_bytes) }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} x {} bytes)", self.words.len(), self.slot_bytes)
    }
}

/// One expert's bytes, held: the slot is neither evicted nor written before this is dropped.
///
/// May be sent to and dropped on any thread, and may outlive the store.
#[derive(Debug)]
pub struct Lease {
    chunk: Arc<Chunk>,
    at: usize,
}

impl Deref for Lease {
    type Target = [u8];

    /// The whole record, as `RecordLayout` describes it.
    fn deref(&self) -> &[u8] {
        let start = self.chunk.start(self.at);
        // SAFETY: the slot's bytes, of which these are the first, are mapped while `chunk` lives and zeroed by
        // the kernel; this lease is counted in the slot's word, so no `Buffer` for it exists.
        unsafe { slice::from_raw_parts(start.as_ptr(), self.chunk.record_bytes) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.chunk.words[self.at].end_read();
    }
}

/// A slot while it is filled: exclusive until dropped.
#[derive(Debug)]
pub struct Buffer {
    chunk: Arc<Chunk>,
    at: usize,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.chunk.start(self.at);
        // SAFETY: the slot is mapped while `chunk` lives; its word says that it is written, so this buffer
        // is the only access to it, and `&self` keeps that access shared.
        unsafe { slice::from_raw_parts(start.as_ptr(), self.chunk.slot_bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.chunk.start(self.at);
        // SAFETY: the slot is mapped while `chunk` lives; its word says that it is written, so this buffer
        // is the only access to it, and `&mut self` keeps that access exclusive.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.chunk.slot_bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.chunk.words[self.at].end_write();
    }
}

/// Buffers for reads whose bytes are placed elsewhere: page-aligned, exclusive, never leased.
///
/// `bytes` is a multiple of the page size, or 0 where nothing is ever staged.
pub(crate) fn staging(bytes: usize, count: usize) -> Result<Vec<Buffer>, StoreError> {
    let pages = Pages::map(staged_bytes(bytes, count).max(1))?;
    let words = (0..count).map(|_| Word::writing()).collect();
    let chunk = Arc::new(Chunk { pages, record_bytes: bytes, slot_bytes: bytes, words });
    Ok((0..count).map(|at| Buffer { chunk: Arc::clone(&chunk), at }).collect())
}

/// Memory that [`staging`] takes: whole huge pages, unless that would be mostly waste.
pub(crate) fn staged_bytes(bytes: usize, count: usize) -> usize {
    // More than there are addresses is more than anybody has: mapping it fails.
    let bytes = bytes.saturating_mul(count);
    if bytes < HUGE / 2 {
        bytes
    } else {
        bytes.checked_next_multiple_of(HUGE).unwrap_or(usize::MAX)
    }
}

/// Zeroed anonymous memory, aligned to 4096, and to [`HUGE`] if it is that long.
struct Pages {
    start: NonNull<u8>,
    #[cfg(not(unix))]
    bytes: usize,
    /// What was mapped: more than is used, where `start` had to be aligned.
    #[cfg(unix)]
    mapped: (NonNull<u8>, usize),
}

// SAFETY: `Pages` owns its mapping as a `Box<[u8]>` would; who may touch which byte is decided by
// the types above.
unsafe impl Send for Pages {}
// SAFETY: as above; `Pages` itself gives no access to the bytes.
unsafe impl Sync for Pages {}

#[cfg(unix)]
impl Pages {
    fn map(bytes: usize) -> Result<Self, StoreError> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let (null, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // Memory that is never touched costs addresses only.
        let more = if bytes < HUGE { 0 } else { HUGE };
        let length = bytes.saturating_add(more);
        // SAFETY: the kernel chooses the address, so the new mapping overlaps nothing.
        let mapped = unsafe { mmap_anonymous(null, length, access, MapFlags::PRIVATE) };
        let mapped = mapped
            .map_err(|errno| StoreError::OutOfMemory { bytes, source: io::Error::from(errno) })?;
        let mapped = NonNull::new(mapped.cast::<u8>()).expect("no mapping is at address zero");
        let skip = if more == 0 { 0 } else { mapped.addr().get().wrapping_neg() % HUGE };
        // SAFETY: `skip` is less than `more`, so all `bytes` behind it are mapped.
        let start = unsafe { mapped.add(skip) };
        let pages = Self { start, mapped: (mapped, length) };
        pages.advise_huge(bytes);
        Ok(pages)
    }

    /// Devices write whole reads into one piece of memory, and kernels that stream records miss
    /// the TLB less. A wish, not a need. Not for the end that would fill no huge page: what is not
    /// used is not taken.
    #[cfg(target_os = "linux")]
    fn advise_huge(&self, bytes: usize) {
        use rustix::mm::{Advice, madvise};
        let whole = bytes / HUGE * HUGE;
        // SAFETY: the range is a mapping we own, and this advice changes no contents.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), whole, Advice::LinuxHugepage) };
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_huge(&self, _bytes: usize) {}
}

#[cfg(unix)]
impl Drop for Pages {
    fn drop(&mut self) {
        let (start, bytes) = self.mapped;
        // SAFETY: mapped by `map` with this length, unmapped once, and every `Lease` and `Buffer`
        // that pointed into it kept it alive until now.
        let unmapped = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "the mapping is ours");
    }
}

#[cfg(not(unix))]
impl Pages {
    fn layout(bytes: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(bytes, 4096).expect("slots are smaller than isize::MAX")
    }

    fn map(bytes: usize) -> Result<Self, StoreError> {
        // SAFETY: callers ask for at least one byte.
        let start = unsafe { std::alloc::alloc_zeroed(Self::layout(bytes)) };
        let start = NonNull::new(start).ok_or_else(|| StoreError::OutOfMemory {
            bytes,
            source: io::ErrorKind::OutOfMemory.into(),
        })?;
        Ok(Self { start, bytes })
    }
}

#[cfg(not(unix))]
impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated by `map` with the same layout, freed once.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), Self::layout(self.bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_writer_or_many_readers() {
        let slab = Slab::open((4096, 4096), 3, 4 << 20).unwrap();
        let mut buffer = slab.write(1).unwrap();
        assert!(slab.write(1).is_none() && slab.lease(1).is_none() && !slab.is_idle(1));
        buffer.fill(7);
        drop(buffer);
        let (first, second) = (slab.lease(1).unwrap(), slab.lease(1).unwrap());
        assert!(slab.write(1).is_none());
        assert!(first.iter().chain(second.iter()).all(|byte| *byte == 7));
        std::thread::spawn(move || drop(first)).join().unwrap();
        drop(second);
        assert!(slab.is_idle(1) && slab.write(1).is_some());
        assert!(slab.lease(0).unwrap().iter().all(|byte| *byte == 0), "neighbours are untouched");
    }

    #[test]
    fn a_lease_outlives_its_chunk() {
        let mut slab = Slab::open((8192, 8192), 2, 8192).unwrap();
        assert_eq!(slab.chunk_count(), 2);
        slab.write(1).unwrap()[8191] = 9;
        let lease = slab.lease(1).unwrap();
        slab.unmap(1);
        assert!(!slab.is_mapped(1) && slab.is_mapped(0));
        assert_eq!(lease[8191], 9);
        drop(lease);
        slab.map(1).unwrap();
        assert_eq!(slab.lease(1).unwrap()[8191], 0);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_long_enough_begins_on_a_huge_page_and_fills_them() {
        for bytes in [HUGE, HUGE + 4096, 3 * HUGE] {
            let pages = Pages::map(bytes).unwrap();
            assert!(pages.start.addr().get().is_multiple_of(HUGE));
        }
        assert_eq!(slots_per_chunk(1_769_472, 1000, 64 << 20), 32, "27 huge pages");
        assert_eq!(slots_per_chunk(4096, 10, 64 << 20), 10);
        assert_eq!(slots_per_chunk(100 << 20, 10, 64 << 20), 1);
        assert_eq!((staged_bytes(4096, 4), staged_bytes(594_000, 4)), (16_384, 2 * HUGE));
        assert!(matches!(staging(1 << 62, 4), Err(StoreError::OutOfMemory { .. })));
    }

    #[test]
    fn staging_is_aligned_writable_and_apart() {
        let mut buffers = staging(8192, 3).unwrap();
        assert!(buffers[0].as_ptr().addr().is_multiple_of(4096));
        for (buffer, byte) in buffers.iter_mut().zip(1..) {
            buffer.fill(byte);
        }
        assert!(buffers.iter().zip(1..).all(|(buffer, byte)| buffer[..] == [byte; 8192]));
        assert!(staging(0, 2).unwrap()[1].is_empty());
    }
}
