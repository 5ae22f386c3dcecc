//! Byte pair encoding: of the neighbours in a piece of text, those that merge soonest become one.
//!
//! `kitoken` does that too, with four maps whose million of keys have an allocation each: a
//! vocabulary of 248 thousand tokens took a start 0.2 s to build them, on the cores that read the
//! trunk meanwhile, and 0.1 s to free them. This table is three allocations and is built in
//! milliseconds. Text is still normalised by `kitoken`.

use std::{cmp::Reverse, collections::BinaryHeap};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{reach::Reached, token_table::TokenTable};
use crate::error::TextError;

/// Which tokens a piece of text becomes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Merger {
    rules: Rules,
    /// Ids by rank.
    ids: Vec<u32>,
    /// Texts by rank.
    texts: TokenTable,
    /// Where to find a rank: a table with open addresses, at most half full.
    slots: Vec<Slot>,
    longest: usize,
}

/// What a [`Merger`] is told beside its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// Whether a symbol is a character; otherwise it is a byte.
    pub(crate) chars: bool,
    /// How many tokens merging makes. Those of higher rank are only what a whole piece can be.
    pub(crate) merged: usize,
    /// What becomes of a symbol that has no token.
    pub(crate) fallback: Fallback,
}

/// What becomes of a symbol that has no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fallback {
    /// There is none.
    Never,
    /// The tokens of its bytes.
    Bytes,
    /// A token that stands for anything, for several in a row `once` or each.
    Unknown { id: u32, once: bool },
}

/// A rank plus one and eight bits of the hash of its text, or nothing. Ids, and with them ranks, have
/// 24 bits (`exact.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot(u32);

impl Slot {
    const RANK_BITS: u32 = 24;
    /// One more than ranks there can be.
    const RANKS: usize = (1 << Self::RANK_BITS) - 1;

    fn new(rank: usize, tag: u32) -> Self {
        Self(tag << Self::RANK_BITS | (rank as u32 + 1))
    }

    /// Its rank, if it has this tag.
    fn rank(self, tag: u32) -> Option<usize> {
        (self.0 >> Self::RANK_BITS == tag).then(|| self.0 as usize % (Self::RANKS + 1) - 1)
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// One or several symbols of a piece that have become one.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Its first byte; it ends where the next part begins.
    start: u32,
    prior: u32,
    next: u32,
    /// Of what it and the next part become.
    rank: u32,
}

/// Of two parts that nothing is made of.
const NEVER: u32 = u32::MAX;

/// Room for the parts of a piece, for one piece after the other.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The parts, and one of no bytes behind the last.
    parts: Vec<Part>,
    /// Rank and left part of pairs that merge; also of some that are no more.
    soonest: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Merger {
    /// Of what merging makes and what whole pieces can be.
    pub(super) fn new(reached: &Reached, chars: bool, fallback: Fallback) -> Self {
        let tokens = || reached.merged.iter().chain(&reached.whole_pieces);
        let rules = Rules { chars, merged: reached.merged.len(), fallback };
        let texts = (0..).zip(tokens()).map(|(rank, (_, bytes))| (rank, bytes.clone()));
        Self::of(rules, tokens().map(|(id, _)| *id).collect(), TokenTable::new(texts))
    }

    /// Of ids and texts by rank.
    fn of(rules: Rules, ids: Vec<u32>, texts: TokenTable) -> Self {
        let mut slots = vec![Slot::default(); (2 * ids.len()).next_power_of_two()];
        let mut longest = 0;
        for rank in 0..ids.len() {
            let text = texts.get(rank as u32).expect("every rank has a text");
            longest = longest.max(text.len());
            let (mut at, tag) = place(text, slots.len());
            while !slots[at].is_empty() {
                at = (at + 1) % slots.len();
            }
            slots[at] = Slot::new(rank, tag);
        }
        Self { rules, ids, texts, slots, longest }
    }

    /// See [`Rules`].
    pub(super) fn rules(&self) -> Rules {
        self.rules
    }

    /// Appends `count | ids | texts`, little-endian.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.ids.len() as u32).to_le_bytes());
        self.ids.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
        self.texts.write(out);
    }

    /// Reads what [`write`](Self::write) wrote; it is all of `data`.
    pub(super) fn read(rules: Rules, data: &[u8]) -> Option<Self> {
        let (count, rest) = data.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (ids, texts) = rest.split_at_checked(count.checked_mul(4)?)?;
        let (ids, _) = ids.as_chunks::<4>();
        let texts = TokenTable::read(texts)?;
        let whole = texts.len() == count && rules.merged <= count && count < Slot::RANKS;
        whole
            .then(|| Self::of(rules, ids.iter().map(|id| u32::from_le_bytes(*id)).collect(), texts))
    }

