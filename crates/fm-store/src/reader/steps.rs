//! A record as a sequence of physical reads.
//!
//! Neighbours in the file that are neighbours in the record become one read, and so do neighbours
//! that are placed one by one, up to a length. A read goes straight
//! into the slot where alignment allows, else into staging, from where its bytes are placed.
//! Direct reads are widened to whole blocks of 4096 bytes.

use fm_format::record::{
    Catalog, Extent, FileIndex, LayerRecords, PART_ALIGN, Piece, Place, Record,
};

use super::disk::Access;
use crate::slots::staged_bytes;

/// What a direct read starts and ends at: the largest logical block in use.
pub(super) const BLOCK: usize = 4096;

/// Longest read straight into a slot; also what one retry repeats.
const STRAIGHT_BYTES_MAX: usize = 8 << 20;

/// Longest read into staging that is copied from there: long enough for a disk's full speed.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// One physical read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) file: FileIndex,
    /// Where it starts in the file.
    pub(super) offset: u64,
    /// How much is read; the file may end before that, but not before `skip + wanted`.
    pub(super) bytes: usize,
    /// Bytes read only to start at a block.
    pub(super) skip: usize,
    /// Bytes of weights.
    pub(super) wanted: usize,
    pub(super) target: Target,
}

/// Where a read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Into the record, from this byte on.
    Slot {
        /// Offset in the record.
        at: usize,
    },
    /// Into staging, and from there into the record, from this byte on.
    Staging {
        /// Offset in the record.
        at: usize,
    },
    /// Into staging, and from there piece by piece to where each belongs.
    Pieces {
        /// The first piece.
        first: usize,
        /// How many there are.
        count: usize,
    },
}

impl Step {
    /// The part of the file that is wanted.
    pub(super) fn extent(&self) -> Extent {
        let offset = self.offset + self.skip as u64;
        Extent { file: self.file, offset, bytes: self.wanted as u64 }
    }
}

/// How a record is taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    access: Access,
    /// Whether nothing goes straight into the slot.
    staged: bool,
    piece: usize,
    /// Bytes of the run that starts at `piece` that earlier steps cover.
    done: usize,
}

/// Pieces that one read covers.
struct Run {
    extent: Extent,
    at: usize,
    /// The piece behind the run.
    next: usize,
}

impl Steps {
    pub(super) fn new(access: Access) -> Self {
        Self { access, staged: false, piece: 0, done: 0 }
    }

    /// Like [`Steps::new`], but a record goes into its slot straight as a whole or not at all: for
    /// readers whose reads overlap in time, so that placing never touches a slot that the kernel
    /// still writes.
    #[cfg(target_os = "linux")]
    pub(super) fn all_or_nothing(access: Access, layer: &LayerRecords, record: &Record) -> Self {
        let mut steps = Self::new(access);
        let mut rest = steps;
        while let Some(step) = rest.next(layer, record) {
            steps.staged |= !matches!(step.target, Target::Slot { .. });
        }
        steps
    }

    /// The next read. Allocates nothing.
    pub(super) fn next(&mut self, layer: &LayerRecords, record: &Record) -> Option<Step> {
        let piece = record.pieces.get(self.piece)?;
        let Place::Copy { .. } = piece.place else {
            let (first, (extent, count)) = (self.piece, planar_run(record, self.piece));
            self.piece += count;
            return Some(self.stage(extent, Target::Pieces { first, count }));
        };
        let run = run_from(layer, record, self.piece);
        let (at, offset) = (run.at + self.done, run.extent.offset + self.done as u64);
        let left = run.extent.bytes as usize - self.done;
        let straight = !self.staged && self.is_straight(layer, offset, at, left);
        let wanted = left.min(if straight { STRAIGHT_BYTES_MAX } else { COPIED_BYTES_MAX });
        self.done += wanted;
        if wanted == left {
            (self.piece, self.done) = (run.next, 0);
        }
        let extent = Extent { offset, bytes: wanted as u64, ..run.extent };
        if !straight {
            return Some(self.stage(extent, Target::Staging { at }));
        }
        let bytes = match self.access {
            Access::Buffered => wanted,
            Access::Direct => wanted.next_multiple_of(BLOCK),
        };
        let target = Target::Slot { at };
        Some(Step { file: extent.file, offset, bytes, skip: 0, wanted, target })
    }

