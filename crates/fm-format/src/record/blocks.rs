//! A record that was read in whole blocks: where its matrices lie in the slot before they are in place.
//!
//! A direct read begins and ends at a block. What begins inside a block of its file comes into the
//! slot with the rest of that block before it, so a matrix lies a little behind its place:
//!
//! ```text
//! slot   │··gate rows│·│·····up rows·│··down rows····│      blocks of 4096 bytes, · is not ours
//! ```

use super::{Catalog, Extent, LayerRecords, MatrixRole, PART_ALIGN, Place, Record, RecordLayout};

/// Where the rows of every matrix begin in a slot, in the order of [`MatrixRole::ALL`]: at
/// [`RecordLayout::starts`], or behind it.
pub type MatrixStarts = [usize; MatrixRole::ALL.len()];

/// Of a record's bytes, what its slot may have more than the record: where it would take more, records are
/// read elsewhere and copied.
const ROOM_SHARE: usize = 32;

/// Copied pieces that lie in the file as they lie in the record, padding between the parts included.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The bytes on disk.
    pub extent: Extent,
    /// Where they belong in the record.
    pub at: usize,
    /// The piece behind the run.
    pub next: usize,
}

/// A record in whole blocks, run behind run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InBlocks {
    /// Where its matrices lie.
    pub starts: MatrixStarts,
    /// Bytes of all blocks.
    pub bytes: usize,
}

impl RecordLayout {
    /// Where matrices begin that are in place.
    pub fn starts(&self) -> MatrixStarts {
        MatrixRole::ALL.map(|role| self.offset(role))
    }

    /// Brings a matrix from `start` to where it belongs, as it is. In the order of [`MatrixRole::ALL`] none is
    /// written over one that has not been brought yet.
    ///
    /// # Panics
    /// If the slot ends before the matrix does.
    pub fn settle(&self, role: MatrixRole, slot: &mut [u8], start: usize) {
        let at = self.offset(role);
        if at != start {
            slot.copy_within(start..start + self.shape(role).bytes(), at);
        }
    }

    /// Zeroes the padding behind both parts, so that the bytes of a record depend on nothing but its
    /// weights.
    pub fn clear_padding(&self, record: &mut [u8]) {
        let down = self.first_part_bytes();
        record[self.gate.bytes() + self.up.bytes()..down].fill(0);
        record[down + self.down.bytes()..self.bytes()].fill(0);
    }
}

impl LayerRecords {
    /// The longest run from piece `first` on; `None` if that piece is no copy.
    pub fn run_from(&self, record: &Record, first: usize) -> Option<Run> {
        let Place::Copy { at } = record.pieces[first].place else { return None };
        let layout = &self.layout;
        let weights_end = layout.gate.bytes() + layout.up.bytes();
        let mut extent = record.pieces[first].extent;
        let mut next = first + 1;
        while let Some(piece) = record.pieces.get(next) {
            let Place::Copy { at: follows } = piece.place else { break };
            let end = at + extent.bytes as usize;
            let padding = end == weights_end && follows == layout.first_part_bytes();
            let gap = follows.wrapping_sub(end) as u64;
            let joins = piece.extent.file == extent.file
                && (follows == end || padding)
                && piece.extent.offset == extent.offset + extent.bytes + gap;
            if !joins {
                break;
            }
            extent.bytes += gap + piece.extent.bytes;
            next += 1;
        }
        Some(Run { extent, at, next })
    }

    /// How a record lies in a slot that gets its runs in whole blocks, one behind the other. `None` if
    /// that cannot be: pieces are not copied as they are or come in another order, a checksum is to be
    /// compared with what is in place, or the slot would have to be much longer than the record.
    pub fn in_blocks(&self, record: &Record) -> Option<InBlocks> {
        if record.checksums.is_some() {
            return None;
        }
        let mut starts = MatrixRole::ALL.map(|_| None);
        let (mut bytes, mut piece) = (0, 0);
        while piece < record.pieces.len() {
            let run = self.run_from(record, piece)?;
            let begins = bytes + run.skip();
            if begins < run.at {
                return None;
            }
            for (role, start) in MatrixRole::ALL.into_iter().zip(&mut starts) {
                let (at, length) = (self.layout.offset(role), self.layout.shape(role).bytes());
                if at >= run.at && at + length <= run.at + run.extent.bytes as usize {
                    *start = Some(begins + at - run.at);
                }
            }
            bytes += run.block_bytes();
            piece = run.next;
        }
        let [Some(gate), Some(up), Some(down)] = starts else { return None };
        let room = bytes.saturating_sub(self.layout.bytes());
        let small = room <= self.layout.bytes() / ROOM_SHARE;
        small.then_some(InBlocks { starts: [gate, up, down], bytes })
    }
}

impl Run {
    /// Bytes of its first block that come before it.
    pub fn skip(&self) -> usize {
        self.extent.offset as usize % PART_ALIGN
    }

    /// Bytes of all blocks that it lies in.
    pub fn block_bytes(&self) -> usize {
        (self.skip() + self.extent.bytes as usize).next_multiple_of(PART_ALIGN)
    }
}

