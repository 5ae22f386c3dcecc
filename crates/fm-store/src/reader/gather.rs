//! One record, from reads to a slot that may be trusted: retries, placing, padding, checksums.

use std::{io, time::Instant};

use fm_format::{
    key::ExpertKey,
    record::{Catalog, Extent, MatrixRole, MatrixStarts, Piece, Place, Record},
};

use super::{
    Transfer,
    disk::{Access, Disk},
    steps::{BLOCK, Step, Steps, Target},
};
use crate::error::{RecordPart, StoreError};

/// How often a read is tried before its expert fails.
pub(super) const ATTEMPTS_MAX: u32 = 3;

/// How often a record is read whose checksum is wrong: once more, in case the wrong bit is on the
/// way and not on the disk.
pub(super) const CHECKSUM_ATTEMPTS_MAX: u32 = 2;

/// Why one attempt at a read came to nothing.
#[derive(Debug)]
pub(super) enum Lapse {
    /// The operating system said no.
    Io(io::Error),
    /// The file ended, this many bytes after the start of the step.
    Short(usize),
}

/// One record and what it takes to read it with blocking reads, one after the other.
pub(super) struct Gather<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) catalog: &'a Catalog,
    pub(super) key: ExpertKey,
    pub(super) slot: &'a mut [u8],
    /// As long as [`super::steps::buffer_bytes`].
    pub(super) staging: &'a mut [u8],
    pub(super) transfer: &'a mut Transfer,
}

impl Gather<'_> {
    /// Fills the slot and says where its matrices lie, or why it cannot.
    pub(super) fn read(&mut self) -> Result<MatrixStarts, StoreError> {
        let begun = Instant::now();
        let mut attempt = 1;
        let outcome = loop {
            let read = self.read_steps().and_then(|starts| {
                check(self.catalog, self.key, self.slot)?;
                Ok(starts)
            });
            match read {
                Err(StoreError::Corrupt { .. }) if attempt < CHECKSUM_ATTEMPTS_MAX => {
                    self.transfer.retries += 1;
                }
                outcome => break outcome,
            }
            attempt += 1;
        };
        self.transfer.ns += begun.elapsed().as_nanos() as u64;
        outcome
    }

    fn read_steps(&mut self) -> Result<MatrixStarts, StoreError> {
        let (layer, record) = (self.catalog.layer(self.key.layer), self.catalog.record(self.key));
        let mut steps = Steps::new(self.disk.access(), layer, record);
        while let Some(step) = steps.next(layer, record) {
            self.read_step(&step).map_err(|lapse| failure(self.catalog, self.key, &step, lapse))?;
        }
        Ok(steps.starts())
    }

    /// One step, tried until it succeeds or has failed too often.
    fn read_step(&mut self, step: &Step) -> Result<(), Lapse> {
        let mut attempt = 1;
        while let Err(lapse) = self.read_once(step) {
            if attempt == ATTEMPTS_MAX {
                return Err(lapse);
            }
            self.transfer.retries += 1;
            attempt += 1;
        }
        put(self.catalog, self.key, step, self.staging, self.slot);
        Ok(())
    }

    fn read_once(&mut self, step: &Step) -> Result<(), Lapse> {
        let into = match step.target {
            Target::Slot { at } => &mut self.slot[at..at + step.bytes],
            Target::Staging { .. } | Target::Pieces { .. } => &mut self.staging[..step.bytes],
        };
        let mut filled = 0;
        while filled < step.skip + step.wanted {
            let from = resume_at(self.disk.access(), filled);
            let offset = step.offset + from as u64;
            let read = self.disk.read_at(step.file, offset, &mut into[from..]);
            let read = read.map_err(Lapse::Io)?;
            self.transfer.bytes += read as u64;
            if from + read <= filled {
                return Err(Lapse::Short(filled));
            }
            filled = from + read;
        }
        Ok(())
    }
}

/// Where a read goes on that returned less than it should: direct reads start at a block.
pub(super) fn resume_at(access: Access, filled: usize) -> usize {
    match access {
        Access::Direct => filled / BLOCK * BLOCK,
        Access::Buffered => filled,
    }
}

/// Brings the bytes of a staged step to where they belong in the slot.
pub(super) fn put(catalog: &Catalog, key: ExpertKey, step: &Step, staging: &[u8], slot: &mut [u8]) {
    let (layer, record) = (catalog.layer(key.layer), catalog.record(key));
    let bytes = || &staging[step.skip..step.skip + step.wanted];
    match step.target {
        Target::Slot { .. } => {}
        Target::Staging { at } => {
            let piece = Piece { extent: step.extent(), place: Place::Copy { at } };
            layer.place(&piece, bytes(), slot);
        }
        Target::Pieces { first, count } => {
            let mut rest = bytes();
            for piece in &record.pieces[first..first + count] {
                let (own, others) = rest.split_at(piece.extent.bytes as usize);
                layer.place(piece, own, slot);
                rest = others;
            }
        }
    }
}

/// What a step that failed too often means for its expert.
pub(super) fn failure(catalog: &Catalog, key: ExpertKey, step: &Step, lapse: Lapse) -> StoreError {
    let extent = step.extent();
    let (path, offset) = (catalog.path(extent.file).clone(), extent.offset);
    match lapse {
        Lapse::Io(source) => StoreError::Read {
            key,
            path,
            offset,
            bytes: step.wanted,
            attempts: ATTEMPTS_MAX,
            source,
        },
        Lapse::Short(filled) => StoreError::ShortRead {
            key,
            path,
            offset,
            expected: step.wanted,
            found: filled.saturating_sub(step.skip),
        },
    }
}

/// Compares a record that was read with its checksums, where the catalog has them.
pub(super) fn check(catalog: &Catalog, key: ExpertKey, slot: &[u8]) -> Result<(), StoreError> {
    let (layout, record) = (&catalog.layer(key.layer).layout, catalog.record(key));
    let Some(expected) = record.checksums else { return Ok(()) };
    // Such a record is in place, see `Steps`.
    let down = layout.offset(MatrixRole::Down);
    let found = layout.checksums(slot);
    let parts = [RecordPart::GateUp, RecordPart::Down];
    for (part, (expected, found)) in parts.into_iter().zip(expected.into_iter().zip(found)) {
        if expected != found {
            let extent = extent_of(record, part, down);
            let (path, offset) = (catalog.path(extent.file).clone(), extent.offset);
            return Err(StoreError::Corrupt { key, part, path, offset, expected, found });
        }
    }
    Ok(())
}

/// Where a part of a record begins on disk: its first piece, in the order of the catalog.
fn extent_of(record: &Record, part: RecordPart, down: usize) -> Extent {
    let belongs = |piece: &&Piece| {
        let in_down = match piece.place {
            Place::Copy { at } => at >= down,
            Place::Interleave { role, .. } => role == MatrixRole::Down,
            Place::InTurns { .. } => false,
        };
        in_down == (part == RecordPart::Down)
    };
    // A record that is one piece begins both parts.
    record.pieces.iter().find(belongs).unwrap_or(&record.pieces[0]).extent
}
