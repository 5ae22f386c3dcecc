//! Prompts rest between layers for those who write and for those who come: what is said does not change,
//! only when.

use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex, atomic::Ordering, mpsc},
    time::Duration,
};

use fm_engine::{
    generate::{Event, FinishReason, Generated, Request},
    options::EngineOptions,
    schedule::{Job, Queue, ScheduleOptions, Scheduler, Update},
};
use fm_testkit::noise::Noise;

use crate::{
    harness::open_at,
    prefix::family_dir,
    schedule::{Ends, job, push, start, start_engine, until},
};

/// Prompts rest after every layer.
const OPTIONS: ScheduleOptions =
    ScheduleOptions { sessions: 3, queue: 8, stall_max: Duration::ZERO };

/// The one that is written all the while.
fn text() -> Request {
    Request { prompt: vec![3, 1, 4], max_tokens: Some(150), context: 256, ..Request::default() }
}

fn prompt(seed: u64) -> Request {
    let prompt = Noise::new(seed).tokens(90 + 20 * seed as usize, 2000);
    Request { prompt, max_tokens: Some(5), context: 256, ..Request::default() }
}

/// One that shares a sweep with another.
fn short(seed: u64) -> Request {
    Request { prompt: Noise::new(seed).tokens(20 + seed as usize, 2000), ..prompt(seed) }
}

/// What is heard, in its order: tokens of the text, and layers of prompts by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Token,
    Layer(usize),
    Gone,
}

type Log = Arc<Mutex<Vec<Heard>>>;

/// A prompt that tells its layers, and goes after so many.
fn told(log: &Log, (at, request): (usize, Request), layers: usize) -> (Job, Ends) {
    let (mut job, ends) = job(request);
    let (mut own, log, mut heard) = (job.listener, Arc::clone(log), 0);
    job.listener = Box::new(move |update| {
        if let Update::Event(Event::Prefill { .. }) = update {
            log.lock().unwrap().push(Heard::Layer(at));
            heard += 1;
            return if heard == layers {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            };
        }
        own(update)
    });
    (job, ends)
}

/// A text that brings the others when it has its first token.
fn bringing(log: &Log, queue: Arc<Queue>, mut others: Vec<Job>) -> (Job, Ends) {
    let (mut job, ends) = job(text());
    let (mut own, log) = (job.listener, Arc::clone(log));
    job.listener = Box::new(move |update| {
        if let Update::Event(Event::Token(_)) = update {
            log.lock().unwrap().push(Heard::Token);
            if !others.is_empty() {
                queue.push(std::mem::take(&mut others)).unwrap();
            }
        }
        own(update)
    });
    (job, ends)
}

fn end(ends: &Ends) -> Generated {
    ends.recv().unwrap().unwrap()
}

/// What everybody says alone: the text, and the prompts.
fn alone(options: &EngineOptions) -> Vec<(Vec<u32>, u128)> {
    let scheduler =
        start(options, ScheduleOptions { stall_max: Duration::from_secs(2), ..OPTIONS });
    let requests = [text(), prompt(1), prompt(2), short(3), short(4)];
    let said = requests.map(|request| end(&push(&scheduler, request)));
    scheduler.drain().unwrap();
    said.map(|generated| (generated.tokens, generated.logits_hash)).to_vec()
}

fn is(generated: &Generated, alone: &(Vec<u32>, u128)) -> bool {
    (generated.tokens == alone.0) && generated.logits_hash == alone.1
}

