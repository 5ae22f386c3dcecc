//! Replay: what a store would have had to read for a trace, with no disk and no bytes.
//!
//! The policies are those of the store, and so are the plan and the order of evictions: the hits of
//! a request are kept until they are handed out, up to `BUSY_READS` reads make room whatever it
//! costs, further ones only at the expense of what is worth less; rows of prompts count one by one. Reads take
//! no time here, so the store may differ where requests overlap.

mod belady;
mod observe;

use std::sync::Arc;

use fm_format::key::{ExpertIndex, ExpertKey, LayerIndex};

use crate::{
    Stats, StoreError,
    plan::{CHUNK_BYTES, ClassPlan, Plan, StoreOptions},
    policy::{Policy, PolicyKind, PolicyScope, Standing, Turn},
    store::BUSY_READS,
    trace::{Frame, Trace},
};

use self::{
    belady::{Belady, Uses},
    observe::Observe,
};

/// Who decides what goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// A policy of the store.
    Policy(PolicyKind),
    /// Who sees the scores of all experts; no policy of the store does.
    Observe,
    /// Whoever is needed last goes: no policy can do better.
    Belady,
}

/// Judges that are no policies of the store.
const JUDGES: [(Judge, &str); 2] = [(Judge::Observe, "observe"), (Judge::Belady, "belady")];

impl Judge {
    /// The names of all judges, policies first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PolicyKind::names().chain(JUDGES.iter().map(|row| row.1))
    }

    /// Finds a judge by name.
    pub fn by_name(name: &str) -> Option<Self> {
        let other = || JUDGES.iter().find(|row| row.1 == name).map(|row| row.0);
        PolicyKind::by_name(name).map(Self::Policy).or_else(other)
    }
}

/// Who shares slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All layers with records of one size, as in the store.
    Global,
    /// Every layer has its own.
    PerLayer,
}

/// What to replay a trace with.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Who decides what goes.
    pub judge: Judge,
    /// Who shares slots.
    pub sharing: Sharing,
    /// Bytes of slots.
    pub slot_bytes: u64,
    /// Steps with more rows take their experts in ascending order, others what is there first.
    pub arrival_rows_max: usize,
    /// Steps that fill the cache before anything is counted.
    pub warm_up: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Slots of all classes.
    pub slots: usize,
    /// Steps that were counted.
    pub steps: usize,
    /// Rows of these steps.
    pub tokens: usize,
    /// Experts requested that were there.
    pub hits: u64,
    /// Experts that were never there before.
    pub cold_misses: u64,
    /// Experts that had been evicted.
    pub capacity_misses: u64,
    /// Hits that gave way before they were taken, because a union did not fit.
    pub sacrifices: u64,
    /// Bytes that all this takes from the disk.
    pub read_bytes: u64,
}

impl Outcome {
    /// As [`Stats::hit_rate`](crate::Stats::hit_rate).
    pub fn hit_rate(&self) -> f64 {
        let Self { hits, cold_misses, capacity_misses, .. } = *self;
        Stats { hits, cold_misses, capacity_misses, ..Stats::default() }.hit_rate()
    }

    /// Bytes read per row.
    pub fn bytes_per_token(&self) -> f64 {
        self.read_bytes as f64 / self.tokens.max(1) as f64
    }
}

/// The unions of a trace, made once for many replays.
#[derive(Debug)]
pub struct Replay<'a> {
    trace: &'a Trace,
    /// Where the union of every frame begins in `experts`, and the end.
    starts: Vec<usize>,
    experts: Vec<ExpertIndex>,
}

impl<'a> Replay<'a> {
    /// Prepares a trace.
    pub fn new(trace: &'a Trace) -> Self {
        let (mut starts, mut experts) = (vec![0], Vec::new());
        for frame in &trace.frames {
            let start = experts.len();
            experts.extend(trace.experts(frame).iter().map(|expert| ExpertIndex(*expert)));
            experts[start..].sort_unstable();
            let distinct = 1
                + (start + 1..experts.len()).fold(0, |kept, at| {
                    let new = experts[at] != experts[start + kept];
                    experts[start + kept + usize::from(new)] = experts[at];
                    kept + usize::from(new)
                });
            experts.truncate(start + distinct);
            starts.push(experts.len());
        }
        Self { trace, starts, experts }
    }

    fn unions(&self) -> impl Iterator<Item = (&Frame, &[ExpertIndex])> {
        let unions = self.starts.windows(2).map(|ends| &self.experts[ends[0]..ends[1]]);
        self.trace.frames.iter().zip(unions)
    }

