//! The demonstration model behind a port of its own.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use fm_engine::{
    Engine, Load, Places,
    gauges::Gauges,
    grammar::Grammars,
    limits::Limits,
    options::EngineOptions,
    schedule::{Activity, DiskOptions, Driven, ScheduleOptions, Scheduler},
};
use fm_kernels::backend::KvFormat;
use fm_server::{Bounds, Door, Model, Patience, Reader, Server, Service, Stopper, Submit};
use fm_testkit::golden::{copy_files, demo_dir};
use tempfile::TempDir;

/// Tokens of a session, if nobody says how many.
const CONTEXT: u32 = 1024;

/// What a server believes of its machine: the demonstration's file is too small to say something of a disk.
pub(crate) const LIMITS: Limits =
    Limits { disk_bytes_per_s: None, memory_bytes_per_s: Some(2.5e10), age_s: 0.0 };

/// A server that ends with its test.
pub(crate) struct Running {
    pub(crate) at: SocketAddr,
    pub(crate) activity: Arc<Activity>,
    /// What the log was told.
    pub(crate) log: Arc<Mutex<Vec<String>>>,
    pub(crate) stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    scheduler: Option<Scheduler>,
}

/// How much a server is for.
#[derive(Clone, Copy)]
struct Size {
    sessions: usize,
    context: u32,
    /// Experts that memory holds; all of them, if nobody says how many.
    slots: Option<usize>,
    kv: KvFormat,
    /// One, but where the test is about more: tests run side by side, and threads that wait for each other
    /// take a third of the time of both cores then.
    threads: usize,
}

impl Size {
    fn of(sessions: usize) -> Self {
        Self { sessions, context: CONTEXT, slots: None, kv: KvFormat::F32, threads: 1 }
    }
}

fn engine(dir: &Path, Size { sessions, context, slots, kv, threads }: Size) -> Engine {
    let options = EngineOptions {
        memory: Some(300_000_000),
        context: Some(context),
        slots,
        kv,
        prefill_chunk: Some(64),
        threads: Some(threads),
        ..EngineOptions::default()
    };
    let places = Places { root: "/".into(), cache_dir: None };
    let load =
        Load { sessions, logits_rows: sessions, marks: 8, grammars: true, prefix_disk: true };
    Engine::open(dir, &options, load, &places).unwrap()
}

pub(crate) fn start(sessions: usize) -> Running {
    start_with(sessions, None, Door { loopback: true, ..Door::default() })
}

/// With `submit`, requests go there and not to the model.
pub(crate) fn start_with(sessions: usize, submit: Option<Arc<dyn Submit>>, door: Door) -> Running {
    start_for(sessions, submit, door, Patience::default())
}

pub(crate) fn start_for(
    sessions: usize,
    submit: Option<Arc<dyn Submit>>,
    door: Door,
    patience: Patience,
) -> Running {
    start_within(sessions, submit, (door, patience, Bounds::default()))
}

pub(crate) fn start_within(
    sessions: usize,
    submit: Option<Arc<dyn Submit>>,
    (door, patience, bounds): (Door, Patience, Bounds),
) -> Running {
    start_on(Size::of(sessions), (submit, None), (door, patience, bounds))
}

/// A server that computes on two threads.
pub(crate) fn start_on_two_threads(sessions: usize) -> Running {
    start_sized(Size { threads: 2, ..Size::of(sessions) })
}

/// A server with room for so many tokens.
pub(crate) fn start_of(sessions: usize, context: u32) -> Running {
    start_sized(Size { context, ..Size::of(sessions) })
}

/// A server with room for so few experts that others have to go.
pub(crate) fn start_tight(slots: usize) -> Running {
    start_sized(Size { slots: Some(slots), ..Size::of(1) })
}

fn start_sized(size: Size) -> Running {
    start_at(&demo_dir(), size)
}

/// The demonstration model in a directory of its own.
pub(crate) fn demo_copy() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_files(&demo_dir(), dir.path());
    dir
}

/// A server of the model in this directory.
pub(crate) fn start_copy(dir: &Path) -> Running {
    start_at(dir, Size::of(1))
}

/// A server of the model in this directory that reads its experts again and again.
pub(crate) fn start_reading(dir: &Path) -> Running {
    start_at(dir, Size { slots: Some(6), ..Size::of(2) })
}

/// A server of the model in this directory that keeps keys and values in f16.
pub(crate) fn start_halving(dir: &Path) -> Running {
    start_at(dir, Size { kv: KvFormat::F16, ..Size::of(2) })
}

fn start_at(dir: &Path, size: Size) -> Running {
    let door = Door { loopback: true, ..Door::default() };
    serve(engine(dir, size), (None, None), (door, Patience::default(), Bounds::default()))
}

