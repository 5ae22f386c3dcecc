//! Whoever leaves, or whose time is over, while a prompt is taken in is gone at the next layer. What was
//! computed until then is kept, and right.

use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use fm_engine::{
    EngineError,
    generate::{Event, FinishReason, Request},
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
            assert_eq!(ends.recv().unwrap().unwrap().finish, FinishReason::Cancelled);
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
