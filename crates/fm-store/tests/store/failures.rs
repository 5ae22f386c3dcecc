//! Disks that fail: the error says where, the others arrive, and the next request succeeds.

use std::sync::{Arc, atomic::Ordering};

use fm_format::{
    key::{ExpertIndex, LayerIndex},
    record::{FileIndex, MatrixRole},
};
use fm_store::{
    Order, RecordPart, Store, StoreError, Ticket,
    reader::{Access, Disk, Pread, Reader, memory::Memory},
};

use crate::{
    sim_disk::{Faults, SimDisk},
    world::{Style, World, experts, key, slots},
};

/// Attempts at one read; the store's documentation promises a bound, this pins it.
const ATTEMPTS: u64 = 3;

fn store(world: &World, access: Access) -> (Store, Arc<Faults>) {
    let (disk, faults) = SimDisk::new(world, access);
    let reader = Memory::open(&world.catalog, disk, |_| 0).unwrap();
    let options = slots(world, 4, reader.staging_bytes());
    (Store::open(&world.catalog, options, Box::new(reader)).unwrap(), faults)
}

/// What a request yields: who came whole, and who failed and how.
fn drain(store: &mut Store, world: &World, union: &[ExpertIndex]) -> (Vec<u16>, Vec<StoreError>) {
    let mut ticket = store.request(LayerIndex(0), union).unwrap();
    let (mut came, mut failed) = (Vec::new(), Vec::new());
    while let Some(arrived) = store.next(&mut ticket, Order::Ascending).unwrap() {
        match arrived.record {
            Ok(lease) => {
                let expert = arrived.expert;
                assert!(*lease == world.truth[&key(0, expert.index())][..], "{expert:?}");
                came.push(expert.0);
            }
            Err(error) => failed.push(error),
        }
    }
    assert_eq!(came.len() + failed.len(), union.len());
    (came, failed)
}

/// Accesses that a faultless run of this scenario makes.
fn accesses(world: &World, access: Access) -> u64 {
    let (mut store, faults) = store(world, access);
    drain(&mut store, world, &experts(0..6));
    faults.accesses.load(Ordering::Relaxed)
}

#[test]
fn one_failed_access_anywhere_is_retried_and_nobody_notices() {
    for style in Style::ALL {
        for access in [Access::Buffered, Access::Direct] {
            let world = World::new(&[style], 1, 6);
            for k in 0..accesses(&world, access) {
                let (mut store, faults) = store(&world, access);
                let list = if k % 2 == 0 { &faults.failing } else { &faults.ending };
                list.lock().unwrap().insert(k);
                let (came, failed) = drain(&mut store, &world, &experts(0..6));
                assert_eq!((came.len(), failed.len()), (6, 0), "access {k}");
                assert_eq!((store.stats().retries, store.stats().io_errors), (1, 0));
            }
        }
    }
}

#[test]
fn a_read_that_fails_for_good_costs_one_expert_and_one_request() {
    for style in Style::ALL {
        for access in [Access::Buffered, Access::Direct] {
            let world = World::new(&[style], 1, 6);
            for k in 0..accesses(&world, access) {
                let (mut store, faults) = store(&world, access);
                faults.failing.lock().unwrap().extend(k..k + ATTEMPTS);
                let (came, failed) = drain(&mut store, &world, &experts(0..6));
                assert_eq!((came.len(), failed.len()), (5, 1), "access {k}");
                check_names_the_place(&world, &came, &failed[0]);
                let (came, failed) = drain(&mut store, &world, &experts(0..6));
                assert_eq!((came.len(), failed.len()), (6, 0), "access {k}, next request");
                assert_eq!(store.stats().io_errors, 1);
            }
        }
    }
}

