//! A cache that is asked for one expert at a time, as papers describe theirs.

use fm_format::key::{ExpertIndex, ExpertKey, LayerIndex};

use super::{Policy, PolicyKind, PolicyScope, Standing, Turn};

/// What came of asking for an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Hit,
    /// There was a slot nobody lived in.
    Filled,
    Evicted(u32),
    /// Nobody had to go for it.
    Refused,
}

/// See the file.
pub(super) struct Cache {
    policy: Box<dyn Policy>,
    standings: Vec<Standing>,
    /// Who lives in a slot.
    slots: Vec<Option<u32>>,
    turns: Vec<u32>,
    now: u64,
}

impl Cache {
    /// With room for 64 experts in `layers`.
    pub(super) fn new(policy: Box<dyn Policy>, slots: usize, layers: u32) -> Self {
        let standings = (0..64).map(|id| Self::standing(id, layers)).collect();
        let turns = vec![0; layers as usize];
        Self { policy, standings, slots: vec![None; slots], turns, now: 0 }
    }

    /// Of a policy by name, with one layer.
    pub(super) fn of(kind: PolicyKind, slots: usize) -> Self {
        Self::new(kind.build(Self::scope(slots, 1)), slots, 1)
    }

    pub(super) fn scope(slots: usize, layers: usize) -> PolicyScope {
        let (requests_per_token, experts_per_layer) = (layers, 64 / layers);
        PolicyScope { slots, top_k: 1, requests_per_token, layers, experts: 64, experts_per_layer }
    }

    /// Every layer has as many experts.
    pub(super) fn standing(id: u32, layers: u32) -> Standing {
        let per_layer = 64 / layers;
        let (layer, expert) = ((id / per_layer) as u16, (id % per_layer) as u16);
        Standing::new(ExpertKey { layer: LayerIndex(layer), expert: ExpertIndex(expert) }, id)
    }

    pub(super) fn get_all(&mut self, experts: impl IntoIterator<Item = u32>) {
        experts.into_iter().for_each(|expert| {
            self.get(expert, None);
        });
    }

    /// Asks for an expert while somebody computes with another.
    pub(super) fn get(&mut self, expert: u32, leased: Option<u32>) -> Access {
        self.ask(expert, leased, false)
    }

    /// Asks for an expert that is not worth more than others.
    pub(super) fn get_politely(&mut self, expert: u32) -> Access {
        self.ask(expert, None, true)
    }

    fn ask(&mut self, expert: u32, leased: Option<u32>, politely: bool) -> Access {
        let home = self.slots.iter().position(|slot| *slot == Some(expert));
        if let Some(slot) = home {
            self.policy.remove(slot as u32);
        }
        self.now += 1;
        let standing = &mut self.standings[expert as usize];
        let of_layer = &mut self.turns[standing.key.layer.index()];
        *of_layer += 1;
        self.policy.used(standing, Turn { now: self.now, of_layer: *of_layer });
        let free = || self.slots.iter().position(Option::is_none);
        let (slot, access) = if let Some(slot) = home {
            (slot, Access::Hit)
        } else if let Some(slot) = free() {
            (slot, Access::Filled)
        } else {
            let slots = &self.slots;
            let may_go = |slot: u32| leased.is_none() || slots[slot as usize] != leased;
            let Some(slot) = self.policy.take(politely.then_some(&*standing), &may_go) else {
                return Access::Refused;
            };
            let evicted = self.slots[slot as usize].expect("a slot that is taken was lived in");
            (slot as usize, Access::Evicted(evicted))
        };
        self.slots[slot] = Some(expert);
        self.policy.insert(slot as u32, standing);
        access
    }
}
