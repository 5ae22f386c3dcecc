//! Whoever leaves, or whose time is over, is gone at the next layer, alone in a step or among others. What
//! was computed until then is kept, and right.

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fm_engine::{
    EngineError,
    generate::{Event, FinishReason, Request},
    local::{SharedStats, read_stats},
    options::EngineOptions,
    schedule::{Job, Scheduler, Update},
};

use crate::{
    harness::open_at,
    prefix::{FAMILIES, answer, family_dir, fresh, request, start, tokens},
    schedule::{Ends, job, push},
};

/// Rows of a sweep in these tests.
const CHUNK: usize = 64;

/// A text that counts the layers of its prompt, and does `at_layer` after so many of them.
fn asked_at(
    (at, request): (usize, Request),
    mut at_layer: impl FnMut() -> ControlFlow<()> + Send + 'static,
) -> (Job, Ends, Arc<Mutex<usize>>) {
    let (mut job, ends) = job(request);
    let (mut own, heard) = (job.listener, Arc::<Mutex<usize>>::default());
    let count = Arc::clone(&heard);
    job.listener = Box::new(move |update| {
        if let Update::Event(Event::Prefill { .. }) = update {
            let mut count = count.lock().unwrap();
            *count += 1;
            return if *count == at { at_layer() } else { ControlFlow::Continue(()) };
        }
        own(update)
    });
    (job, ends, heard)
}

/// What it has left behind is the first sweep, and whoever goes on from there is who computes it all.
fn goes_on(scheduler: &Scheduler, family: &str, prompt: &[u32]) {
    let mut alone = open_at(&family_dir(family), &EngineOptions::default());
    let again = answer(scheduler, request(prompt.to_vec()));
    assert_eq!(again.reused, CHUNK, "{family}: what was computed is kept");
    let want = fresh(&mut alone, request(prompt.to_vec()));
    assert_eq!(again.logits_hash, want.logits_hash, "{family}");
}

fn layers(family: &str) -> usize {
    open_at(&family_dir(family), &EngineOptions::default()).layers
}

#[test]
fn a_client_that_leaves_a_prompt_is_gone_at_the_next_layer_and_its_session_goes_on() {
    for family in FAMILIES {
        let layers = layers(family);
        for at in 1..=layers {
            let scheduler = start(open_at(&family_dir(family), &EngineOptions::default()));
            let prompt = tokens(1, 4 * CHUNK - 20);
            let asked = (layers + at, request(prompt.clone()));
            let (job, ends, heard) = asked_at(asked, || ControlFlow::Break(()));
            scheduler.queue().push(vec![job]).unwrap();
            let ended = ends.recv().unwrap().unwrap();
            let told = (ended.finish, ended.prefill.tokens);
            assert_eq!(told, (FinishReason::Cancelled, CHUNK), "{family}: what was taken in");
            assert_eq!(*heard.lock().unwrap(), layers + at, "{family}: no layer more");
            goes_on(&scheduler, family, &prompt);
            scheduler.drain().unwrap();
        }
    }
}

#[test]
fn a_prompt_whose_time_is_over_ends_at_the_next_layer_and_is_kept_as_far_as_it_came() {
    // With recurrent memories and without: both wait for a clock.
    for family in ["qwen3_moe", "qwen3_next"] {
        let layers = layers(family);
        let scheduler = start(open_at(&family_dir(family), &EngineOptions::default()));
        let prompt = tokens(1, 4 * CHUNK - 20);
        let deadline = Instant::now() + Duration::from_secs(1);
        let late = Request { deadline: Some(deadline), ..request(prompt.clone()) };
        let (job, ends, heard) = asked_at((layers + 1, late), move || {
            while Instant::now() < deadline {
                thread::park_timeout(deadline - Instant::now());
            }
            ControlFlow::Continue(())
        });
        scheduler.queue().push(vec![job]).unwrap();
        let ended = ends.recv().unwrap();
        assert!(matches!(ended, Err(EngineError::Late)), "{family}: {ended:?}");
        assert_eq!(*heard.lock().unwrap(), layers + 1, "{family}: the next layer is the last");
        goes_on(&scheduler, family, &prompt);
        scheduler.drain().unwrap();
    }
}

#[test]
fn whoever_leaves_a_sweep_of_two_leaves_the_other_what_it_is_alone() {
    for family in FAMILIES {
        let scheduler = start(open_at(&family_dir(family), &EngineOptions::default()));
        let mut alone = open_at(&family_dir(family), &EngineOptions::default());
        let (leaves, stays) = (request(tokens(1, 30)), request(tokens(2, 31)));
        let (first, first_ends, _) = asked_at((1, leaves.clone()), || ControlFlow::Break(()));
        let (other, other_ends) = job(stays.clone());
        scheduler.queue().push(vec![first, other]).unwrap();
        assert_eq!(first_ends.recv().unwrap().unwrap().finish, FinishReason::Cancelled);
        let stayed = other_ends.recv().unwrap().unwrap();
        assert_eq!(stayed.logits_hash, fresh(&mut alone, stays).logits_hash, "{family}");
        assert_eq!(scheduler.activity().rests.load(Ordering::Relaxed), 0);
        let again = push(&scheduler, leaves.clone()).recv().unwrap().unwrap();
        assert_eq!(again.logits_hash, fresh(&mut alone, leaves).logits_hash, "{family}");
        scheduler.drain().unwrap();
    }
}

