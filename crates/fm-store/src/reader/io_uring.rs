//! One thread with an io_uring: many reads at the device, next to no CPU.
//!
//! Only staging buffers are registered with the kernel: they are few and small enough for the 8 MiB
//! that an ordinary user may lock. Where even that is refused they are read into unregistered.
//! Straight reads go into slots, which are too large to lock.
//!
//! Memory that the kernel writes is owned by [`Ring`] until its read has completed, even if the
//! thread panics: see `Drop`.

mod enter;

use std::{
    collections::VecDeque,
    fmt, io, mem,
    os::fd::{AsRawFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Instant,
};

use fm_format::{key::ExpertKey, record::Catalog};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};

use self::enter::{Entrance, Kernel, Linux};
use super::{
    Fetch, Fetched, Reader, Transfer, Wait,
    disk::{Disk, Files},
    exchange::{Exchange, Lost},
    gather::{ATTEMPTS_MAX, CHECKSUM_ATTEMPTS_MAX, Lapse, check, failure, put, resume_at},
    steps::{Step, Steps, Target, buffer_bytes},
};
use crate::{
    error::StoreError,
    slots::{self, Buffer},
};

/// Marks the completion that means "look at the exchange".
const WAKE: u64 = u64::MAX;

/// Bytes of a read, of a whole number of blocks: what a request can say is less than 4 GiB.
const READ_BYTES_MAX: usize = 1 << 30;

/// See the file.
pub(super) struct IoUringReader {
    exchange: Arc<Exchange>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    staging_bytes: u64,
    registered: bool,
}

impl IoUringReader {
    /// Starts the thread; fails if the kernel refuses a ring.
    pub(super) fn open(
        catalog: &Arc<Catalog>,
        files: &Files,
        depth: usize,
    ) -> Result<Self, StoreError> {
        Self::open_on(catalog, files, depth, Box::new(Linux))
    }

    fn open_on(
        catalog: &Arc<Catalog>,
        files: &Files,
        depth: usize,
        kernel: Box<dyn Kernel>,
    ) -> Result<Self, StoreError> {
        let refused = |source| StoreError::RingRefused { source };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|errno| refused(errno.into()))?);
        let exchange = Arc::new(Exchange::new());
        let buffer_bytes = buffer_bytes(catalog, files.access());
        let staging = slots::staging(buffer_bytes, depth)?;
        let parts = RingParts {
            exchange: Arc::clone(&exchange),
            wake: Arc::clone(&wake),
            catalog: Arc::clone(catalog),
            files: files.clone(),
            staging,
            entrance: Entrance::new(kernel),
        };
        // A ring belongs to the thread that made it, so the thread says how it went.
        let (ready, opened) = mpsc::sync_channel(1);
        let serve = move || match Ring::open(parts) {
            Ok(mut ring) => {
                let _ = ready.send(Ok(ring.registered));
                ring.serve();
            }
            Err(refused) => drop(ready.send(Err(refused))),
        };
        let thread = thread::Builder::new().name("read-ring".into()).spawn(serve);
        let thread = thread.map_err(|source| StoreError::Threads { source })?;
        let opened = opened.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        let staging_bytes = slots::staged_bytes(buffer_bytes, depth) as u64;
        let registered = opened.map_err(refused)?;
        Ok(Self { exchange, wake, thread: Some(thread), staging_bytes, registered })
    }

    /// Whether the staging buffers are registered with the kernel.
    pub(super) fn registered(&self) -> bool {
        self.registered
    }

    fn wake(&self) {
        // It can only fail because 2^64 wakes are pending: then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Reader for IoUringReader {
    fn submit(&mut self, fetch: Fetch) {
        self.exchange.submit(fetch);
        self.wake();
    }

    fn reap(&mut self, wait: Wait) -> Option<Fetched> {
        self.exchange.reap(wait)
    }

    fn staging_bytes(&self) -> u64 {
        self.staging_bytes
    }
}

impl Drop for IoUringReader {
    fn drop(&mut self) {
        self.exchange.close();
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has given everything back in `Ring::drop`.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for IoUringReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoUringReader({} staging bytes)", self.staging_bytes)
    }
}