/// It would have to wait for the end of a sweep, if it waited for what they have in common.
#[test]
fn a_short_prompt_that_begins_like_a_long_one_does_not_wait_for_it() {
    let (context, prefill_chunk) = (Some(1024), Some(1024));
    let options = EngineOptions { context, prefill_chunk, ..EngineOptions::default() };
    // One that can be continued anywhere: what both have in common could be waited for.
    let engine = open_at(&family_dir("qwen3_moe"), &options);
    let layers = engine.layers;
    let scheduler = start_engine(engine, OPTIONS);
    let tokens = Noise::new(1).tokens(900, 300);
    let asked = |prompt: Vec<u32>| {
        job(Request { prompt, max_tokens: Some(1), context: 1024, ..Request::default() })
    };
    let log = Log::default();
    let (mut short, short_ends) = asked([&tokens[..100], &[7, 8]].concat());
    let (mut own, told) = (short.listener, Arc::clone(&log));
    short.listener = Box::new(move |update| {
        if let Update::Event(Event::Token(_)) = update {
            told.lock().unwrap().push(Heard::Token);
        }
        own(update)
    });
    let (mut long, long_ends) = asked(tokens.clone());
    let (mut own, told, queue) = (long.listener, Arc::clone(&log), scheduler.queue());
    let mut short = Some(short);
    long.listener = Box::new(move |update| {
        if let Update::Event(Event::Prefill { .. }) = update {
            told.lock().unwrap().push(Heard::Layer(1));
            short.take().into_iter().for_each(|short| queue.push(vec![short]).unwrap());
        }
        own(update)
    });
    scheduler.queue().push(vec![long]).unwrap();
    [long_ends, short_ends].iter().for_each(|ends| drop(end(ends)));
    scheduler.drain().unwrap();
    let log = log.lock().unwrap();
    let written = log.iter().position(|heard| *heard == Heard::Token).unwrap();
    assert!(written < layers, "it waited for a sweep: {log:?}");
}

#[test]
fn a_prompt_rests_after_every_layer_and_nobody_says_anything_else() {
    for slots in [None, Some(6)] {
        let options = EngineOptions { slots, ..EngineOptions::default() };
        let alone = alone(&options);
        let scheduler = start(&options, OPTIONS);
        let log = Log::default();
        let (first, first_ends) = told(&log, (1, prompt(1)), usize::MAX);
        let (second, second_ends) = told(&log, (2, prompt(2)), usize::MAX);
        let (text, ends) = bringing(&log, scheduler.queue(), vec![first, second]);
        scheduler.queue().push(vec![text]).unwrap();
        for (ends, alone) in [ends, first_ends, second_ends].iter().zip(&alone) {
            assert!(is(&end(ends), alone), "slots {slots:?}");
        }
        assert!(scheduler.activity().longest_wait_us.load(Ordering::Relaxed) > 0);
        scheduler.drain().unwrap();
        let log = log.lock().unwrap();
        let layers = |at| log.iter().filter(|heard| **heard == Heard::Layer(at)).count();
        assert!(layers(1) >= 8 && layers(2) >= 8, "{log:?}");
        for at in [1, 2] {
            let both = [Heard::Layer(at); 2];
            assert!(!log.windows(2).any(|pair| pair == both), "a token between layers: {log:?}");
        }
    }
}

#[test]
fn whoever_leaves_in_the_middle_of_a_sweep_is_gone_after_the_layer() {
    let options = EngineOptions::default();
    let alone = alone(&options);
    let scheduler = start(&options, OPTIONS);
    let log = Log::default();
    let (leaves, leaves_ends) = told(&log, (1, prompt(1)), 3);
    let (text, ends) = bringing(&log, scheduler.queue(), vec![leaves]);
    scheduler.queue().push(vec![text]).unwrap();
    assert_eq!(end(&leaves_ends).finish, FinishReason::Cancelled);
    assert!(is(&end(&ends), &alone[0]));
    let layers = log.lock().unwrap().iter().filter(|heard| **heard == Heard::Layer(1)).count();
    assert_eq!(layers, 3);
    // What it left behind is as good as new.
    assert!(is(&end(&push(&scheduler, prompt(1))), &alone[1]));
    until(|| scheduler.activity().sessions.load(Ordering::Relaxed) == 0);
    scheduler.drain().unwrap();
}

#[test]
fn whoever_leaves_a_sweep_that_others_are_in_changes_nobody() {
    let options = EngineOptions::default();
    let alone = alone(&options);
    let scheduler = start(&options, OPTIONS);
    let log = Log::default();
    let (mut leaves, leaves_ends) = told(&log, (1, short(3)), 3);
    let (mut own, gone) = (leaves.listener, Arc::clone(&log));
    leaves.listener = Box::new(move |update| {
        if let Update::Done(_) = update {
            gone.lock().unwrap().push(Heard::Gone);
        }
        own(update)
    });
    let (stays, stays_ends) = told(&log, (2, short(4)), usize::MAX);
    let (text, ends) = bringing(&log, scheduler.queue(), vec![leaves, stays]);
    scheduler.queue().push(vec![text]).unwrap();
    assert_eq!(end(&leaves_ends).finish, FinishReason::Cancelled);
    assert!(is(&end(&stays_ends), &alone[4]));
    assert!(is(&end(&ends), &alone[0]));
    scheduler.drain().unwrap();
    let log = log.lock().unwrap();
    let shared = log.windows(2).filter(|pair| *pair == [Heard::Layer(1), Heard::Layer(2)]);
    assert_eq!(shared.count(), 3, "they were in one sweep: {log:?}");
    let gone = log.iter().position(|heard| *heard == Heard::Gone).unwrap();
    let layers = log[..gone].iter().filter(|heard| **heard == Heard::Layer(2)).count();
    assert_eq!(layers, 3, "its session is free while the sweep rests: {log:?}");
}

