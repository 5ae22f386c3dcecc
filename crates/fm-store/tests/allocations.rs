//! A token whose experts are all resident costs no allocation in the store.

use std::{path::PathBuf, sync::Arc};

use fm_format::{
    key::{ExpertIndex, LayerIndex},
    quant,
    record::{
        Catalog, Extent, FileIndex, LayerRecords, MatrixShape, Piece, Place, Record, RecordLayout,
    },
};
use fm_store::{
    CHUNK_BYTES, Order, PolicyKind, Store, StoreOptions,
    reader::{Access, Reader, memory::Memory, memory::MemoryDisk},
};
use fm_testkit::counting_alloc::{CountingAlloc, count_allocations};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

/// Two layers of eight experts, one file.
fn catalog() -> Arc<Catalog> {
    let format = quant::by_name("bf16").expect("the format has a row");
    let shape = |rows, cols| MatrixShape { rows, cols, format };
    let layout = RecordLayout { gate: shape(32, 64), up: shape(32, 64), down: shape(64, 32) };
    let record = |at: u64| {
        let bytes = layout.bytes() as u64;
        let extent = Extent { file: FileIndex(0), offset: at * bytes, bytes };
        Record { pieces: vec![Piece { extent, place: Place::Copy { at: 0 } }], checksums: None }
    };
    let layer = |first: u64| {
        Some(LayerRecords { layout, records: (first..first + 8).map(record).collect() })
    };
    Arc::new(Catalog { files: vec![PathBuf::from("weights")], layers: vec![layer(0), layer(8)] })
}

#[test]
fn tokens_of_hits_allocate_nothing() {
    let catalog = catalog();
    let disk =
        MemoryDisk { files: vec![vec![1; catalog.bytes() as usize]], access: Access::Direct };
    let reader = Memory::open(&catalog, disk, |_| 0).unwrap();
    for policy in [PolicyKind::Lru, PolicyKind::Lfru, PolicyKind::Odds] {
        let disk =
            MemoryDisk { files: vec![vec![1; catalog.bytes() as usize]], access: Access::Direct };
        let options = StoreOptions {
            budget_bytes: catalog.bytes() + reader.staging_bytes(),
            policy,
            top_k: 4,
            chunk_bytes: CHUNK_BYTES,
        };
        let reader = Memory::open(&catalog, disk, |_| 0).unwrap();
        let mut store = Store::open(&catalog, options, Box::new(reader)).unwrap();
        let union = [0, 2, 3, 7].map(ExpertIndex);
        let mut sum = 0;
        let mut token = |store: &mut Store| {
            for layer in [LayerIndex(0), LayerIndex(1)] {
                for order in [Order::Arrival, Order::Ascending] {
                    let mut ticket = store.request(layer, &union).unwrap();
                    while let Some(arrived) = store.next(&mut ticket, order).unwrap() {
                        sum += u64::from(arrived.record.unwrap()[0]);
                    }
                }
            }
        };
        token(&mut store);
        let ((), allocations) = count_allocations(|| (0..1000).for_each(|_| token(&mut store)));
        assert_eq!(allocations.count, 0, "{policy:?}");
        assert_eq!(store.stats().cold_misses, 8);
        assert_eq!(sum, 1001 * 16);
    }
}