    /// A direct read needs its place aligned, and padding behind it to round up into.
    fn is_straight(&self, layer: &LayerRecords, offset: u64, at: usize, bytes: usize) -> bool {
        if self.access == Access::Buffered {
            return true;
        }
        let (end, ends) = (at + bytes, part_ends(layer));
        let roomy = end.is_multiple_of(BLOCK) || ends.contains(&end);
        offset.is_multiple_of(BLOCK as u64) && at.is_multiple_of(BLOCK) && roomy
    }

    fn stage(&self, extent: Extent, target: Target) -> Step {
        let (offset, end) = staged_range(self.access, extent);
        Step {
            file: extent.file,
            offset,
            bytes: (end - offset) as usize,
            skip: (extent.offset - offset) as usize,
            wanted: extent.bytes as usize,
            target,
        }
    }
}

/// Where the weights of the two parts end: behind them is padding up to [`PART_ALIGN`].
fn part_ends(layer: &LayerRecords) -> [usize; 2] {
    let layout = &layer.layout;
    [layout.gate.bytes() + layout.up.bytes(), layout.first_part_bytes() + layout.down.bytes()]
}

/// The longest run of copied pieces from `first` on that lies in the file as it lies in the record;
/// padding between the parts may be in both.
fn run_from(layer: &LayerRecords, record: &Record, first: usize) -> Run {
    let mut extent = record.pieces[first].extent;
    let Place::Copy { at } = record.pieces[first].place else {
        unreachable!("runs are made of copied pieces")
    };
    let mut next = first + 1;
    while let Some(piece) = record.pieces.get(next) {
        let Place::Copy { at: follows } = piece.place else { break };
        let end = at + extent.bytes as usize;
        let padding = end == part_ends(layer)[0] && follows == layer.layout.first_part_bytes();
        let gap = (follows.wrapping_sub(end)) as u64;
        let joins = piece.extent.file == extent.file
            && (follows == end || padding)
            && piece.extent.offset == extent.offset + extent.bytes + gap;
        if !joins {
            break;
        }
        extent.bytes += gap + piece.extent.bytes;
        next += 1;
    }
    Run { extent, at, next }
}

/// The longest run of pieces from `first` on that are no copies and lie back to back in the file, and
/// their number.
fn planar_run(record: &Record, first: usize) -> (Extent, usize) {
    let mut extent = record.pieces[first].extent;
    let mut count = 1;
    for piece in &record.pieces[first + 1..] {
        let follows = !matches!(piece.place, Place::Copy { .. })
            && piece.extent.file == extent.file
            && piece.extent.offset == extent.offset + extent.bytes;
        if !follows || extent.bytes + piece.extent.bytes > STRAIGHT_BYTES_MAX as u64 {
            break;
        }
        extent.bytes += piece.extent.bytes;
        count += 1;
    }
    (extent, count)
}

/// First byte, and the byte behind the last, of a read into staging.
fn staged_range(access: Access, extent: Extent) -> (u64, u64) {
    let end = extent.offset + extent.bytes;
    match access {
        Access::Buffered => (extent.offset, end),
        Access::Direct => {
            let block = BLOCK as u64;
            (extent.offset / block * block, end.next_multiple_of(block))
        }
    }
}

/// Bytes of one staging buffer: the longest read of the catalog that is not straight.
pub(super) fn buffer_bytes(catalog: &Catalog, access: Access) -> usize {
    let records = catalog.layers.iter().flatten().flat_map(|layer| &layer.records);
    let longest = records.map(|record| longest_stage(record, access));
    longest.max().unwrap_or(0).next_multiple_of(PART_ALIGN)
}

