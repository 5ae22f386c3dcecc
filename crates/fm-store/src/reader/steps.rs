//! A record as a sequence of physical reads.
//!
//! Neighbours in the file that are neighbours in the record become one read, and so do neighbours
//! that are placed one by one, up to a length. A record goes straight into its slot as it is, or in whole
//! blocks ([`LayerRecords::in_blocks`]), if it can; else all of it goes into staging, from where its bytes are placed:
//! where reads overlap in time, placing must not touch what the kernel still writes. Direct reads are
//! widened to whole blocks of 4096 bytes.

use fm_format::record::{
    Catalog, Extent, FileIndex, LayerRecords, MatrixStarts, PART_ALIGN, Place, Record, Run,
};

use super::disk::Access;
use crate::slots::staged_bytes;

/// What a direct read starts and ends at: the largest logical block in use.
pub(super) const BLOCK: usize = PART_ALIGN;

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
    /// Into the slot, from this byte on.
    Slot {
        /// Offset in the slot.
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

/// Where all of a record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Straight to where it belongs.
    InPlace,
    /// Straight into the slot, in whole blocks.
    InBlocks,
    /// Into staging.
    Staged,
}

/// How a record is taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    access: Access,
    way: Way,
    starts: MatrixStarts,
    piece: usize,
    /// Bytes of the run that starts at `piece` that earlier steps cover.
    done: usize,
    /// Where the blocks of that run begin in the slot.
    block: usize,
}

impl Steps {
    pub(super) fn new(access: Access, layer: &LayerRecords, record: &Record) -> Self {
        let in_place = layer.layout.starts();
        let (way, starts) = if is_straight(access, layer, record) {
            (Way::InPlace, in_place)
        } else if let (Access::Direct, Some(blocks)) = (access, layer.in_blocks(record)) {
            (Way::InBlocks, blocks.starts)
        } else {
            (Way::Staged, in_place)
        };
        Self { access, way, starts, piece: 0, done: 0, block: 0 }
    }

    /// Where the matrices of the record lie when all steps are done.
    pub(super) fn starts(&self) -> MatrixStarts {
        self.starts
    }

    /// The next read. Allocates nothing.
    pub(super) fn next(&mut self, layer: &LayerRecords, record: &Record) -> Option<Step> {
        record.pieces.get(self.piece)?;
        let Some(run) = layer.run_from(record, self.piece) else {
            let (first, (extent, count)) = (self.piece, planar_run(record, self.piece));
            self.piece += count;
            return Some(self.stage(extent, Target::Pieces { first, count }));
        };
        Some(match self.way {
            Way::InPlace => self.next_in_place(&run),
            Way::InBlocks => self.next_in_blocks(&run),
            Way::Staged => self.next_staged(&run),
        })
    }

    fn next_in_place(&mut self, run: &Run) -> Step {
        let (at, extent) = self.next_of_run(run, STRAIGHT_BYTES_MAX);
        let wanted = extent.bytes as usize;
        let bytes = match self.access {
            Access::Buffered => wanted,
            Access::Direct => wanted.next_multiple_of(BLOCK),
        };
        let Extent { file, offset, .. } = extent;
        Step { file, offset, bytes, skip: 0, wanted, target: Target::Slot { at } }
    }

    fn next_in_blocks(&mut self, run: &Run) -> Step {
        let skip = if self.done == 0 { run.skip() } else { 0 };
        let (_, extent) = self.next_of_run(run, STRAIGHT_BYTES_MAX - skip);
        let wanted = extent.bytes as usize;
        let (offset, bytes) =
            (extent.offset - skip as u64, (skip + wanted).next_multiple_of(BLOCK));
        let target = Target::Slot { at: self.block };
        self.block += bytes;
        Step { file: extent.file, offset, bytes, skip, wanted, target }
    }

    fn next_staged(&mut self, run: &Run) -> Step {
        let (at, extent) = self.next_of_run(run, COPIED_BYTES_MAX);
        self.stage(extent, Target::Staging { at })
    }

