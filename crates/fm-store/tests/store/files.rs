//! Real files: every reader, directly and through the page cache, at odd places.

use std::{fs, io::Write, path::Path, sync::Arc};

use fm_format::key::LayerIndex;
use fm_store::{
    Order, PolicyKind, Store, StoreError, StoreOptions,
    reader::{self, Access, IoMode, ReaderInfo, ReaderKind, ReaderOptions},
};
use tempfile::TempDir;

use crate::world::{Style, World, experts, key};

/// Puts a world's files on disk.
fn write(world: &mut World) -> TempDir {
    // The build's own directory: /tmp may be a file system that refuses direct reads.
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut catalog = (*world.catalog).clone();
    for (path, bytes) in catalog.files.iter_mut().zip(&world.files) {
        *path = dir.path().join(&path);
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
    }
    world.catalog = Arc::new(catalog);
    dir
}

fn options(io: IoMode, kind: ReaderKind) -> ReaderOptions {
    ReaderOptions { io, kind, depth: 3, ..ReaderOptions::default() }
}

/// Opens a store that holds a third of the experts, and reads all of them twice.
fn read_everything(world: &World, options: ReaderOptions) -> ReaderInfo {
    let (reader, info) = reader::open(&world.catalog, options).unwrap();
    let staging = reader.staging_bytes();
    assert!(staging <= reader::staging_bytes(&world.catalog, options.depth));
    let budget_bytes = world.catalog.bytes() / 3 + staging;
    let chunk_bytes = 1 << 16;
    let store = StoreOptions { budget_bytes, policy: PolicyKind::Auto, top_k: 2, chunk_bytes };
    let mut store = Store::open(&world.catalog, store, reader).unwrap();
    for order in [Order::Arrival, Order::Ascending] {
        for (layer, records) in world.catalog.layers.iter().enumerate() {
            let Some(records) = records else { continue };
            let union = experts(0..records.records.len() as u16);
            let mut ticket = store.request(key(layer, 0).layer, &union).unwrap();
            let mut came = 0;
            while let Some(arrived) = store.next(&mut ticket, order).unwrap() {
                let truth = &world.truth[&key(layer, arrived.expert.index())];
                assert!(*arrived.record.unwrap() == truth[..], "{options:?} {layer} {came}");
                came += 1;
            }
            assert_eq!(came, union.len());
        }
    }
    let stats = store.stats();
    assert_eq!((stats.retries, stats.io_errors), (0, 0));
    assert_eq!(stats.records_read, stats.misses() + stats.sacrifices);
    assert!(stats.read_bytes > 0 && stats.read_ns > 0);
    info
}

#[test]
fn every_reader_reads_every_style_at_every_offset() {
    // So many layers that every style is there in both sizes.
    let world = World::new(&Style::ALL, 24, 16);
    read_every_record_with_every_reader(world.clone());
    read_every_record_with_every_reader(world.with_checksums());
}

fn read_every_record_with_every_reader(mut world: World) {
    let _dir = write(&mut world);
    let mut direct = 0;
    for io in [IoMode::Auto, IoMode::Direct, IoMode::Buffered] {
        for kind in [ReaderKind::Auto, ReaderKind::Pread, ReaderKind::IoUring] {
            let options = options(io, kind);
            match reader::open(&world.catalog, options) {
                // What this machine cannot do it says, and a test cannot ask for more.
                Err(StoreError::DirectRefused { .. } | StoreError::RingRefused { .. }) => continue,
                Err(error) => panic!("{error}"),
                Ok(_) => {}
            }
            let info = read_everything(&world, options);
            assert!(kind == ReaderKind::Auto || info.kind == kind);
            assert!(io != IoMode::Buffered || info.access == Access::Buffered);
            assert!(io != IoMode::Direct || info.access == Access::Direct);
            direct += usize::from(info.access == Access::Direct);
        }
    }
    assert!(direct > 0 || !cfg!(target_os = "linux"), "no file system here reads directly");
}

#[test]
fn auto_reads_through_the_page_cache_what_fits_it() {
    let mut world = World::new(&[Style::Container], 1, 16);
    let _dir = write(&mut world);
    let options = ReaderOptions {
        page_cache_bytes: world.catalog.bytes(),
        ..options(IoMode::Auto, ReaderKind::Auto)
    };
    assert_eq!(read_everything(&world, options).access, Access::Buffered);
}