    /// The rank of a text, if it has one.
    fn rank(&self, text: &[u8]) -> Option<usize> {
        if text.len() > self.longest {
            return None;
        }
        let (mut at, tag) = place(text, self.slots.len());
        loop {
            let slot = self.slots[at];
            if slot.is_empty() {
                return None;
            }
            let rank = slot.rank(tag).filter(|&rank| self.texts.get(rank as u32) == Some(text));
            if rank.is_some() {
                return rank;
            }
            at = (at + 1) % self.slots.len();
        }
    }

    /// The rank of a text that merging makes.
    fn merged_rank(&self, text: &[u8]) -> Option<usize> {
        self.rank(text).filter(|&rank| rank < self.rules.merged)
    }

    /// Appends the tokens of a piece of split text.
    ///
    /// # Errors
    /// If a part has neither a token nor a fallback.
    pub(super) fn encode(
        &self,
        piece: &str,
        room: &mut Room,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        if let Some(rank) = self.rank(piece.as_bytes()) {
            ids.push(self.ids[rank]);
            return Ok(());
        }
        self.merge(piece, room);
        let first = ids.len();
        let mut at = 0;
        while let Some(next) = room.parts.get(room.parts[at].next as usize) {
            let part = &piece.as_bytes()[room.parts[at].start as usize..next.start as usize];
            match self.merged_rank(part) {
                Some(rank) => ids.push(self.ids[rank]),
                None => self.fall_back(part, first, ids)?,
            }
            at = room.parts[at].next as usize;
        }
        Ok(())
    }

    /// Merges the symbols of a piece until no two neighbours merge.
    fn merge(&self, piece: &str, room: &mut Room) {
        let Room { parts, soonest } = room;
        parts.clear();
        soonest.clear();
        let end = u32::try_from(piece.len()).expect("texts are shorter than 4 GiB");
        let mut push = |start| {
            let at = parts.len() as u32;
            parts.push(Part { start, prior: at.wrapping_sub(1), next: at + 1, rank: NEVER });
        };
        if self.rules.chars {
            piece.char_indices().for_each(|(start, _)| push(start as u32));
        } else {
            (0..end).for_each(&mut push);
        }
        push(end);
        let pair = |parts: &mut [Part], soonest: &mut BinaryHeap<_>, at: u32| {
            let part = parts[at as usize];
            let beyond = parts.get(parts[part.next as usize].next as usize);
            let rank = beyond.and_then(|beyond| {
                self.merged_rank(&piece.as_bytes()[part.start as usize..beyond.start as usize])
            });
            parts[at as usize].rank = rank.map_or(NEVER, |rank| rank as u32);
            soonest.extend(rank.map(|rank| Reverse((rank as u32, at))));
        };
        for at in 0..parts.len() as u32 - 1 {
            pair(parts, soonest, at);
        }
        while let Some(Reverse((rank, at))) = soonest.pop() {
            let Part { prior, next, rank: now, .. } = parts[at as usize];
            if now != rank {
                continue;
            }
            let beyond = parts[next as usize].next;
            parts[next as usize].rank = NEVER;
            parts[at as usize].next = beyond;
            parts[beyond as usize].prior = at;
            pair(parts, soonest, at);
            if at > 0 {
                pair(parts, soonest, prior);
            }
        }
    }

    /// Appends what stands for a part that has no token. `first` is where the tokens of its piece begin.
    fn fall_back(&self, part: &[u8], first: usize, ids: &mut Vec<u32>) -> Result<(), TextError> {
        match self.rules.fallback {
            Fallback::Unknown { id, once } => {
                if !(once && ids[first..].last() == Some(&id)) {
                    ids.push(id);
                }
                return Ok(());
            }
            Fallback::Bytes => {
                let byte = |byte| self.merged_rank(std::slice::from_ref(byte));
                if let Some(ranks) = part.iter().map(byte).collect::<Option<Vec<_>>>() {
                    ids.extend(ranks.into_iter().map(|rank| self.ids[rank]));
                    return Ok(());
                }
            }
            Fallback::Never => {}
        }
        Err(TextError::Encode { part: String::from_utf8_lossy(part).into_owned() })
    }
}