    /// Replays the trace.
    ///
    /// # Errors
    /// If the budget is smaller than one token's experts of a layer, or a trace without scores is to be
    /// judged by them.
    pub fn run(&self, scenario: Scenario) -> Result<Outcome, StoreError> {
        let mut cache = Cache::new(self, scenario)?;
        let mut outcome = Outcome { slots: cache.slots(), ..Outcome::default() };
        let mut counted_step = None;
        for (frame, union) in self.unions() {
            cache.use_all(frame, union, self.trace.experts(frame));
            if frame.step < scenario.warm_up {
                cache.request(frame, union, &mut Outcome::default());
                continue;
            }
            if counted_step != Some(frame.step) {
                counted_step = Some(frame.step);
                outcome.steps += 1;
                outcome.tokens += frame.rows;
            }
            cache.request(frame, union, &mut outcome);
        }
        Ok(outcome)
    }
}

/// Where an expert is.
#[derive(Clone, Copy, Debug)]
struct Member {
    standing: Standing,
    slot: Option<u32>,
    seen: bool,
}

/// Slots of one class.
#[derive(Debug)]
struct Class<'a> {
    policy: Box<dyn Policy + 'a>,
    free: Vec<u32>,
    /// Position in `members`, per slot.
    occupants: Vec<Option<usize>>,
}

/// How far an expert of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Hit,
    Loaded,
    Done,
}

/// See the file.
#[derive(Debug)]
struct Cache<'a> {
    classes: Vec<Class<'a>>,
    /// By layer: its class, its first member, bytes to read for an expert.
    layers: Vec<Option<(usize, usize, u64)>>,
    members: Vec<Member>,
    turns: Vec<u32>,
    now: u64,
    states: Vec<State>,
    arrival_rows_max: usize,
    /// Whether rows of a prompt are turns of their own. They are nothing new to who looks at the trace.
    by_row: bool,
}

