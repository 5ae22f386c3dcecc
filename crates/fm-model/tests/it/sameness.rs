//! Bit for bit: chunking, neighbours, forks, saved sessions and lost experts change nothing.

use std::{error::Error as _, io::Cursor, ops::ControlFlow};

use fm_format::key::LayerIndex;
use fm_kernels::{Backend, backend::Numerics, cpu::Cpu};
use fm_model::{
    Runner,
    arch::MODEL_TYPES,
    runner::{Batch, Halt, Lane, Output, SessionId, Spoiled, StepError, Wants},
};

use crate::harness::{batch_of, bits, cancel, feed, mixed_checkpoint, open, row};

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

/// All rows of prompts behind their first tokens, which want everything.
fn all_of<'a>(prompts: impl Iterator<Item = (SessionId, &'a [u32])>) -> Batch {
    let mut rows: Vec<_> =
        prompts.flat_map(|(of, prompt)| batch_of(of, prompt, 1..prompt.len()).rows).collect();
    rows.iter_mut().for_each(|row| row.wants.hidden = true);
    Batch { rows, hidden_layer: Some(LayerIndex(1)) }
}

fn bits_of(output: &Output<'_>) -> [Vec<u32>; 2] {
    [output.logits, output.hidden].map(|values| values.iter().map(|x| x.to_bits()).collect())
}

/// Of three sessions in a batch some leave after a layer: those that stay are what they are alone, in layers
/// without the others' rows, and who left goes on from its checkpoint at once.
fn who_leaves_a_batch_leaves_the_others_what_they_are<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let prompts = [&tokens[..30], &tokens[30..34], &tokens[50..67]];
    let mut runner = open(&dir, device());
    let begun = |runner: &mut dyn Runner, prompt: &[u32]| {
        let session = runner.open(64).unwrap();
        checkpoint_at(runner, session, prompt, 0);
        session
    };
    let alone = prompts.map(|prompt| {
        let session = begun(&mut runner, prompt);
        let batch = all_of([(session, prompt)].into_iter());
        let want = bits_of(&runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap());
        runner.close(session);
        want
    });
    for (layer, leavers) in [(0, &[0][..]), (1, &[1]), (2, &[2, 0]), (3, &[1]), (3, &[2])] {
        let sessions = prompts.map(|prompt| begun(&mut runner, prompt));
        runner.sweep_begin(Lane::Long, &all_of(sessions.into_iter().zip(prompts))).unwrap();
        let rested = runner.sweep(Lane::Long, &mut |border| {
            if border.progress.layer.0 < layer {
                return ControlFlow::Continue(());
            }
            leavers.iter().for_each(|of| border.leave(sessions[*of]));
            ControlFlow::Break(Halt::Rest)
        });
        assert!(rested.unwrap().is_none());
        for of in leavers {
            let (session, prompt) = (sessions[*of], prompts[*of]);
            assert_eq!(runner.position(session).unwrap(), 1, "{family}: the checkpoint");
            let again = feed(&mut runner, session, &prompt[1..], 64).concat();
            assert!(bits(&[again])[0] == alone[*of][0], "{family}: {of} left after layer {layer}");
            runner.close(session);
        }
        let stay: Vec<usize> = (0..3).filter(|of| !leavers.contains(of)).collect();
        runner.experts_mut().rows.clear();
        let output = runner.sweep(Lane::Long, &mut |_| ControlFlow::Continue(())).unwrap();
        let together = bits_of(&output.expect("nobody lets it rest"));
        for (what, together) in together.iter().enumerate() {
            let want: Vec<u32> = stay.iter().flat_map(|of| alone[*of][what].clone()).collect();
            assert!(*together == want, "{family}: {leavers:?} left after layer {layer}");
        }
        let rows: usize = stay.iter().map(|of| prompts[*of].len() - 1).sum();
        let swept = &runner.experts_mut().rows;
        assert!(swept.iter().all(|of| *of == rows), "{family}: {swept:?}, not {rows} in each");
        assert_eq!(swept.len(), 3 - usize::from(layer), "{family}: every layer that was left");
        for of in stay {
            assert_eq!(runner.position(sessions[of]).unwrap(), prompts[of].len() as u32);
            runner.close(sessions[of]);
        }
    }
}

