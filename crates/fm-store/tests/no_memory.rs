//! A system that has no memory when the store would take some back.
//!
//! The limit is the process's, so this is a program of its own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{path::PathBuf, sync::Arc};

use fm_format::{
    key::{ExpertIndex, LayerIndex},
    quant,
    record::{
        Catalog, Extent, FileIndex, LayerRecords, MatrixShape, Piece, Place, Record, RecordLayout,
    },
};
use fm_store::{
    Order, PolicyKind, Store, StoreOptions,
    reader::{Access, Reader, memory::Memory, memory::MemoryDisk},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// One layer of eight experts of 6 MiB: larger than what an allocator has left over.
fn catalog() -> Arc<Catalog> {
    let format = quant::by_name("bf16").expect("the format has a row");
    let shape = |rows, cols| MatrixShape { rows, cols, format };
    let layout =
        RecordLayout { gate: shape(1024, 1024), up: shape(1024, 1024), down: shape(1024, 1024) };
    let record = |at: u64| {
        let bytes = layout.bytes() as u64;
        let extent = Extent { file: FileIndex(0), offset: at * bytes, bytes };
        Record { pieces: vec![Piece { extent, place: Place::Copy { at: 0 } }], checksums: None }
    };
    let layer = LayerRecords { layout, records: (0..8).map(record).collect() };
    Arc::new(Catalog { files: vec![PathBuf::from("weights")], layers: vec![Some(layer)] })
}

#[test]
fn a_store_goes_on_with_the_slots_it_has() {
    let catalog = catalog();
    let disk =
        MemoryDisk { files: vec![vec![1; catalog.bytes() as usize]], access: Access::Direct };
    let reader = Memory::open(&catalog, disk, |_| 0).unwrap();
    let options = StoreOptions {
        budget_bytes: catalog.bytes() + reader.staging_bytes(),
        policy: PolicyKind::Lru,
        top_k: 2,
        chunk_bytes: 1,
    };
    let mut store = Store::open(&catalog, options, Box::new(reader)).unwrap();
    let released = store.release(u64::MAX);
    assert!(released > 0);

    let limit = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(1 << 20), ..limit }).unwrap();
    let taken = store.take_back(u64::MAX);
    setrlimit(Resource::As, limit).unwrap();

    assert_eq!((taken, store.stats().taken_back_bytes), (0, 0));
    let mut ticket = store.request(LayerIndex(0), &[0, 5].map(ExpertIndex)).unwrap();
    let mut arrived = 0;
    while let Some(expert) = store.next(&mut ticket, Order::Ascending).unwrap() {
        arrived += usize::from(expert.record.unwrap()[0]);
    }
    assert_eq!(arrived, 2);
    drop(ticket);
    assert_eq!(store.take_back(u64::MAX), released, "and takes them when they are there");
}
