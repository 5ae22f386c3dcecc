//! A disk that is short, failing, lying or out of order, under a whole model: an error with an
//! address, no token from wrong bytes, and the next request is served.

use std::{
    io,
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fm_engine::{
    EngineError,
    generate::Request,
    local::{Local, SharedStats, read_stats},
    look_ahead::LookAhead,
    pressure::{MemoryGuard, Reading, Signals},
    schedule::{Driven, Job, ScheduleOptions, Scheduler, Update},
};
use fm_format::{
    record::{Catalog, FileIndex},
    source::{Checkpoint, Files},
};
use fm_kernels::{backend::KvFormat, cpu::Cpu};
use fm_model::{
    Runner,
    arch::describe,
    decoder::{Decoder, DecoderOptions},
    load::Loader,
    model_runner::{ModelRunner, RunnerOptions},
    runner::{Batch, Halt, Lane, SessionId, SpoiledReason},
    spec::ModelSpec,
};
use fm_store::{
    PolicyKind, Store, StoreOptions,
    reader::{
        Access, Disk,
        memory::{Memory, MemoryDisk},
    },
};
use fm_testkit::golden::golden_dir;

use crate::harness::{bits, row};

/// What the disk does from a given access on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Error,
    Short,
    FlippedBit,
}

/// Counts accesses; from the `first` on, `count` of them go wrong, unless it has been mended.
struct FaultyDisk {
    disk: MemoryDisk,
    fault: Fault,
    accesses: Accesses,
    first: u64,
    count: u64,
}

/// Accesses so far; setting it to [`MENDED`] ends the fault.
type Accesses = Arc<AtomicU64>;

const MENDED: u64 = 1 << 40;

impl Disk for FaultyDisk {
    fn access(&self) -> Access {
        self.disk.access
    }

    fn read_at(&self, file: FileIndex, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let access = self.accesses.fetch_add(1, Ordering::SeqCst);
        let bytes = self.disk.read_at(file, offset, into)?;
        if !(self.first..self.first.saturating_add(self.count)).contains(&access) {
            return Ok(bytes);
        }
        match self.fault {
            Fault::Error => Err(io::Error::from_raw_os_error(5)),
            Fault::Short => Ok(0),
            Fault::FlippedBit => {
                into[bytes / 2] ^= 16;
                Ok(bytes)
            }
        }
    }
}

struct Model {
    spec: ModelSpec,
    files: Vec<PathBuf>,
    contents: Vec<Vec<u8>>,
    look_ahead: LookAhead,
}

impl Model {
    fn open(checksums: bool) -> Self {
        let checkpoint = Checkpoint::open(&golden_dir("qwen3_5_moe").join("mlx-4bit")).unwrap();
        let mut spec = describe(&checkpoint).unwrap();
        if checksums {
            spec.catalog = Arc::new(with_checksums(&spec.catalog));
        }
        let contents = checkpoint.files.iter().map(|path| std::fs::read(path).unwrap()).collect();
        Self { spec, files: checkpoint.files, contents, look_ahead: LookAhead::Off }
    }

    /// The model on a disk of which `count` accesses go wrong, and the number of accesses so far.
    fn on(&self, fault: Fault, first: u64, count: u64) -> (Box<dyn Runner>, Accesses) {
        let accesses = Arc::new(AtomicU64::new(0));
        let disk =
            FaultyDisk { disk: self.disk(), fault, accesses: Arc::clone(&accesses), first, count };
        // Few slots: experts are read again and again.
        (self.behind(disk, |_| 0, 5), accesses)
    }

    fn disk(&self) -> MemoryDisk {
        MemoryDisk { files: self.contents.clone(), access: Access::Buffered }
    }

    /// The model on a disk whose waiting reads finish in the order that `choose` says, with room
    /// for so many experts.
    fn behind(
        &self,
        disk: impl Disk + 'static,
        choose: fn(usize) -> usize,
        experts: u64,
    ) -> Box<dyn Runner> {
        self.guarded(disk, choose, experts, None).0
    }

