//! What a session on disk is made of, and the bytes of that.
//!
//! ```text
//! entry:   magic | fingerprint u128 | tokens, marks, spans, name u32 each
//!          | token u32 … | mark: position u32, place … | span: first u32, blocks u32, place …
//!          | name, UTF-8 | XXH3-64
//! place:   segment u64, offset u64
//! segment: magic | fingerprint u128 | its own name u64 | pieces, as `Runner::save_part` writes them
//! ```
//! All numbers are little-endian. The next turn of a conversation has a segment of its own with what is
//! new, and shares those before: nothing is written twice.

use fm_model::runner::{Piece, PieceBytes};
use xxhash_rust::xxh3::xxh3_64;

const ENTRY_MAGIC: [u8; 8] = *b"fm-pre\x00\x01";
const SEGMENT_MAGIC: [u8; 8] = *b"fm-seg\x00\x02";

/// What stands before the pieces of a segment.
pub(super) const SEGMENT_HEAD: usize = 32;

/// Marks and spans of an entry, and bytes of its name: bounds for what a damaged one can ask for.
const PARTS_MAX: usize = 1 << 16;

/// Where a piece begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// Blocks that lie one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The first one's place in the session.
    pub(super) first: u32,
    pub(super) blocks: u32,
    pub(super) at: Place,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) tokens: Vec<u32>,
    /// Positions whose recurrent memories are there, ascending.
    pub(super) marks: Vec<(u32, Place)>,
    /// All its blocks, ascending and without a gap.
    pub(super) spans: Vec<Span>,
    /// What the client calls the conversation.
    pub(super) name: Option<String>,
}

/// The head of a segment. It has the name, too: files that have changed places hold other conversations.
pub(super) fn segment_head(fingerprint: u128, segment: u64) -> [u8; SEGMENT_HEAD] {
    let mut head = [0; SEGMENT_HEAD];
    head[..8].copy_from_slice(&SEGMENT_MAGIC);
    head[8..24].copy_from_slice(&fingerprint.to_le_bytes());
    head[24..].copy_from_slice(&segment.to_le_bytes());
    head
}

impl Entry {
    /// Where a piece is.
    pub(super) fn place(&self, piece: Piece, bytes: PieceBytes) -> Option<Place> {
        match piece {
            Piece::Memories(position) => {
                let at = self.marks.binary_search_by_key(&position, |mark| mark.0).ok()?;
                Some(self.marks[at].1)
            }
            Piece::Block(block) => {
                let at = self.spans.partition_point(|span| span.first <= block);
                let span = self.spans.get(at.checked_sub(1)?)?;
                let before = block - span.first;
                let offset = span.at.offset + u64::from(before) * bytes.block;
                (before < span.blocks).then_some(Place { offset, ..span.at })
            }
        }
    }

    /// The segments it lies in, each as often as it is named.
    pub(super) fn segments(&self) -> impl Iterator<Item = u64> {
        let marks = self.marks.iter().map(|mark| mark.1.segment);
        marks.chain(self.spans.iter().map(|span| span.at.segment))
    }

    /// The longest beginning that a text which begins with `common` of its tokens can continue.
    pub(super) fn usable(&self, common: u32, forks_anywhere: bool) -> u32 {
        if forks_anywhere {
            return common;
        }
        let marks = self.marks.iter().rev().map(|mark| mark.0);
        marks.into_iter().find(|mark| *mark <= common).unwrap_or(0)
    }

    /// Whether whatever can continue a session with these tokens and marks can continue this one.
    pub(super) fn covers(&self, tokens: &[u32], marks: &[u32]) -> bool {
        let has = |mark: &u32| self.marks.binary_search_by_key(mark, |own| own.0).is_ok();
        self.tokens.starts_with(tokens) && marks.iter().all(has)
    }

    pub(super) fn mark_positions(&self) -> Vec<u32> {
        self.marks.iter().map(|mark| mark.0).collect()
    }

