//! A text that begins like an earlier one takes over what that one computed, and no bit differs.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{atomic::Ordering, mpsc},
    time::Duration,
};

use fm_engine::{
    Engine,
    generate::{Event, FinishReason, Generated, Generation, Request},
    options::EngineOptions,
    sampler::Sampling,
    schedule::{Driven, Job, Pin, ScheduleOptions, Scheduler, Update},
};
use fm_testkit::{
    golden::{demo_dir, golden_dir},
    noise::Noise,
};

use crate::{
    harness::open_at,
    schedule::{job, push, until},
};

pub(crate) const OPTIONS: ScheduleOptions =
    ScheduleOptions { sessions: 3, queue: 16, stall_max: Duration::from_secs(2) };

/// Keys and values of all heads, of one latent head, with windows and sinks; with recurrent memories.
pub(crate) const FAMILIES: [&str; 5] =
    ["qwen3_moe", "deepseek_v3", "gpt_oss", "qwen3_5_moe", "qwen3_next"];

pub(crate) fn is_hybrid(family: &str) -> bool {
    matches!(family, "qwen3_5_moe" | "qwen3_next")
}

pub(crate) fn family_dir(family: &str) -> PathBuf {
    golden_dir(family).join("mlx-mixed")
}

pub(crate) fn start(engine: Engine) -> Scheduler {
    let stats = engine.stats_handle();
    let tokenizer = engine.tokenizer.map(std::sync::Arc::new);
    let driven = Driven { runner: engine.runner, tokenizer, stats, disk: None };
    Scheduler::start(driven, OPTIONS).unwrap()
}

pub(crate) fn tokens(seed: u64, count: usize) -> Vec<u32> {
    Noise::new(seed).tokens(count, 300)
}

pub(crate) fn request(prompt: Vec<u32>) -> Request {
    let sampling = Sampling { temperature: 0.9, seed: 7, ..Sampling::default() };
    Request { prompt, sampling, max_tokens: Some(6), context: 256, ..Request::default() }
}

pub(crate) fn answer(scheduler: &Scheduler, request: Request) -> Generated {
    push(scheduler, request).recv().unwrap().unwrap()
}

/// What a model says that remembers nothing.
pub(crate) fn fresh(engine: &mut Engine, request: Request) -> Generated {
    let session = engine.runner.open(request.context).unwrap();
    let stats = engine.stats_handle();
    let read = || fm_engine::local::read_stats(&stats);
    let runner = engine.runner.as_mut();
    let generation = Generation::new(runner, session, request, None, &read).unwrap();
    let generated = generation.run(&mut |_| ControlFlow::Continue(())).unwrap();
    engine.runner.close(session);
    generated
}

#[test]
fn a_text_that_begins_like_another_is_the_text_alone_bit_for_bit() {
    for family in FAMILIES {
        let dir = family_dir(family);
        let scheduler = start(open_at(&dir, &EngineOptions::default()));
        let mut alone = open_at(&dir, &EngineOptions::default());
        let base = tokens(1, 140);
        let first = answer(&scheduler, request(base.clone()));
        assert_eq!(first.reused, 0, "{family}");
        assert_eq!(first.logits_hash, fresh(&mut alone, request(base.clone())).logits_hash);
        let turn = [base.as_slice(), &first.tokens[..5], &tokens(2, 20)].concat();
        let next = answer(&scheduler, request(turn.clone()));
        assert_eq!(next.reused, 145, "{family}: the next turn costs its new tokens");
        assert_eq!(next.logits_hash, fresh(&mut alone, request(turn)).logits_hash, "{family}");
        for cut in [140, 139, 130, 128, 127, 65, 64, 63, 17, 1] {
            let prompt = [&base[..cut], &tokens(cut as u64, 9)].concat();
            let again = answer(&scheduler, request(prompt.clone()));
            let want = fresh(&mut alone, request(prompt));
            assert_eq!(again.logits_hash, want.logits_hash, "{family}: cut at {cut}");
            assert_eq!(again.tokens, want.tokens);
            // The first prompt is marked before its last token.
            let reused = if is_hybrid(family) { if cut < 139 { 0 } else { 139 } } else { cut };
            assert!(again.reused >= reused, "{family}: {} of {cut}", again.reused);
            assert!(again.reused < cut + 9, "{family}: one token is computed");
        }
        assert_eq!(answer(&scheduler, request(base)).logits_hash, first.logits_hash);
        scheduler.drain().unwrap();
    }
}

