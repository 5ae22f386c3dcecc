//! Bit for bit: chunking, neighbours, forks, saved sessions and lost experts change nothing.

use std::{io::Cursor, ops::ControlFlow};

use fm_kernels::{Backend, cpu::Cpu};
use fm_model::{
    Runner,
    runner::{Batch, Halt, Lane, SessionId, StepError, Wants},
};

use crate::harness::{batch_of, bits, cancel, feed, mixed_checkpoint, open, row};

const FAMILIES: [&str; 8] = [
    "gpt_oss",
    "deepseek_v3",
    "glm4_moe_lite",
    "mixtral",
    "minimax_m2",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_moe",
];

fn logits_do_not_depend_on_chunking<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let mut run = |chunk| {
        let session = runner.open(256).unwrap();
        let logits = feed(&mut runner, session, &tokens, chunk);
        runner.close(session);
        bits(&logits)
    };
    let whole = run(tokens.len());
    for chunk in [1, 7, 64] {
        assert!(run(chunk) == whole, "{family}: chunks of {chunk}");
    }
}

/// Three sessions in one batch, each with another number of rows, against each alone.
fn logits_do_not_depend_on_other_sessions<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let prompts = [&tokens[..40], &tokens[40..41], &tokens[50..67]];
    let mut runner = open(&dir, device());
    let alone = prompts.map(|prompt| {
        let session = runner.open(64).unwrap();
        let logits = bits(&feed(&mut runner, session, prompt, 64));
        runner.close(session);
        logits
    });
    let sessions = prompts.map(|_| runner.open(64).unwrap());
    let rows = sessions.iter().zip(prompts).flat_map(|(session, prompt)| {
        (0..).zip(prompt).map(|(at, token)| row(*session, *token, at))
    });
    let batch = Batch { rows: rows.collect(), hidden_layer: None };
    let vocab = runner.vocab();
    let output = runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
    let together: Vec<Vec<f32>> = output.logits.chunks(vocab).map(<[f32]>::to_vec).collect();
    assert!(bits(&together) == alone.concat(), "{family}");
}

/// Continues after the prompt: fresh, from a fork whose origin went elsewhere, and from a file.
fn logits_do_not_depend_on_forking_or_saving<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let (prompt, rest) = tokens.split_at(100);
    let mut runner = open(&dir, device());
    let session = runner.open(200).unwrap();
    feed(&mut runner, session, prompt, 64);
    let mut file = Vec::new();
    runner.save(session, &mut file).unwrap();
    let fork = runner.fork(session, 100, 200).unwrap();
    // The origin goes elsewhere, over the block that it shares with the fork.
    feed(&mut runner, session, &tokens[..40], 40);
    runner.close(session);
    let forked = bits(&feed(&mut runner, fork, rest, 50));

    let mut other = open(&dir, device());
    let restored = other.load(200, &mut Cursor::new(&file)).unwrap();
    let restored = bits(&feed(&mut other, restored, rest, 50));
    let fresh = other.open(200).unwrap();
    feed(&mut other, fresh, prompt, 100);
    let fresh = bits(&feed(&mut other, fresh, rest, 50));
    assert!(forked == fresh, "{family}: forked");
    assert!(restored == fresh, "{family}: restored");
}

/// An expert cannot be read: who chose it falls back and can go on, who did not is not disturbed.
fn a_lost_expert_spoils_only_who_chose_it<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut whole = open(&dir, device());
    let session = whole.open(64).unwrap();
    let want = bits(&feed(&mut whole, session, &tokens[..32], 32));
    for layer in 0..4 {
        let mut runner = open(&dir, device());
        let session = runner.open(64).unwrap();
        feed(&mut runner, session, &tokens[..16], 16);
        checkpoint_at(&mut runner, session, &tokens, 16);
        for expert in 0..6 {
            runner.experts_mut().broken = vec![(layer, expert)];
            let batch = batch_of(session, &tokens, 17..32);
            let output = runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
            let spoiled = !output.spoiled.is_empty();
            let got = output.logits.to_vec();
            let position = runner.position(session).unwrap();
            if !spoiled {
                assert_eq!(position, 32);
                let rows: Vec<Vec<f32>> = got.chunks(runner.vocab()).map(<[f32]>::to_vec).collect();
                assert!(bits(&rows) == want[17..], "{family}: nobody chose {expert}");
                break;
            }
            assert_eq!(position, 17, "{family}: falls back to the checkpoint");
            runner.experts_mut().broken.clear();
            let fork = runner.fork(session, 17, 64).unwrap();
            let retried = bits(&feed(&mut runner, fork, &tokens[17..32], 15));
            assert!(retried == want[17..], "{family}: layer {layer} expert {expert}");
            runner.close(fork);
        }
    }
}

fn checkpoint_at(runner: &mut dyn Runner, session: SessionId, tokens: &[u32], at: usize) {
    let mut batch = batch_of(session, tokens, at..at + 1);
    batch.rows[0].wants = Wants { checkpoint: true, ..Wants::default() };
    runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
}