/// A server that keeps prompts in this directory.
pub(crate) fn start_keeping(sessions: usize, dir: &Path) -> Running {
    let disk = DiskOptions {
        dir: dir.to_path_buf(),
        bytes_max: 1 << 30,
        fingerprint: 5,
        notices: Arc::new(|notice| panic!("{notice:?}")),
    };
    let door = Door { loopback: true, ..Door::default() };
    start_on(Size::of(sessions), (None, Some(disk)), (door, Patience::default(), Bounds::default()))
}

fn start_on(
    size: Size,
    places: (Option<Arc<dyn Submit>>, Option<DiskOptions>),
    manner: (Door, Patience, Bounds),
) -> Running {
    serve(engine(&demo_dir(), size), places, manner)
}

/// What reads bodies of the demonstration model.
pub(crate) fn reader() -> (Reader, Scheduler) {
    let engine = engine(&demo_dir(), Size::of(1));
    let door = Door::default();
    let (service, scheduler, _) =
        service(engine, (None, None), (door, Patience::default(), Bounds::default()));
    (Reader::new(service), scheduler)
}

fn serve(
    engine: Engine,
    places: (Option<Arc<dyn Submit>>, Option<DiskOptions>),
    manner: (Door, Patience, Bounds),
) -> Running {
    let (service, scheduler, log) = service(engine, places, manner);
    let server = Server::bind("127.0.0.1", 0).unwrap();
    let (at, stopper) = (server.address().unwrap(), server.stopper());
    let activity = scheduler.activity();
    let thread = thread::spawn(move || server.run(service).unwrap());
    until(|| crate::client::get(at, "/health").status != 503);
    Running { at, activity, log, stopper, thread: Some(thread), scheduler: Some(scheduler) }
}

/// What is served, what answers, and what the log is told.
fn service(
    engine: Engine,
    (submit, disk): (Option<Arc<dyn Submit>>, Option<DiskOptions>),
    (door, patience, bounds): (Door, Patience, Bounds),
) -> (Service, Scheduler, Arc<Mutex<Vec<String>>>) {
    let sessions = engine.plan.sessions;
    let stats = engine.stats_handle();
    let gauges = Gauges::of(&engine, LIMITS, &Places { root: "/".into(), cache_dir: None });
    let tokenizer = Arc::new(engine.tokenizer.unwrap());
    let vocab = engine.runner.vocab();
    let grammars =
        Grammars::new(Arc::clone(&tokenizer), vocab, engine.eos.clone(), engine.plan.grammars);
    let model = Model {
        name: "demo".to_owned(),
        tokenizer: Arc::clone(&tokenizer),
        template: engine.template,
        sampling: engine.generation.sampling(),
        eos: engine.eos,
        context: engine.plan.context,
        system: None,
        grammars,
        marks_turns: !engine.runner.forks_anywhere(),
    };
    // Prompts rest after every layer while somebody writes: whatever that could change, it changes.
    let options = ScheduleOptions { sessions, queue: 64, stall_max: Duration::ZERO };
    let driven = Driven { runner: engine.runner, tokenizer: Some(tokenizer), stats, disk };
    let scheduler = Scheduler::start(driven, options).unwrap();
    let log = Arc::<Mutex<Vec<String>>>::default();
    let lines = Arc::clone(&log);
    let service = Service {
        model,
        submit: submit.unwrap_or_else(|| scheduler.queue()),
        activity: scheduler.activity(),
        gauges,
        door,
        patience,
        bounds,
        log: Box::new(move |requested| lines.lock().unwrap().push(requested.to_string())),
    };
    (service, scheduler, log)
}

impl Running {
    pub(crate) fn sessions(&self) -> usize {
        self.activity.sessions.load(Ordering::Relaxed)
    }

    /// Stops it and waits until it has ended.
    pub(crate) fn end(&mut self) {
        self.stopper.stop();
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
        self.scheduler.take().into_iter().for_each(|scheduler| scheduler.drain().unwrap());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.end();
        }
    }
}

/// Waits for what another thread does; a bound, so that a mistake is a red test and no hang.
pub(crate) fn until(mut what: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if what() {
            return;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
    panic!("it did not happen");
}

/// A body without what differs from run to run.
pub(crate) fn steady(body: &str) -> String {
    let mut text = body.to_owned();
    // A log-probability is rounded otherwise by another instruction set.
    let varying = [
        ("\"id\":\"", "\""),
        ("\"item_id\":\"", "\""),
        ("\"created\":", ","),
        ("\"created_at\":", ","),
        ("\"timings\":{", "}"),
        ("\"logprob\":", ","),
    ];
    for (from, to) in varying {
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some(start) = rest.find(from).map(|at| at + from.len()) {
            let end = start + rest[start..].find(to).unwrap();
            out.push_str(&rest[..start]);
            out.push('…');
            rest = &rest[end..];
        }
        text = out + rest;
    }
    text
}