/// The error names an expert that did not come, and an extent that is one of its pieces.
fn check_names_the_place(world: &World, came: &[u16], error: &StoreError) {
    let StoreError::Read { key, path, offset, bytes, attempts, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(u64::from(*attempts), ATTEMPTS);
    assert!(!came.contains(&key.expert.0));
    let pieces = &world.catalog.record(*key).pieces;
    let is_it = pieces.iter().any(|piece| {
        let extent = piece.extent;
        world.catalog.path(extent.file) == path
            && extent.offset == *offset
            // One read may fetch neighbours.
            && world.truth[key].len() >= *bytes
    });
    assert!(is_it, "{error}");
    let message = error.to_string();
    let expected = format!("layer 0 expert {}", key.expert.0);
    assert!(message.contains(&expected) && message.contains(&path.display().to_string()));
    assert!(message.contains(&offset.to_string()), "{message}");
}

#[test]
fn a_file_that_ends_early_is_a_short_read() {
    let mut world = World::new(&[Style::Fused], 1, 6);
    let last = |piece: &fm_format::record::Piece| piece.extent.offset + piece.extent.bytes;
    let pieces = world.catalog.record(key(0, 2)).pieces.clone();
    let piece = pieces[2];
    world.files[piece.extent.file.0 as usize].truncate(last(&piece) as usize - 1);
    for access in [Access::Buffered, Access::Direct] {
        let (mut store, _) = store(&world, access);
        let (came, failed) = drain(&mut store, &world, &experts([2]));
        assert_eq!(came.len(), 0);
        let StoreError::ShortRead { key: found_key, expected, found, offset, .. } = failed[0]
        else {
            panic!("{}", failed[0])
        };
        assert_eq!((found_key, offset), (key(0, 2), piece.extent.offset));
        assert_eq!(expected as u64, piece.extent.bytes);
        assert_eq!(found, expected - 1, "{access:?}");
    }
}

#[test]
fn a_disk_that_returns_little_at_a_time_is_only_slow() {
    for (access, longest) in
        [(Access::Buffered, 1000), (Access::Direct, 4096), (Access::Direct, 5000)]
    {
        let world = World::new(&[Style::Scattered, Style::Affine], 1, 6).with_checksums();
        let (mut store, faults) = store(&world, access);
        faults.longest.store(longest, Ordering::Relaxed);
        assert_eq!(drain(&mut store, &world, &experts(0..6)).0.len(), 6);
        assert_eq!(store.stats().retries, 0);
    }
}

/// A bit of the middle of gate or down of expert 3, as the file has it.
fn bit(world: &World, role: MatrixRole) -> (FileIndex, u64) {
    let layout = &world.catalog.layer(LayerIndex(0)).layout;
    let extent = world.catalog.record(key(0, 3)).pieces[0].extent;
    (extent.file, extent.offset + (layout.offset(role) + layout.shape(role).bytes() / 2) as u64)
}

#[test]
fn a_flipped_bit_on_the_way_is_read_again() {
    let world = World::new(&[Style::Container], 1, 6).with_checksums();
    let (mut store, faults) = store(&world, Access::Direct);
    let (file, at) = bit(&world, MatrixRole::Up);
    faults.flipped.lock().unwrap().push((file, at, 1));
    assert_eq!(drain(&mut store, &world, &experts(0..6)).0.len(), 6);
    assert_eq!(store.stats().retries, 1);
}

#[test]
fn a_flipped_bit_on_the_disk_is_an_error_and_never_cached() {
    let world = World::new(&[Style::Container], 1, 6).with_checksums();
    for (role, expected_part) in [
        (MatrixRole::Gate, RecordPart::GateUp),
        (MatrixRole::Up, RecordPart::GateUp),
        (MatrixRole::Down, RecordPart::Down),
    ] {
        let (mut store, faults) = store(&world, Access::Direct);
        let (file, at) = bit(&world, role);
        faults.flipped.lock().unwrap().push((file, at, u32::MAX));
        let (came, failed) = drain(&mut store, &world, &experts(0..6));
        assert_eq!(came, [0, 1, 2, 4, 5]);
        let StoreError::Corrupt { key: wrong, part, expected, found, .. } = failed[0] else {
            panic!("{}", failed[0])
        };
        assert_eq!((wrong, part), (key(0, 3), expected_part));
        assert_ne!(expected, found);
        assert!(!store.is_resident(key(0, 3)));
        faults.flipped.lock().unwrap().clear();
        assert_eq!(drain(&mut store, &world, &experts([3])).0, [3]);
    }
}

#[test]
fn every_request_that_wants_a_failed_expert_learns_of_it() {
    let world = World::new(&[Style::Container], 1, 6);
    let (mut store, faults) = store(&world, Access::Buffered);
    faults.failing.lock().unwrap().extend(0..2 * ATTEMPTS);
    let mut one = store.request(LayerIndex(0), &experts([1])).unwrap();
    let mut other = store.request(LayerIndex(0), &experts([1])).unwrap();
    for ticket in [&mut other, &mut one] {
        let arrived = store.next(ticket, Order::Ascending).unwrap().unwrap();
        assert_eq!(arrived.expert, ExpertIndex(1));
        assert!(matches!(arrived.record, Err(StoreError::Read { .. })));
    }
    assert!(store.next(&mut other, Order::Ascending).unwrap().is_none());
    assert!(store.next(&mut one, Order::Ascending).unwrap().is_none());
}

#[test]
fn an_abandoned_failure_is_forgotten() {
    let world = World::new(&[Style::Container], 1, 6);
    let (mut store, faults) = store(&world, Access::Buffered);
    faults.failing.lock().unwrap().extend(0..ATTEMPTS);
    drop(store.request(LayerIndex(0), &experts([1])).unwrap());
    store.wait_for_reads();
    assert_eq!(drain(&mut store, &world, &experts([1])).0, [1]);
}

/// Has a record whose pieces do not fit it.
struct Absurd(SimDisk);

impl Disk for Absurd {
    fn access(&self) -> Access {
        self.0.access()
    }

    fn read_at(&self, file: FileIndex, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        assert!(offset != 0, "a disk that panics");
        self.0.read_at(file, offset, into)
    }
}

#[test]
fn a_reader_that_panics_is_an_error_and_goes_on_reading() {
    let mut world = World::new(&[Style::Container], 1, 6);
    // Expert 3 starts where nothing does.
    let mut catalog = (*world.catalog).clone();
    let layer = catalog.layers[0].as_mut().unwrap();
    layer.records[3].pieces[0].extent.offset = 0;
    world.catalog = Arc::new(catalog);
    let (disk, _) = SimDisk::new(&world, Access::Buffered);
    let reader = Pread::open(&world.catalog, Absurd(disk), 1).unwrap();
    let options = slots(&world, 4, reader.staging_bytes());
    let mut store = Store::open(&world.catalog, options, Box::new(reader)).unwrap();
    let (came, failed) = drain(&mut store, &world, &experts(0..6));
    assert_eq!(came, [0, 1, 2, 4, 5]);
    assert!(matches!(failed[0], StoreError::ReaderPanicked { key: wrong } if wrong == key(0, 3)));
}

#[test]
fn a_record_that_could_not_be_arranged_is_read_again_before_anybody_gets_it() {
    let world = World::new(&[Style::Fused], 1, 6);
    let (mut store, _) = store(&world, Access::Buffered);
    let mut one = store.request(LayerIndex(0), &experts([1, 2, 3])).unwrap();
    let mut other = store.request(LayerIndex(0), &experts([2])).unwrap();
    // Arranging is to turn every bit; it breaks off after the first half of expert 2.
    let turn = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = !*byte);
    let arranged = |expert: usize| world.truth[&key(0, expert)].iter().map(|byte| !byte);
    for expert in 1..=3 {
        let broken = |record: &mut [u8], _| {
            if expert != 2 {
                turn(record);
                return Ok(());
            }
            let half = record.len() / 2;
            turn(&mut record[..half]);
            Err("the device is gone")
        };
        match store.next_arranged(&mut one, Order::Ascending, broken) {
            Ok(arrived) => {
                let arrived = arrived.unwrap().unwrap();
                assert_eq!(arrived.expert.index(), expert);
                assert!(arrived.record.unwrap().iter().copied().eq(arranged(expert)));
            }
            Err(error) => assert_eq!((expert, error), (2, "the device is gone")),
        }
        assert_eq!(store.is_resident(key(0, expert)), expert != 2);
    }
    assert!(store.next(&mut one, Order::Ascending).unwrap().is_none(), "it went on without");
    let whole = |record: &mut [u8], _| {
        turn(record);
        Ok::<_, ()>(())
    };
    // Who waited for it as well has it read, and who asks for it later gets it as it is.
    let get = |store: &mut Store, ticket: &mut Ticket| {
        let arrived = store.next_arranged(ticket, Order::Arrival, whole).unwrap().unwrap().unwrap();
        assert!(arrived.record.unwrap().iter().copied().eq(arranged(2)));
    };
    get(&mut store, &mut other);
    let mut again = store.request(LayerIndex(0), &experts([2])).unwrap();
    get(&mut store, &mut again);
    assert_eq!(store.stats().records_read, 4);
}

#[test]
fn no_slot_is_lost_with_a_record_that_could_not_be_arranged() {
    let world = World::new(&[Style::Fused], 1, 6);
    let (mut store, _) = store(&world, Access::Buffered);
    for round in 0..20 {
        let mut ticket = store.request(LayerIndex(0), &experts([round % 6])).unwrap();
        let refused = store.next_arranged(&mut ticket, Order::Arrival, |_, _| Err(round));
        assert_eq!(refused.unwrap_err(), round);
    }
    let glances = store.map().glances().filter(|glance| glance.is_resident()).count();
    assert_eq!(glances, 0);
    let mut ticket = store.request(LayerIndex(0), &experts(0..4)).unwrap();
    let next = || store.next(&mut ticket, Order::Ascending).unwrap();
    // Four slots: all of them can be held.
    let held: Vec<_> = std::iter::from_fn(next).map(|arrived| arrived.record.unwrap()).collect();
    assert_eq!(held.len(), 4);
}