/// What the thread is given.
struct RingParts {
    exchange: Arc<Exchange>,
    wake: Arc<OwnedFd>,
    catalog: Arc<Catalog>,
    files: Files,
    /// One buffer per read. Bound: the depth.
    staging: Vec<Buffer>,
    entrance: Entrance,
}

/// A record that is being read.
struct Active {
    fetch: Fetch,
    /// The slot, for the kernel; nobody here touches it while straight reads are under way.
    slot: NonNull<[u8]>,
    steps: Steps,
    /// Reads of it that the kernel has.
    reads: usize,
    /// Whether all steps have been started.
    started: bool,
    failed: Option<StoreError>,
    checksum_attempt: u32,
    transfer: Transfer,
    begun: Instant,
}

/// A read that the kernel has.
#[derive(Clone, Copy)]
struct Read {
    record: usize,
    step: Step,
    /// Bytes of the step that are there.
    filled: usize,
    /// Where in the step this read starts.
    from: usize,
    attempt: u32,
}

/// The thread's state.
struct Ring {
    queue: IoUring,
    parts: RingParts,
    registered: bool,
    /// One per staging buffer; a read uses the buffer of its own position.
    reads: Vec<Option<Read>>,
    /// Bound: one more than reads, so that there is always one to start.
    records: Vec<Option<Active>>,
    /// Records with steps to start, oldest first. Bound: `records`.
    to_start: VecDeque<usize>,
    /// Whether the kernel watches `wake`.
    armed: bool,
    /// What those are told who wait when this is dropped.
    lost: Lost,
}

impl Ring {
    fn open(parts: RingParts) -> io::Result<Self> {
        let depth = parts.staging.len();
        let entries = (depth as u32 + 1).next_power_of_two();
        // Completions are handled when this thread waits for them, and cost no interrupt before.
        let tuned = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .build(entries);
        // Kernels before 6.1 know rings but not these flags.
        let queue = tuned.or_else(|_| IoUring::new(entries))?;
        // Kernels before 5.6 know rings but neither probes nor plain reads: each read would fail.
        let mut probe = Probe::new();
        queue.submitter().register_probe(&mut probe)?;
        check_operations(&probe)?;
        let mut parts = parts;
        let registered = register(&queue, &mut parts.staging).is_ok();
        Ok(Self {
            queue,
            parts,
            registered,
            reads: vec![None; depth],
            records: (0..=depth).map(|_| None).collect(),
            to_start: VecDeque::with_capacity(depth + 1),
            armed: false,
            lost: Lost::Panicked,
        })
    }

    fn serve(&mut self) {
        while !self.parts.exchange.is_closed() {
            self.arm();
            self.fill();
            if let Err(error) = self.parts.entrance.wait(&self.queue) {
                // `Drop` tells everybody who waits.
                self.lost = Lost::Ring(Arc::new(error));
                return;
            }
            while let Some((id, result)) = self.completed() {
                match id {
                    WAKE => self.woken(),
                    read => self.read_done(read as usize, result),
                }
                // The disk goes on while the next one is placed.
                self.fill();
                self.parts.entrance.submit(&self.queue);
            }
        }
    }

    fn completed(&mut self) -> Option<(u64, i32)> {
        let entry = self.queue.completion().next()?;
        Some((entry.user_data(), entry.result()))
    }

    /// Lets the kernel watch for submissions.
    fn arm(&mut self) {
        if !self.armed {
            let readable = rustix::event::PollFlags::IN.bits().into();
            let watch = opcode::PollAdd::new(types::Fd(self.parts.wake.as_raw_fd()), readable);
            self.push(&watch.build().user_data(WAKE));
            self.armed = true;
        }
    }

    fn woken(&mut self) {
        self.armed = false;
        // Nothing to read means that somebody was faster, which is fine.
        let _ = rustix::io::read(&self.parts.wake, &mut [0; 8]);
    }

    /// Starts reads while there are free buffers and something to read.
    fn fill(&mut self) {
        while let Some(read) = self.reads.iter().position(Option::is_none) {
            let Some(record) = self.next_record() else { return };
            let active = self.records[record].as_mut().expect("records to start are active");
            let catalog = &self.parts.catalog;
            let (layer, key) = (catalog.layer(active.fetch.key.layer), active.fetch.key);
            let step = active.steps.next(layer, catalog.record(key));
            if let Some(step) = step.filter(|_| active.failed.is_none()) {
                active.reads += 1;
                self.start(read, Read { record, step, filled: 0, from: 0, attempt: 1 });
            } else {
                active.started = true;
                self.to_start.pop_front();
                self.finish_if_complete(record);
            }
        }
    }