    pub(super) fn to_bytes(&self, fingerprint: u128) -> Vec<u8> {
        let name = self.name.as_deref().unwrap_or_default().as_bytes();
        let mut bytes = [&ENTRY_MAGIC[..], &fingerprint.to_le_bytes()].concat();
        let counts = [self.tokens.len(), self.marks.len(), self.spans.len(), name.len()];
        let mut put = |number: u32| bytes.extend(number.to_le_bytes());
        counts.into_iter().for_each(|count| put(count as u32));
        self.tokens.iter().for_each(|token| put(*token));
        let mut put_place = |numbers: &[u32], at: Place| {
            numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend(at.segment.to_le_bytes());
            bytes.extend(at.offset.to_le_bytes());
        };
        self.marks.iter().for_each(|(position, at)| put_place(&[*position], *at));
        self.spans.iter().for_each(|span| put_place(&[span.first, span.blocks], span.at));
        bytes.extend(name);
        let checksum = xxh3_64(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    /// Reads what [`Entry::to_bytes`] wrote; nothing if it is something else, or does not add up.
    pub(super) fn from_bytes(bytes: &[u8], fingerprint: u128, pieces: PieceBytes) -> Option<Self> {
        let (bytes, checksum) = bytes.split_last_chunk::<8>()?;
        if xxh3_64(bytes) != u64::from_le_bytes(*checksum) {
            return None;
        }
        let mut from = Bytes(bytes);
        if from.take::<8>()? != ENTRY_MAGIC || u128::from_le_bytes(from.take()?) != fingerprint {
            return None;
        }
        let [tokens, marks, spans, name] =
            [from.number()?, from.number()?, from.number()?, from.number()?];
        if tokens as usize > bytes.len()
            || [marks, spans, name].iter().any(|of| *of as usize > PARTS_MAX)
        {
            return None;
        }
        let entry = Self {
            tokens: (0..tokens).map(|_| from.number()).collect::<Option<_>>()?,
            marks: (0..marks)
                .map(|_| Some((from.number()?, from.place()?)))
                .collect::<Option<_>>()?,
            spans: (0..spans).map(|_| from.span()).collect::<Option<_>>()?,
            name: match std::str::from_utf8(from.0.get(..name as usize)?).ok()? {
                "" => None,
                name => Some(name.to_owned()),
            },
        };
        let complete = from.0.len() == name as usize && entry.adds_up(pieces);
        complete.then_some(entry)
    }

    /// Whether all blocks are there, once each, and marks ascend.
    fn adds_up(&self, pieces: PieceBytes) -> bool {
        let tokens = self.tokens.len() as u32;
        let mut next = 0;
        let spans = self.spans.iter().all(|span| {
            let follows = span.first == next && span.blocks > 0;
            next = span.first.saturating_add(span.blocks);
            follows
        });
        let mut last = 0;
        let marks = self.marks.iter().all(|(position, _)| {
            let follows = *position > last && *position <= tokens;
            last = *position;
            follows
        });
        spans && marks && next == pieces.blocks(tokens) && tokens > 0
    }
}

/// Bytes that are taken from the front.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take()?))
    }

    fn place(&mut self) -> Option<Place> {
        let segment = u64::from_le_bytes(self.take()?);
        Some(Place { segment, offset: u64::from_le_bytes(self.take()?) })
    }

    fn span(&mut self) -> Option<Span> {
        Some(Span { first: self.number()?, blocks: self.number()?, at: self.place()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: PieceBytes = PieceBytes { block: 100, memories: 50, part_max: 10 };

    fn entry() -> Entry {
        let place = |segment, offset| Place { segment, offset };
        Entry {
            tokens: (0..300).collect(),
            marks: vec![(64, place(1, 24)), (300, place(2, 24))],
            spans: vec![
                Span { first: 0, blocks: 3, at: place(1, 74) },
                Span { first: 3, blocks: 2, at: place(2, 74) },
            ],
            name: Some("müsli".to_owned()),
        }
    }

    #[test]
    fn an_entry_comes_back_and_no_other_does() {
        let (entry, fingerprint) = (entry(), 7 << 90);
        let bytes = entry.to_bytes(fingerprint);
        let read = |bytes: &[u8]| Entry::from_bytes(bytes, fingerprint, PIECES);
        assert_eq!(read(&bytes), Some(entry.clone()));
        assert_eq!(Entry::from_bytes(&bytes, 7 << 91, PIECES), None, "another fingerprint");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(read(&damaged), None, "byte {at}");
            assert_eq!(read(&bytes[..at]), None, "cut at {at}");
        }
        let wrong = [
            Entry { tokens: (0..400).collect(), ..entry.clone() },
            Entry { tokens: (0..250).collect(), ..entry.clone() },
            Entry { spans: entry.spans[1..].to_vec(), ..entry.clone() },
            Entry { spans: entry.spans[..1].to_vec(), ..entry.clone() },
            Entry { marks: entry.marks.iter().rev().copied().collect(), ..entry.clone() },
        ];
        for wrong in wrong {
            assert_eq!(read(&wrong.to_bytes(fingerprint)), None, "{wrong:?}");
        }
    }

    #[test]
    fn pieces_are_where_they_were_put() {
        let entry = entry();
        let at = |piece| entry.place(piece, PIECES).map(|place| (place.segment, place.offset));
        assert_eq!(at(Piece::Memories(64)), Some((1, 24)));
        assert_eq!(at(Piece::Memories(65)), None);
        assert_eq!(at(Piece::Block(0)), Some((1, 74)));
        assert_eq!(at(Piece::Block(2)), Some((1, 274)));
        assert_eq!(at(Piece::Block(4)), Some((2, 174)));
        assert_eq!(at(Piece::Block(5)), None);
        assert_eq!((entry.usable(299, true), entry.usable(299, false)), (299, 64));
        assert_eq!((entry.usable(63, false), entry.usable(300, false)), (0, 300));
        assert!(entry.covers(&entry.tokens[..100], &[64]) && !entry.covers(&[0, 1], &[2]));
    }
}