/// Breaking off between layers leaves a session that can go on from its last checkpoint.
fn a_cancelled_step_can_be_repeated<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let session = runner.open(64).unwrap();
    let want = bits(&feed(&mut runner, session, &tokens[..20], 20));
    runner.close(session);
    let session = runner.open(64).unwrap();
    cancel(&mut runner, &batch_of(session, &tokens, 0..9), 3);
    assert_eq!(runner.position(session).unwrap(), 0);
    let again = bits(&feed(&mut runner, session, &tokens[..9], 9));
    assert!(again == want[..9], "{family}: the first step");
    checkpoint_at(&mut runner, session, &tokens, 9);
    let batch = batch_of(session, &tokens, 10..20);
    cancel(&mut runner, &batch, 3);
    assert_eq!(runner.position(session).unwrap(), 10);
    let again = bits(&feed(&mut runner, session, &tokens[10..20], 10));
    assert!(again == want[10..], "{family}");
}

/// Computes a layer of a batch; its logits where that was the last one.
fn rest<R: Runner>(runner: &mut R, lane: Lane) -> Option<Vec<Vec<f32>>> {
    let vocab = runner.vocab();
    let output = runner.sweep(lane, &mut |_| ControlFlow::Break(Halt::Rest)).unwrap()?;
    Some(output.logits.chunks(vocab).map(<[f32]>::to_vec).collect())
}

/// A prompt that rests after every layer while another session writes, another prompt overtakes it and
/// rests likewise, and a session goes, which changes everybody's place.
fn a_batch_that_rests_is_the_batch_that_does_not<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let alone = [&tokens[..130], &tokens[20..60]].map(|tokens| {
        let session = runner.open(256).unwrap();
        let logits = bits(&feed(&mut runner, session, tokens, 64));
        runner.close(session);
        logits
    });
    let [goes, prompt, writer, short] = [(); 4].map(|()| runner.open(256).unwrap());
    feed(&mut runner, goes, &tokens[..3], 3);
    feed(&mut runner, prompt, &tokens[..10], 10);
    checkpoint_at(&mut runner, prompt, &tokens, 10);
    feed(&mut runner, writer, &tokens[20..24], 4);
    let mut written = 4;
    let batch = batch_of(prompt, &tokens, 11..130);
    // One that is broken off leaves no trace.
    runner.sweep_begin(Lane::Long, &batch).unwrap();
    assert!(runner.sweep(Lane::Long, &mut |_| ControlFlow::Break(Halt::Rest)).unwrap().is_none());
    let cancelled = runner.sweep(Lane::Long, &mut |_| ControlFlow::Break(Halt::Cancel));
    assert!(matches!(cancelled, Err(StepError::Cancelled)));
    assert_eq!(runner.position(prompt).unwrap(), 11, "{family}: falls back");

    runner.sweep_begin(Lane::Long, &batch).unwrap();
    runner.sweep_begin(Lane::Short, &batch_of(short, &tokens[20..], 0..40)).unwrap();
    let mut overtook = None;
    let swept = loop {
        let again = runner.sweep_begin(Lane::Long, &batch);
        assert!(matches!(again, Err(StepError::SweepRests)), "{family}: {again:?}");
        let own = runner.step(&batch_of(prompt, &tokens, 11..12), &mut |_| unreachable!());
        assert!(matches!(own, Err(StepError::UnknownSession { .. })), "{family}: its own row");
        let half = runner.forks_anywhere() || runner.forkable(prompt, 11) == 0;
        assert!(half, "{family}: some of its memories are ahead");
        for logits in feed(&mut runner, writer, &tokens[20 + written..22 + written], 1) {
            assert!(bits(&[logits])[0] == alone[1][written], "{family}: token {written}");
            written += 1;
        }
        runner.close(goes);
        overtook = overtook.or(rest(&mut runner, Lane::Short));
        if let Some(swept) = rest(&mut runner, Lane::Long) {
            break swept;
        }
    };
    let overtook = overtook.expect("it began later and had as many turns");
    assert!(bits(&overtook) == alone[1], "{family}: the one that overtakes");
    assert!(written > 8, "{family}: it rested {written} times");
    assert!(bits(&swept) == alone[0][11..], "{family}");
    assert_eq!(runner.position(prompt).unwrap(), 130);
}

for_each_device_and_family! {
    logits_do_not_depend_on_chunking
    logits_do_not_depend_on_other_sessions
    logits_do_not_depend_on_forking_or_saving
    a_lost_expert_spoils_only_who_chose_it
    a_cancelled_step_can_be_repeated
    a_batch_that_rests_is_the_batch_that_does_not
}

// The same where activations are quantised.
for_each_integer_numerics_and_family! {
    logits_do_not_depend_on_chunking
    logits_do_not_depend_on_other_sessions
    logits_do_not_depend_on_forking_or_saving
}

/// One, two and four threads give the same bits, also with more rows than threads.
#[test]
fn logits_do_not_depend_on_the_number_of_threads() {
    for family in FAMILIES {
        let (dir, tokens) = mixed_checkpoint(family);
        let run = |threads| {
            let mut runner = open(&dir, Cpu::open(threads));
            let session = runner.open(256).unwrap();
            let mut logits = feed(&mut runner, session, &tokens[..100], 64);
            logits.extend(feed(&mut runner, session, &tokens[100..120], 1));
            bits(&logits)
        };
        let one = run(1);
        assert!(run(2) == one, "{family}: two threads");
        assert!(run(4) == one, "{family}: four threads");
    }
}