    /// The same, watched by a guard, and the store's counters.
    fn guarded(
        &self,
        disk: impl Disk + 'static,
        choose: fn(usize) -> usize,
        experts: u64,
        guard: Option<MemoryGuard>,
    ) -> (Box<dyn Runner>, SharedStats) {
        let device = Cpu::open(1);
        let decoder =
            DecoderOptions { rows_max: 64, logits_rows_max: 64, short_rows_max: 0, top_k: None };
        let files = Files::new(self.files.clone());
        let loader = Loader::new(&device, &files, 1);
        let loaded = Decoder::load(&loader, &self.spec, decoder).unwrap();
        let catalog = &self.spec.catalog;
        let reader = Box::new(Memory::open(catalog, disk, choose).unwrap());
        let record_bytes = catalog.layers[0].as_ref().unwrap().layout.bytes() as u64;
        let options = StoreOptions {
            budget_bytes: experts * record_bytes + 400_000,
            policy: PolicyKind::Lru,
            top_k: 2,
            chunk_bytes: record_bytes as usize,
        };
        let store = Store::open(catalog, options, reader).unwrap();
        let local = Local::new(Arc::clone(catalog), store).looking_ahead(self.look_ahead);
        let local = match guard {
            Some(guard) => local.guarded(guard),
            None => local,
        };
        let stats = local.handles().stats;
        let options = RunnerOptions {
            decoder,
            sessions_max: 3,
            kv_blocks: 8,
            kv_format: KvFormat::F32,
            marks_max: 0,
            fingerprint: 0,
        };
        (Box::new(ModelRunner::new(device, loaded, local, &self.spec, options).unwrap()), stats)
    }
}

fn with_checksums(catalog: &Catalog) -> Catalog {
    let files = Files::new(catalog.files.clone());
    let mut catalog = catalog.clone();
    for layer in catalog.layers.iter_mut().flatten() {
        let sums: Vec<[u64; 2]> = layer
            .records
            .iter()
            .map(|record| {
                let mut slot = vec![0; layer.layout.bytes()];
                for piece in &record.pieces {
                    layer.place(piece, &files.read_extent(piece.extent).unwrap(), &mut slot);
                }
                layer.layout.checksums(&slot)
            })
            .collect();
        for (record, sums) in layer.records.iter_mut().zip(sums) {
            record.checksums = Some(sums);
        }
    }
    catalog
}

const TOKENS: [u32; 12] = [5, 17, 9, 200, 42, 3, 99, 250, 7, 7, 123, 61];

/// Runs two sessions side by side until something is lost; checks what is left, then goes on.
fn survive((mut runner, accesses): (Box<dyn Runner>, Accesses), want: &[u32]) -> bool {
    let runner = runner.as_mut();
    let sessions = [runner.open(64).unwrap(), runner.open(64).unwrap()];
    let rows = |session: SessionId, tokens: &[u32]| -> Vec<_> {
        (0..).zip(tokens).map(|(at, token)| row(session, *token, at)).collect()
    };
    let batch = Batch {
        rows: [rows(sessions[0], &TOKENS), rows(sessions[1], &TOKENS[..1])].concat(),
        hidden_layer: None,
    };
    let output = runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
    let got: Vec<u32> = output.logits.iter().map(|logit| logit.to_bits()).collect();
    let vocab = want.len() / TOKENS.len();
    let mut lost = Vec::new();
    for spoiled in output.spoiled {
        if let SpoiledReason::Experts(experts) = &spoiled.reason {
            check_address(experts);
        }
        lost.push(spoiled.session);
    }
    if !lost.contains(&sessions[0]) {
        assert!(got[..want.len()] == *want, "a session that lost nothing has its logits");
    }
    if !lost.contains(&sessions[1]) && got.len() > want.len() {
        assert!(got[want.len()..] == want[..vocab]);
    }
    for session in sessions {
        let position = runner.position(session).unwrap();
        assert_eq!(position == 0, lost.contains(&session), "who lost an expert fell back");
        runner.close(session);
    }
    accesses.store(MENDED, Ordering::SeqCst);
    // The fault is over: the next request is served.
    let session = runner.open(64).unwrap();
    assert!(bits(runner, session, &TOKENS, 12) == want);
    runner.close(session);
    !lost.is_empty()
}

/// Layer, expert, file and offset stand in the chain of causes.
fn check_address(lost: &fm_model::experts::ExpertsLost) {
    let mut text = lost.to_string();
    let mut cause = std::error::Error::source(lost);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    for part in ["layer ", "expert ", "model.safetensors"] {
        assert!(text.contains(part), "`{part}` in: {text}");
    }
    assert!(text.contains("offset") || text.contains("checksum"), "{text}");
}

fn undisturbed(model: &Model) -> (Vec<u32>, u64) {
    let (mut runner, accesses) = model.on(Fault::Error, u64::MAX, 0);
    let session = runner.open(64).unwrap();
    let want = bits(runner.as_mut(), session, &TOKENS, 12);
    (want, accesses.load(Ordering::SeqCst))
}