#[test]
fn texts_that_extend_one_prefix_at_once_do_not_disturb_each_other() {
    for family in FAMILIES {
        let dir = family_dir(family);
        let scheduler = start(open_at(&dir, &EngineOptions::default()));
        let mut alone = open_at(&dir, &EngineOptions::default());
        let base = tokens(1, 100);
        answer(&scheduler, request(base.clone()));
        let prompts: Vec<Vec<u32>> =
            (0..6).map(|seed| [base.as_slice(), &tokens(10 + seed, 30)].concat()).collect();
        let together: Vec<_> =
            prompts.iter().map(|prompt| push(&scheduler, request(prompt.clone()))).collect();
        for (ends, prompt) in together.iter().zip(prompts) {
            let generated = ends.recv().unwrap().unwrap();
            let want = fresh(&mut alone, request(prompt));
            assert_eq!(generated.logits_hash, want.logits_hash, "{family}");
            assert!(generated.reused >= 99, "{family}: {}", generated.reused);
        }
        scheduler.drain().unwrap();
    }
}

/// Several answers to one prompt, and several prompts that begin alike, asked at once of a model that
/// has seen none of it.
#[test]
fn a_prompt_that_is_asked_several_times_at_once_is_taken_in_once() {
    for family in FAMILIES {
        let dir = family_dir(family);
        let scheduler = start(open_at(&dir, &EngineOptions::default()));
        let mut alone = open_at(&dir, &EngineOptions::default());
        let base = tokens(3, 150);
        let prompts = [base.clone(), base.clone(), [&base[..140], &tokens(4, 20)].concat()];
        let seeded = |seed: u64, prompt: &[u32]| {
            let mut request = request(prompt.to_vec());
            request.sampling.seed = seed;
            request
        };
        let (jobs, ends): (Vec<Job>, Vec<_>) =
            (0..).zip(&prompts).map(|(seed, prompt)| job(seeded(seed, prompt))).unzip();
        scheduler.queue().push(jobs).unwrap();
        for (seed, (ends, prompt)) in (0..).zip(ends.iter().zip(&prompts)) {
            let generated = ends.recv().unwrap().unwrap();
            let want = fresh(&mut alone, seeded(seed, prompt));
            assert_eq!(generated.logits_hash, want.logits_hash, "{family}: {seed}");
            assert_eq!(generated.reused, [0, 149, 140][seed as usize], "{family}");
        }
        let taken_in = scheduler.activity().prompt_tokens.load(Ordering::Relaxed);
        assert_eq!(taken_in, 149 + 19, "{family}: all but last tokens, each once");
        scheduler.drain().unwrap();
    }
}

/// Three sessions of four blocks each: what is kept goes as others need its blocks.
#[test]
fn kept_sessions_make_room_for_those_who_write() {
    for dir in [family_dir("qwen3_moe"), family_dir("qwen3_next"), demo_dir()] {
        let scheduler = start(open_at(&dir, &EngineOptions::default()));
        let mut alone = open_at(&dir, &EngineOptions::default());
        let activity = scheduler.activity();
        let long = |seed| Request { max_tokens: Some(20), ..request(tokens(seed, 230)) };
        for round in 0..3 {
            let ends: Vec<_> = (0..6).map(|seed| push(&scheduler, long(seed))).collect();
            for (seed, ends) in (0..).zip(ends) {
                let want = fresh(&mut alone, long(seed)).logits_hash;
                let got = ends.recv().unwrap().unwrap();
                assert_eq!(got.logits_hash, want, "{} {round} {seed}", dir.display());
            }
        }
        assert!(activity.prefixes.evicted.load(Ordering::Relaxed) > 0);
        assert!(activity.prefixes.kept.load(Ordering::Relaxed) > 0);
        scheduler.drain().unwrap();
    }
}

#[test]
fn a_conversation_with_a_name_stays_longer_than_others() {
    let scheduler = start(open_at(&family_dir("qwen3_moe"), &EngineOptions::default()));
    let base = tokens(1, 100);
    let named = |prompt: &[u32]| Request {
        pin: Pin::Conversation("mine".to_owned()),
        ..request(prompt.to_vec())
    };
    answer(&scheduler, named(&base));
    for seed in 10..30 {
        answer(&scheduler, request(tokens(seed, 200)));
    }
    let turn = [base.as_slice(), &tokens(5, 8)].concat();
    assert_eq!(answer(&scheduler, named(&turn)).reused, 100);
    // A name holds its latest text only.
    answer(&scheduler, named(&tokens(6, 100)));
    for seed in 30..50 {
        answer(&scheduler, request(tokens(seed, 200)));
    }
    assert_eq!(answer(&scheduler, request(turn)).reused, 0);
    assert_eq!(answer(&scheduler, named(&tokens(6, 100))).reused, 99);
    scheduler.drain().unwrap();
}

