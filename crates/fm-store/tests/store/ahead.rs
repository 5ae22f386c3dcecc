//! Forecasts: read when nothing else is to be read, counted when they come true, and never in the way.

use std::sync::Arc;

use fm_format::key::{ExpertIndex, LayerIndex};
use fm_store::{
    Order, Stats, Store,
    reader::{Access, Reader, memory::Memory},
};

use crate::{
    sim_disk::{Faults, SimDisk},
    world::{Style, World, experts, key, slots},
};

/// A store that reads when it blocks, in the order of requests.
fn store(world: &World, count: usize) -> (Store, Arc<Faults>) {
    let (disk, faults) = SimDisk::new(world, Access::Buffered);
    let reader = Memory::open(&world.catalog, disk, |_| 0).unwrap();
    let options = slots(world, count, reader.staging_bytes());
    (Store::open(&world.catalog, options, Box::new(reader)).unwrap(), faults)
}

fn world() -> World {
    World::new(&[Style::Scattered], 1, 16)
}

const LAYER: LayerIndex = LayerIndex(0);

fn take(store: &mut Store, wanted: &[ExpertIndex]) -> Vec<u16> {
    let mut ticket = store.request(LAYER, wanted).unwrap();
    let mut came = Vec::new();
    while let Some(arrived) = store.next(&mut ticket, Order::Arrival).unwrap() {
        arrived.record.unwrap();
        came.push(arrived.expert.0);
    }
    came
}

fn resident(store: &Store, expert: usize) -> bool {
    store.is_resident(key(0, expert))
}

#[test]
fn what_was_foreseen_is_there_and_counts_as_read_for_its_request() {
    let world = world();
    let (mut store, _) = store(&world, 8);
    let forecast = store.foresee(LAYER, &experts([3, 5, 9]), 2).unwrap();
    store.wait_for_reads();
    assert!(resident(&store, 3) && resident(&store, 5), "two may be on their way at once");
    assert!(!resident(&store, 9));
    take(&mut store, &experts([3, 4]));
    let Stats { hits, cold_misses, foreseen_records, foreseen_used, records_read, .. } =
        store.stats();
    assert_eq!((hits, cold_misses), (0, 2), "ahead of time or not, both were read for this");
    assert_eq!((foreseen_records, foreseen_used), (3, 1));
    assert_eq!(records_read, 3, "3 and 5 before, 4 now; 9 is still on its way");
    drop(forecast);
    // Once it has come true it is an expert like any other.
    take(&mut store, &experts([3]));
    assert_eq!((store.stats().hits, store.stats().foreseen_used), (1, 1));
}

#[test]
fn what_somebody_waits_for_is_read_first() {
    let world = world();
    let (mut store, _) = store(&world, 16);
    let mut ticket = store.request(LAYER, &experts(0..12)).unwrap();
    let _forecast = store.foresee(LAYER, &experts([14, 15]), 64).unwrap();
    // Twelve reads were started before; the forecast's two come behind them.
    for expert in 0..12 {
        let arrived = store.next(&mut ticket, Order::Arrival).unwrap().unwrap();
        assert_eq!(arrived.expert.0, expert);
        assert!(!resident(&store, 14));
    }
    store.wait_for_reads();
    assert!(resident(&store, 14) && resident(&store, 15));
}

#[test]
fn a_forecast_is_read_while_it_is_open_whatever_else_is() {
    let world = world();
    let (mut store, _) = store(&world, 16);
    let mut others: Vec<_> = (0..6).map(|_| store.request(LAYER, &[]).unwrap()).collect();
    let last = store.foresee(LAYER, &experts(0..8), 1).unwrap();
    take(&mut store, &experts([9]));
    store.wait_for_reads();
    let foreseen = store.stats().foreseen_records;
    assert!(resident(&store, 0) && !resident(&store, 7), "one at a time");
    // Its place stays empty: the next request finds another one.
    drop((last, others.remove(0)));
    take(&mut store, &experts([10]));
    store.wait_for_reads();
    assert_eq!(store.stats().foreseen_records, foreseen, "nobody expects them any more");
}

#[test]
fn a_forecast_keeps_what_is_there_until_it_is_dropped() {
    let world = world();
    let (mut store, _) = store(&world, 4);
    take(&mut store, &experts([0, 1, 2, 3]));
    let forecast = store.foresee(LAYER, &experts([0, 1]), 2).unwrap();
    take(&mut store, &experts([4, 5]));
    assert!(resident(&store, 0) && resident(&store, 1), "the oldest, but expected");
    drop(forecast);
    take(&mut store, &experts([6, 7]));
    assert!(!resident(&store, 0) && !resident(&store, 1));
}

#[test]
fn a_forecast_of_everything_leaves_room_for_what_is_wanted() {
    let world = world();
    let (mut store, _) = store(&world, 4);
    let _forecast = store.foresee(LAYER, &experts(0..16), 64).unwrap();
    let mut came = take(&mut store, &experts(8..16));
    came.sort_unstable();
    assert!(came.into_iter().eq(8..16));
}

#[test]
fn what_was_foreseen_wrongly_goes_first() {
    let world = world();
    let (mut store, _) = store(&world, 4);
    take(&mut store, &experts([0, 1, 2]));
    drop(store.foresee(LAYER, &experts([9]), 1).unwrap());
    store.wait_for_reads();
    assert!(resident(&store, 9));
    take(&mut store, &experts([4]));
    assert!(!resident(&store, 9) && resident(&store, 0));
    assert_eq!((store.stats().foreseen_records, store.stats().foreseen_used), (1, 0));
}

#[test]
fn a_forecast_that_cannot_be_read_is_given_up_and_asked_for_in_earnest() {
    let world = world();
    let (mut store, faults) = store(&world, 4);
    faults.failing.lock().unwrap().extend(0..3);
    let _forecast = store.foresee(LAYER, &experts([2]), 1).unwrap();
    store.wait_for_reads();
    let accesses = || faults.accesses.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!((store.stats().io_errors, accesses()), (1, 3));
    take(&mut store, &experts([7]));
    assert!(!resident(&store, 2), "nobody tries again");
    // The fault is over, and nothing is remembered against the expert.
    assert_eq!(take(&mut store, &experts([2])), [2]);
}
