//! Many texts at once say what they say alone.

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use fm_engine::{
    Engine, EngineError,
    generate::{Event, FinishReason, Generated, Request},
    options::EngineOptions,
    sampler::Sampling,
    schedule::{Broken, Driven, Job, Refused, ScheduleOptions, Scheduler, Update},
};
use fm_kernels::backend::KvFormat;
use fm_model::runner::SpoiledReason;
use fm_testkit::{
    golden::{copy_filled, demo_dir},
    noise::Noise,
};
use tempfile::TempDir;

use crate::harness::{open, open_at};

const OPTIONS: ScheduleOptions =
    ScheduleOptions { sessions: 3, queue: 8, stall_max: Duration::from_secs(2) };

pub(crate) fn start(engine: &EngineOptions, options: ScheduleOptions) -> Scheduler {
    start_engine(open(engine), options)
}

pub(crate) fn start_engine(engine: Engine, options: ScheduleOptions) -> Scheduler {
    let stats = engine.stats_handle();
    let tokenizer = engine.tokenizer.map(Arc::new);
    let driven = Driven { runner: engine.runner, tokenizer, stats, disk: None };
    Scheduler::start(driven, options).unwrap()
}

/// A prompt of noise of its own length, and a way of choosing of its own.
fn request(seed: u64) -> Request {
    Request {
        prompt: Noise::new(seed).tokens(20 + 33 * (seed as usize % 4), 2000),
        sampling: Sampling { temperature: 0.9, seed, ..Sampling::default() },
        max_tokens: Some(20 + seed as usize),
        context: 256,
        ..Request::default()
    }
}

pub(crate) type Ends = Receiver<Result<Generated, EngineError>>;

