//! A ring on a kernel that refuses: for a moment, for ever, or because it is broken.

use std::{io::Write, sync::Mutex, time::Duration};

use fm_format::{
    key::{ExpertIndex, LayerIndex},
    quant,
    record::{Extent, FileIndex, LayerRecords, MatrixShape, Piece, Place, Record, RecordLayout},
};

use super::*;
use crate::{
    plan::{CHUNK_BYTES, StoreOptions},
    policy::PolicyKind,
    reader::{IoMode, ReaderOptions},
    store::Store,
    ticket::Order,
};

const EXPERTS: u16 = 6;

#[test]
fn a_kernel_without_the_operations_is_refused() {
    // Before the kernel has filled it, a probe knows no operation.
    let refused = check_operations(&Probe::new()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
}

/// A file of six records, each of a byte of its own. With a gap between its pieces a record is staged.
fn world(staged: bool) -> (tempfile::NamedTempFile, Arc<Catalog>) {
    let format = quant::by_name("bf16").unwrap();
    let shape = MatrixShape { rows: 32, cols: 64, format };
    let layout = RecordLayout { gate: shape, up: shape, down: shape };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut records = Vec::new();
    for expert in 0..EXPERTS {
        let (bytes, gap) = (layout.bytes(), usize::from(staged));
        let start = usize::from(expert) * (bytes + gap) + gap;
        file.write_all(&vec![0; gap]).unwrap();
        file.write_all(&vec![expert as u8 + 1; bytes]).unwrap();
        let extent = Extent { file: FileIndex(0), offset: start as u64, bytes: bytes as u64 };
        records.push(Record {
            pieces: vec![Piece { extent, place: Place::Copy { at: 0 } }],
            checksums: None,
        });
    }
    let layers = vec![Some(LayerRecords { layout, records })];
    let catalog = Catalog { files: vec![file.path().to_path_buf()], layers };
    (file, Arc::new(catalog))
}

/// A store with six slots on such a kernel; `None` where there are no rings.
fn store(catalog: &Arc<Catalog>, kernel: impl Kernel + 'static) -> Option<Store> {
    let options = ReaderOptions { io: IoMode::Buffered, ..ReaderOptions::default() };
    let (files, _) = Files::open(catalog, options).unwrap();
    let reader = match IoUringReader::open_on(catalog, &files, 2, Box::new(kernel)) {
        Ok(reader) => reader,
        Err(StoreError::RingRefused { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    let slots = u64::from(EXPERTS) * catalog.layer(LayerIndex(0)).layout.bytes() as u64;
    let options = StoreOptions {
        budget_bytes: slots + reader.staging_bytes(),
        policy: PolicyKind::Auto,
        top_k: 1,
        chunk_bytes: CHUNK_BYTES,
    };
    Some(Store::open(catalog, options, Box::new(reader)).unwrap())
}

/// Asks for all experts: how many came, and what became of the others.
fn drain(store: &mut Store) -> (u16, Vec<StoreError>) {
    let union: Vec<_> = (0..EXPERTS).map(ExpertIndex).collect();
    let mut ticket = store.request(LayerIndex(0), &union).unwrap();
    let (mut came, mut failed) = (0, Vec::new());
    while let Some(arrived) = store.next(&mut ticket, Order::Ascending).unwrap() {
        match arrived.record {
            Ok(lease) => {
                let byte = arrived.expert.0 as u8 + 1;
                assert!(lease[..4096].iter().all(|found| *found == byte));
                came += 1;
            }
            Err(error) => failed.push(error),
        }
    }
    assert_eq!(usize::from(came) + failed.len(), usize::from(EXPERTS));
    (came, failed)
}

/// A kernel that says no when it is asked to wait: from the `after`-th time on, so many times.
struct Refusing {
    errno: i32,
    after: u32,
    times: u32,
    waits: u32,
}

impl Refusing {
    fn new(errno: i32, after: u32, times: u32) -> Self {
        Self { errno, after, times, waits: 0 }
    }
}

impl Kernel for Refusing {
    fn enter(&mut self, ring: &IoUring, completions: usize) -> io::Result<usize> {
        // What is queued is taken at a wait, so that there are reads under way at it.
        if completions == 0 {
            return Ok(0);
        }
        self.waits += 1;
        let since = self.waits.checked_sub(self.after);
        if since.is_some_and(|since| since < self.times) {
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        ring.submit_and_wait(completions)
    }

    fn pause(&mut self, _: Duration) {}
}

/// A kernel that never has the memory for a request; adds its pauses up.
struct Full(Arc<Mutex<Duration>>);

impl Kernel for Full {
    fn enter(&mut self, _: &IoUring, _: usize) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    fn pause(&mut self, pause: Duration) {
        *self.0.lock().unwrap() += pause;
    }
}

#[test]
fn what_the_kernel_refuses_for_the_moment_is_asked_again() {
    for (errno, staged) in
        [libc::EAGAIN, libc::EBUSY, libc::EINTR].into_iter().zip([true, false, true])
    {
        for after in 1..4 {
            let (_file, catalog) = world(staged);
            let Some(mut store) = store(&catalog, Refusing::new(errno, after, 20)) else { return };
            let (came, failed) = drain(&mut store);
            assert_eq!((came, failed.len()), (EXPERTS, 0), "errno {errno} at wait {after}");
        }
    }
}

#[test]
fn a_kernel_that_only_refuses_is_given_up_after_seconds() {
    let (_file, catalog) = world(true);
    let paused = Arc::default();
    let Some(mut store) = store(&catalog, Full(Arc::clone(&paused))) else { return };
    let (came, failed) = drain(&mut store);
    assert_eq!(came, 0);
    for error in failed {
        let StoreError::RingFailed { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::WouldBlock);
    }
    assert_eq!(paused.lock().unwrap().as_secs(), 8);
}

#[test]
fn a_ring_that_fails_answers_for_every_expert_with_its_error() {
    for staged in [true, false] {
        // From a wait on once, so that what was under way can be waited for; or for ever.
        for (after, times) in [(1, 1), (2, 1), (4, 1), (1, u32::MAX), (2, u32::MAX), (4, u32::MAX)]
        {
            let (_file, catalog) = world(staged);
            let Some(mut store) = store(&catalog, Refusing::new(libc::EIO, after, times)) else {
                return;
            };
            let mut came = EXPERTS;
            // Each round takes a wait or more.
            for _ in 0..6 {
                let failed;
                (came, failed) = drain(&mut store);
                for error in failed {
                    let StoreError::RingFailed { key, source } = &error else { panic!("{error}") };
                    assert_eq!(source.raw_os_error(), Some(libc::EIO));
                    assert!(error.to_string().contains(&key.to_string()), "{error}");
                }
                if came == 0 {
                    break;
                }
                store.evict_all();
            }
            assert_eq!(drain(&mut store).0, came, "it does not come back");
            assert_eq!(came, 0, "it has failed");
        }
    }
}
