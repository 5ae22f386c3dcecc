//! A token whose experts are all resident costs no allocation in the store, and one that evicts none in its policy.

use std::{path::PathBuf, sync::Arc};

use fm_format::{
    key::{ExpertIndex, ExpertKey, LayerIndex},
    quant,
    record::{
        Catalog, Extent, FileIndex, LayerRecords, MatrixShape, Piece, Place, Record, RecordLayout,
    },
};
use fm_store::{
    CHUNK_BYTES, Order, PolicyKind, Store, StoreOptions,
    policy::{Policy, PolicyScope, Standing, Turn},
    reader::{Access, Reader, memory::Memory, memory::MemoryDisk},
};
use fm_testkit::{
    counting_alloc::{CountingAlloc, count_allocations},
    noise::Noise,
};

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
    for policy in PolicyKind::names().filter_map(PolicyKind::by_name) {
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

/// Uses of single experts that evict one another.
fn churn(policy: &mut dyn Policy, standings: &mut [Standing], slots: &mut [Option<usize>]) {
    let (layers, mut noise) = (2, Noise::new(1));
    for now in 1..3000_u64 {
        let layer = now as usize % layers;
        let per_layer = standings.len() / layers;
        let expert =
            layer * per_layer + noise.below(per_layer) * noise.below(per_layer) / per_layer;
        let home = slots.iter().position(|slot| *slot == Some(expert));
        if let Some(slot) = home {
            policy.remove(slot as u32);
        }
        let turn = Turn { now, of_layer: now.div_ceil(layers as u64) as u32 };
        policy.used(&mut standings[expert], turn);
        let free = home.or_else(|| slots.iter().position(Option::is_none));
        let slot = free.unwrap_or_else(|| {
            policy.take(None, &|slot| slot != 0).expect("one lease leaves others") as usize
        });
        slots[slot] = Some(expert);
        policy.insert(slot as u32, &standings[expert]);
    }
}

#[test]
fn evictions_allocate_nothing() {
    let scope = PolicyScope {
        slots: 20,
        top_k: 1,
        requests_per_token: 2,
        layers: 2,
        experts: 128,
        experts_per_layer: 64,
    };
    for kind in PolicyKind::names().filter_map(PolicyKind::by_name) {
        let mut policy = kind.build(scope);
        let key = |id: u32| ExpertKey {
            layer: LayerIndex((id / 64) as u16),
            expert: ExpertIndex((id % 64) as u16),
        };
        let mut standings: Vec<_> = (0..128).map(|id| Standing::new(key(id), id)).collect();
        let mut slots = vec![None; scope.slots];
        let ((), allocations) =
            count_allocations(|| churn(policy.as_mut(), &mut standings, &mut slots));
        assert_eq!(allocations.count, 0, "{kind:?}");
    }
}