    /// The record whose steps are started next.
    fn next_record(&mut self) -> Option<usize> {
        if let Some(record) = self.to_start.front() {
            return Some(*record);
        }
        let record = self.records.iter().position(Option::is_none)?;
        let mut fetch = self.parts.exchange.try_take()?;
        let slot = NonNull::from(&mut fetch.buffer[..]);
        let steps = self.steps(fetch.key);
        self.records[record] = Some(Active {
            fetch,
            slot,
            steps,
            reads: 0,
            started: false,
            failed: None,
            checksum_attempt: 1,
            transfer: Transfer::default(),
            begun: Instant::now(),
        });
        self.to_start.push_back(record);
        Some(record)
    }

    /// From its first read on.
    fn steps(&self, key: ExpertKey) -> Steps {
        let catalog = &self.parts.catalog;
        Steps::new(self.parts.files.access(), catalog.layer(key.layer), catalog.record(key))
    }

    /// Hands a read, or the rest of one, to the kernel.
    fn start(&mut self, at: usize, read: Read) {
        let Read { record, step, from, .. } = read;
        // What is left of a longer one is asked for when this has come.
        let bytes = (step.bytes - from).min(READ_BYTES_MAX) as u32;
        let file = &self.parts.files.handles()[step.file.0 as usize];
        let file = types::Fd(file.as_raw_fd());
        let offset = step.offset + from as u64;
        let entry = match step.target {
            Target::Slot { at } => {
                let active = self.records[record].as_ref().expect("reads belong to a record");
                let end = at + step.bytes;
                assert!(end <= active.slot.len(), "a straight read ends in its slot");
                // SAFETY: `at + from` is inside the slot, as just checked.
                let into = unsafe { active.slot.cast::<u8>().add(at + from) };
                opcode::Read::new(file, into.as_ptr(), bytes).offset(offset).build()
            }
            Target::Staging { .. } | Target::Pieces { .. } => {
                let into = self.parts.staging[at][from..step.bytes].as_mut_ptr();
                if self.registered {
                    let read = opcode::ReadFixed::new(file, into, bytes, at as u16);
                    read.offset(offset).build()
                } else {
                    opcode::Read::new(file, into, bytes).offset(offset).build()
                }
            }
        };
        self.reads[at] = Some(read);
        self.push(&entry.user_data(at as u64));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what the entry points to is owned by `self.records` or `self.parts.staging`,
        // both outlive the operation: slots and buffers in use are not touched before its
        // completion was seen, and `drop` waits for all of them.
        let pushed = unsafe { self.queue.submission().push(entry) };
        pushed.expect("the queue has an entry for every read and one for the wake");
    }

    /// A read came back: with everything, with a part, or not at all.
    fn read_done(&mut self, at: usize, result: i32) {
        let mut read = self.reads[at].take().expect("completions belong to a read");
        let active = self.records[read.record].as_mut().expect("reads belong to a record");
        let lapse = match u32::try_from(result) {
            Err(_) => Some(Lapse::Io(io::Error::from_raw_os_error(-result))),
            Ok(bytes) => {
                active.transfer.bytes += u64::from(bytes);
                let reached = read.from + bytes as usize;
                let stuck = reached <= read.filled;
                read.filled = read.filled.max(reached);
                stuck.then_some(Lapse::Short(read.filled))
            }
        };
        match lapse {
            Some(_) if read.attempt < ATTEMPTS_MAX => {
                active.transfer.retries += 1;
                let attempt = read.attempt + 1;
                return self.start(at, Read { attempt, filled: 0, from: 0, ..read });
            }
            Some(lapse) => {
                let error = failure(&self.parts.catalog, active.fetch.key, &read.step, lapse);
                active.failed.get_or_insert(error);
            }
            None if read.filled < read.step.skip + read.step.wanted => {
                read.from = resume_at(self.parts.files.access(), read.filled);
                return self.start(at, read);
            }
            None => self.put(at, &read),
        }
        let active = self.records[read.record].as_mut().expect("reads belong to a record");
        active.reads -= 1;
        self.finish_if_complete(read.record);
    }