#[test]
fn a_failed_or_short_read_at_any_access_spoils_only_who_needed_it() {
    let model = Model::open(false);
    let (want, accesses) = undisturbed(&model);
    assert!(accesses > 20, "the experts are read in pieces");
    for fault in [Fault::Error, Fault::Short] {
        for first in 0..accesses {
            // More than any number of retries.
            let model = model.on(fault, first, 10);
            assert!(survive(model, &want), "{fault:?} at access {first}");
        }
    }
}

/// A prompt that rests after every layer for a token of another session, on a disk that fails. Says who
/// lost something: the prompt, the other session.
fn sweep((mut runner, accesses): (Box<dyn Runner>, Accesses), want: &[u32]) -> [bool; 2] {
    let runner = runner.as_mut();
    let vocab = runner.vocab();
    let [prompt, writer] = [runner.open(64).unwrap(), runner.open(64).unwrap()];
    let rows = (0..).zip(TOKENS).map(|(at, token)| row(prompt, token, at)).collect();
    runner.sweep_begin(Lane::Long, &Batch { rows, hidden_layer: None }).unwrap();
    let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    let mut lost = [false; 2];
    for (at, token) in TOKENS.iter().enumerate() {
        if !lost[1] {
            let batch = Batch { rows: vec![row(writer, *token, at as u32)], hidden_layer: None };
            let output = runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
            lost[1] = !output.spoiled.is_empty();
            let own = &want[at * vocab..(at + 1) * vocab];
            assert!(lost[1] || bits(output.logits) == own, "token {at}");
        }
        let swept = runner.sweep(Lane::Long, &mut |_| ControlFlow::Break(Halt::Rest)).unwrap();
        if let Some(output) = swept {
            lost[0] = !output.spoiled.is_empty();
            assert!(lost[0] || bits(output.logits) == want, "the prompt");
        }
    }
    for (session, lost) in [prompt, writer].into_iter().zip(lost) {
        assert_eq!(runner.position(session).unwrap(), if lost { 0 } else { 12 });
        runner.close(session);
    }
    accesses.store(MENDED, Ordering::SeqCst);
    let session = runner.open(64).unwrap();
    assert!(self::bits(runner, session, &TOKENS, 12) == want, "the next one");
    lost
}

#[test]
fn a_read_that_fails_while_a_prompt_rests_spoils_only_who_needed_it() {
    let model = Model::open(false);
    let (want, _) = undisturbed(&model);
    assert_eq!(sweep(model.on(Fault::Error, u64::MAX, 0), &want), [false; 2]);
    let mut seen = [[0; 2]; 2];
    for first in (0..400).step_by(3) {
        let [prompt, writer] = sweep(model.on(Fault::Error, first, 10), &want);
        seen[usize::from(prompt)][usize::from(writer)] += 1;
    }
    // What the other session cannot have, the prompt needs too.
    assert!(seen[1][0] > 0 && seen[1][1] > 0, "the prompt alone, and both: {seen:?}");
}

#[test]
fn a_text_that_loses_an_expert_fails_alone_and_the_next_one_is_written() {
    let model = Model::open(false);
    let options = ScheduleOptions { sessions: 3, queue: 8, stall_max: Duration::from_secs(2) };
    let texts: Vec<Request> = (1..4)
        .map(|length| Request {
            prompt: TOKENS[..3 * length].to_vec(),
            max_tokens: Some(6),
            context: 64,
            ..Request::default()
        })
        .collect();
    let write = |scheduler: &Scheduler| -> Vec<Result<u128, EngineError>> {
        let (send, ends) = std::sync::mpsc::channel();
        let jobs = texts.iter().enumerate().map(|(at, request)| {
            let send = send.clone();
            let listener = Box::new(move |update: Update<'_>| {
                match update {
                    Update::Done(generated) => send.send((at, Ok(generated.logits_hash))).unwrap(),
                    Update::Failed(error) => send.send((at, Err(error))).unwrap(),
                    _ => {}
                }
                ControlFlow::Continue(())
            });
            Job { request: request.clone(), listener }
        });
        scheduler.queue().push(jobs.collect()).unwrap();
        drop(send);
        let mut all: Vec<_> = (0..texts.len()).map(|_| ends.recv().unwrap()).collect();
        all.sort_unstable_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, result)| result).collect()
    };
    let start = |first, count| {
        let (runner, accesses) = model.on(Fault::Error, first, count);
        let stats = SharedStats::default();
        let driven = Driven { runner, tokenizer: None, stats, disk: None };
        (Scheduler::start(driven, options).unwrap(), accesses)
    };
    let (scheduler, accesses) = start(u64::MAX, 0);
    let want: Vec<u128> = write(&scheduler).into_iter().map(Result::unwrap).collect();
    let accesses = accesses.load(Ordering::SeqCst);
    let mut some_survived = false;
    for first in (0..accesses).step_by(3) {
        let (scheduler, accesses) = start(first, 10);
        let results = write(&scheduler);
        for (result, want) in results.iter().zip(&want) {
            match result {
                Ok(hash) => assert_eq!(hash, want, "access {first}"),
                Err(error) => assert!(matches!(error, EngineError::Spoiled(_)), "{error:?}"),
            }
        }
        let lost = results.iter().filter(|result| result.is_err()).count();
        assert!(lost > 0, "access {first}");
        some_survived |= lost < results.len();
        accesses.store(MENDED, Ordering::SeqCst);
        let after: Vec<u128> = write(&scheduler).into_iter().map(Result::unwrap).collect();
        assert_eq!(after, want, "access {first}");
        scheduler.drain().unwrap();
    }
    assert!(some_survived, "a text that lost nothing is finished");
}