/// Where to begin to look for a text, and its tag.
fn place(text: &[u8], slots: usize) -> (usize, u32) {
    let hash = xxh3_64(text);
    (hash as usize & (slots - 1), (hash >> 56) as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A merger of these texts, ids from 100 on, of which the last `whole` are whole pieces only.
    fn merger(texts: &[&[u8]], whole: usize, chars: bool, fallback: Fallback) -> Merger {
        let tokens = (100..).zip(texts.iter().map(|text| text.to_vec()));
        let mut merged: Vec<_> = tokens.collect();
        let whole_pieces = merged.split_off(texts.len() - whole);
        let reached = Reached { merged, whole_pieces, has_byte_fallback: false };
        Merger::new(&reached, chars, fallback)
    }

    fn encode(merger: &Merger, piece: &str) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        merger.encode(piece, &mut Room::default(), &mut ids).map(|()| ids)
    }

    /// Ids of a piece by the definition: of all neighbours, those of lowest rank merge, the leftmost
    /// first.
    fn defined(texts: &[String], piece: &str) -> Vec<u32> {
        let rank = |text: &str| texts.iter().position(|other| other == text);
        let mut parts: Vec<String> = piece.chars().map(String::from).collect();
        loop {
            let pairs = parts.windows(2).enumerate();
            let merging = pairs.filter_map(|(at, pair)| Some((rank(&pair.concat())?, at)));
            let Some((_, at)) = merging.min() else { break };
            let right = parts.remove(at + 1);
            parts[at].push_str(&right);
        }
        parts.iter().map(|part| rank(part).expect("every letter has a token") as u32).collect()
    }

    proptest! {
        #[test]
        fn pieces_become_what_the_definition_says(
            mut texts in prop::collection::hash_set("[abé]{2,5}", 0..40),
            pieces in prop::collection::vec("[abé]{1,100}", 4),
            chars in any::<bool>(),
        ) {
            // Two bytes of one letter merge before all others, as they do in a vocabulary of bytes.
            let letters = ["é", "a", "b"].map(String::from);
            let texts: Vec<String> = letters.into_iter().chain(texts.drain()).collect();
            let halves: [&[u8]; 2] = [b"\xC3", b"\xA9"];
            let whole = texts.iter().map(String::as_bytes);
            let tokens: Vec<&[u8]> = whole.chain(halves).collect();
            let merger = merger(&tokens, 0, chars, Fallback::Never);
            for piece in &pieces {
                // A piece that is a token is that token, whatever it merges to.
                if !texts.contains(piece) {
                    let expected: Vec<u32> = defined(&texts, piece).iter().map(|at| 100 + at).collect();
                    prop_assert_eq!(encode(&merger, piece).unwrap(), expected);
                }
            }
        }
    }

    #[test]
    fn a_whole_piece_may_be_what_no_merge_makes() {
        let merger = merger(&[b"a", b"b", b"ab", b"aab"], 1, false, Fallback::Never);
        assert_eq!(encode(&merger, "aab").unwrap(), [103]);
        assert_eq!(encode(&merger, "aaba").unwrap(), [100, 102, 100]);
    }

    #[test]
    fn symbols_without_a_token_fall_back() {
        let texts: [&[u8]; 5] = [b"a", b"aa", b"\xE2", b"\x98", b"\x83"];
        let of = |fallback, chars| merger(&texts, 0, chars, fallback);
        let unknown = |once| of(Fallback::Unknown { id: 7, once }, true);
        assert_eq!(encode(&unknown(false), "☃☃aa☃").unwrap(), [7, 7, 101, 7]);
        assert_eq!(encode(&unknown(true), "☃☃aa☃").unwrap(), [7, 101, 7]);
        // Of the piece before it is another unknown.
        let mut ids = vec![7];
        unknown(true).encode("☃a", &mut Room::default(), &mut ids).unwrap();
        assert_eq!(ids, [7, 7, 100]);
        assert_eq!(encode(&of(Fallback::Bytes, true), "a☃aa").unwrap(), [100, 102, 103, 104, 101]);
        for (fallback, chars) in
            [(Fallback::Never, true), (Fallback::Bytes, true), (Fallback::Never, false)]
        {
            let error = encode(&of(fallback, chars), "aaé").unwrap_err().to_string();
            assert!(error.contains(if chars { "é" } else { "\u{FFFD}" }), "{error}");
        }
    }

    #[test]
    fn survives_a_round_trip_and_refuses_a_torn_one() {
        let merger = merger(&[b"a", b"b", b"ab", b"aab"], 1, true, Fallback::Bytes);
        let mut data = Vec::new();
        merger.write(&mut data);
        for bytes in 0..data.len() {
            assert_eq!(Merger::read(merger.rules(), &data[..bytes]), None);
        }
        assert_eq!(Merger::read(Rules { merged: 5, ..merger.rules() }, &data), None);
        assert_eq!(Merger::read(merger.rules(), &data), Some(merger));
    }
}