    /// Places what a staged read brought.
    fn put(&mut self, at: usize, read: &Read) {
        let active = self.records[read.record].as_mut().expect("reads belong to a record");
        let key = active.fetch.key;
        let (catalog, staging) = (&self.parts.catalog, &self.parts.staging[at]);
        let slot = &mut active.fetch.buffer;
        let placing = || put(catalog, key, &read.step, staging, slot);
        if catch_unwind(AssertUnwindSafe(placing)).is_err() {
            active.failed.get_or_insert(StoreError::ReaderPanicked { key });
        }
    }

    /// Checks and gives back a record that has all its bytes, or never will.
    fn finish_if_complete(&mut self, record: usize) {
        let active = self.records[record].as_mut().expect("the record is active");
        if !active.started || active.reads > 0 {
            return;
        }
        let key = active.fetch.key;
        let outcome = active.failed.take().map_or_else(
            || {
                let slot = &active.fetch.buffer;
                let checking = || check(&self.parts.catalog, key, slot);
                let checked = catch_unwind(AssertUnwindSafe(checking));
                checked.unwrap_or(Err(StoreError::ReaderPanicked { key }))
            },
            Err,
        );
        let outcome = outcome.map(|()| active.steps.starts());
        if matches!(outcome, Err(StoreError::Corrupt { .. }))
            && active.checksum_attempt < CHECKSUM_ATTEMPTS_MAX
        {
            active.checksum_attempt += 1;
            active.transfer.retries += 1;
            active.started = false;
            active.slot = NonNull::from(&mut active.fetch.buffer[..]);
            self.to_start.push_back(record);
            let steps = self.steps(key);
            self.records[record].as_mut().expect("the record is active").steps = steps;
            return;
        }
        let Some(active) = self.records[record].take() else { return };
        let Active { fetch, mut transfer, begun, .. } = active;
        transfer.ns = begun.elapsed().as_nanos() as u64;
        self.parts.exchange.finish(Fetched::new(fetch, transfer, outcome));
    }
}

impl Drop for Ring {
    /// Memory must not go while the kernel writes to it, and nobody must wait for ever.
    fn drop(&mut self) {
        loop {
            while let Some((id, _)) = self.completed() {
                if id != WAKE {
                    self.reads[id as usize] = None;
                }
            }
            let under_way = self.reads.iter().any(Option::is_some);
            if !under_way || self.parts.entrance.wait(&self.queue).is_err() {
                break;
            }
        }
        // The kernel neither finishes these nor says that it has: their memory stays its own.
        let endless = mem::take(&mut self.reads);
        let is_endless = |record| endless.iter().flatten().any(|read| read.record == record);
        if endless.iter().any(Option::is_some) {
            mem::forget(mem::take(&mut self.parts.staging));
        }
        for (record, active) in self.records.drain(..).enumerate() {
            let Some(Active { fetch: Fetch { key, buffer }, transfer, .. }) = active else {
                continue;
            };
            let mut buffer = Some(buffer);
            if is_endless(record) {
                mem::forget(buffer.take());
            }
            let (at, outcome) = (Instant::now(), Err(self.lost.error(key)));
            self.parts.exchange.finish(Fetched { key, buffer, transfer, at, outcome });
        }
        self.parts.exchange.abandon(&self.lost);
    }
}

/// Refuses a kernel that lacks an operation of this file.
fn check_operations(probe: &Probe) -> io::Result<()> {
    let used = [opcode::PollAdd::CODE, opcode::Read::CODE, opcode::ReadFixed::CODE];
    let known = used.into_iter().all(|operation| probe.is_supported(operation));
    if known { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Tells the kernel about the staging buffers, so that it need not look them up for every read.
fn register(queue: &IoUring, staging: &mut [Buffer]) -> io::Result<()> {
    let buffers = staging
        .iter_mut()
        .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
    let buffers: Vec<libc::iovec> = buffers.collect();
    // SAFETY: the buffers are mapped until `Ring` is dropped, and a `Ring` drops its queue, and the
    // registration with it, before its staging.
    unsafe { queue.submitter().register_buffers(&buffers) }
}

#[cfg(test)]
mod tests;