impl<'a> Cache<'a> {
    fn new(replay: &'a Replay<'a>, scenario: Scenario) -> Result<Self, StoreError> {
        let header = &replay.trace.header;
        if scenario.judge == Judge::Observe && !header.scores {
            return Err(StoreError::NoScores);
        }
        let moe = || header.layers.iter().flatten();
        let sizes = moe().map(|layer| (layer.slot_bytes as usize, layer.experts));
        let options = StoreOptions {
            budget_bytes: scenario.slot_bytes,
            policy: PolicyKind::Auto,
            top_k: header.top_k,
            chunk_bytes: CHUNK_BYTES,
        };
        let mut plan = Plan::minimum_of(sizes, 0, header.top_k, 0).with_budget(options)?;
        if scenario.sharing == Sharing::PerLayer {
            plan.classes = plan.classes.iter().flat_map(ClassPlan::per_layer).collect();
        }
        let uses = (scenario.judge == Judge::Belady).then(|| Arc::new(Uses::new(replay.unions())));
        let classes = plan.classes.iter().map(|class| {
            let experts = header.layers.iter().map(|layer| Some(layer.as_ref()?.experts));
            let scope = PolicyScope::new(class, header.top_k, experts);
            let policy: Box<dyn Policy + 'a> = match scenario.judge {
                Judge::Policy(kind) => kind.build(scope),
                Judge::Observe => Box::new(Observe::new(replay, class.slots, scope.experts)),
                Judge::Belady => {
                    let uses = uses.clone().expect("the future is known if Belady judges");
                    Box::new(Belady::new(uses, class.slots))
                }
            };
            let free = (0..class.slots as u32).rev().collect();
            Class { policy, free, occupants: vec![None; class.slots] }
        });
        let classes = classes.collect();
        let (mut layers, mut members) = (Vec::new(), Vec::new());
        // Classes that a layer has for itself come in the order of the layers.
        let mut taken = vec![false; plan.classes.len()];
        for (index, layer) in (0_u16..).zip(&header.layers) {
            layers.push(layer.map(|layer| {
                let fits = |(at, class): &(usize, &ClassPlan)| {
                    class.record_bytes as u64 == layer.slot_bytes && !taken[*at]
                };
                let class = plan.classes.iter().enumerate().find(fits);
                let class = class.expect("the plan has a class for every layer").0;
                taken[class] = scenario.sharing == Sharing::PerLayer;
                let first = members.len();
                members.extend((0..layer.experts as u16).zip(first as u32..).map(
                    |(expert, id)| {
                        let (layer, expert) = (LayerIndex(index), ExpertIndex(expert));
                        let standing = Standing::new(ExpertKey { layer, expert }, id);
                        Member { standing, slot: None, seen: false }
                    },
                ));
                (class, first, layer.read_bytes)
            }));
        }
        let turns = vec![0; layers.len()];
        Ok(Self {
            classes,
            layers,
            members,
            turns,
            now: 0,
            states: Vec::new(),
            arrival_rows_max: scenario.arrival_rows_max,
            by_row: matches!(scenario.judge, Judge::Policy(_)),
        })
    }

    fn slots(&self) -> usize {
        self.classes.iter().map(|class| class.occupants.len()).sum()
    }

    /// Tells the policy what a layer uses in a step, as `Store::request` and `Store::request_rows` do.
    fn use_all(&mut self, frame: &Frame, union: &[ExpertIndex], chosen: &[u16]) {
        let layer = usize::from(frame.layer);
        if self.by_row && frame.rows > self.arrival_rows_max {
            for row in chosen.chunks_exact(chosen.len() / frame.rows) {
                self.turn(layer, row.iter().map(|expert| usize::from(*expert)));
            }
        } else {
            self.turn(layer, union.iter().map(|expert| expert.index()));
        }
    }

    fn turn(&mut self, layer: usize, chosen: impl Iterator<Item = usize>) {
        let (class, first, _) = self.layers[layer].expect("frames are of layers that route");
        self.now += 1;
        self.turns[layer] += 1;
        let turn = Turn { now: self.now, of_layer: self.turns[layer] };
        for expert in chosen {
            self.classes[class].policy.used(&mut self.members[first + expert].standing, turn);
        }
    }

    /// One layer in one step.
    fn request(&mut self, frame: &Frame, union: &[ExpertIndex], outcome: &mut Outcome) {
        let layer = usize::from(frame.layer);
        let (class, first, read_bytes) =
            self.layers[layer].expect("frames are of layers that route");
        self.states.clear();
        for expert in union {
            let member = &self.members[first + expert.index()];
            self.states.push(match member.slot {
                Some(slot) => {
                    self.classes[class].policy.remove(slot);
                    outcome.hits += 1;
                    State::Hit
                }
                None if member.seen => {
                    outcome.capacity_misses += 1;
                    State::Absent
                }
                None => {
                    outcome.cold_misses += 1;
                    State::Absent
                }
            });
        }
        let ascending = frame.rows > self.arrival_rows_max;
        loop {
            while self.load_next(class, first, union) {
                outcome.read_bytes += read_bytes;
            }
            let open = |state: &State| *state != State::Done;
            let there = |state: &State| matches!(state, State::Hit | State::Loaded);
            let next = if ascending {
                self.states.iter().position(open)
            } else {
                self.states.iter().position(there)
            };
            let Some(next) = next else { break };
            if self.states[next] == State::Absent {
                // Everything is kept for later: the last of it gives way.
                let last = self.states.iter().rposition(|state| *state == State::Hit);
                let last = last.expect("a class has a slot, and somebody is in it");
                let member = first + union[last].index();
                let slot = self.members[member].slot.expect("hits have slots");
                self.states[last] = State::Absent;
                self.classes[class].policy.insert(slot, &self.members[member].standing);
                outcome.sacrifices += 1;
                continue;
            }
            let member = &self.members[first + union[next].index()];
            let slot = member.slot.expect("what is handed out is there");
            self.classes[class].policy.insert(slot, &member.standing);
            self.states[next] = State::Done;
        }
    }

    /// Loads the first absent expert of the union, if there is a slot for it.
    fn load_next(&mut self, class: usize, first: usize, union: &[ExpertIndex]) -> bool {
        let absent = self.states.iter().position(|state| *state == State::Absent);
        let Some(at) = absent else { return false };
        let under_way = self.states.iter().filter(|state| **state == State::Loaded).count();
        let member = first + union[at].index();
        let class = &mut self.classes[class];
        let newcomer = (under_way >= BUSY_READS).then_some(&self.members[member].standing);
        let slot = class.free.pop().or_else(|| class.policy.take(newcomer, &|_| true));
        let Some(slot) = slot else { return false };
        if let Some(evicted) = class.occupants[slot as usize].replace(member) {
            self.members[evicted].slot = None;
        }
        let member = &mut self.members[member];
        (member.slot, member.seen) = (Some(slot), true);
        self.states[at] = State::Loaded;
        true
    }
}