fn longest_stage(record: &Record, access: Access) -> usize {
    let copied = |piece: &Piece| matches!(piece.place, Place::Copy { .. });
    let straight = record.pieces.iter().all(copied);
    let (mut longest, mut at) = (0, 0);
    while let Some(piece) = record.pieces.get(at) {
        let (bytes, count) = match (piece.place, access) {
            (Place::Copy { .. }, Access::Buffered) if straight => (0, 1),
            // See `all_or_nothing`.
            (Place::Copy { .. }, Access::Buffered) => (COPIED_BYTES_MAX, 1),
            // A run may be longer than its pieces, but is copied in parts.
            (Place::Copy { .. }, Access::Direct) => (COPIED_BYTES_MAX + 2 * BLOCK, 1),
            _ => {
                let (extent, count) = planar_run(record, at);
                let (start, end) = staged_range(access, extent);
                ((end - start) as usize, count)
            }
        };
        longest = longest.max(bytes);
        at += count;
    }
    longest
}

/// Memory that a reader of this depth takes for its buffers at most: what a plan must set aside
/// before it is known whether the file system allows direct reads.
pub fn staging_bytes(catalog: &Catalog, depth: usize) -> u64 {
    let direct = buffer_bytes(catalog, Access::Direct);
    let longest = direct.max(buffer_bytes(catalog, Access::Buffered));
    staged_bytes(longest, depth.clamp(1, super::DEPTH_MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use fm_format::{
        quant,
        record::{MatrixRole, MatrixShape, PlanarPart, RecordLayout, ScaleSource},
    };

    /// An expert in nine parts of one file, each as long as `bytes`, with a gap before the seventh.
    fn nine_parts(bytes: u64, gap: u64) -> (LayerRecords, Record) {
        let format = quant::by_name("affine4_g64").expect("a format of the table");
        let shape = MatrixShape { rows: 64, cols: 64, format };
        let piece = |index: u64| {
            let offset = 100 + index * bytes + if index < 6 { 0 } else { gap };
            let place = Place::Interleave {
                role: MatrixRole::Gate,
                part: PlanarPart::Codes,
                source: ScaleSource::Bf16,
            };
            Piece { extent: Extent { file: FileIndex(3), offset, bytes }, place }
        };
        let record = Record { pieces: (0..9).map(piece).collect(), checksums: None };
        let layout = RecordLayout { gate: shape, up: shape, down: shape };
        (LayerRecords { layout, records: vec![record.clone()] }, record)
    }

    /// What is read: offset, length and the pieces of it.
    fn reads(bytes: u64, gap: u64) -> Vec<(u64, usize, Target)> {
        let (layer, record) = nine_parts(bytes, gap);
        let mut steps = Steps::new(Access::Buffered);
        let mut found = Vec::new();
        while let Some(step) = steps.next(&layer, &record) {
            assert!(step.bytes <= longest_stage(&record, Access::Buffered));
            found.push((step.offset, step.wanted, step.target));
        }
        found
    }

    #[test]
    fn parts_that_lie_back_to_back_are_one_read() {
        assert_eq!(reads(50, 0), [(100, 450, Target::Pieces { first: 0, count: 9 })]);
    }

    #[test]
    fn a_gap_or_the_longest_read_ends_a_run() {
        let both = [
            (100, 300, Target::Pieces { first: 0, count: 6 }),
            (401, 150, Target::Pieces { first: 6, count: 3 }),
        ];
        assert_eq!(reads(50, 1), both);
        let long = reads(2 << 20, 0).into_iter().map(|(_, bytes, _)| bytes >> 20);
        assert_eq!(long.collect::<Vec<_>>(), [8, 8, 2]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn copies_beside_other_parts_fit_into_staging() {
        let (layer, mut record) = nine_parts(1 << 12, 0);
        let extent = Extent { file: FileIndex(0), offset: 5, bytes: 3 << 20 };
        record.pieces.push(Piece { extent, place: Place::Copy { at: 1 << 16 } });
        for access in [Access::Buffered, Access::Direct] {
            let mut steps = Steps::all_or_nothing(access, &layer, &record);
            let mut copied = 0;
            while let Some(step) = steps.next(&layer, &record) {
                assert!(step.bytes <= longest_stage(&record, access), "{access:?}: {step:?}");
                copied +=
                    u64::from(matches!(step.target, Target::Staging { .. })) * step.wanted as u64;
            }
            assert_eq!(copied, 3 << 20);
        }
    }
}
