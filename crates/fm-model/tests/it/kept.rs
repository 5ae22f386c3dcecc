//! Sessions that are kept: whatever is continued from them, in memory or on disk, is as if computed
//! from nothing.

use std::{
    io::Cursor,
    ops::{ControlFlow, Range},
};

use fm_kernels::{Backend, reference::Reference};
use fm_model::{
    Runner,
    runner::{Batch, Piece, Row, RunError, SessionId, StepError, Transfer, Wants},
};

use crate::harness::{
    MARKS_MAX, SESSIONS_MAX, batch_of, bits, cancel, feed, is_hybrid, mixed_checkpoint, open,
    open_with_blocks, row,
};

/// Where a session is cut: within a block of 64, around its borders, and before the last token.
const CUTS: [usize; 8] = [1, 17, 63, 64, 65, 100, 128, 139];

const CONTEXT: u32 = 192;

/// Where the kept session is marked; it stands at 140.
const MARKS: [u32; 3] = [17, 64, 100];

/// A kept session of 140 tokens with marks.
fn kept(runner: &mut dyn Runner, tokens: &[u32]) -> SessionId {
    let session = runner.open(CONTEXT).unwrap();
    let mut at = 0;
    for mark in MARKS {
        feed(runner, session, &tokens[at..mark as usize], 50);
        assert!(runner.mark(session).unwrap());
        at = mark as usize;
    }
    feed(runner, session, &tokens[at..140], 50);
    runner.keep(session).unwrap();
    session
}

/// Where a fork begins that may take over `cut` tokens.
fn start(family: &str, cut: usize) -> usize {
    let marks = MARKS.iter().map(|mark| *mark as usize);
    if is_hybrid(family) { marks.filter(|mark| *mark <= cut).max().unwrap_or(0) } else { cut }
}

/// Other tokens than those of the prompt, as they would be after its first `cut` ones.
fn elsewhere(tokens: &[u32], cut: usize) -> Vec<u32> {
    [&tokens[..cut], &tokens[3..15]].concat()
}

fn logits_after(
    runner: &mut dyn Runner,
    session: SessionId,
    tokens: &[u32],
    range: Range<usize>,
) -> Vec<Vec<u32>> {
    bits(&feed(runner, session, &tokens[range], 7))
}

/// A session piece by piece.
struct Pieces(Vec<(Piece, Vec<u8>)>);

impl Pieces {
    fn save(runner: &mut dyn Runner, session: SessionId) -> Self {
        let bytes = runner.piece_bytes();
        let memories = runner.marks(session).into_iter().map(Piece::Memories);
        let blocks = (0..bytes.blocks(runner.position(session).unwrap())).map(Piece::Block);
        let mut transfer = Transfer::default();
        let mut save = |piece| {
            let mut saved = Vec::new();
            let mut before = 0;
            while !runner.save_part((session, piece), &mut transfer, &mut saved).unwrap() {
                assert!(saved.len() - before <= bytes.part_max);
                before = saved.len();
            }
            assert_eq!(saved.len() as u64, bytes.of(piece));
            (piece, saved)
        };
        Self(memories.chain(blocks).map(&mut save).collect())
    }

    fn load(
        &self,
        runner: &mut dyn Runner,
        tokens: u32,
        base: Option<(SessionId, u32)>,
    ) -> SessionId {
        let mut loading = runner.load_begin(CONTEXT, tokens, base).unwrap();
        while let Some(piece) = loading.next() {
            assert_eq!(runner.position(loading.session).unwrap(), 0, "not before it is there");
            let saved = self.0.iter().find(|(at, _)| *at == piece);
            let mut from = Cursor::new(&saved.unwrap().1);
            while loading.next() == Some(piece) {
                runner.load_part(&mut loading, &mut from).unwrap();
            }
            assert_eq!(from.position(), saved.unwrap().1.len() as u64);
        }
        assert_eq!(runner.position(loading.session).unwrap(), tokens);
        loading.session
    }
}

