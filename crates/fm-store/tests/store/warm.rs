//! A store that knows what an earlier run used keeps that from the start.

use fm_format::key::{ExpertIndex, LayerIndex};
use fm_store::{
    CHUNK_BYTES, Order, PolicyKind, Stats, Store, StoreOptions,
    heat::Heat,
    reader::{Access, Reader, memory::Memory},
};

use crate::{
    sim_disk::SimDisk,
    world::{Noise, Style, World},
};

const EXPERTS: usize = 64;
const TOP_K: usize = 4;
/// Enough for the policy to learn within a few turns what popularity means.
const LAYERS: usize = 30;

fn world() -> World {
    World::new(&[Style::Container], LAYERS, EXPERTS)
}

fn open(world: &World, policy: PolicyKind) -> Store {
    let (disk, _) = SimDisk::new(world, Access::Direct);
    let reader = Memory::open(&world.catalog, disk, |_| 0).unwrap();
    let budget_bytes = reader.staging_bytes() + world.catalog.bytes() / 3;
    let options = StoreOptions { budget_bytes, policy, top_k: TOP_K, chunk_bytes: CHUNK_BYTES };
    Store::open(&world.catalog, options, Box::new(reader)).unwrap()
}

/// Tokens that take four experts of every layer, low numbers more often than high ones.
fn play(store: &mut Store, world: &World, seed: u64, tokens: usize) -> Stats {
    let mut noise = Noise::new(seed);
    let layers = (0..).zip(&world.catalog.layers).filter(|(_, layer)| layer.is_some());
    let layers: Vec<_> = layers.map(|(at, _)| LayerIndex(at)).collect();
    for layer in (0..tokens).flat_map(|_| layers.clone()) {
        let mut chosen = [EXPERTS; TOP_K];
        for at in 0..TOP_K {
            while chosen[at] == EXPERTS || chosen[..at].contains(&chosen[at]) {
                chosen[at] = noise.below(EXPERTS) * noise.below(EXPERTS) / EXPERTS;
            }
        }
        chosen.sort_unstable();
        let chosen = chosen.map(|at| ExpertIndex(at as u16));
        let mut ticket = store.request(layer, &chosen).unwrap();
        while let Some(arrived) = store.next(&mut ticket, Order::Arrival).unwrap() {
            arrived.record.unwrap();
        }
    }
    store.stats()
}

fn heat(world: &World) -> Heat {
    let mut store = open(world, PolicyKind::Odds);
    play(&mut store, world, 1, 300);
    store.heat().unwrap()
}

#[test]
fn what_was_popular_stays_from_the_start() {
    let world = world();
    let heat = heat(&world);
    let mut warm = open(&world, PolicyKind::Odds);
    warm.warm(&heat);
    let cold = play(&mut open(&world, PolicyKind::Odds), &world, 2, 60);
    let warm = play(&mut warm, &world, 2, 60);
    // Nothing was read for it.
    assert_eq!(warm.records_read, warm.misses());
    assert!(warm.hit_rate() > cold.hit_rate() + 0.01, "{} {}", warm.hit_rate(), cold.hit_rate());
}

#[test]
fn heat_fades_and_adds_up_over_runs() {
    let world = world();
    let before = heat(&world);
    let mut store = open(&world, PolicyKind::Odds);
    store.warm(&before);
    play(&mut store, &world, 3, 1);
    let after = store.heat().unwrap();
    let pairs = before.layers[0].iter().zip(&after.layers[0]);
    let (hotter, others): (Vec<_>, Vec<_>) = pairs.partition(|(before, after)| after > before);
    assert_eq!(hotter.len(), TOP_K);
    assert!(others.iter().any(|(before, after)| after < before));
    assert!(others.iter().all(|(before, after)| **after >= 0.99 * **before));
}

#[test]
fn who_learned_nothing_says_nothing() {
    let world = world();
    let mut store = open(&world, PolicyKind::Odds);
    store.warm(&heat(&world));
    assert_eq!(store.heat(), None);
    let mut lru = open(&world, PolicyKind::Lru);
    lru.warm(&heat(&world));
    play(&mut lru, &world, 1, 10);
    assert_eq!(lru.heat(), None);
}