    /// The next bytes of a run, at most so many, and where in the record they belong.
    fn next_of_run(&mut self, run: &Run, bytes_max: usize) -> (usize, Extent) {
        let (at, offset) = (run.at + self.done, run.extent.offset + self.done as u64);
        let left = run.extent.bytes as usize - self.done;
        let bytes = left.min(bytes_max);
        self.done += bytes;
        if bytes == left {
            (self.piece, self.done) = (run.next, 0);
        }
        (at, Extent { offset, bytes: bytes as u64, ..run.extent })
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

/// Whether a record is read to where it belongs. A direct read needs its place aligned, and padding
/// behind it to round up into.
fn is_straight(access: Access, layer: &LayerRecords, record: &Record) -> bool {
    let layout = &layer.layout;
    // Behind the weights of the two parts is padding up to the next block.
    let ends =
        [layout.gate.bytes() + layout.up.bytes(), layout.first_part_bytes() + layout.down.bytes()];
    let mut piece = 0;
    while piece < record.pieces.len() {
        let Some(run) = layer.run_from(record, piece) else { return false };
        let end = run.at + run.extent.bytes as usize;
        let roomy = end.is_multiple_of(BLOCK) || ends.contains(&end);
        let aligned = run.skip() == 0 && run.at.is_multiple_of(BLOCK) && roomy;
        if access == Access::Direct && !aligned {
            return false;
        }
        piece = run.next;
    }
    true
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
    let layers = catalog.layers.iter().flatten();
    let longest = layers
        .flat_map(|layer| layer.records.iter().map(|record| longest_stage(access, layer, record)));
    longest.max().unwrap_or(0).next_multiple_of(PART_ALIGN)
}

fn longest_stage(access: Access, layer: &LayerRecords, record: &Record) -> usize {
    let mut steps = Steps::new(access, layer, record);
    if steps.way != Way::Staged {
        return 0;
    }
    std::iter::from_fn(|| steps.next(layer, record)).map(|step| step.bytes).max().unwrap_or(0)
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
        record::{MatrixRole, MatrixShape, Piece, PlanarPart, RecordLayout, ScaleSource},
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
        let mut steps = Steps::new(Access::Buffered, &layer, &record);
        let mut found = Vec::new();
        while let Some(step) = steps.next(&layer, &record) {
            assert!(step.bytes <= longest_stage(Access::Buffered, &layer, &record));
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

    #[test]
    fn copies_beside_other_parts_fit_into_staging() {
        let (layer, mut record) = nine_parts(1 << 12, 0);
        let extent = Extent { file: FileIndex(0), offset: 5, bytes: 3 << 20 };
        record.pieces.push(Piece { extent, place: Place::Copy { at: 1 << 16 } });
        for access in [Access::Buffered, Access::Direct] {
            let mut steps = Steps::new(access, &layer, &record);
            let mut copied = 0;
            while let Some(step) = steps.next(&layer, &record) {
                let longest = longest_stage(access, &layer, &record);
                assert!(step.bytes <= longest, "{access:?}: {step:?}");
                copied +=
                    u64::from(matches!(step.target, Target::Staging { .. })) * step.wanted as u64;
            }
            assert_eq!(copied, 3 << 20);
        }
    }

    /// A record of matrices longer than a read may be, at such offsets of one file.
    fn long(offsets: [u64; 3]) -> (LayerRecords, Record) {
        let format = quant::by_name("bf16").expect("a format of the table");
        let shape = MatrixShape { rows: 1025, cols: 8192, format };
        let layout = RecordLayout { gate: shape, up: shape, down: shape };
        let piece = |(offset, role): (u64, MatrixRole)| {
            let extent = Extent { file: FileIndex(0), offset, bytes: shape.bytes() as u64 };
            Piece { extent, place: Place::Copy { at: layout.offset(role) } }
        };
        let pieces = offsets.into_iter().zip(MatrixRole::ALL).map(piece).collect();
        let record = Record { pieces, checksums: None };
        (LayerRecords { layout, records: vec![record.clone()] }, record)
    }

    #[test]
    fn reads_in_blocks_lie_side_by_side_and_bring_every_weight_once() {
        let (layer, record) = long([32, (1 << 30) + 4095, 1 << 31]);
        let blocks = layer.in_blocks(&record).unwrap();
        let mut steps = Steps::new(Access::Direct, &layer, &record);
        assert_eq!(steps.starts(), blocks.starts);
        let (mut end, mut wanted) = (0, Vec::new());
        while let Some(step) = steps.next(&layer, &record) {
            assert_eq!(step.target, Target::Slot { at: end });
            assert!(step.offset.is_multiple_of(4096) && step.bytes.is_multiple_of(4096));
            assert!(step.bytes <= STRAIGHT_BYTES_MAX && step.skip + step.wanted <= step.bytes);
            assert!(step.bytes - step.skip - step.wanted < BLOCK, "no block for nothing");
            wanted.push((step.extent(), end + step.skip));
            end += step.bytes;
        }
        assert_eq!(end, blocks.bytes);
        for (piece, start) in record.pieces.iter().zip(blocks.starts) {
            let (mut offset, mut at) = (piece.extent.offset, start);
            for (extent, lies_at) in wanted.drain(..3) {
                assert_eq!((extent.offset, lies_at), (offset, at));
                (offset, at) = (offset + extent.bytes, at + extent.bytes as usize);
            }
            assert_eq!(offset, piece.extent.offset + piece.extent.bytes);
        }
        assert_eq!(longest_stage(Access::Direct, &layer, &record), 0);
    }

    #[test]
    fn what_is_in_place_needs_no_blocks_and_the_page_cache_neither() {
        let (layer, aligned) = long([0, 1 << 30, 1 << 31]);
        let (_, odd) = long([1, (1 << 30) + 1, (1 << 31) + 1]);
        assert_eq!(Steps::new(Access::Direct, &layer, &aligned).way, Way::InPlace);
        assert_eq!(Steps::new(Access::Direct, &layer, &odd).way, Way::InBlocks);
        assert_eq!(Steps::new(Access::Buffered, &layer, &odd).way, Way::InPlace);
    }
}
