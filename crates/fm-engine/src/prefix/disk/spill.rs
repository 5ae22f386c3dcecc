//! A session on its way to disk, a buffer at a time.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use fm_model::{
    Runner,
    runner::{Piece, SessionId},
};

use super::{
    Disk, EntryId, Notice, Pause, Segment, WORTH_READING,
    entry::{Entry, Place, SEGMENT_HEAD, Span, segment_head},
    entry_path, segment_path,
    writer::{BUFFER_BYTES, Heard, Order},
};
use crate::{
    KV_BLOCK_TOKENS,
    prefix::{Pin, common},
};

/// See the module.
#[derive(Debug)]
pub(super) struct Spill {
    session: SessionId,
    id: EntryId,
    entry: Arc<Entry>,
    pin: Pin,
    /// Pieces that are not on disk yet, latest first.
    pieces: Vec<Piece>,
    /// The segment that has been begun.
    segment: u64,
    has_begun: bool,
    /// Whether all has been handed over.
    has_ended: bool,
}

/// What became of a session that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spilled {
    /// It is on disk, under this name.
    There(EntryId),
    /// There is no room for it, or nothing can be written.
    Refused,
    /// It has changed meanwhile: a mark has made room for another one.
    Changed,
    /// Writing failed; it is tried again.
    Failed,
}

/// A number that no file has.
fn new_name() -> u64 {
    RandomState::new().hash_one(0)
}

impl Disk {
    /// The session that is being written.
    pub(crate) fn spilling(&self) -> Option<SessionId> {
        self.spill.as_ref().map(|spill| spill.session)
    }

    /// Whether all of a session has been handed over: it may be closed.
    pub(crate) fn has_copied(&self, session: SessionId) -> bool {
        self.spill.as_ref().is_some_and(|spill| spill.session == session && spill.has_ended)
    }

    /// Begins to write a session, if another one of which it is the beginning is not there already.
    pub(crate) fn begin(
        &mut self,
        runner: &dyn Runner,
        session: SessionId,
        tokens: &[u32],
        pin: &Pin,
    ) -> Option<Spilled> {
        let marks = runner.marks(session);
        let usable = if self.forks_anywhere {
            tokens.len() as u32
        } else {
            marks.last().copied().unwrap_or(0)
        };
        if usable < WORTH_READING {
            return Some(Spilled::Refused);
        }
        let covering = self.entries.iter_mut().find(|listed| listed.entry.covers(tokens, &marks));
        if let Some(listed) = covering {
            let id = listed.id;
            let pins = pin.rank() > listed.pin.rank();
            if pins {
                self.make_way(pin);
            }
            if let Some(listed) = self.entries.iter_mut().find(|listed| listed.id == id && pins) {
                listed.pin = pin.clone();
            }
            self.touch(id);
            return Some(Spilled::There(id));
        }
        let (segment, id) = (new_name(), EntryId(new_name()));
        let (mut entry, mut pieces) = self.lay_out(tokens, &marks, segment);
        if let Pin::Conversation(name) = pin {
            entry.name = Some(name.clone());
        }
        let new: u64 = pieces.iter().map(|piece| self.pieces.of(*piece)).sum();
        let bytes = if new == 0 { 0 } else { new + SEGMENT_HEAD as u64 };
        let own = entry.to_bytes(self.fingerprint).len() as u64;
        if new > 0 {
            self.segments.insert(segment, Segment { bytes: 0, references: 0 });
        }
        // What it shares must not go to make room for it.
        self.hold(&entry);
        self.tell_if_too_large(bytes + own);
        if self.writer.is_none() || !self.make_room((bytes + own, tokens.len()), pin) {
            self.release(&entry);
            return Some(Spilled::Refused);
        }
        self.segments.entry(segment).and_modify(|segment| segment.bytes = bytes);
        pieces.reverse();
        self.transfer.restart();
        self.spill = Some(Spill {
            session,
            id,
            entry: Arc::new(entry),
            pin: pin.clone(),
            pieces,
            segment,
            has_begun: false,
            has_ended: false,
        });
        None
    }

    /// Where each piece will be: where it is already, or in a new segment.
    fn lay_out(&self, tokens: &[u32], marks: &[u32], segment: u64) -> (Entry, Vec<Piece>) {
        let common: Vec<u32> =
            self.entries.iter().map(|listed| common(&listed.entry.tokens, tokens) as u32).collect();
        let (mut pieces, mut offset) = (Vec::new(), SEGMENT_HEAD as u64);
        let mut entry = Entry { tokens: tokens.to_vec(), ..Entry::default() };
        for &mark in marks {
            let there = self.entries.iter().zip(&common).filter(|(_, common)| **common >= mark);
            let piece = Piece::Memories(mark);
            let place =
                there.into_iter().find_map(|(listed, _)| listed.entry.place(piece, self.pieces));
            let place = place.unwrap_or_else(|| {
                pieces.push(piece);
                let place = Place { segment, offset };
                offset += self.pieces.memories;
                place
            });
            entry.marks.push((mark, place));
        }
        let most = self.entries.iter().zip(&common).max_by_key(|(_, common)| **common);
        let whole = most.map_or(0, |(_, common)| common / KV_BLOCK_TOKENS as u32);
        let spans = most.iter().flat_map(|(listed, _)| &listed.entry.spans);
        let shared = spans.filter(|span| span.first < whole);
        entry.spans.extend(
            shared.map(|span| Span { blocks: span.blocks.min(whole - span.first), ..*span }),
        );
        let first = entry.spans.last().map_or(0, |span| span.first + span.blocks);
        let blocks = self.pieces.blocks(tokens.len() as u32);
        if first < blocks {
            entry.spans.push(Span { first, blocks: blocks - first, at: Place { segment, offset } });
            pieces.extend((first..blocks).map(Piece::Block));
        }
        (entry, pieces)
    }