/// Experts that a text requests from somewhere on, its neighbours' in the same steps among them. It is
/// somewhere when `is_there` says so of what it hears.
fn requests_from(
    (stats, request): (SharedStats, Request),
    mut is_there: impl FnMut(&Update<'_>) -> bool + Send + 'static,
) -> (Job, Ends, Arc<AtomicU64>) {
    let (mut job, ends) = job(request);
    let (mut own, requests) = (job.listener, Arc::<AtomicU64>::default());
    let counted = Arc::clone(&requests);
    job.listener = Box::new(move |update| {
        let stats = read_stats(&stats);
        let so_far = stats.hits + stats.misses();
        if is_there(&update) {
            counted.store(so_far, Ordering::SeqCst);
        } else if let Update::Done(_) = &update {
            counted.store(so_far - counted.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        own(update)
    });
    (job, ends, requests)
}

/// Whether it is the `at`-th layer of a prompt.
fn layer(at: usize) -> impl FnMut(&Update<'_>) -> bool + Send {
    let mut layers = 0;
    move |update| {
        let is_layer = matches!(update, Update::Event(Event::Prefill { .. }));
        layers += usize::from(is_layer);
        is_layer && layers == at
    }
}

/// Experts that `stays` requests from its layer `at` on, beside `leaves`, if anybody does, who is in the
/// same sweep.
fn requests_beside(
    family: &str,
    (at, stays): (usize, Request),
    leaves: Option<Job>,
) -> (u64, u128) {
    let engine = open_at(&family_dir(family), &EngineOptions::default());
    let stats = engine.stats_handle();
    let scheduler = start(engine);
    let (stays, ends, requests) = requests_from((stats, stays), layer(at));
    scheduler.queue().push([stays].into_iter().chain(leaves).collect()).unwrap();
    let stayed = ends.recv().unwrap().unwrap();
    let taken_in = scheduler.activity().prompt_tokens.load(Ordering::Relaxed);
    assert_eq!(taken_in, 2, "{family}: nothing of who leaves");
    scheduler.drain().unwrap();
    (requests.load(Ordering::SeqCst), stayed.logits_hash)
}

#[test]
fn the_layers_behind_the_one_at_which_somebody_leaves_have_the_rows_of_those_who_stay() {
    for family in FAMILIES {
        let (stays, goes) = (request(tokens(2, 3)), request(tokens(1, CHUNK - 2)));
        let want = requests_beside(family, (1, stays.clone()), None);
        let (leaves, ends, heard) = asked_at((1, goes.clone()), || ControlFlow::Break(()));
        let beside = requests_beside(family, (1, stays.clone()), Some(leaves));
        assert_eq!(ends.recv().unwrap().unwrap().finish, FinishReason::Cancelled);
        assert_eq!((beside, *heard.lock().unwrap()), (want, 1), "{family}: who leaves");

        let want = requests_beside(family, (2, stays.clone()), None);
        let deadline = Instant::now() + Duration::from_secs(1);
        let late = Request { deadline: Some(deadline), ..goes };
        let (late, ends, heard) = asked_at((1, late), move || {
            while Instant::now() < deadline {
                thread::park_timeout(deadline - Instant::now());
            }
            ControlFlow::Continue(())
        });
        let beside = requests_beside(family, (2, stays), Some(late));
        assert!(matches!(ends.recv().unwrap(), Err(EngineError::Late)), "{family}");
        assert_eq!((beside, *heard.lock().unwrap()), (want, 1), "{family}: whose time is over");
    }
}

/// Somebody else leaves after the first layer of the step behind a text's third token.
#[test]
fn who_leaves_between_two_layers_of_a_token_is_not_in_the_next_one() {
    for family in FAMILIES {
        let stays = request(tokens(2, 3));
        let want = requests_of_a_text(family, stays.clone(), None);
        let others = Request { max_tokens: Some(50), ..request(tokens(1, 3)) };
        let beside = requests_of_a_text(family, stays, Some(others));
        assert_eq!(beside, want, "{family}");
    }
}

fn requests_of_a_text(family: &str, stays: Request, leaves: Option<Request>) -> (u64, u128) {
    let engine = open_at(&family_dir(family), &EngineOptions::default());
    let stats = engine.stats_handle();
    let scheduler = start(engine);
    let (mut tokens, now) = (0, Arc::<AtomicBool>::default());
    let told = Arc::clone(&now);
    let (stays, ends, requests) = requests_from((stats, stays), move |update| {
        tokens += usize::from(matches!(update, Update::Event(Event::Token(_))));
        let is_there = tokens == 3 && matches!(update, Update::Waiting);
        is_there && !told.swap(true, Ordering::SeqCst)
    });
    let leaves = leaves.map(|request| {
        let (mut job, ends) = job(request);
        let mut own = job.listener;
        job.listener = Box::new(move |update| {
            let leaves = matches!(update, Update::Waiting) && now.load(Ordering::SeqCst);
            if leaves { ControlFlow::Break(()) } else { own(update) }
        });
        (job, ends)
    });
    let (leaves, left): (Vec<_>, Vec<_>) = leaves.into_iter().unzip();
    scheduler.queue().push([stays].into_iter().chain(leaves).collect()).unwrap();
    let stayed = ends.recv().unwrap().unwrap();
    for ends in left {
        let left = ends.recv().unwrap().unwrap();
        assert_eq!((left.tokens.len(), left.finish), (3, FinishReason::Cancelled), "{family}");
    }
    scheduler.drain().unwrap();
    (requests.load(Ordering::SeqCst), stayed.logits_hash)
}
