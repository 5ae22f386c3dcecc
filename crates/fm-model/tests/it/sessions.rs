//! Sessions beside each other: what one does, loses or gives back is no other's business.

use std::{io::Cursor, ops::ControlFlow};

use fm_kernels::Backend;
use fm_model::{
    Runner,
    runner::{Batch, SessionId},
};

use crate::harness::{batch_of, bits, cancel, feed, mixed_checkpoint, open, open_with_blocks, row};

/// Takes the tokens of a range in and makes a checkpoint after the last of them.
fn feed_with_checkpoint(runner: &mut dyn Runner, session: SessionId, tokens: &[u32], end: usize) {
    let mut batch = batch_of(session, tokens, 0..end);
    batch.rows[end - 1].wants.checkpoint = true;
    runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
}

/// Nothing is lost but the step itself, also where memories are recurrent.
fn forks_and_loaded_sessions_can_fall_back<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let session = runner.open(64).unwrap();
    let want = bits(&feed(&mut runner, session, &tokens[..24], 24));
    runner.close(session);

    let session = runner.open(64).unwrap();
    feed_with_checkpoint(&mut runner, session, &tokens, 10);
    feed(&mut runner, session, &tokens[10..13], 3);
    let mut file = Vec::new();
    runner.save(session, &mut file).unwrap();
    let fork = runner.fork(session, 13, 64).unwrap();
    let loaded = runner.load(64, &mut Cursor::new(&file)).unwrap();
    for (name, session) in [("fork", fork), ("loaded", loaded)] {
        cancel(&mut runner, &batch_of(session, &tokens, 13..20), 4);
        assert_eq!(runner.position(session).unwrap(), 13, "{family} {name}");
        let again = bits(&feed(&mut runner, session, &tokens[13..24], 5));
        assert!(again == want[13..], "{family} {name}");
    }
}

/// Origin and fork go on in turns, with different tokens at the same positions of a block that
/// they shared.
fn forks_do_not_write_into_each_other<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let prompt = &tokens[..70];
    let rest = [&tokens[70..90], &tokens[100..120]];
    let alone = rest.map(|rest| {
        let session = runner.open(128).unwrap();
        feed(&mut runner, session, prompt, 70);
        let logits = bits(&feed(&mut runner, session, rest, 20));
        runner.close(session);
        logits
    });
    let origin = runner.open(128).unwrap();
    feed(&mut runner, origin, prompt, 70);
    let sessions = [origin, runner.fork(origin, 70, 128).unwrap()];
    for part in (0..20).step_by(5) {
        for ((session, rest), alone) in sessions.iter().zip(rest).zip(&alone) {
            let logits = bits(&feed(&mut runner, *session, &rest[part..part + 5], 5));
            assert!(logits == alone[part..part + 5], "{family}: tokens from {part} on");
        }
    }
}

/// Two sessions in a batch, and experts that only one of them chose.
fn a_lost_expert_leaves_the_other_sessions_alone<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let vocab = runner.vocab();
    let both = |a, b, other: u32| {
        let rows = vec![row(a, tokens[0], 0), row(b, other, 0)];
        Batch { rows, hidden_layer: None }
    };
    // A token that chooses differently in the last layer, the one whose routes can be seen.
    let mut others = tokens[1..].iter().map(|&other| {
        let sessions = [runner.open(8).unwrap(), runner.open(8).unwrap()];
        let batch = both(sessions[0], sessions[1], other);
        let want = runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap().logits.to_vec();
        sessions.into_iter().for_each(|session| runner.close(session));
        let (of_a, of_b) = runner.routes().ids.split_at(runner.routes().top_k);
        let only_a: Vec<u16> = of_a.iter().filter(|id| !of_b.contains(id)).map(|id| id.0).collect();
        (other, only_a, want)
    });
    let differs = others.find(|(_, only_a, _)| !only_a.is_empty());
    let (other, only_a, want) = differs.expect("some token chooses other experts");
    for expert in only_a {
        let [a, b] = [runner.open(8).unwrap(), runner.open(8).unwrap()];
        runner.experts_mut().broken = vec![(3, expert)];
        let output = runner.step(&both(a, b, other), &mut |_| ControlFlow::Continue(())).unwrap();
        let spoiled: Vec<SessionId> = output.spoiled.iter().map(|s| s.session).collect();
        assert_eq!(spoiled, [a], "{family}: expert {expert}");
        assert!(output.logits[vocab..] == want[vocab..], "{family}: expert {expert}");
        assert_eq!((runner.position(a).unwrap(), runner.position(b).unwrap()), (0, 1));
        [a, b].into_iter().for_each(|session| runner.close(session));
    }
}

/// Handles stay with their sessions, whichever is closed.
fn closing_a_session_does_not_mix_up_the_others<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let prompts = [&tokens[..9], &tokens[20..29], &tokens[40..49], &tokens[60..69]];
    let alone = prompts.map(|prompt| {
        let session = runner.open(16).unwrap();
        let logits = bits(&feed(&mut runner, session, prompt, 9));
        runner.close(session);
        logits
    });
    for closed in 0..prompts.len() {
        let sessions = prompts.map(|_| runner.open(16).unwrap());
        for (session, prompt) in sessions.iter().zip(prompts) {
            feed(&mut runner, *session, &prompt[..5], 5);
        }
        runner.close(sessions[closed]);
        for other in (0..prompts.len()).filter(|other| *other != closed) {
            let rest = bits(&feed(&mut runner, sessions[other], &prompts[other][5..], 4));
            assert!(rest == alone[other][5..], "{family}: {other} after {closed} was closed");
            runner.close(sessions[other]);
        }
    }
}

/// Four blocks hold 256 tokens: one long session, if nobody else keeps any.
fn blocks_of_failed_steps_and_closed_sessions_come_back<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open_with_blocks(&dir, device(), 4);
    let failed = runner.open(256).unwrap();
    cancel(&mut runner, &batch_of(failed, &tokens, 0..100), 2);
    for _ in 0..2 {
        let session = runner.open(256).unwrap();
        feed(&mut runner, session, &tokens, 150);
        feed(&mut runner, session, &tokens[..100], 100);
        runner.close(session);
    }
}

/// A batch of which only some rows are looked at gives for them what a batch of wanted rows gives.
fn logits_come_from_the_rows_that_want_them<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let vocab = runner.vocab();
    let session = runner.open(64).unwrap();
    let all = bits(&feed(&mut runner, session, &tokens[..40], 40));
    runner.close(session);
    for wanted in [vec![39], vec![0, 7, 8, 38], (5..40).collect(), vec![]] {
        let session = runner.open(64).unwrap();
        let mut batch = batch_of(session, &tokens, 0..40);
        for (at, row) in batch.rows.iter_mut().enumerate() {
            row.wants.logits = wanted.contains(&at);
        }
        let output = runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
        let logits: Vec<Vec<f32>> = output.logits.chunks(vocab).map(<[f32]>::to_vec).collect();
        let want: Vec<Vec<u32>> = wanted.iter().map(|at| all[*at].clone()).collect();
        assert!(bits(&logits) == want, "{family}: rows {wanted:?}");
        runner.close(session);
    }
}

for_each_device_and_family! {
    forks_and_loaded_sessions_can_fall_back
    forks_do_not_write_into_each_other
    a_lost_expert_leaves_the_other_sessions_alone
    closing_a_session_does_not_mix_up_the_others
    blocks_of_failed_steps_and_closed_sessions_come_back
    logits_come_from_the_rows_that_want_them
}
