//! Many texts at once: a thread that owns the model, and a bounded queue before it.
//!
//! ```text
//! push ──► Queue ──► open a session ──► steps, shared by all that are open ──► events, an end
//! ```
//!
//! Every step has one row for each text that is being written. Prompts are taken in by sweeps, as many
//! rows at once as there is room for, which rest between two layers for the steps of those who write
//! and for prompts that are much shorter (`turns`, `pace`). A text that begins like another takes over what that one has computed
//! (`prefix`). What a text becomes does not depend on its neighbours (invariant 2), so all of
//! this decides when, never what. A text whose expert is lost fails alone; a text that nobody listens
//! to any more leaves at the next layer, and the layers behind it have the rows of the others.

mod admission;
mod pace;
mod queue;
mod restore;
mod turns;

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use fm_model::{Runner, runner::Batch};
use fm_text::Tokenizer;

pub use self::queue::{Queue, Refused};
use self::{admission::Parked, pace::Pace, restore::Restore, turns::Sweeps};
pub use crate::prefix::{Damage, DiskError, DiskOptions, Notice, Notices, Pin, PrefixCounts};
use crate::{
    error::EngineError,
    generate::{Event, Generated, Request},
    local::{SharedStats, read_stats},
    prefix::{self, Disk, Prefixes},
    writing::{Hear, Mark, Need, Writing},
};

/// What a job hears. The last word is [`Update::Done`] or [`Update::Failed`].
#[derive(Debug)]
pub enum Update<'a> {
    /// It waits still, for a session or for its next token; asked now and then, to find out who has
    /// gone.
    Waiting,
    /// It has a session.
    Started,
    /// The text goes on.
    Event(Event<'a>),
    /// The text is complete.
    Done(Box<Generated>),
    /// There is no text, or no more of it.
    Failed(EngineError),
}

/// Hears updates; breaks off when nobody listens any more. It must not block: all texts wait for it.
pub type Listener = Box<dyn FnMut(Update<'_>) -> ControlFlow<()> + Send>;

/// A request with somebody who waits for it.
pub struct Job {
    /// What is asked.
    pub request: Request,
    /// Who hears of it.
    pub listener: Listener,
}

impl Job {
    /// Whether its time is over; it is told then.
    fn expires(&mut self, now: Instant) -> bool {
        let late = self.request.is_late(now);
        if late {
            let _ = (self.listener)(Update::Failed(EngineError::Late));
        }
        late
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("request", &self.request).finish_non_exhaustive()
    }
}

/// How texts share the model.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleOptions {
    /// Texts that are written at once; as many sessions must have been planned for.
    pub sessions: usize,
    /// Jobs that may wait for a session.
    pub queue: usize,
    /// The longest that a text which is being written shall wait for the prompts of others.
    pub stall_max: Duration,
}

/// Between two steps, prompts are written to disk for this part of the time that a step takes.
const SPILL_SHARE: u32 = 20;

/// How long is written at a time when nothing else is left to do.
const LAST_SLICE: Duration = Duration::from_secs(1);

/// What the thread works with.
pub struct Driven {
    /// The model.
    pub runner: Box<dyn Runner>,
    /// Its tokenizer.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Those of the runner's expert store.
    pub stats: SharedStats,
    /// Where prompts are kept on disk, if they are.
    pub disk: Option<DiskOptions>,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven").field("disk", &self.disk).finish_non_exhaustive()
    }
}

/// What the thread has done so far, for whoever watches it.
#[derive(Debug, Default)]
pub struct Activity {
    /// Texts that have a session now.
    pub sessions: AtomicUsize,
    /// Steps computed.
    pub steps: AtomicU64,
    /// Tokens of prompts taken in.
    pub prompt_tokens: AtomicU64,
    /// Times that a prompt has rested for others.
    pub rests: AtomicU64,
    /// Tokens written.
    pub written_tokens: AtomicU64,
    /// The longest time between two tokens of a text, in microseconds.
    pub longest_wait_us: AtomicU64,
    /// What was kept for later texts.
    pub prefixes: Arc<PrefixCounts>,
}

/// The thread that owns the model.
#[derive(Debug)]
pub struct Scheduler {
    queue: Arc<Queue>,
    activity: Arc<Activity>,
    thread: JoinHandle<()>,
}

impl Scheduler {
    /// Starts the thread.
    ///
    /// # Errors
    /// If prompts cannot be kept where they shall be; what it was to work with comes back.
    ///
    /// # Panics
    /// If the system has no thread left.
    pub fn start(
        driven: Driven,
        options: ScheduleOptions,
    ) -> Result<Self, (DiskError, Box<Driven>)> {
        let queue = Arc::new(Queue::new(options.queue));
        let activity = Arc::<Activity>::default();
        let (jobs, counters) = (Arc::clone(&queue), Arc::clone(&activity));
        let counts = Arc::clone(&activity.prefixes);
        let disk = driven.disk.clone();
        let disk = disk.map(|disk| Disk::start(disk, driven.runner.as_ref(), Arc::clone(&counts)));
        let prefixes = match disk.transpose() {
            Ok(disk) => Prefixes::new(disk, counts, options.stall_max),
            Err(error) => return Err((error, Box::new(driven))),
        };
        let Driven { runner, tokenizer, stats, .. } = driven;
        let work = move || {
            // Whoever waits hears that nobody will come, even if the thread ends by a panic.
            let jobs = queue::CloseOnDrop(jobs);
            let crew = Crew {
                runner,
                tokenizer: tokenizer.as_deref(),
                stats,
                options,
                activity: &counters,
                writings: Vec::new(),
                parked: Vec::new(),
                restores: Vec::new(),
                prefixes,
                batch: Batch::default(),
                pace: Pace::new(options.stall_max),
                sweeps: Sweeps::default(),
            };
            crew.work(&jobs.0);
        };
        let builder = thread::Builder::new().name("scheduler".to_owned());
        let thread = builder.spawn(work).expect("the system has a thread left at the start");
        Ok(Self { queue, activity, thread })
    }