/// At every cut: the same tokens again, and others; from memory, then from a file.
fn what_continues_a_kept_session_is_as_if_computed_from_nothing<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let kept = kept(&mut runner, &tokens);
    let mut file = Vec::new();
    runner.save(kept, &mut file).unwrap();
    let pieces = Pieces::save(&mut runner, kept);
    for cut in CUTS {
        let start = start(family, cut);
        assert_eq!(runner.forkable(kept, cut as u32), start as u32, "{family}: {cut}");
        for text in [tokens.clone(), elsewhere(&tokens, cut)] {
            let fresh = runner.open(CONTEXT).unwrap();
            feed(&mut runner, fresh, &text[..start], 90);
            let fork = runner.fork(kept, start as u32, CONTEXT).unwrap();
            let end = text.len();
            let want = logits_after(&mut runner, fresh, &text, start..end);
            let got = logits_after(&mut runner, fork, &text, start..end);
            assert!(got == want, "{family}: forked at {start}");

            // All of it, and behind blocks that are there.
            for base in [None, Some((kept, start as u32 / 64))] {
                let loaded = pieces.load(&mut runner, start as u32, base);
                let got = logits_after(&mut runner, loaded, &text, start..end);
                assert!(got == want, "{family}: loaded up to {start}, {base:?}");
                runner.close(loaded);
            }
            [fresh, fork].into_iter().for_each(|session| runner.close(session));
        }
    }
    let again = runner.fork(kept, 100, CONTEXT).unwrap();
    let mut saved = Vec::new();
    runner.save(kept, &mut saved).unwrap();
    assert!(saved == file, "{family}: nobody has written into the kept session");
    runner.close(again);
}

/// A step over everything, which sets the marks of [`kept`] on its way.
fn marking(session: SessionId, tokens: &[u32]) -> Batch {
    let mut batch = batch_of(session, tokens, 0..140);
    batch.rows.iter_mut().for_each(|row| {
        row.wants.logits = false;
        row.wants.mark = MARKS.contains(&(row.position + 1));
    });
    batch
}

fn a_step_sets_marks_on_its_way_as_if_it_had_ended_there<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let saved = |runner: &mut dyn Runner, kept| {
        let mut file = Vec::new();
        runner.save(kept, &mut file).unwrap();
        file
    };
    let mut runner = open(&dir, device());
    let left = runner.marks_left();
    let kept = kept(&mut runner, &tokens);
    let want = saved(&mut runner, kept);
    runner.close(kept);

    let at_once = runner.open(CONTEXT).unwrap();
    cancel(&mut runner, &marking(at_once, &tokens), 2);
    assert_eq!((runner.marks(at_once), runner.marks_left()), (vec![], left), "{family}: cancelled");
    let other = runner.open(CONTEXT).unwrap();
    let mut batch = marking(at_once, &tokens);
    batch.rows.extend(
        batch_of(other, &tokens, 0..20)
            .rows
            .into_iter()
            .map(|row| Row { wants: Wants { mark: row.position == 9, ..Wants::default() }, ..row }),
    );
    let mut layers = 0;
    let left_there = runner.step(&batch, &mut |border| {
        layers += 1;
        if layers == 2 {
            border.leave(other);
        }
        ControlFlow::Continue(())
    });
    assert!(left_there.unwrap().spoiled.is_empty());
    assert!(runner.marks(other).is_empty(), "{family}: who has left");
    runner.keep(at_once).unwrap();
    assert!(saved(&mut runner, at_once) == want, "{family}: the same bytes");
    runner.close(at_once);
    assert_eq!(runner.marks_left(), left);
}

