//! The odds of being used soon, learned from the run itself.
//!
//! How often an expert was used so far says how likely it comes back, and so does how long ago its
//! last use was; which of the two says more depends on the model and the text. So both are looked
//! up in a table that is learned on the way:
//!
//! ```text
//! class  = how much more popular than its layer's mean, in half octaves     decided at each use
//! age    = turns of its layer from the last use to the next chance
//! odds   = P(used within the next turns | class, age)                       from gaps seen so far
//! ```
//!
//! Ages count the turns of an expert's own layer, because it cannot be used in between: a clock that
//! runs through all layers evicts first whose turn is next. Among equal odds goes
//! who waits longest for a turn. Within a class of a layer the oldest goes first, so that only one
//! resident per layer and class has to be looked at, and most of these are remembered.
//!
//! Costs O(1) per use, and O(layers + classes) per eviction, whatever the number of slots.
//!
//! Source of the idea: Beckmann, Chen, Cidon, *LHD: Improving Cache Hit Rate by Maximizing Hit
//! Density*, NSDI 2018; here classes are popularities, and a layer's turns are the time.

mod table;

use self::table::{CLASSES, GapTable};
use super::{Policy, PolicyScope, Standing, Turn, queues::Queues};

/// A use counts half for popularity when the mean expert of a layer has been used this often since:
/// fewer uses say little, and more hold on to what an earlier text liked. Of 5 to 80, tapes
/// like 40 best, and 5 less by 0.5 points of hit rate; a trained model's text likes 5 best, and 40 less by 2.3.
const HALF_LIFE_USES: f64 = 8.0;

/// Uses that every expert of a layer is taken to have had, so that the first real ones say little.
const PRIOR_USES: f64 = 1.0;

/// See the file.
#[derive(Debug)]
pub(super) struct Odds {
    queues: Queues<CLASSES>,
    table: GapTable,
    /// By layer of the model.
    layers: Vec<LayerUses>,
    /// By layer: odds and slot of who goes first, as of the last look.
    first: Vec<Option<(f32, u32)>>,
    /// By layer: whether its odds have changed since then.
    stale: Vec<bool>,
    /// The layer whose turn it is.
    current: usize,
    /// Experts per layer.
    experts: f64,
    /// Turns after which a use counts half.
    half_life: f64,
}

/// What was used of a layer.
#[derive(Clone, Debug, Default)]
struct LayerUses {
    /// Its turns so far.
    turns: u32,
    /// Uses of all its experts, faded as of turn `turns`.
    uses: f64,
    /// By expert: its class, and the turn of its last use or 0.
    latest: Vec<(u8, u32)>,
}

impl LayerUses {
    fn new(experts: usize) -> Self {
        Self { latest: vec![(0, 0); experts], ..Self::default() }
    }

    /// Classes of all experts that were used, and turns since then.
    fn open_gaps(&self) -> impl Iterator<Item = (usize, u32)> {
        let used = self.latest.iter().filter(|(_, last)| *last > 0 && *last < self.turns);
        used.map(|(class, last)| (usize::from(*class), self.turns - last))
    }
}

impl Odds {
    pub(super) fn new(scope: PolicyScope) -> Self {
        Self {
            queues: Queues::new(scope.slots, scope.layers),
            table: GapTable::new(),
            layers: vec![LayerUses::new(scope.experts_per_layer); scope.layers],
            first: vec![None; scope.layers],
            stale: vec![true; scope.layers],
            current: 0,
            experts: scope.experts_per_layer as f64,
            half_life: HALF_LIFE_USES * scope.experts_per_layer as f64 / scope.top_k as f64,
        }
    }

    /// How likely a resident is used soon, at its layer's next turn. Whom a prompt's reads brought along and
    /// nobody ever used goes first: of ages that high the table knows nothing, and would keep it.
    fn odds(&self, layer: usize, class: usize, last_turn: u32) -> f32 {
        if (class, last_turn) == (0, 0) {
            return 0.0;
        }
        self.table.odds(class, self.layers[layer].turns + 1 - last_turn)
    }

