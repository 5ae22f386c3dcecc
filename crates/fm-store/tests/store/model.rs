//! The store beside a `HashMap`: whatever is asked, dropped and held in whatever order, every byte
//! is right, every expert comes once, and the budget holds.

use fm_format::key::{ExpertIndex, ExpertKey, LayerIndex};
use fm_store::{
    Lease, Order, Plan, PolicyKind, Store, StoreError, StoreOptions, Ticket,
    reader::{Access, Pread, Reader, memory::Memory},
};
use proptest::prelude::*;

use crate::{
    sim_disk::SimDisk,
    world::{Noise, Style, World},
};

/// Something a caller may do.
#[derive(Clone, Debug)]
enum Op {
    /// Open a request for the experts of this bit set.
    Request { layer: usize, set: u16 },
    /// Take the next expert of an open request.
    Next { ticket: usize, order: Order },
    /// Drop the lease at this position.
    DropLease(usize),
    /// Abandon a request.
    DropTicket(usize),
    /// Say what may be wanted.
    Foresee { layer: usize, set: u16, records: usize },
    /// Do not expect it any more.
    DropForecast,
    /// Give chunks back.
    Release(usize),
    /// Evict everybody who may go.
    EvictAll,
    /// Take chunks back.
    Grow(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let order = prop_oneof![Just(Order::Arrival), Just(Order::Ascending)];
    prop_oneof![
        3 => (0..LAYERS, any::<u16>()).prop_map(|(layer, set)| Op::Request { layer, set }),
        12 => (any::<usize>(), order).prop_map(|(ticket, order)| Op::Next { ticket, order }),
        6 => any::<usize>().prop_map(Op::DropLease),
        1 => any::<usize>().prop_map(Op::DropTicket),
        2 => (0..LAYERS, any::<u16>(), 0..5_usize)
            .prop_map(|(layer, set, records)| Op::Foresee { layer, set, records }),
        1 => Just(Op::DropForecast),
        1 => (0..3_usize).prop_map(Op::Release),
        1 => (0..3_usize).prop_map(Op::Grow),
        1 => Just(Op::EvictAll),
    ]
}

const LAYERS: usize = 8;
const EXPERTS: usize = 12;
/// Two slots of the largest record.
const CHUNK_BYTES: usize = 40960;

/// A request, and what it still owes.
struct Open {
    ticket: Ticket,
    layer: LayerIndex,
    owed: Vec<ExpertIndex>,
}

/// The caller's side of the story.
struct Caller {
    world: World,
    store: Store,
    open: Vec<Open>,
    forecasts: Vec<Ticket>,
    held: Vec<(ExpertKey, Lease)>,
}

fn wanted(layer: usize, set: u16) -> (LayerIndex, Vec<ExpertIndex>) {
    // Position 1 is the dense layer.
    let layer = LayerIndex(if layer == 0 { 0 } else { layer + 1 } as u16);
    let experts = (0..EXPERTS as u16).filter(|at| set >> at & 1 == 1).map(ExpertIndex);
    (layer, experts.collect())
}

impl Caller {
    fn perform(&mut self, op: &Op) {
        match *op {
            Op::Request { layer, set } if self.open.len() < 4 => self.request(layer, set),
            Op::Next { ticket, order } if !self.open.is_empty() => {
                let ticket = ticket % self.open.len();
                self.next(ticket, order);
            }
            Op::DropLease(at) if !self.held.is_empty() => {
                self.check_held();
                self.held.swap_remove(at % self.held.len());
            }
            Op::DropTicket(at) if !self.open.is_empty() => {
                self.open.swap_remove(at % self.open.len());
            }
            Op::Foresee { layer, set, records } if self.forecasts.len() < 3 => {
                let (layer, experts) = wanted(layer, set);
                self.forecasts.push(self.store.foresee(layer, &experts, records).unwrap());
            }
            Op::DropForecast => {
                self.forecasts.pop();
            }
            Op::Release(chunks) => {
                let before = self.store.bytes();
                let released: u64 = (0..chunks).map_while(|_| self.store.release_chunk()).sum();
                assert_eq!(self.store.bytes(), before - released);
            }
            Op::EvictAll => {
                self.store.evict_all();
                self.check_evicted();
            }
            Op::Grow(chunks) => {
                let before = self.store.bytes();
                let grown: u64 = (0..chunks).map_while(|_| self.store.grow_chunk().unwrap()).sum();
                assert_eq!(self.store.bytes(), before + grown);
            }
            _ => {}
        }
        assert!(self.store.bytes() <= self.store.plan().bytes());
        self.check_map();
    }

    /// Whoever watches from outside sees where every expert is.
    fn check_map(&self) {
        let map = self.store.map();
        let layers = map.layers().iter().enumerate();
        let keys = layers.flat_map(|(layer, count)| {
            (0..*count as u16).map(move |expert| ExpertKey {
                layer: LayerIndex(layer as u16),
                expert: ExpertIndex(expert),
            })
        });
        assert!(keys.clone().count() == LAYERS * EXPERTS);
        for (key, glance) in keys.zip(map.glances()) {
            assert_eq!(glance.is_resident(), self.store.is_resident(key), "{key}");
        }
    }