/// The whole session continues too, and what continues it can fall back to where it began.
fn a_fork_falls_back_to_its_beginning<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open(&dir, device());
    let kept = kept(&mut runner, &tokens);
    let fork = runner.fork(kept, 140, CONTEXT).unwrap();
    let want = logits_after(&mut runner, fork, &tokens, 140..150);
    runner.close(fork);
    let fork = runner.fork(kept, 140, CONTEXT).unwrap();
    let batch = batch_of(fork, &tokens, 140..146);
    let cancelled = runner.step(&batch, &mut |_| ControlFlow::Break(()));
    assert!(matches!(cancelled, Err(StepError::Cancelled)));
    assert_eq!(runner.position(fork).unwrap(), 140, "{family}");
    assert!(logits_after(&mut runner, fork, &tokens, 140..150) == want, "{family}");
}

/// Kept sessions take blocks and marks, not the places of open ones; closing gives all back.
fn kept_sessions_cost_blocks_and_nothing_else<B: Backend<Bytes = [u8]>>(
    family: &str,
    device: fn() -> B,
) {
    let (dir, tokens) = mixed_checkpoint(family);
    let mut runner = open_with_blocks(&dir, device(), 9);
    let (free, marks) = (runner.blocks_free(), runner.marks_left());
    let first = kept(&mut runner, &tokens);
    assert_eq!(free - runner.blocks_free(), 3);
    let open: Vec<_> = (0..SESSIONS_MAX).map(|_| runner.open(CONTEXT).unwrap()).collect();
    assert!(matches!(runner.open(CONTEXT), Err(RunError::TooManySessions { .. })));
    open.into_iter().for_each(|session| runner.close(session));
    // A fork shares until it writes; at the border of a block it never does.
    for cut in [100, 64] {
        let fork = runner.fork(first, cut, CONTEXT).unwrap();
        assert_eq!(free - runner.blocks_free(), 3);
        let batch = batch_of(fork, &tokens, cut as usize..128);
        assert_eq!(runner.blocks_wanted(&batch), 1, "{family}: a copy, or a new one");
        runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(free - runner.blocks_free(), 4);
        runner.close(fork);
    }
    runner.close(first);
    assert_eq!((runner.blocks_free(), runner.marks_left()), (free, marks));
}

for_each_device_and_family! {
    what_continues_a_kept_session_is_as_if_computed_from_nothing
    a_step_sets_marks_on_its_way_as_if_it_had_ended_there
    a_fork_falls_back_to_its_beginning
    kept_sessions_cost_blocks_and_nothing_else
}

#[test]
fn a_session_cannot_be_continued_from_where_its_memories_are_gone() {
    let (dir, tokens) = mixed_checkpoint("qwen3_next");
    let mut runner = open(&dir, Reference::open());
    let kept = kept(&mut runner, &tokens);
    for tokens in [1, 63, 99, 101, 141] {
        let error = runner.fork(kept, tokens, CONTEXT).unwrap_err();
        assert!(matches!(error, RunError::NotThere { .. }), "{tokens}: {error}");
    }
    assert!(runner.fork(kept, 140, 139).is_err(), "longer than the context");
    runner.unmark(kept, 100);
    assert_eq!((runner.forkable(kept, 139), runner.marks(kept)), (64, vec![17, 64, 140]));
    let batch = Batch { rows: vec![row(kept, 1, 140)], hidden_layer: None };
    let stepped = runner.step(&batch, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(stepped, Err(StepError::UnknownSession { .. })), "it is kept");
}