    /// Who goes first of a layer.
    fn first_of(&self, layer: usize) -> Option<(f32, u32)> {
        let oldest = (0..CLASSES).filter_map(|class| {
            let slot = self.queues.oldest(layer, class)?;
            Some((self.odds(layer, class, self.queues.last_turn(slot)), slot))
        });
        oldest.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Who goes first of all.
    fn lowest(&mut self) -> Option<(f32, u32)> {
        let mut lowest: Option<(f32, u32)> = None;
        // The turn of the current layer is the farthest away, then that of the one before it.
        let order = (0..=self.current).rev().chain((self.current + 1..self.layers.len()).rev());
        for layer in order {
            if self.queues.take_change(layer) | std::mem::take(&mut self.stale[layer]) {
                self.first[layer] = self.first_of(layer);
            }
            if let Some(first) = self.first[layer]
                && lowest.is_none_or(|lowest| first.0 < lowest.0)
            {
                lowest = Some(first);
            }
        }
        lowest
    }
}

impl Policy for Odds {
    fn used(&mut self, standing: &mut Standing, turn: Turn) {
        let layer = standing.key.layer.index();
        self.current = layer;
        let uses = &mut self.layers[layer];
        if uses.turns != turn.of_layer {
            uses.uses *= (-f64::from(turn.of_layer - uses.turns) / self.half_life).exp2();
            uses.turns = turn.of_layer;
            self.stale[layer] = true;
        }
        uses.uses += 1.0;
        let mean = uses.uses / self.experts;
        // `rank` is the base-2 logarithm of the uses, faded to turn 0: it changes only with a use.
        let fade = f64::from(turn.of_layer) / self.half_life;
        let faded = (standing.rank - fade).exp2();
        if standing.last_turn > 0 {
            let gap = turn.of_layer - standing.last_turn;
            if self.table.learn(usize::from(standing.class), gap) {
                self.table.evaluate(self.layers.iter().flat_map(LayerUses::open_gaps));
                self.stale.fill(true);
            }
        }
        standing.rank = (faded + 1.0).log2() + fade;
        standing.last_turn = turn.of_layer;
        standing.class = GapTable::class((faded + 1.0 + PRIOR_USES) / (mean + PRIOR_USES)) as u8;
        let latest = &mut self.layers[layer].latest;
        let expert = standing.key.expert.index();
        // Layers of a class may have more experts than the mean of the class.
        latest.resize(latest.len().max(expert + 1), (0, 0));
        latest[expert] = (standing.class, turn.of_layer);
    }

    fn insert(&mut self, slot: u32, standing: &Standing) {
        self.queues.insert(slot, standing);
    }

    fn remove(&mut self, slot: u32) {
        self.queues.remove(slot);
    }

    fn take(&mut self, newcomer: Option<&Standing>, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        let limit = newcomer.map_or(f32::INFINITY, |newcomer| {
            self.odds(newcomer.key.layer.index(), usize::from(newcomer.class), newcomer.last_turn)
        });
        let mut taken = None;
        while taken.is_none()
            && let Some((odds, slot)) = self.lowest()
            && odds <= limit
        {
            taken = self.queues.take(slot, may_go);
        }
        self.queues.put_back_skipped();
        taken
    }

    fn heat(&self, standing: &Standing) -> f32 {
        let turns = self.layers[standing.key.layer.index()].turns;
        (standing.rank - f64::from(turns) / self.half_life).exp2() as f32
    }

    fn warm(&mut self, standing: &mut Standing, heat: f32, mean: f32) {
        let (heat, mean) = (f64::from(heat), f64::from(mean));
        self.layers[standing.key.layer.index()].uses += heat;
        standing.rank = heat.log2();
        standing.class = GapTable::class((heat + PRIOR_USES) / (mean + PRIOR_USES)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::one_by_one::Cache;

    const LAYERS: u32 = 4;

    /// Looks through all layers at every eviction.
    #[derive(Debug)]
    struct Forgetful(Odds);

    impl Policy for Forgetful {
        fn used(&mut self, standing: &mut Standing, turn: Turn) {
            self.0.used(standing, turn);
        }

        fn insert(&mut self, slot: u32, standing: &Standing) {
            self.0.insert(slot, standing);
        }

        fn remove(&mut self, slot: u32) {
            self.0.remove(slot);
        }

        fn take(
            &mut self,
            newcomer: Option<&Standing>,
            may_go: &dyn Fn(u32) -> bool,
        ) -> Option<u32> {
            self.0.stale.fill(true);
            self.0.take(newcomer, may_go)
        }
    }

    proptest! {
        #[test]
        fn what_is_remembered_is_what_a_new_look_would_find(
            slots in 2..12_usize,
            // Enough for the table to be made anew.
            uses in prop::collection::vec((0..64_u32, 0..64_u32), 1..5000),
        ) {
            let odds = || Odds::new(Cache::scope(slots, LAYERS as usize));
            let mut cache = Cache::new(Box::new(odds()), slots, LAYERS);
            let mut forgetful = Cache::new(Box::new(Forgetful(odds())), slots, LAYERS);
            for (expert, leased) in uses {
                // Four of a layer, so that they come back.
                let (expert, leased) = (expert / 4 * 4, Some(leased / 4 * 4));
                prop_assert_eq!(cache.get(expert, leased), forgetful.get(expert, leased));
            }
        }
    }
}
