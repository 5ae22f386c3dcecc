//! Unions larger than all slots, walks in order, requests that get in each other's way.

use fm_format::key::{ExpertIndex, LayerIndex};
use fm_store::{
    Lease, Order, PolicyKind, Store, StoreError, StoreOptions,
    reader::{Access, Pread, Reader, memory::Memory, memory::MemoryDisk},
};

use crate::world::{Style, World, experts, key, slots};

fn world(experts: usize) -> World {
    World::new(&[Style::Scattered], 1, experts)
}

fn disk(world: &World) -> MemoryDisk {
    MemoryDisk { files: world.files.clone(), access: Access::Buffered }
}

/// A store with `count` slots that reads on demand, in the order of requests.
fn store(world: &World, count: usize) -> Store {
    let reader = Memory::open(&world.catalog, disk(world), |_| 0).unwrap();
    let options = slots(world, count, reader.staging_bytes());
    let store = Store::open(&world.catalog, options, Box::new(reader)).unwrap();
    assert_eq!(store.plan().classes[0].slots, count);
    store
}

const LAYER: LayerIndex = LayerIndex(0);

/// Everything a request yields, checked and dropped at once.
fn drain(store: &mut Store, world: &World, union: &[ExpertIndex], order: Order) -> Vec<u16> {
    let mut ticket = store.request(LAYER, union).unwrap();
    let mut came = Vec::new();
    while let Some(arrived) = store.next(&mut ticket, order).unwrap() {
        let expert = arrived.expert.0;
        assert!(*arrived.record.unwrap() == world.truth[&key(0, expert.into())][..]);
        came.push(expert);
    }
    came
}

#[test]
fn a_union_of_forty_streams_through_two_slots_in_either_order() {
    let world = world(40);
    for order in [Order::Arrival, Order::Ascending] {
        let mut store = store(&world, 2);
        for _ in 0..3 {
            let mut came = drain(&mut store, &world, &experts(0..40), order);
            if order == Order::Arrival {
                came.sort_unstable();
            }
            assert!(came.iter().copied().eq(0..40));
        }
    }
}

#[test]
fn hits_come_while_misses_load() {
    let world = world(8);
    let mut store = store(&world, 8);
    drain(&mut store, &world, &experts([5, 7]), Order::Ascending);
    // The reader moves only when the store blocks: what comes first was there.
    let mut ticket = store.request(LAYER, &experts([1, 5, 6, 7])).unwrap();
    let mut came = Vec::new();
    while let Some(arrived) = store.next(&mut ticket, Order::Arrival).unwrap() {
        came.push((arrived.expert.0, store.stats().records_read));
    }
    assert_eq!(came, [(5, 2), (7, 2), (1, 3), (6, 4)]);
    assert_eq!((store.stats().hits, store.stats().cold_misses), (2, 4));
}

#[test]
fn an_ascending_walk_gives_up_late_hits_rather_than_hang() {
    let world = world(6);
    let mut store = store(&world, 2);
    drain(&mut store, &world, &experts([4, 5]), Order::Ascending);
    let came = drain(&mut store, &world, &experts(0..6), Order::Ascending);
    assert_eq!(came, [0, 1, 2, 3, 4, 5]);
    assert!(store.stats().sacrifices > 0);
    // In order of arrival nothing has to be given up.
    let before = store.stats();
    drain(&mut store, &world, &experts(0..6), Order::Arrival);
    assert_eq!((store.stats() - before).hits, 2);
    assert_eq!((store.stats() - before).records_read, 4);
}