    /// Only what somebody holds or waits for is there.
    fn check_evicted(&self) {
        let held = |key: ExpertKey| self.held.iter().any(|(held, _)| *held == key);
        let owed = |key: ExpertKey| {
            let mut open = self.open.iter();
            open.any(|open| open.layer == key.layer && open.owed.contains(&key.expert))
        };
        for key in self.world.truth.keys().filter(|_| self.forecasts.is_empty()) {
            assert!(!self.store.is_resident(*key) || held(*key) || owed(*key), "{key} stayed");
        }
    }

    fn request(&mut self, layer: usize, set: u16) {
        let (layer, owed) = wanted(layer, set);
        let ticket = self.store.request(layer, &owed).unwrap();
        self.open.push(Open { ticket, layer, owed });
    }

    fn next(&mut self, at: usize, order: Order) {
        let Open { ticket, layer, owed } = &mut self.open[at];
        match self.store.next(ticket, order) {
            Ok(Some(arrived)) => {
                let position = owed.iter().position(|expert| *expert == arrived.expert);
                let position = position.expect("an expert comes once and was asked for");
                assert!(order == Order::Arrival || position == 0, "ascending means the first");
                owed.remove(position);
                let key = ExpertKey { layer: *layer, expert: arrived.expert };
                let lease = arrived.record.unwrap();
                assert!(*lease == self.world.truth[&key][..], "{key}");
                self.held.push((key, lease));
            }
            Ok(None) => {
                assert_eq!(owed.len(), 0, "all of the union has come");
                self.open.swap_remove(at);
            }
            Err(StoreError::SlotsExhausted { slots, .. }) => {
                assert!(self.held.len() >= slots, "exhausted with {} leases", self.held.len());
                self.check_held();
                self.held.clear();
                // With no lease held, a request always goes on.
                let Open { ticket, .. } = &mut self.open[at];
                let again = self.store.next(ticket, order).unwrap();
                let arrived = again.expect("something was owed");
                let Open { layer, owed, .. } = &mut self.open[at];
                let key = ExpertKey { layer: *layer, expert: arrived.expert };
                owed.retain(|expert| *expert != arrived.expert);
                assert!(*arrived.record.unwrap() == self.world.truth[&key][..], "{key}");
            }
            Err(error) => panic!("{error}"),
        }
        self.check_held();
    }

    /// Nobody writes what somebody holds.
    fn check_held(&self) {
        for (key, lease) in &self.held {
            assert!(**lease == self.world.truth[key][..], "{key} changed under a lease");
        }
    }

    /// Takes what is owed, so that nothing hangs at the end either.
    fn finish(mut self) {
        self.held.clear();
        self.forecasts.clear();
        while let Some(Open { ticket, owed, .. }) = self.open.last_mut() {
            if let Some(arrived) = self.store.next(ticket, Order::Ascending).unwrap() {
                owed.retain(|expert| *expert != arrived.expert);
            } else {
                assert_eq!(owed.len(), 0);
                self.open.pop();
            }
        }
        assert_eq!(self.store.stats().io_errors, 0);
        self.store.wait_for_reads();
        // Nothing is pinned any more: everything beyond the smallest working set can go.
        while self.store.release_chunk().is_some() {}
        let least = Plan::minimum(&self.world.catalog, 2, self.store.plan().staging_bytes).bytes();
        assert!(self.store.bytes() < least + 2 * CHUNK_BYTES as u64);
    }
}

fn play(
    ops: &[Op],
    extra_slots: usize,
    policy: PolicyKind,
    reader: impl Fn(&World) -> Box<dyn Reader>,
) {
    let world = World::new(&Style::ALL, LAYERS, EXPERTS);
    let reader = reader(&world);
    let least = Plan::minimum(&world.catalog, 2, reader.staging_bytes()).bytes();
    let budget_bytes = least + (extra_slots * 12288) as u64;
    let options = StoreOptions { budget_bytes, policy, top_k: 2, chunk_bytes: CHUNK_BYTES };
    let store = Store::open(&world.catalog, options, reader).unwrap();
    assert!(store.bytes() <= budget_bytes);
    let (open, forecasts, held) = (Vec::new(), Vec::new(), Vec::new());
    let mut caller = Caller { world, store, open, forecasts, held };
    for op in ops {
        caller.perform(op);
    }
    caller.finish();
}

fn shuffled(world: &World, access: Access, seed: u64) -> Box<dyn Reader> {
    let mut noise = Noise::new(seed);
    let (disk, _) = SimDisk::new(world, access);
    Box::new(Memory::open(&world.catalog, disk, move |count| noise.below(count)).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_sequence_gives_the_right_bytes_once_within_the_budget(
        ops in prop::collection::vec(op(), 1..120),
        extra_slots in 0..24_usize,
        direct in any::<bool>(),
        policy in prop::sample::select(PolicyKind::names().collect::<Vec<_>>()),
        seed in any::<u64>(),
    ) {
        let access = if direct { Access::Direct } else { Access::Buffered };
        let policy = PolicyKind::by_name(policy).unwrap();
        play(&ops, extra_slots, policy, |world| shuffled(world, access, seed));
    }

    #[test]
    fn threads_change_nothing(ops in prop::collection::vec(op(), 1..120), extra_slots in 0..24_usize) {
        play(&ops, extra_slots, PolicyKind::Auto, |world| {
            let (disk, _) = SimDisk::new(world, Access::Direct);
            Box::new(Pread::open(&world.catalog, disk, 3).unwrap())
        });
    }
}