pub(crate) fn job(request: Request) -> (Job, Ends) {
    let (send, ends) = mpsc::channel();
    let listener = Box::new(move |update: Update<'_>| {
        let sent = match update {
            Update::Done(generated) => send.send(Ok(*generated)),
            Update::Failed(error) => send.send(Err(error)),
            _ => Ok(()),
        };
        if sent.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    (Job { request, listener }, ends)
}

pub(crate) fn push(scheduler: &Scheduler, request: Request) -> Ends {
    let (job, ends) = job(request);
    scheduler.queue().push(vec![job]).unwrap();
    ends
}

#[test]
fn a_text_among_others_is_the_text_alone_bit_for_bit() {
    for slots in [None, Some(6)] {
        let options = EngineOptions { slots, ..EngineOptions::default() };
        let scheduler = start(&options, OPTIONS);
        let alone: Vec<_> =
            (0..6).map(|seed| push(&scheduler, request(seed)).recv().unwrap().unwrap()).collect();
        let before = scheduler.activity().steps.load(Ordering::Relaxed);
        let together: Vec<_> = (0..6).map(|seed| push(&scheduler, request(seed))).collect();
        for (ends, alone) in together.iter().zip(&alone) {
            let generated = ends.recv().unwrap().unwrap();
            assert_eq!(generated.tokens, alone.tokens);
            assert_eq!(generated.logits_hash, alone.logits_hash);
        }
        let steps = scheduler.activity().steps.load(Ordering::Relaxed) - before;
        assert!(steps < before * 3 / 4, "{steps} steps together, {before} one after the other");
        scheduler.drain().unwrap();
    }
}

/// Waits until the scheduler has settled; a bound, so that a mistake is a red test and no hang.
pub(crate) fn until(what: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if what() {
            return;
        }
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("it did not happen");
}

#[test]
fn keys_that_f16_cannot_hold_end_only_the_text_that_has_them() {
    let dir = TempDir::new().unwrap();
    // About half of the tokens have keys beyond f16 then.
    let norm = "language_model.model.layers.3.self_attn.k_norm.weight";
    copy_filled(&demo_dir(), dir.path(), norm, 2e4);
    let halves = EngineOptions { kv: KvFormat::F16, ..EngineOptions::default() };
    let scheduler = start_engine(open_at(dir.path(), &halves), OPTIONS);
    let text = |seed| {
        let prompt = Noise::new(seed).tokens(2, 2000);
        Request { prompt, max_tokens: Some(4), context: 64, ..Request::default() }
    };
    let said = |ends: Ends| match ends.recv().unwrap() {
        Ok(generated) => Ok(generated.logits_hash),
        Err(EngineError::Spoiled(SpoiledReason::KvOverflow { layer, source })) => {
            Err((layer.0, source.value.to_bits()))
        }
        Err(error) => panic!("{error:?}"),
    };
    let alone: Vec<_> = (0..24).map(|seed| said(push(&scheduler, text(seed)))).collect();
    let lost = alone.iter().filter(|said| said.is_err()).count();
    assert!((4..=20).contains(&lost), "{lost} of 24 texts");
    assert!(alone.iter().all(|said| said.is_ok() || said.is_err_and(|(layer, _)| layer == 3)));
    for (six, alone) in alone.chunks(6).enumerate() {
        let seeds = (6 * six as u64..).take(6);
        let (jobs, ends): (Vec<_>, Vec<_>) = seeds.map(|seed| job(text(seed))).unzip();
        scheduler.queue().push(jobs).unwrap();
        assert_eq!(ends.into_iter().map(said).collect::<Vec<_>>(), alone);
    }
    scheduler.drain().unwrap();
}

#[test]
fn who_leaves_gives_the_session_back_and_changes_nobody() {
    let scheduler = start(&EngineOptions::default(), OPTIONS);
    let want = push(&scheduler, request(2)).recv().unwrap().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut leavers = Vec::new();
    for at in [1, 5] {
        let heard = Arc::clone(&heard);
        let mut tokens = 0;
        leavers.push(Job {
            request: Request { max_tokens: Some(150), ..request(1) },
            listener: Box::new(move |update| match update {
                Update::Event(Event::Token(_)) => {
                    tokens += 1;
                    if tokens < at { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                }
                Update::Done(generated) => {
                    heard.lock().unwrap().push((generated.tokens.len(), generated.finish));
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }),
        });
    }
    scheduler.queue().push(leavers).unwrap();
    let among = push(&scheduler, request(2)).recv().unwrap().unwrap();
    assert_eq!(among.logits_hash, want.logits_hash);
    until(|| scheduler.activity().sessions.load(Ordering::Relaxed) == 0);
    let cancelled = FinishReason::Cancelled;
    let mut heard = heard.lock().unwrap().clone();
    heard.sort_unstable_by_key(|(tokens, _)| *tokens);
    assert_eq!(heard, [(1, cancelled), (5, cancelled)]);
    scheduler.drain().unwrap();
}

#[test]
fn a_full_queue_refuses_and_a_closed_one_finishes_what_it_has() {
    let scheduler =
        start(&EngineOptions::default(), ScheduleOptions { sessions: 1, queue: 2, ..OPTIONS });
    let queue = scheduler.queue();
    // The first one stands in its listener, so the others wait.
    let (release, gate) = mpsc::channel::<()>();
    let (mut first, first_ends) = job(request(0));
    let mut own = first.listener;
    first.listener = Box::new(move |update| {
        if matches!(update, Update::Started) {
            gate.recv().unwrap();
        }
        own(update)
    });
    queue.push(vec![first]).unwrap();
    until(|| queue.waiting() == 0);
    let second = push(&scheduler, request(1));
    assert_eq!(
        queue.push(vec![job(request(2)).0, job(request(2)).0]),
        Err(Refused::Full { waiting: 1 }),
        "all of them or none"
    );
    let three = (0..3).map(|_| job(request(2)).0).collect();
    assert_eq!(queue.push(three), Err(Refused::TooMany { jobs: 3, max: 2 }), "never");
    let mut gone = job(request(2)).0;
    gone.listener = Box::new(|_| ControlFlow::Break(()));
    queue.push(vec![gone]).unwrap();
    let third = push(&scheduler, request(3));
    assert_eq!(queue.waiting(), 2, "who has gone makes room");
    assert_eq!(queue.push(vec![job(request(2)).0]), Err(Refused::Full { waiting: 2 }));
    queue.close();
    assert_eq!(queue.push(vec![job(request(2)).0]), Err(Refused::Closed));
    release.send(()).unwrap();
    scheduler.drain().unwrap();
    for ends in [first_ends, second, third] {
        ends.recv().unwrap().unwrap();
    }
}

#[test]
fn a_request_that_cannot_be_is_an_error_of_its_own() {
    let scheduler = start(&EngineOptions::default(), OPTIONS);
    let good = push(&scheduler, request(1));
    let refused = [
        Request { prompt: Vec::new(), ..request(1) },
        Request { prompt: vec![2048], ..request(1) },
        Request { bias: vec![(4000, 1.0)], ..request(1) },
        Request { context: 8, ..request(1) },
        Request { stop: vec![String::new()], ..request(1) },
    ];
    for request in refused {
        push(&scheduler, request).recv().unwrap().unwrap_err();
    }
    good.recv().unwrap().unwrap();
    scheduler.drain().unwrap();
}

#[test]
fn log_probabilities_are_those_of_the_model_and_change_nothing() {
    let scheduler = start(&EngineOptions::default(), OPTIONS);
    let plain = push(&scheduler, request(3)).recv().unwrap().unwrap();
    let (told, hear) = mpsc::channel();
    let (mut job, ends) = job(Request { top_logprobs: Some(3), ..request(3) });
    let mut own = job.listener;
    job.listener = Box::new(move |update| {
        if let Update::Event(Event::Token(chosen)) = &update {
            told.send((chosen.token, chosen.logprob, chosen.likeliest.to_vec())).unwrap();
        }
        own(update)
    });
    scheduler.queue().push(vec![job]).unwrap();
    assert_eq!(ends.recv().unwrap().unwrap().logits_hash, plain.logits_hash);
    let told: Vec<_> = hear.try_iter().collect();
    assert_eq!(told.iter().map(|(token, ..)| *token).collect::<Vec<_>>(), plain.tokens);
    for (token, logprob, likeliest) in told {
        assert_eq!(likeliest.len(), 3);
        assert!(likeliest.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert!(logprob.unwrap() <= likeliest[0].1 && likeliest[0].1 <= 0.0);
        for (other, value) in likeliest {
            assert!(other != token || Some(value) == logprob);
        }
    }
    scheduler.drain().unwrap();
}

#[test]
fn who_leaves_while_a_token_is_computed_is_gone_before_it_is_there() {
    let scheduler = start(&EngineOptions::default(), OPTIONS);
    let (mut job, ends) = job(Request { max_tokens: Some(150), ..request(1) });
    let (mut own, mut tokens) = (job.listener, 0);
    job.listener = Box::new(move |update| match update {
        Update::Event(Event::Token(_)) => {
            tokens += 1;
            ControlFlow::Continue(())
        }
        Update::Waiting if tokens == 2 => ControlFlow::Break(()),
        update => own(update),
    });
    scheduler.queue().push(vec![job]).unwrap();
    let generated = ends.recv().unwrap().unwrap();
    assert_eq!((generated.tokens.len(), generated.finish), (2, FinishReason::Cancelled));
    scheduler.drain().unwrap();
}

#[test]
fn a_thread_that_breaks_off_lets_everybody_go() {
    let scheduler = start(&EngineOptions::default(), OPTIONS);
    let (release, gate) = mpsc::channel::<()>();
    let (mut first, first_ends) = job(request(0));
    let mut own = first.listener;
    first.listener = Box::new(move |update| {
        if matches!(update, Update::Started) {
            gate.recv().unwrap();
        }
        own(update)
    });
    let (mut second, second_ends) = job(request(1));
    second.listener = Box::new(|_| panic!("on purpose"));
    let queue = scheduler.queue();
    queue.push(vec![first, second]).unwrap();
    let third = push(&scheduler, request(2));
    release.send(()).unwrap();
    assert_eq!(scheduler.wait(), Err(Broken));
    for ends in [first_ends, second_ends, third] {
        assert!(ends.recv().is_err(), "nobody will say anything");
    }
    assert!(!queue.is_open());
    assert_eq!(queue.push(vec![job(request(2)).0]), Err(Refused::Closed));
}

#[test]
fn a_text_whose_time_is_over_ends_with_what_it_has() {
    let scheduler = start(&EngineOptions::default(), OPTIONS);
    let now = Instant::now();
    let over = Request { deadline: Some(now), ..request(1) };
    let ended = push(&scheduler, over).recv().unwrap();
    assert!(matches!(ended, Err(EngineError::Late)), "{ended:?}");

    // The second token is there before the time is over, the third is asked for after it.
    let deadline = now + Duration::from_secs(2);
    let (mut job, ends) = job(Request { deadline: Some(deadline), ..request(2) });
    let (mut listener, mut tokens) = (job.listener, 0);
    job.listener = Box::new(move |update| {
        if let Update::Event(Event::Token(_)) = update {
            tokens += 1;
        }
        while tokens == 2 && Instant::now() < deadline {
            thread::park_timeout(deadline - Instant::now());
        }
        listener(update)
    });
    scheduler.queue().push(vec![job]).unwrap();
    let generated = ends.recv().unwrap().unwrap();
    assert_eq!((generated.finish, generated.tokens.len()), (FinishReason::Deadline, 2));
    // Its neighbours, and whoever comes after it, do not notice.
    let alone = push(&scheduler, request(3)).recv().unwrap().unwrap();
    let timed = Request { deadline: Some(now + Duration::from_hours(1)), ..request(3) };
    let timed = push(&scheduler, timed).recv().unwrap().unwrap();
    assert_eq!((timed.logits_hash, timed.tokens), (alone.logits_hash, alone.tokens));
    scheduler.drain().unwrap();
}

/// However many texts are written beside them.
#[test]
fn long_prompts_take_turns() {
    let engine = EngineOptions { prefill_chunk: Some(8), ..EngineOptions::default() };
    let scheduler = start(&engine, OPTIONS);
    let long = |seed, tokens| Request {
        prompt: Noise::new(seed).tokens(tokens, 2000),
        max_tokens: Some(1),
        context: 448,
        ..Request::default()
    };
    let written = Request { max_tokens: None, context: 128, ..request(1) };
    let writer = push(&scheduler, written);
    let activity = scheduler.activity();
    until(|| activity.sessions.load(Ordering::Relaxed) == 1);
    // Layers of the sweeps that each was in; those of the first one when the second one's prompt is over.
    let layers: Arc<[AtomicU64; 3]> = Arc::default();
    let jobs = [long(2, 400), long(3, 150)].map(job).into_iter().enumerate();
    let (jobs, ends): (Vec<Job>, Vec<Ends>) = jobs
        .map(|(of, (mut job, ends))| {
            let (layers, mut listener) = (Arc::clone(&layers), job.listener);
            job.listener = Box::new(move |update| {
                match update {
                    Update::Event(Event::Prefill { .. }) => {
                        layers[of].fetch_add(1, Ordering::Relaxed);
                    }
                    Update::Event(Event::Token(_)) if of == 1 => {
                        layers[2].store(layers[0].load(Ordering::Relaxed), Ordering::Relaxed);
                    }
                    _ => {}
                }
                listener(update)
            });
            (job, ends)
        })
        .unzip();
    scheduler.queue().push(jobs).unwrap();
    ends[1].recv().unwrap().unwrap();
    let [_, second, first] = [0, 1, 2].map(|of: usize| layers[of].load(Ordering::Relaxed));
    assert!(first > second / 2 && first < second + second / 2, "{first} and {second} layers");
    drop((writer, ends));
    scheduler.drain().unwrap();
}