#[test]
fn a_truncated_file_is_found_before_anything_is_read() {
    let mut world = World::new(&[Style::Fused], 1, 4);
    let _dir = write(&mut world);
    for file in 0..3 {
        let path: &Path = &world.catalog.files[file];
        let ends = world.catalog.layers[0].iter().flat_map(|layer| &layer.records);
        let ends =
            ends.flat_map(|record| &record.pieces).filter(|p| p.extent.file.0 == file as u32);
        let Some(end) = ends.map(|piece| piece.extent.offset + piece.extent.bytes).max() else {
            continue;
        };
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(end - 1).unwrap();
        let refused = reader::open(&world.catalog, ReaderOptions::default()).unwrap_err();
        let StoreError::Truncated { path: named, expected, found } = &refused else {
            panic!("{refused}")
        };
        assert_eq!((named.as_path(), *expected, *found), (path, end, end - 1));
        fs::write(path, &world.files[file]).unwrap();
    }
    assert!(reader::open(&world.catalog, ReaderOptions::default()).is_ok());
}

#[test]
fn what_shrinks_or_rots_after_opening_costs_only_its_experts() {
    for kind in [ReaderKind::Pread, ReaderKind::Auto] {
        for io in [IoMode::Auto, IoMode::Buffered] {
            let mut world = World::new(&[Style::Fused], 1, 16).with_checksums();
            let _dir = write(&mut world);
            let (reader, _) = reader::open(&world.catalog, options(io, kind)).unwrap();
            let budget_bytes = world.catalog.bytes() + reader.staging_bytes();
            let (policy, top_k) = (PolicyKind::Auto, 2);
            let store = StoreOptions { budget_bytes, policy, top_k, chunk_bytes: 1 << 16 };
            let mut store = Store::open(&world.catalog, store, reader).unwrap();

            // One file ends in the middle of its last extent, another has a wrong byte.
            let extents = |file: u32| {
                let records = &world.catalog.layer(LayerIndex(0)).records;
                let pieces = records.iter().zip(0_u16..);
                let pieces =
                    pieces.flat_map(|(r, at)| r.pieces.iter().map(move |p| (at, p.extent)));
                pieces.filter(|(_, extent)| extent.file.0 == file).collect::<Vec<_>>()
            };
            let (short, end) = *extents(0).iter().max_by_key(|(_, extent)| extent.offset).unwrap();
            let file = fs::OpenOptions::new().write(true).open(&world.catalog.files[0]).unwrap();
            file.set_len(end.offset + 10).unwrap();
            let (rotten, extent) = extents(1)[0];
            let mut bytes = world.files[1].clone();
            bytes[extent.offset as usize] ^= 0x40;
            let mut file =
                fs::OpenOptions::new().write(true).open(&world.catalog.files[1]).unwrap();
            file.write_all(&bytes).unwrap();
            file.sync_all().unwrap();

            let mut ticket = store.request(LayerIndex(0), &experts(0..16)).unwrap();
            let (mut came, mut errors) = (0, Vec::new());
            while let Some(arrived) = store.next(&mut ticket, Order::Ascending).unwrap() {
                let at = arrived.expert.0;
                match arrived.record {
                    Ok(lease) => {
                        assert!(*lease == world.truth[&key(0, at.into())][..]);
                        came += 1;
                    }
                    Err(StoreError::ShortRead { offset, found, .. }) => {
                        assert_eq!((offset, found), (end.offset, 10));
                        errors.push(at);
                    }
                    Err(StoreError::Corrupt { key: wrong, .. }) => {
                        assert_eq!(wrong, key(0, rotten.into()));
                        errors.push(at);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let mut expected = vec![short, rotten];
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(errors, expected, "{kind:?} {io:?}");
            assert_eq!(came, 16 - errors.len());
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let mut world = World::new(&[Style::Fused], 1, 4);
    let dir = write(&mut world);
    drop(dir);
    let refused = reader::open(&world.catalog, ReaderOptions::default()).unwrap_err();
    assert!(matches!(&refused, StoreError::Open { path, .. } if *path == world.catalog.files[0]));
}

#[test]
fn a_store_that_is_dropped_in_the_middle_of_reading_leaves_its_leases_readable() {
    let mut world = World::new(&[Style::Scattered], 1, 64);
    let _dir = write(&mut world);
    for kind in [ReaderKind::Pread, ReaderKind::Auto] {
        let (reader, _) = reader::open(&world.catalog, options(IoMode::Auto, kind)).unwrap();
        let budget_bytes = world.catalog.bytes() + reader.staging_bytes();
        let chunk_bytes = 1 << 16;
        let store = StoreOptions { budget_bytes, policy: PolicyKind::Auto, top_k: 2, chunk_bytes };
        let mut store = Store::open(&world.catalog, store, reader).unwrap();
        let mut ticket = store.request(key(0, 0).layer, &experts(0..64)).unwrap();
        let arrived = store.next(&mut ticket, Order::Arrival).unwrap().unwrap();
        drop(store);
        drop(ticket);
        assert!(*arrived.record.unwrap() == world.truth[&key(0, arrived.expert.index())][..]);
    }
}