impl Catalog {
    /// What a slot has more than the longest record that lives in it, so that any record can be read
    /// into it in whole blocks.
    pub fn room_bytes(&self) -> usize {
        let layers = self.layers.iter().flatten();
        let room = |layer: &LayerRecords| {
            let blocks = layer.records.iter().filter_map(|record| layer.in_blocks(record));
            let bytes = blocks.map(|blocks| blocks.bytes).max().unwrap_or(0);
            bytes.saturating_sub(layer.layout.bytes())
        };
        layers.map(room).max().unwrap_or(0)
    }

    /// Bytes that all records take up in slots.
    pub fn slot_bytes(&self) -> u64 {
        let records: usize = self.layers.iter().flatten().map(|layer| layer.records.len()).sum();
        self.bytes() + (records * self.room_bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        quant,
        record::{FileIndex, MatrixShape, Piece, PlanarPart, ScaleSource},
    };

    /// A layer whose matrices have `rows` rows of 512 bytes, and its expert: gate, up and down where `offsets` say.
    fn expert(rows: usize, offsets: [u64; 3]) -> (LayerRecords, Record) {
        let format = quant::by_name("bf16").expect("a format of the table");
        let shape = MatrixShape { rows, cols: 256, format };
        let layout = RecordLayout { gate: shape, up: shape, down: shape };
        let piece = |(offset, role): (u64, MatrixRole)| Piece {
            extent: Extent { file: FileIndex(0), offset, bytes: shape.bytes() as u64 },
            place: Place::Copy { at: layout.offset(role) },
        };
        let pieces = offsets.into_iter().zip(MatrixRole::ALL).map(piece).collect();
        let record = Record { pieces, checksums: None };
        (LayerRecords { layout, records: vec![record.clone()] }, record)
    }

    #[test]
    fn every_run_begins_behind_the_blocks_of_the_one_before() {
        // A matrix of 257 rows fills 32 blocks and an eighth; the last one begins near the end of a block, so
        // that it lies in one more.
        let (layer, record) = expert(257, [32, 1 << 20, (2 << 20) + 4000]);
        let blocks = layer.in_blocks(&record).unwrap();
        assert_eq!(blocks.starts, [32, 33 * 4096, 66 * 4096 + 4000]);
        assert_eq!((blocks.bytes, layer.layout.bytes()), (100 * 4096, 98 * 4096));
        let layers = vec![None, Some(layer)];
        let catalog = Catalog { files: vec!["weights".into()], layers };
        assert_eq!((catalog.room_bytes(), catalog.slot_bytes()), (2 * 4096, 100 * 4096));
    }

    #[test]
    fn gate_and_up_in_one_piece_of_the_file_are_one_run() {
        let (layer, record) = expert(256, [4000, 4000 + 256 * 512, 1 << 30]);
        let blocks = layer.in_blocks(&record).unwrap();
        assert_eq!(blocks.starts, [4000, 4000 + 32 * 4096, 65 * 4096]);
        assert_eq!(blocks.bytes, 97 * 4096);
    }

    #[test]
    fn what_does_not_fit_is_not_read_in_blocks() {
        let offsets = [32, 1 << 20, 2 << 20];
        let (layer, record) = expert(256, offsets);
        assert!(layer.in_blocks(&record).is_some());
        let checked = Record { checksums: Some([1, 2]), ..record.clone() };
        let mut backwards = record.clone();
        backwards.pieces.reverse();
        let mut incomplete = record.clone();
        incomplete.pieces.pop();
        let mut in_turns = record;
        let (part, source) = (PlanarPart::Codes, ScaleSource::Bf16);
        in_turns.pieces[0].place = Place::InTurns { part, source };
        for other in [checked, backwards, incomplete, in_turns] {
            assert_eq!(layer.in_blocks(&other), None, "{other:?}");
        }
        let (short, record) = expert(32, offsets);
        assert_eq!(short.in_blocks(&record), None, "three blocks more than twelve");
    }

    #[test]
    fn matrices_settle_where_they_belong_with_zeros_between_them() {
        let (layer, record) = expert(257, [32, (1 << 20) + 2050, (2 << 20) + 4000]);
        let (layout, blocks) = (layer.layout, layer.in_blocks(&record).unwrap());
        let noise = |at: usize| (at * 31 + at / 251) as u8;
        let mut slot: Vec<u8> = (0..blocks.bytes).map(noise).collect();
        for (role, start) in MatrixRole::ALL.into_iter().zip(blocks.starts) {
            layout.settle(role, &mut slot, start);
        }
        layout.clear_padding(&mut slot);
        let mut expected = vec![0; layout.bytes()];
        for (role, start) in MatrixRole::ALL.into_iter().zip(blocks.starts) {
            let (at, length) = (layout.offset(role), layout.shape(role).bytes());
            expected[at..at + length].iter_mut().zip(start..).for_each(|(e, at)| *e = noise(at));
        }
        assert!(slot[..layout.bytes()] == expected);
    }
}