/// What is said of sessions with a token each, by their places in `tokens`. The first one leaves after the
/// second layer, if it shall.
fn losses<R: Runner>(
    runner: &mut R,
    tokens: &[u32],
    leaver: Option<usize>,
) -> Vec<(usize, String)> {
    let sessions: Vec<_> = tokens.iter().map(|_| runner.open(64).unwrap()).collect();
    let rows = sessions.iter().zip(tokens).map(|(session, token)| row(*session, *token, 0));
    let batch = Batch { rows: rows.collect(), hidden_layer: None };
    let output = runner.step(&batch, &mut |border| {
        if border.progress.layer.0 == 1 {
            leaver.iter().for_each(|of| border.leave(sessions[*of]));
        }
        ControlFlow::Continue(())
    });
    let place = |session| sessions.iter().position(|of| *of == session).unwrap();
    let said = output.unwrap().spoiled.into_iter().map(|Spoiled { session, reason }| {
        (place(session), format!("{reason}: {}", reason.source().unwrap()))
    });
    let said = said.collect();
    sessions.into_iter().for_each(|session| runner.close(session));
    said
}

/// Two experts of the second layer are lost, and all of the last one. A session is told of the first that it
/// chose itself, whoever shares its batch, or leaves it in between.
fn a_session_is_told_of_its_own_loss<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let mut seen = [0; 2];
    for expert in 0..6 {
        let all = (0..6).map(|expert| (3, expert));
        let two = [(1, expert), (1, (expert + 1) % 6)];
        runner.experts_mut().broken = two.into_iter().chain(all).collect();
        for three in tokens.windows(3).step_by(3).take(8) {
            let mut alone = |token| losses(&mut runner, &[token], None).remove(0).1;
            let alone: Vec<String> = three.iter().map(|token| alone(*token)).collect();
            for leaver in [None, Some(0)] {
                let said = losses(&mut runner, three, leaver);
                for (of, why) in &said {
                    assert_eq!(*why, alone[*of], "{family}: expert {expert}, {leaver:?} leaves");
                }
                // Where all were lost in the second layer, nobody leaves behind it.
                let second = alone.iter().all(|why| why.contains("layer 1"));
                assert_eq!(said.len(), if second || leaver.is_none() { 3 } else { 2 });
            }
            alone.iter().for_each(|why| seen[usize::from(why.contains("layer 3"))] += 1);
        }
    }
    assert!(seen.iter().all(|seen| *seen > 0), "{family}: both are possible, {seen:?}");
}

/// If nobody stays, it is broken off.
fn a_batch_that_all_have_left_is_broken_off<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let sessions = [(); 2].map(|()| runner.open(64).unwrap());
    let rows = sessions.into_iter().zip([&tokens[..30], &tokens[30..34]]);
    let rows = rows.flat_map(|(of, prompt)| batch_of(of, prompt, 0..prompt.len()).rows);
    let batch = Batch { rows: rows.collect(), hidden_layer: None };
    let (mut layers, free) = (0, runner.blocks_free());
    let left = runner.step(&batch, &mut |border| {
        border.leave(sessions[layers]);
        layers += 1;
        ControlFlow::Continue(())
    });
    assert!(matches!(left, Err(StepError::Cancelled)), "{family}");
    assert_eq!(layers, 2, "{family}: one after the other");
    assert_eq!(runner.blocks_free(), free, "{family}: what they had taken");
    for session in sessions {
        assert_eq!(runner.position(session).unwrap(), 0, "{family}: never computed");
    }
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
    who_leaves_a_batch_leaves_the_others_what_they_are
    a_session_is_told_of_its_own_loss
    a_batch_that_all_have_left_is_broken_off
    a_batch_that_rests_is_the_batch_that_does_not
}

// The same where activations are quantised.
for_each_integer_numerics_and_family! {
    logits_do_not_depend_on_chunking
    logits_do_not_depend_on_other_sessions
    logits_do_not_depend_on_forking_or_saving
}

/// One, two and four threads give the same bits, also with more rows than threads. Integers are shared out in
/// another way than floats.
#[test]
fn logits_do_not_depend_on_the_number_of_threads() {
    let all = [Numerics::F32, Numerics::Int15, Numerics::Int8];
    for (family, numerics) in MODEL_TYPES.iter().flat_map(|family| all.map(|own| (*family, own))) {
        let (dir, tokens) = mixed_checkpoint(family);
        let run = |threads| {
            let mut runner = open(&dir, Cpu::open(threads).in_numerics(numerics));
            let session = runner.open(256).unwrap();
            let mut logits = feed(&mut runner, session, &tokens[..100], 64);
            logits.extend(feed(&mut runner, session, &tokens[100..120], 1));
            bits(&logits)
        };
        let one = run(1);
        assert!(run(2) == one, "{family}, {numerics}: two threads");
        assert!(run(4) == one, "{family}, {numerics}: four threads");
    }
}
