//! What the next layer will choose, guessed while this one computes, and how much to trust it.
//!
//! The disk is idle from a layer's last read until the next layer's router has spoken. A guess fills
//! that time: experts are read that will probably be asked for. How good guesses are is measured on
//! every layer, by rank: the router's first choice is foreseen more often than its eighth. Only
//! ranks that come true often enough are read, so a model whose routers cannot be foreseen costs a
//! small matrix product now and then. A large batch needs no guess: it uses nearly all experts.

mod trial;

use std::time::Instant;

use fm_format::key::{ExpertIndex, LayerIndex};

use self::trial::Trial;

/// How the experts of written tokens are foreseen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookAhead {
    /// Not at all.
    Off,
    /// By the next layer's router, on what is known before this layer's experts have run.
    Router,
    /// By what the token before chose.
    LastToken,
    /// As [`LookAhead::Router`] while that is faster, as is measured now and then.
    #[default]
    Auto,
}

/// Names of [`LookAhead`], in its order.
const NAMES: [(LookAhead, &str); 4] = [
    (LookAhead::Off, "off"),
    (LookAhead::Router, "router"),
    (LookAhead::LastToken, "last-token"),
    (LookAhead::Auto, "auto"),
];

impl LookAhead {
    /// All names, for help.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|row| row.1)
    }

    /// Finds one by name.
    pub fn by_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }
}

/// A rank is read ahead if it comes true at least this often: a read that was right saves waiting
/// for one record, a read that was wrong makes the next wait for one at most.
const PRECISION_MIN: f64 = 0.5;

/// Weight of the latest layer in a rank's precision: about the last 64 layers count.
const PRECISION_STEP: f64 = 1.0 / 64.0;

/// While no rank is good enough, every so many layers are guessed, to notice when that changes.
const TRIAL_LAYERS: u32 = 32;

/// Of the experts of a layer, the share that a large batch must have used for all of the next
/// layer's to be read ahead.
const UNION_SHARE: f64 = 0.9;

/// Records of a guess that may be on their way at once: what a disk reads while a token passes from
/// one layer's experts to the next one's, and what a wrong guess makes the next layer wait for.
pub(crate) const GUESSED_RECORDS: usize = 3;

/// The same for a large batch, whose mixers take long and whose guess is nearly certain.
pub(crate) const SWEPT_RECORDS: usize = fm_store::FETCHES_MAX;

/// What is done, and what it gains as far as that was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InForce {
    /// What is done, unless the other is being tried just now. Never [`LookAhead::Auto`].
    pub mode: LookAhead,
    /// Share of a step's time that looking ahead saves; below zero if it costs some.
    pub gain: Option<f64>,
}

/// Guesses of one model, and how they came out.
#[derive(Debug)]
pub(crate) struct Foresight {
    mode: LookAhead,
    /// For [`LookAhead::Auto`].
    trial: Trial,
    /// When the step under way began, and its rows.
    step: Option<(Instant, usize)>,
    latest_layer: LayerIndex,
    /// How often each rank came true lately. Bound: experts per token.
    precision: Vec<f64>,
    /// The guess that waits for its layer.
    guess: Ranked,
    guessed_layer: Option<LayerIndex>,
    layers_until_trial: u32,
    /// What each layer chose last; for [`LookAhead::LastToken`].
    latest: Vec<Ranked>,
    /// Reused from layer to layer.
    wanted: Vec<ExpertIndex>,
}

/// Experts of every row, the likeliest first.
#[derive(Clone, Debug, Default)]
struct Ranked {
    ids: Vec<ExpertIndex>,
    top_k: usize,
}

impl Ranked {
    fn set(&mut self, chosen: RouterChoice<'_>) {
        let RouterChoice { ids, weights, top_k } = chosen;
        self.top_k = top_k.max(1);
        self.ids.clear();
        for (ids, weights) in ids.chunks(self.top_k).zip(weights.chunks(self.top_k)) {
            let start = self.ids.len();
            self.ids.extend_from_slice(ids);
            let weight = |id: &ExpertIndex| {
                let at = ids.binary_search(id).expect("ids of a row ascend");
                weights[at]
            };
            self.ids[start..].sort_unstable_by(|a, b| weight(b).total_cmp(&weight(a)));
        }
    }

    fn rows(&self) -> impl ExactSizeIterator<Item = &[ExpertIndex]> {
        self.ids.chunks(self.top_k.max(1))
    }
}

/// What a router chose: experts ascending within each row, their weights, and how many per row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterChoice<'a> {
    /// Experts.
    pub(crate) ids: &'a [ExpertIndex],
    /// Their weights.
    pub(crate) weights: &'a [f32],
    /// Experts per row.
    pub(crate) top_k: usize,
}

