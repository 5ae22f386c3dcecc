//! A store that knows what an earlier run used keeps that from the start.

use fm_format::key::{ExpertIndex, LayerIndex};
use fm_store::{
    CHUNK_BYTES, Order, PolicyKind, Stats, Store, StoreOptions, Ticket,
    heat::Heat,
    reader::{Access, Reader, memory::Memory},
};

use crate::{
    sim_disk::SimDisk,
    world::{Noise, Style, World, experts},
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

fn layers(world: &World) -> impl Iterator<Item = LayerIndex> {
    let layers = (0..).zip(&world.catalog.layers).filter(|(_, layer)| layer.is_some());
    layers.map(|(at, _)| LayerIndex(at))
}

/// Four experts, low numbers more often than high ones.
fn choice(noise: &mut Noise) -> [ExpertIndex; TOP_K] {
    let mut chosen = [EXPERTS; TOP_K];
    for at in 0..TOP_K {
        while chosen[at] == EXPERTS || chosen[..at].contains(&chosen[at]) {
            chosen[at] = noise.below(EXPERTS) * noise.below(EXPERTS) / EXPERTS;
        }
    }
    chosen.sort_unstable();
    chosen.map(|at| ExpertIndex(at as u16))
}

fn take(store: &mut Store, mut ticket: Ticket, order: Order) {
    while let Some(arrived) = store.next(&mut ticket, order).unwrap() {
        arrived.record.unwrap();
    }
}

/// Tokens that take such experts of every layer.
fn play(store: &mut Store, world: &World, seed: u64, tokens: usize) -> Stats {
    let mut noise = Noise::new(seed);
    for _ in 0..tokens {
        for layer in layers(world) {
            let ticket = store.request(layer, &choice(&mut noise)).unwrap();
            take(store, ticket, Order::Arrival);
        }
    }
    store.stats()
}

fn heat(world: &World) -> Heat {
    let mut store = open(world, PolicyKind::Odds);
    play(&mut store, world, 1, 300);
    store.heat().unwrap()
}

/// Share of hits of ten tokens behind a prompt, whose rows count `by_row`, and in which the next layer's
/// experts are all read `ahead`.
fn hits_behind_a_prompt(world: &World, by_row: bool, ahead: bool) -> f64 {
    let mut store = open(world, PolicyKind::Odds);
    let mut noise = Noise::new(1);
    let everyone = experts(0..EXPERTS as u16);
    let mut layers = layers(world).peekable();
    while let Some(layer) = layers.next() {
        let chosen: Vec<_> = (0..200).flat_map(|_| choice(&mut noise)).collect();
        let mut union = chosen.clone();
        union.sort_unstable();
        union.dedup();
        assert!(union.len() > EXPERTS * 3 / 4, "most are wanted");
        let ticket = if by_row {
            store.request_rows(layer, &union, (&chosen, TOP_K))
        } else {
            store.request(layer, &union)
        };
        let next = layers.peek().filter(|_| ahead);
        let _forecast = next.map(|next| store.foresee(*next, &everyone, 64).unwrap());
        take(&mut store, ticket.unwrap(), Order::Ascending);
    }
    let prompt = store.stats();
    (play(&mut store, world, 2, 10) - prompt).hit_rate()
}

#[test]
fn a_prompt_says_what_its_text_likes() {
    let world = world();
    for ahead in [false, true] {
        let hits = [false, true].map(|by_row| hits_behind_a_prompt(&world, by_row, ahead));
        assert!(hits[1] > hits[0] + 0.1, "{hits:?}");
    }
    // Reading ahead brings experts that nobody wanted: they go first.
    let [alone, ahead] = [false, true].map(|ahead| hits_behind_a_prompt(&world, true, ahead));
    assert!(ahead > alone - 0.02, "{alone} {ahead}");
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