#[test]
fn a_single_failed_read_is_repeated_and_costs_nothing() {
    let model = Model::open(false);
    let (want, accesses) = undisturbed(&model);
    for first in (0..accesses).step_by(5) {
        let model = model.on(Fault::Error, first, 1);
        assert!(!survive(model, &want), "access {first}");
    }
}

#[test]
fn a_flipped_bit_is_caught_wherever_checksums_are_known() {
    let model = Model::open(true);
    let (want, accesses) = undisturbed(&model);
    for first in 0..accesses {
        let model = model.on(Fault::FlippedBit, first, 40);
        assert!(survive(model, &want), "access {first}");
    }
}

/// Prefill adds experts up as they come, decoding lets results wait: neither may show in which
/// order reads finished.
#[test]
fn the_order_in_which_reads_finish_never_shows() {
    let model = Model::open(false);
    let tokens = fm_testkit::noise::Noise::new(5).tokens(44, 300);
    let run = |choose| {
        // All experts of a layer are under way at once.
        let mut runner = model.behind(model.disk(), choose, 8);
        let session = runner.open(64).unwrap();
        let mut all = bits(runner.as_mut(), session, &tokens[..40], 40);
        all.extend(bits(runner.as_mut(), session, &tokens[40..], 1));
        all
    };
    let in_order = run(|_| 0);
    assert!(run(|waiting| waiting - 1) == in_order, "the last one first");
    assert!(run(|waiting| waiting / 2) == in_order, "the middle one first");
}

#[test]
fn a_read_that_only_a_guess_wanted_spoils_nobody_when_it_fails() {
    for look_ahead in [LookAhead::Router, LookAhead::LastToken] {
        let model = Model { look_ahead, ..Model::open(false) };
        let (want, accesses) = undisturbed(&model);
        assert!(want == undisturbed(&Model::open(false)).0, "{}", look_ahead.name());
        let survived = |first| !survive(model.on(Fault::Error, first, 10), &want);
        let losses = (0..accesses).filter(|first| !survived(*first)).count() as u64;
        // Whatever fails, sessions are whole or have fallen back; that is checked on the way.
        assert!(losses > 0, "what is wanted and cannot be read is lost: {}", look_ahead.name());
        let once = (0..accesses).filter(|first| survive(model.on(Fault::Error, *first, 1), &want));
        assert_eq!(once.count(), 0, "{}", look_ahead.name());
    }
}

#[test]
fn a_cache_that_shrinks_under_pressure_changes_nothing_else() {
    /// A machine without a byte to spare, until it has been asked so often.
    struct Short(u32);
    impl Signals for Short {
        fn read(&mut self) -> Reading {
            self.0 += 1;
            Reading { left: if self.0 < 6 { 0 } else { u64::MAX }, ..Reading::default() }
        }
    }
    for look_ahead in [LookAhead::Off, LookAhead::Router] {
        let model = Model { look_ahead, ..Model::open(false) };
        let (want, _) = undisturbed(&model);
        let guard = MemoryGuard::new(Box::new(Short(0)), Duration::ZERO);
        let (mut runner, stats) = model.guarded(model.disk(), |_| 0, 40, Some(guard));
        for _ in 0..60 {
            let session = runner.open(64).unwrap();
            assert!(bits(runner.as_mut(), session, &TOKENS, 12) == want);
            runner.close(session);
        }
        let stats = read_stats(&stats);
        assert!(stats.released_bytes > 0, "it was short of memory for a while");
        assert!(stats.taken_back_bytes > 0, "and then it was not");
    }
}