/// Whether a layer of a large batch that used `used` of its `count` experts says that the next one
/// will need nearly all of its own: no guess, but what a sweep is. So it is read whatever the mode.
pub(crate) fn sweeps(used: usize, count: usize) -> bool {
    used as f64 >= UNION_SHARE * count as f64
}

impl Foresight {
    /// Guesses for a model with this many layers.
    pub(crate) fn new(mode: LookAhead, layers: usize) -> Self {
        let latest = if mode == LookAhead::LastToken { layers } else { 0 };
        Self {
            mode,
            trial: Trial::default(),
            step: None,
            latest_layer: LayerIndex(0),
            precision: Vec::new(),
            guess: Ranked::default(),
            guessed_layer: None,
            layers_until_trial: 0,
            latest: vec![Ranked::default(); latest],
            wanted: Vec::new(),
        }
    }

    /// Whether the next layer's router should be asked. Counts layers.
    pub(crate) fn wants_guess(&mut self) -> bool {
        let asks = match self.mode {
            LookAhead::Router => true,
            LookAhead::Auto => self.trial.looks_ahead(),
            LookAhead::Off | LookAhead::LastToken => false,
        };
        if !asks {
            return false;
        }
        let trial = self.layers_until_trial == 0;
        self.layers_until_trial = self.layers_until_trial.checked_sub(1).unwrap_or(TRIAL_LAYERS);
        trial || self.precision.is_empty() || self.ranks() > 0
    }

    /// A layer of a batch of so many rows begins now; with the first layer, a step. For those who want
    /// to know what is faster.
    pub(crate) fn begins(&mut self, layer: LayerIndex, rows: usize, now: Instant) {
        let first = layer <= std::mem::replace(&mut self.latest_layer, layer);
        if self.mode != LookAhead::Auto || !first {
            return;
        }
        match self.step.replace((now, rows)) {
            Some((began, before)) if before == rows => self.trial.step(now - began),
            _ => self.trial.interrupt(),
        }
    }

    /// What is done.
    pub(crate) fn in_force(&self) -> InForce {
        let mode = match self.mode {
            LookAhead::Auto if self.trial.prefers_ahead() => LookAhead::Router,
            LookAhead::Auto => LookAhead::Off,
            mode => mode,
        };
        InForce { mode, gain: self.trial.gain() }
    }

    /// Takes a guess, and gives back what of it should be read: ascending, each expert once.
    pub(crate) fn guessed(
        &mut self,
        layer: LayerIndex,
        chosen: RouterChoice<'_>,
    ) -> &[ExpertIndex] {
        self.guess.set(chosen);
        self.guessed_layer = Some(layer);
        self.worth_reading()
    }

    /// Compares what a layer chose with what was guessed.
    pub(crate) fn happened(&mut self, layer: LayerIndex, ids: &[ExpertIndex]) {
        let as_guessed = self.guess.ids.len() == ids.len();
        if self.guessed_layer.take() != Some(layer) || !as_guessed {
            return;
        }
        for (guess, chosen) in self.guess.rows().zip(ids.chunks(self.guess.top_k)) {
            for (expert, precision) in guess.iter().zip(&mut self.precision) {
                let came_true = f64::from(u8::from(chosen.contains(expert)));
                *precision += PRECISION_STEP * (came_true - *precision);
            }
        }
    }

    /// Remembers what a layer chose. With [`LookAhead::LastToken`], the guess for the next layer is
    /// what that chose last.
    pub(crate) fn remember(
        &mut self,
        layer: LayerIndex,
        chosen: RouterChoice<'_>,
    ) -> Option<(LayerIndex, &[ExpertIndex])> {
        self.latest.get_mut(layer.index())?.set(chosen);
        let next = LayerIndex(layer.0 + 1);
        // Nobody chose in a layer that has no experts, or that has not run yet.
        let latest = self.latest.get(next.index()).filter(|latest| !latest.ids.is_empty())?;
        self.guess.clone_from(latest);
        self.guessed_layer = Some(next);
        Some((next, self.worth_reading()))
    }

    /// The ranks worth reading: all before the first that is not.
    fn ranks(&self) -> usize {
        self.precision.iter().take_while(|precision| **precision >= PRECISION_MIN).count()
    }