#[test]
fn a_session_that_lacks_a_piece_is_not_there_and_leaves_nothing_behind() {
    for family in ["qwen3_moe", "deepseek_v3", "qwen3_next"] {
        let (dir, tokens) = mixed_checkpoint(family);
        let mut runner = open(&dir, Reference::open());
        let kept = kept(&mut runner, &tokens);
        let Pieces(pieces) = Pieces::save(&mut runner, kept);
        let free = runner.blocks_free();
        for (piece, saved) in &pieces {
            let (middle, end) = (saved.len() / 2, saved.len());
            for (cut, flip) in [(end, 4), (end, middle), (end, end - 1), (middle, end), (0, end)] {
                let mut damaged = saved[..cut].to_vec();
                damaged.get_mut(flip).into_iter().for_each(|byte| *byte ^= 16);
                let tokens = if let Piece::Memories(mark) = *piece { mark } else { 140 };
                let mut loading = runner.load_begin(CONTEXT, tokens, None).unwrap();
                while let Some(before) = loading.next().filter(|next| next != piece) {
                    let whole = pieces.iter().find(|(at, _)| *at == before).unwrap();
                    let mut from = Cursor::new(&whole.1);
                    while loading.next() == Some(before) {
                        runner.load_part(&mut loading, &mut from).unwrap();
                    }
                }
                let mut from = Cursor::new(&damaged);
                let error = loop {
                    if let Err(error) = runner.load_part(&mut loading, &mut from) {
                        break error;
                    }
                    assert_eq!(loading.next(), Some(*piece), "{family}: damaged and not found");
                };
                assert!(matches!(error, RunError::File(_)), "{family} {piece:?}: {error}");
                assert!(runner.position(loading.session).is_err());
                assert_eq!(runner.blocks_free(), free);
            }
        }
    }
}

#[test]
fn marks_are_bounded_and_forks_have_those_of_their_origin() {
    let (dir, tokens) = mixed_checkpoint("qwen3_5_moe");
    let mut runner = open(&dir, Reference::open());
    let first = kept(&mut runner, &tokens);
    let next = runner.fork(first, 140, CONTEXT).unwrap();
    let mut at = 140;
    while runner.marks_left() > 0 {
        feed(&mut runner, next, &tokens[at..=at], 1);
        at += 1;
        assert!(runner.mark(next).unwrap());
        assert!(runner.mark(next).unwrap(), "where it is marked already");
    }
    assert_eq!(at, 140 + MARKS_MAX - 4);
    let further = runner.fork(next, 17, CONTEXT).unwrap();
    let mut batch = batch_of(further, &tokens, 17..30);
    batch.rows[3].wants.mark = true;
    runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(runner.marks(further), [17], "no memory is left for more");
    runner.close(further);
    feed(&mut runner, next, &tokens[at..=at], 1);
    assert!(!runner.mark(next).unwrap());
    runner.close(first);
    assert_eq!(runner.marks(next), [17, 64, 100, 140, 141, 142]);
    let want = logits_after(&mut runner, next, &tokens, at + 1..150);
    let fork = runner.fork(next, 17, CONTEXT).unwrap();
    assert!(logits_after(&mut runner, fork, &tokens, 17..150)[at + 1 - 17..] == want);
}

#[test]
fn a_flipped_bit_in_any_piece_of_a_saved_session_is_found() {
    for family in ["qwen3_moe", "deepseek_v3", "qwen3_next"] {
        let (dir, tokens) = mixed_checkpoint(family);
        let mut runner = open(&dir, Reference::open());
        let kept = kept(&mut runner, &tokens);
        let mut file = Vec::new();
        runner.save(kept, &mut file).unwrap();
        let free = runner.blocks_free();
        let pieces = 40;
        let mut found = 0;
        for piece in 0..pieces {
            let mut damaged = file.clone();
            damaged[piece * file.len() / pieces] ^= 1;
            match runner.load(CONTEXT, &mut Cursor::new(damaged)) {
                Err(error) => {
                    assert!(matches!(error, RunError::File(_)), "{family} {piece}: {error}");
                    found += 1;
                }
                // A mark that nobody asked for was not read.
                Ok(session) => runner.close(session),
            }
            assert_eq!(runner.blocks_free(), free, "{family} {piece}");
        }
        let skipped = if is_hybrid(family) { pieces } else { 0 };
        assert!(found + skipped >= pieces && found > 2, "{family}: {found} found");
    }
}
