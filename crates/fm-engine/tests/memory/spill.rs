//! What it takes to write prompts to disk while others are answered: a step allocates nothing for it, and
//! nothing piles up.

use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex, atomic::Ordering, mpsc},
    time::Duration,
};

use fm_engine::{
    Load,
    generate::{Event, Request},
    options::EngineOptions,
    schedule::{DiskOptions, Driven, Job, ScheduleOptions, Scheduler, Update},
};
use fm_testkit::{counting_alloc::thread_allocations, golden::golden_dir, noise::Noise};

use crate::{alone, open};

/// Tokens of the text that is kept, and of the one that is written meanwhile.
const KEPT: usize = 7900;
const WRITTEN: usize = 8000;

/// Allocations of the scheduler between two tokens when it begins to write a text, or ends it.
const TURN_MAX: u64 = 120;

/// A token of the text that is written meanwhile: what the scheduler had allocated by then, and bytes
/// handed to the disk.
#[derive(Clone, Copy)]
struct Seen {
    count: u64,
    spilled: u64,
}

fn start(dir: &std::path::Path) -> Scheduler {
    let options = EngineOptions {
        memory: Some(400_000_000),
        context: Some(8192),
        threads: Some(1),
        ..EngineOptions::default()
    };
    let load = Load { sessions: 2, logits_rows: 2, prefix_disk: true, ..Load::default() };
    // Marks, which models with recurrent layers need, take memory of their own at each step.
    let model = golden_dir("gpt_oss").join("mlx-4bit");
    let engine = open(&model, &options, load);
    let stats = engine.stats_handle();
    let disk = Some(DiskOptions {
        dir: dir.to_path_buf(),
        bytes_max: 1 << 30,
        fingerprint: 1,
        notices: Arc::new(|notice| panic!("{notice}")),
    });
    let driven = Driven { runner: engine.runner, tokenizer: None, stats, disk };
    let options = ScheduleOptions { sessions: 2, queue: 4, stall_max: Duration::from_secs(2) };
    Scheduler::start(driven, options).unwrap()
}

/// A text that tells what it sees at each of its tokens, and brings the one that is kept.
fn written(scheduler: &Scheduler, seen: &Arc<Mutex<Vec<Seen>>>) -> (Job, mpsc::Receiver<()>) {
    let (seen, activity, queue) = (Arc::clone(seen), scheduler.activity(), scheduler.queue());
    let (done, end) = mpsc::channel();
    let mut kept = Some(Request {
        prompt: Noise::new(1).tokens(KEPT, 300),
        max_tokens: Some(0),
        context: 8192,
        ..Request::default()
    });
    let listener = Box::new(move |update: Update<'_>| {
        match update {
            Update::Event(Event::Token(_)) => {
                let mut seen = seen.lock().unwrap();
                let spilled = activity.prefixes.spilled_bytes.load(Ordering::Relaxed);
                seen.push(Seen { count: thread_allocations().count, spilled });
                if seen.len() == 20
                    && let Some(request) = kept.take()
                {
                    let listener = Box::new(|_: Update<'_>| ControlFlow::Continue(()));
                    queue.push(vec![Job { request, listener }]).unwrap();
                }
            }
            Update::Done(_) => done.send(()).unwrap(),
            Update::Failed(error) => panic!("{error}"),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let request = Request {
        prompt: vec![5, 17, 9],
        max_tokens: Some(WRITTEN),
        context: 8192,
        ..Request::default()
    };
    (Job { request, listener }, end)
}

#[test]
fn a_step_allocates_nothing_for_what_is_written_to_disk() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let scheduler = start(dir.path());
    let seen = Arc::new(Mutex::new(Vec::with_capacity(WRITTEN)));
    let (job, end) = written(&scheduler, &seen);
    scheduler.queue().push(vec![job]).unwrap();
    end.recv().unwrap();
    let seen = seen.lock().unwrap();
    let first = seen.iter().position(|seen| seen.spilled > 0).unwrap();
    let steps: Vec<(u64, u64)> = seen[first - 2..]
        .windows(2)
        .map(|pair| (pair[1].count - pair[0].count, pair[1].spilled - pair[0].spilled))
        .collect();
    let slices: Vec<u64> = steps.iter().filter(|step| step.1 > 0).map(|step| step.0).collect();
    assert!(slices.len() >= 4, "it is written in many slices: {}", slices.len());
    let between = slices[1..slices.len() - 1].iter();
    // Now and then the queue to the writer grows, or the text.
    assert!(between.sum::<u64>() <= 4, "a slice copies: {slices:?}");
    assert!(slices.iter().all(|count| *count <= TURN_MAX), "{slices:?}");
    let steady = steps.iter().rev().take_while(|step| step.1 == 0).skip(40);
    let steady: Vec<u64> = steady.map(|step| step.0).collect();
    assert!(steady.len() > 40, "{}", steady.len());
    // What grows with the text grows now and then, and once it is listed what has been written.
    let grown = steady.iter().filter(|count| **count > 0).count();
    assert!(grown <= 8, "{grown} of {} steps allocate", steady.len());
    scheduler.drain().unwrap();
}