    fn worth_reading(&mut self) -> &[ExpertIndex] {
        // Trusted until proven wrong.
        self.precision.resize(self.guess.top_k, 1.0);
        let ranks = self.ranks();
        self.wanted.clear();
        self.wanted.extend(self.guess.rows().flat_map(|row| &row[..ranks.min(row.len())]));
        self.wanted.sort_unstable();
        self.wanted.dedup();
        &self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ids<const N: usize>(ids: [u16; N]) -> Vec<ExpertIndex> {
        ids.map(ExpertIndex).to_vec()
    }

    fn guess(foresight: &mut Foresight, layer: u16) -> Vec<ExpertIndex> {
        let chosen = RouterChoice { ids: &ids([1, 4, 7]), weights: &[0.2, 0.1, 0.7], top_k: 3 };
        foresight.guessed(LayerIndex(layer), chosen).to_vec()
    }

    #[test]
    fn only_ranks_that_come_true_are_read() {
        let mut foresight = Foresight::new(LookAhead::Router, 4);
        assert!(foresight.wants_guess());
        assert_eq!(guess(&mut foresight, 1), ids([1, 4, 7]), "trusted until proven wrong");
        for _ in 0..100 {
            // The likeliest, 7, comes true, the others do not.
            foresight.happened(LayerIndex(1), &ids([0, 7, 9]));
            guess(&mut foresight, 1);
        }
        assert_eq!(guess(&mut foresight, 1), ids([7]));
        assert!((0..100).all(|_| foresight.wants_guess()));
    }

    #[test]
    fn hopeless_guesses_are_tried_again_now_and_then() {
        let mut foresight = Foresight::new(LookAhead::Router, 4);
        for _ in 0..100 {
            guess(&mut foresight, 1);
            foresight.happened(LayerIndex(1), &ids([0, 2, 9]));
        }
        assert_eq!(guess(&mut foresight, 1), []);
        let asked = (0..1000).filter(|_| foresight.wants_guess()).count();
        assert!((20..50).contains(&asked), "{asked}");
        for _ in 0..100 {
            foresight.happened(LayerIndex(1), &ids([1, 4, 7]));
            guess(&mut foresight, 1);
        }
        assert_eq!(guess(&mut foresight, 1), ids([1, 4, 7]), "and believed again");
    }

    #[test]
    fn a_guess_is_held_against_its_own_layer_only() {
        let mut foresight = Foresight::new(LookAhead::Router, 4);
        for _ in 0..100 {
            guess(&mut foresight, 1);
            foresight.happened(LayerIndex(2), &ids([0, 2, 9]));
        }
        assert_eq!(guess(&mut foresight, 1), ids([1, 4, 7]));
    }

    #[test]
    fn the_token_before_is_a_guess() {
        let mut foresight = Foresight::new(LookAhead::LastToken, 2);
        assert!(!foresight.wants_guess());
        let first = ids([2, 3]);
        let chosen = |ids| RouterChoice { ids, weights: &[0.4, 0.6], top_k: 2 };
        assert_eq!(foresight.remember(LayerIndex(1), chosen(&first)), None);
        let other = ids([5, 6]);
        let guessed = foresight.remember(LayerIndex(0), chosen(&other));
        assert_eq!(guessed, Some((LayerIndex(1), &first[..])));
        let mut foresight = Foresight::new(LookAhead::LastToken, 2);
        assert_eq!(foresight.remember(LayerIndex(0), chosen(&other)), None, "nobody chose in 1");
    }

    #[test]
    fn a_sweep_is_foreseen_where_nearly_all_experts_are_used() {
        assert!(sweeps(58, 64) && !sweeps(57, 64));
    }

    #[test]
    fn steps_are_timed_from_first_layer_to_first_layer() {
        let mut foresight = Foresight::new(LookAhead::Auto, 2);
        let (mut now, mut asked) = (Instant::now(), 0);
        for step in 0..200 {
            // Layer 0 has no experts.
            for layer in [1, 2] {
                foresight.begins(LayerIndex(layer), 1, now);
                let asks = foresight.wants_guess();
                asked += u32::from(asks && step >= 100);
                now += Duration::from_millis(if asks { 40 } else { 50 });
            }
        }
        let InForce { mode, gain } = foresight.in_force();
        assert_eq!(mode, LookAhead::Router);
        assert!((gain.unwrap() - 0.2).abs() < 0.02, "{gain:?}");
        assert!((170..200).contains(&asked), "{asked}");
        // Others' rows are another kind of step.
        (0..100).for_each(|step| foresight.begins(LayerIndex(1), 1 + step % 2, now));
        assert_eq!(foresight.in_force().gain, gain);
    }

    #[test]
    fn names_lead_back_to_what_they_name() {
        assert!(LookAhead::names().all(|name| LookAhead::by_name(name).unwrap().name() == name));
        assert_eq!(LookAhead::by_name("crystal-ball"), None);
    }
}
