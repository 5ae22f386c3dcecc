//! A record as a sequence of physical reads.
//!
//! Neighbours in the file that are neighbours in the record become one read. A read goes straight
//! into the slot where alignment allows, else into staging, from where its bytes are placed.
//! Direct reads are widened to whole blocks of 4096 bytes.

use fm_format::record::{
    Catalog, Extent, FileIndex, LayerRecords, PART_ALIGN, Piece, Place, Record,
};

use super::disk::Access;

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
    /// Into staging, and from there to where it belongs.
    Staging {
        /// How.
        place: Place,
    },
}

impl Step {
    /// What [`LayerRecords::place`] needs to know about the bytes of a staged read.
    pub(super) fn piece(&self, place: Place) -> Piece {
        Piece { extent: self.extent(), place }
    }

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
            steps.staged |= matches!(step.target, Target::Staging { .. });
        }
        steps
    }

    /// The next read. Allocates nothing.
    pub(super) fn next(&mut self, layer: &LayerRecords, record: &Record) -> Option<Step> {
        let piece = record.pieces.get(self.piece)?;
        let Place::Copy { .. } = piece.place else {
            self.piece += 1;
            return Some(self.stage(piece.extent, piece.place));
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
            return Some(self.stage(extent, Place::Copy { at }));
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

    fn stage(&self, extent: Extent, place: Place) -> Step {
        let (offset, end) = staged_range(self.access, extent);
        Step {
            file: extent.file,
            offset,
            bytes: (end - offset) as usize,
            skip: (extent.offset - offset) as usize,
            wanted: extent.bytes as usize,
            target: Target::Staging { place },
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
    let pieces = records.flat_map(|record| &record.pieces);
    let longest = pieces.map(|piece| match (piece.place, access) {
        (Place::Copy { .. }, Access::Buffered) => 0,
        // A run may be longer than its pieces, but is copied in parts.
        (Place::Copy { .. }, Access::Direct) => COPIED_BYTES_MAX + 2 * BLOCK,
        (Place::Interleave { .. } | Place::InTurns { .. }, _) => {
            let (start, end) = staged_range(access, piece.extent);
            (end - start) as usize
        }
    });
    longest.max().unwrap_or(0).next_multiple_of(PART_ALIGN)
}

/// Memory that a reader of this depth takes for its buffers at most: what a plan must set aside
/// before it is known whether the file system allows direct reads.
pub fn staging_bytes(catalog: &Catalog, depth: usize) -> u64 {
    let direct = buffer_bytes(catalog, Access::Direct);
    let longest = direct.max(buffer_bytes(catalog, Access::Buffered));
    (depth.clamp(1, super::DEPTH_MAX) * longest) as u64
}