#[test]
fn a_caller_that_holds_every_slot_gets_an_error_and_may_go_on() {
    let world = world(5);
    let mut store = store(&world, 2);
    let mut ticket = store.request(LAYER, &experts(0..5)).unwrap();
    let mut held: Vec<Lease> = Vec::new();
    let mut came = Vec::new();
    loop {
        match store.next(&mut ticket, Order::Ascending) {
            Ok(Some(arrived)) => {
                came.push(arrived.expert.0);
                held.push(arrived.record.unwrap());
            }
            Ok(None) => break,
            Err(StoreError::SlotsExhausted { layer, slots }) => {
                assert_eq!((layer, slots, held.len()), (LAYER, 2, 2));
                drop(held.remove(0));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(came, [0, 1, 2, 3, 4]);
}

#[test]
fn two_requests_share_what_they_both_want_and_never_lock_up() {
    let world = world(8);
    let mut store = store(&world, 2);
    drain(&mut store, &world, &experts([6, 7]), Order::Ascending);
    // The first pins both slots and is never served; the second must get through.
    let first = store.request(LAYER, &experts([6, 7])).unwrap();
    assert_eq!(drain(&mut store, &world, &experts([0, 1, 7]), Order::Ascending), [0, 1, 7]);
    let mut first = first;
    let mut came = 0;
    while let Some(arrived) = store.next(&mut first, Order::Arrival).unwrap() {
        assert!(*arrived.record.unwrap() == world.truth[&key(0, arrived.expert.index())][..]);
        came += 1;
    }
    assert_eq!(came, 2);

    let read = store.stats().records_read;
    let mut one = store.request(LAYER, &experts([3])).unwrap();
    let mut other = store.request(LAYER, &experts([3])).unwrap();
    let lease = store.next(&mut one, Order::Arrival).unwrap().unwrap().record.unwrap();
    let again = store.next(&mut other, Order::Arrival).unwrap().unwrap().record.unwrap();
    assert_eq!(lease.as_ptr(), again.as_ptr());
    assert_eq!(store.stats().records_read, read + 1);
}

#[test]
fn a_slot_is_found_whichever_request_keeps_it() {
    let world = world(8);
    let mut store = store(&world, 2);
    drain(&mut store, &world, &experts([6, 7]), Order::Ascending);
    let _others: Vec<_> = (0..6).map(|_| store.request(LAYER, &[]).unwrap()).collect();
    let _keeps_both = store.request(LAYER, &experts([6, 7])).unwrap();
    assert_eq!(drain(&mut store, &world, &experts([0, 1]), Order::Ascending), [0, 1]);
}

#[test]
fn an_abandoned_request_leaves_no_pins_and_its_reads_are_kept() {
    let world = world(8);
    let mut store = store(&world, 4);
    for _ in 0..20 {
        drop(store.request(LAYER, &experts([0, 1, 2, 3])).unwrap());
        let mut ticket = store.request(LAYER, &experts([2, 5])).unwrap();
        drop(store.next(&mut ticket, Order::Arrival).unwrap());
    }
    store.wait_for_reads();
    assert_eq!(drain(&mut store, &world, &experts(4..8), Order::Ascending), [4, 5, 6, 7]);
    drop(store.request(LAYER, &experts([0])).unwrap());
    store.wait_for_reads();
    assert!(store.is_resident(key(0, 0)));
}

#[test]
fn too_many_open_requests_are_an_error() {
    let world = world(2);
    let mut store = store(&world, 2);
    let mut open = Vec::new();
    let limit = loop {
        match store.request(LAYER, &experts([0])) {
            Ok(ticket) => open.push(ticket),
            Err(StoreError::TooManyTickets { limit }) => break limit,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(open.len(), limit);
    open.pop();
    assert!(store.request(LAYER, &experts([1])).is_ok());
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let world = world(8);
    let reader = || Box::new(Memory::open(&world.catalog, disk(&world), |_| 0).unwrap());
    let staging = reader().staging_bytes();
    let options = StoreOptions { budget_bytes: staging + 8191 * 2, ..slots(&world, 2, staging) };
    let refused = Store::open(&world.catalog, options, reader()).unwrap_err();
    let StoreError::BudgetTooSmall { budget, minimum, top_k } = refused else {
        panic!("{refused}")
    };
    assert_eq!((budget, top_k), (options.budget_bytes, 2));
    let enough = StoreOptions { budget_bytes: minimum, ..options };
    assert_eq!(Store::open(&world.catalog, enough, reader()).unwrap().bytes(), minimum);
}

#[test]
fn frequency_survives_a_scan_where_recency_does_not() {
    let world = world(32);
    for (policy, kept) in [(PolicyKind::Lfru, true), (PolicyKind::Lru, false)] {
        let reader = Memory::open(&world.catalog, disk(&world), |_| 0).unwrap();
        let options = StoreOptions { policy, ..slots(&world, 12, reader.staging_bytes()) };
        let mut store = Store::open(&world.catalog, options, Box::new(reader)).unwrap();
        for _ in 0..5 {
            drain(&mut store, &world, &experts([8, 9]), Order::Ascending);
        }
        drain(
            &mut store,
            &world,
            &experts((0..32).filter(|at| *at != 8 && *at != 9)),
            Order::Ascending,
        );
        assert_eq!(
            store.is_resident(key(0, 8)) && store.is_resident(key(0, 9)),
            kept,
            "{policy:?}"
        );
    }
}

#[test]
fn leases_dropped_on_other_threads_free_their_slots() {
    let world = world(64);
    let reader = Pread::open(&world.catalog, disk(&world), 2).unwrap();
    let options = slots(&world, 4, reader.staging_bytes());
    let mut store = Store::open(&world.catalog, options, Box::new(reader)).unwrap();
    let (send, receive) = std::sync::mpsc::sync_channel::<(u16, Lease)>(1);
    let truth = std::sync::Arc::clone(&world.truth);
    let device = std::thread::spawn(move || {
        for (expert, lease) in receive {
            assert!(*lease == truth[&key(0, expert.into())][..]);
        }
    });
    let mut ticket = store.request(LAYER, &experts(0..64)).unwrap();
    let mut came = 0;
    loop {
        match store.next(&mut ticket, Order::Ascending) {
            Ok(Some(arrived)) => {
                send.send((arrived.expert.0, arrived.record.unwrap())).unwrap();
                came += 1;
            }
            Ok(None) => break,
            // All four are with the device or on the way to it.
            Err(StoreError::SlotsExhausted { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    drop((store, send));
    device.join().unwrap();
    assert_eq!(came, 64);
}