    /// Writes until then, or until it is done and heard of. Nothing while there is more to do.
    pub(crate) fn advance(
        &mut self,
        runner: &mut dyn Runner,
        until: Instant,
    ) -> Option<(SessionId, Spilled)> {
        loop {
            let spill = self.spill.as_mut()?;
            let session = spill.session;
            let writer = self.writer.as_mut()?;
            let wait = until.saturating_duration_since(Instant::now());
            let buffer = if spill.has_ended { None } else { writer.buffer() };
            let Some(buffer) = buffer else {
                match writer.hear(wait) {
                    Heard::Nothing => return None,
                    Heard::Buffer => continue,
                    Heard::Ended(result) => {
                        let spilled = self.ended(result.map_err(Some));
                        return Some((session, spilled));
                    }
                    Heard::Gone => {
                        self.writer = None;
                        let gone = std::io::Error::other("the thread that writes has gone");
                        self.ended(Err(Some(gone)));
                        return Some((session, Spilled::Refused));
                    }
                }
            };
            if !self.fill(runner, buffer) {
                self.ended(Err(None));
                return Some((session, Spilled::Changed));
            }
            if wait == Duration::ZERO || self.has_copied(session) {
                return None;
            }
        }
    }

    /// Fills a buffer and hands it over. Says whether the session was there to be read.
    fn fill(&mut self, runner: &mut dyn Runner, mut buffer: Vec<u8>) -> bool {
        let (Some(spill), Some(writer)) = (&mut self.spill, &mut self.writer) else { return false };
        if !spill.has_begun && !spill.pieces.is_empty() {
            spill.has_begun = true;
            writer.order(Order::Begin(segment_path(&self.dir, spill.segment)));
            buffer.extend(segment_head(self.fingerprint, spill.segment));
        }
        while buffer.len() < BUFFER_BYTES
            && let Some(&piece) = spill.pieces.last()
        {
            let of = (spill.session, piece);
            match runner.save_part(of, &mut self.transfer, &mut buffer) {
                Ok(true) => drop(spill.pieces.pop()),
                Ok(false) => {}
                Err(_) => {
                    writer.give_back(buffer);
                    return false;
                }
            }
        }
        self.counts.spilled_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        if buffer.is_empty() {
            writer.give_back(buffer);
        } else {
            writer.order(Order::Data(buffer));
        }
        if spill.pieces.is_empty() {
            spill.has_ended = true;
            let bytes = spill.entry.to_bytes(self.fingerprint);
            writer.order(Order::End(entry_path(&self.dir, spill.id), bytes));
        }
        true
    }

    /// Lists what is on disk now, or takes back what was begun.
    fn ended(&mut self, result: Result<(), Option<std::io::Error>>) -> Spilled {
        let Some(spill) = self.spill.take() else { return Spilled::Refused };
        match result {
            Ok(()) => {
                self.pause = None;
                let bytes = spill.entry.to_bytes(self.fingerprint).len() as u64;
                // What the new one continues is not needed any more.
                let covered = |listed: &super::Listed| {
                    listed.pin.rank() <= spill.pin.rank()
                        && spill.entry.covers(&listed.entry.tokens, &listed.entry.mark_positions())
                };
                self.make_way(&spill.pin);
                while let Some(at) = self.entries.iter().position(covered) {
                    self.remove(at);
                }
                self.list(spill.id, Arc::clone(&spill.entry), bytes, spill.pin.clone());
                self.release(&spill.entry);
                Spilled::There(spill.id)
            }
            Err(source) => {
                self.forget(&spill);
                if let Some(source) = source {
                    self.failed(source);
                }
                Spilled::Failed
            }
        }
    }

    /// Nothing is written for a while.
    fn failed(&mut self, source: std::io::Error) {
        self.counts.write_failures.fetch_add(1, Ordering::Relaxed);
        if self.pause.is_none() {
            (self.notices)(&Notice::NotWritten { dir: self.dir.clone(), source });
        }
        self.pause = Some(Pause::after(self.pause, Instant::now()));
    }

    /// When writing goes on, if it has failed.
    pub(crate) fn pauses_until(&self) -> Option<Instant> {
        self.pause.map(|pause| pause.until)
    }

    /// Tries again now.
    pub(crate) fn retry(&mut self) {
        let now = Instant::now();
        self.pause.iter_mut().for_each(|pause| pause.until = now);
    }

    /// A session is closed: it is not written any more, unless all of it has been handed over.
    pub(crate) fn closes(&mut self, session: SessionId) {
        let copied = |spill: &mut Spill| spill.session == session && !spill.has_ended;
        if let Some(spill) = self.spill.take_if(copied) {
            self.forget(&spill);
        }
    }

    fn forget(&mut self, spill: &Spill) {
        self.order(Order::Cancel);
        self.release(&spill.entry);
        self.count();
    }
}