#[test]
fn all_that_was_wanted_from_the_beginning_stays() {
    let scheduler = start(open_at(&family_dir("qwen3_moe"), &EngineOptions::default()));
    let prefill = |seed| Request {
        pin: Pin::Prefilled,
        max_tokens: Some(0),
        ..request([tokens(seed, 60), vec![3]].concat())
    };
    for seed in [1, 2] {
        answer(&scheduler, prefill(seed));
    }
    for seed in 10..30 {
        answer(&scheduler, request(tokens(seed, 200)));
    }
    for seed in [1, 2] {
        let asked = request([tokens(seed, 60), tokens(5, 8)].concat());
        assert_eq!(answer(&scheduler, asked).reused, 60, "{seed}");
    }
    scheduler.drain().unwrap();
}

/// Nobody says of a conversation that it is over.
#[test]
fn conversations_of_long_ago_keep_nobody_out() {
    // Room for more of them than are kept.
    let options = EngineOptions { context: Some(4096), ..EngineOptions::default() };
    let scheduler = start(open_at(&family_dir("qwen3_moe"), &options));
    for seed in 0..66 {
        let pin = Pin::Conversation(seed.to_string());
        answer(&scheduler, Request { pin, max_tokens: Some(1), ..request(tokens(seed, 5)) });
    }
    assert_eq!(scheduler.activity().prefixes.kept.load(Ordering::Relaxed), 64);
    let asked = || request(tokens(99, 20));
    answer(&scheduler, asked());
    assert_eq!(answer(&scheduler, asked()).reused, 19);
    scheduler.drain().unwrap();
}

#[test]
fn what_a_client_that_left_has_paid_for_is_kept() {
    for family in FAMILIES {
        let scheduler = start(open_at(&family_dir(family), &EngineOptions::default()));
        let base = tokens(1, 150);
        let (send, ends) = mpsc::channel();
        let mut written = 0;
        let listener = Box::new(move |update: Update<'_>| match update {
            Update::Event(Event::Token(_)) => {
                written += 1;
                if written < 4 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            }
            Update::Done(generated) => {
                let _ = send.send(generated.finish);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        let asked = Request { max_tokens: Some(90), ..request(base.clone()) };
        scheduler.queue().push(vec![Job { request: asked, listener }]).unwrap();
        assert_eq!(ends.recv().unwrap(), FinishReason::Cancelled);
        until(|| scheduler.activity().prefixes.kept.load(Ordering::Relaxed) == 1);
        let mut alone = open_at(&family_dir(family), &EngineOptions::default());
        let again = answer(&scheduler, request(base.clone()));
        assert_eq!(again.reused, 149, "{family}");
        assert_eq!(again.logits_hash, fresh(&mut alone, request(base)).logits_hash, "{family}");
        scheduler.drain().unwrap();
    }
}

/// A long conversation that comes at once, by a model whose memories are marked in few places: whoever goes on
/// otherwise from an earlier turn of it computes what is behind that turn.
#[test]
fn a_conversation_that_comes_at_once_is_continued_from_its_earlier_turns() {
    for family in FAMILIES.into_iter().filter(|family| is_hybrid(family)) {
        let options = EngineOptions {
            context: Some(4096),
            prefill_chunk: Some(512),
            ..EngineOptions::default()
        };
        let scheduler = start(open_at(&family_dir(family), &options));
        let mut alone = open_at(&family_dir(family), &options);
        let asked = |prompt: Vec<u32>, turns: &[u32]| Request {
            context: 4096,
            turns: turns.to_vec(),
            ..request(prompt)
        };
        let turns = [100, 650, 1000, 1700, 2200, 3000, 3100];
        let prompt = tokens(1, 3150);
        assert_eq!(answer(&scheduler, asked(prompt.clone(), &turns)).reused, 0);
        let [steps, written] = [&scheduler.activity().steps, &scheduler.activity().written_tokens]
            .map(|count| count.load(Ordering::Relaxed));
        assert_eq!(steps - written, 3149_u64.div_ceil(512), "{family}: no mark ends a sweep");
        // Turns that are less than 512 tokens apart, or nearer than the distance that their place allows, share
        // the mark before them.
        for (turn, mark) in [(3100, 3100), (2200, 2200), (1000, 1000)] {
            let other = [&prompt[..turn], &tokens(turn as u64, 40)].concat();
            let again = answer(&scheduler, asked(other.clone(), &[100]));
            assert_eq!(again.reused, mark, "{family}: from the turn at {turn} on");
            let want = fresh(&mut alone, asked(other, &[]));
            assert_eq!(again.logits_hash, want.logits_hash, "{family}: turn at {turn}");
        }
        scheduler.drain().unwrap();
    }
}