/// Nobody writes, and a long prompt is on its way, when two ask a question: they are answered before it
/// has gone through the layers.
#[test]
fn a_question_overtakes_a_long_prompt_of_somebody_else() {
    for slots in [None, Some(6)] {
        let options = EngineOptions { slots, ..EngineOptions::default() };
        let alone = alone(&options);
        let patient = ScheduleOptions { stall_max: Duration::from_secs(2), ..OPTIONS };
        let scheduler = start(&options, patient);
        let log = Log::default();
        let (question, ends): (Vec<_>, Vec<_>) =
            [3, 4].map(|seed| job(short(seed))).into_iter().unzip();
        let question = question.into_iter().map(|mut job| {
            let (mut own, log) = (job.listener, Arc::clone(&log));
            job.listener = Box::new(move |update| {
                if let Update::Event(Event::Token(_)) = update {
                    log.lock().unwrap().push(Heard::Token);
                }
                own(update)
            });
            job
        });
        let mut questions: Vec<Job> = question.collect();
        let (mut long, long_ends) = told(&log, (1, prompt(2)), usize::MAX);
        let (mut own, queue, mut layers) = (long.listener, scheduler.queue(), 0);
        long.listener = Box::new(move |update| {
            if let Update::Event(Event::Prefill { .. }) = update {
                layers += 1;
                if layers == 2 {
                    queue.push(std::mem::take(&mut questions)).unwrap();
                }
            }
            own(update)
        });
        scheduler.queue().push(vec![long]).unwrap();
        for (ends, alone) in ends.iter().zip(&alone[3..]) {
            assert!(is(&end(ends), alone), "slots {slots:?}");
        }
        assert!(is(&end(&long_ends), &alone[2]), "slots {slots:?}");
        scheduler.drain().unwrap();
        let log = log.lock().unwrap();
        let first = log.iter().position(|heard| *heard == Heard::Token).unwrap();
        assert!(first <= 4, "two layers before they come, and as many meanwhile: {log:?}");
    }
}

/// A text that ends, and one that comes, while a sweep rests.
#[test]
fn texts_end_and_others_come_while_a_prompt_rests() {
    let options = EngineOptions::default();
    let alone = alone(&options);
    let scheduler: Scheduler = start(&options, OPTIONS);
    let log = Log::default();
    let (told_ends, hear_ends) = mpsc::channel();
    let (mut first, first_ends) = told(&log, (1, prompt(1)), usize::MAX);
    let (mut own, queue, mut layers) = (first.listener, scheduler.queue(), 0);
    first.listener = Box::new(move |update| {
        if let Update::Event(Event::Prefill { .. }) = update {
            layers += 1;
            if layers == 2 {
                let (short, ends) = job(Request { max_tokens: Some(2), ..prompt(2) });
                queue.push(vec![short]).unwrap();
                told_ends.send(ends).unwrap();
            }
        }
        own(update)
    });
    let (mut ends_soon, soon_ends) = job(Request { max_tokens: Some(4), ..text() });
    let (mut own, queue, mut first) = (ends_soon.listener, scheduler.queue(), Some(first));
    ends_soon.listener = Box::new(move |update| {
        if let Update::Event(Event::Token(_)) = update
            && let Some(first) = first.take()
        {
            queue.push(vec![first]).unwrap();
        }
        own(update)
    });
    scheduler.queue().push(vec![ends_soon]).unwrap();
    assert_eq!(end(&soon_ends).tokens, alone[0].0[..4]);
    assert!(is(&end(&first_ends), &alone[1]));
    assert_eq!(end(&hear_ends.recv().unwrap()).tokens, alone[2].0[..2]);
    scheduler.drain().unwrap();
}