    /// Where jobs go in.
    pub fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.queue)
    }

    /// What it has done so far.
    pub fn activity(&self) -> Arc<Activity> {
        Arc::clone(&self.activity)
    }

    /// Takes no more jobs, finishes those that are there, and returns.
    ///
    /// # Errors
    /// If the thread broke off.
    pub fn drain(self) -> Result<(), Broken> {
        self.queue.close();
        self.wait()
    }

    /// Returns when the queue has been closed and all jobs are finished, or when the thread has
    /// broken off: then everybody who waited has been let go, and the queue takes nothing more.
    ///
    /// # Errors
    /// If the thread broke off.
    pub fn wait(self) -> Result<(), Broken> {
        self.thread.join().map_err(|_| Broken)
    }
}

/// The thread that owns the model has panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine broke off: an error of this program, reported above")]
pub struct Broken;

impl Hear for Listener {
    fn hear(&mut self, event: Event<'_>) -> ControlFlow<()> {
        self(Update::Event(event))
    }

    fn listens(&mut self) -> ControlFlow<()> {
        self(Update::Waiting)
    }
}

/// The thread's work.
struct Crew<'t> {
    runner: Box<dyn Runner>,
    tokenizer: Option<&'t Tokenizer>,
    stats: SharedStats,
    options: ScheduleOptions,
    activity: &'t Activity,
    /// Texts that have a session, in the order in which they got it.
    writings: Vec<Writing<'t, Listener>>,
    /// Jobs that have a place and no session yet. Together with `writings` and `restores` as many as
    /// there are sessions.
    parked: Vec<Parked>,
    /// Jobs whose prompts are read from disk.
    restores: Vec<Restore>,
    prefixes: Prefixes,
    batch: Batch,
    pace: Pace,
    /// Prompts that are on their way through the layers.
    sweeps: Sweeps,
}

impl Crew<'_> {
    fn work(mut self, queue: &Queue) {
        while self.admit(queue) {
            let started = Instant::now();
            self.step(queue);
            self.dismiss();
            let now = Instant::now();
            self.prefixes.spill(self.runner.as_mut(), now + (now - started) / SPILL_SHARE);
        }
        // What is kept outlives the program.
        self.prefixes.retry();
        while self.prefixes.spill(self.runner.as_mut(), Instant::now() + LAST_SLICE) {}
    }

    fn now(&self) -> Mark {
        Mark::now(self.runner.as_ref(), &|| read_stats(&self.stats))
    }

    /// Marks prompts where a step has cut them, if the model needs that for later texts to continue them.
    fn mark(&mut self) {
        if self.runner.forks_anywhere() {
            return;
        }
        let stands = |writing: &&Writing<'_, _>| !writing.has_ended() && !self.sweeps.hold(writing);
        for writing in self.writings.iter().filter(stands) {
            let (session, held) = (writing.session(), writing.held() as u32);
            let cut =
                writing.need() != Need::Next && prefix::is_due(held, &self.runner.marks(session));
            if cut {
                let borders: Vec<u32> = writing.borders().collect();
                self.prefixes.mark(self.runner.as_mut(), session, &borders);
            }
        }
    }

    /// Keeps the session of a text that has ended, for texts that begin alike.
    fn keep(&mut self, writing: &Writing<'_, Listener>) {
        let (runner, session) = (self.runner.as_mut(), writing.session());
        if !writing.is_sound() {
            return runner.close(session);
        }
        let pin = writing.request().pin.clone();
        self.prefixes.keep(runner, session, writing.tokens().collect(), pin);
    }

    /// Lets go of texts that have ended.
    fn dismiss(&mut self) {
        self.mark();
        let now = self.now();
        self.writings.iter_mut().for_each(|writing| writing.mark(|| now));
        // Who ends while its sweep rests is in it still, up to the next layer.
        let goes = |sweeps: &Sweeps, writing: &Writing<'_, _>| {
            writing.has_ended() && !sweeps.hold(writing)
        };
        while let Some(at) = self.writings.iter().position(|of| goes(&self.sweeps, of)) {
            let writing = self.writings.remove(at);
            self.keep(&writing);
            let (result, mut listener) = writing.finish(now);
            // Whether anybody hears the last word matters to nobody.
            let _ = listener(match result {
                Ok(generated) => Update::Done(Box::new(generated)),
                Err(error) => Update::Failed(error),
            });
        }
        self.activity.sessions.store(self.writings.len(), Ordering::Relaxed);
    }
}
