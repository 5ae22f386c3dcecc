//! A verification under way.

use std::{collections::BTreeMap, fs, path::PathBuf};

use fm_format::{
    container::{
        Container,
        manifest::{Checksum, Manifest},
    },
    key::{ExpertIndex, ExpertKey, LayerIndex},
    record::{Catalog, LayerRecords, MatrixRole, Place},
    source::{Checkpoint, Files, safetensors},
};
use xxhash_rust::xxh3::xxh3_64;

use super::{Checked, Part, Report, Sums};
use crate::{
    BUFFER_BYTES,
    error::ConvertError,
    progress::{Meter, OnProgress, Phase},
    records::each_batch,
    source::each_file_chunk,
    trunk::each_chunk,
};

/// What to compare with what.
pub(super) struct Check<'a> {
    checkpoint: &'a Checkpoint,
    catalog: &'a Catalog,
    known: Known<'a>,
    files: Files,
    meter: Meter<'a>,
    report: Report,
}

/// Checksums, by name; those of the records are in the catalog.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    /// Of the trunk.
    pub(super) tensors: &'a BTreeMap<String, Checksum>,
    /// Of the small files.
    pub(super) files: &'a BTreeMap<String, Checksum>,
}

impl<'a> Check<'a> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        catalog: &'a Catalog,
        known: Known<'a>,
        report: &'a mut OnProgress<'_>,
    ) -> Self {
        let tensors = known.tensors.keys();
        let trunk: u64 = tensors.map(|name| checkpoint.tensors[name].extent.bytes).sum();
        let length = |name| fs::metadata(checkpoint.path.join(name)).map_or(0, |file| file.len());
        let bytes = trunk + catalog.bytes() + known.files.keys().map(length).sum::<u64>();
        let (files, meter) = (Files::new(catalog.files.clone()), Meter::new(bytes, report));
        Self { checkpoint, catalog, known, files, meter, report: Report::default() }
    }

    pub(super) fn run(mut self) -> Result<Report, ConvertError> {
        self.meter.enter(Phase::Files)?;
        self.check_files()?;
        if let Some(manifest) = manifest(self.checkpoint) {
            self.check_header(manifest)?;
        }
        self.meter.enter(Phase::Trunk)?;
        self.check_trunk()?;
        let layers = (0..).zip(&self.catalog.layers);
        for (index, layer) in layers.filter_map(|(index, layer)| Some((index, layer.as_ref()?))) {
            self.meter.enter(Phase::Experts(LayerIndex(index)))?;
            self.check_layer(LayerIndex(index), layer)?;
        }
        Ok(self.report)
    }

    fn check_files(&mut self) -> Result<(), ConvertError> {
        for (name, expected) in self.known.files {
            let path = self.checkpoint.path.join(name);
            let meter = &mut self.meter;
            let found = each_file_chunk(&path, |chunk| meter.advance(chunk.len() as u64))?;
            self.report.files += 1;
            self.report.bytes += found.bytes;
            let sums = Sums { expected: *expected, found: found.xxh3 };
            self.report.compare(sums, || (Checked::File, path, 0));
        }
        Ok(())
    }

    fn check_header(&mut self, manifest: &Manifest) -> Result<(), ConvertError> {
        let path = &self.checkpoint.files[0];
        let header = safetensors::header_text(path)?;
        self.report.bytes += 8 + header.len() as u64;
        let found = Checksum(xxh3_64(&header));
        let sums = Sums { expected: manifest.trunk.header, found };
        self.report.compare(sums, || (Checked::TrunkHeader, path.clone(), 8));
        Ok(())
    }

    fn check_trunk(&mut self) -> Result<(), ConvertError> {
        for (name, expected) in self.known.tensors {
            let extent = self.checkpoint.tensors[name].extent;
            let meter = &mut self.meter;
            let found = each_chunk(&self.files, extent, |chunk| meter.advance(chunk.len() as u64))?;
            self.report.tensors += 1;
            self.report.bytes += extent.bytes;
            self.report.compare(Sums { expected: *expected, found }, || {
                let path = self.catalog.path(extent.file).clone();
                (Checked::Tensor { name: name.clone() }, path, extent.offset)
            });
        }
        Ok(())
    }

    fn check_layer(&mut self, index: LayerIndex, layer: &LayerRecords) -> Result<(), ConvertError> {
        let (report, meter, catalog) = (&mut self.report, &mut self.meter, self.catalog);
        each_batch(&self.files, layer, BUFFER_BYTES, |first, batch| {
            for (at, bytes) in batch.chunks_exact(layer.layout.bytes()).enumerate() {
                let expert = ExpertIndex((first + at) as u16);
                check_record(report, catalog, ExpertKey { layer: index, expert }, bytes);
            }
            meter.advance(batch.len() as u64)
        })
    }
}

fn manifest(checkpoint: &Checkpoint) -> Option<&Manifest> {
    checkpoint.container.as_ref().map(|Container { manifest, .. }| manifest)
}

fn check_record(report: &mut Report, catalog: &Catalog, key: ExpertKey, bytes: &[u8]) {
    let layout = catalog.layer(key.layer).layout;
    let expected = catalog.record(key).checksums.expect("verification begins with checksums");
    let found = layout.checksums(bytes);
    let (first, second) = bytes.split_at(layout.first_part_bytes());
    let weights = [layout.gate.bytes() + layout.up.bytes(), layout.down.bytes()];
    for (i, (part, bytes)) in [(Part::GateUp, first), (Part::Down, second)].iter().enumerate() {
        let (key, part) = (key, *part);
        let sums = Sums { expected: Checksum(expected[i]), found: Checksum(found[i]) };
        report.compare(sums, || {
            let (path, offset) = origin(catalog, key, part);
            (Checked::Part { key, part }, path, offset)
        });
        let padding = &bytes[weights[i]..];
        let zeros = Checksum(xxh3_64(&vec![0; padding.len()]));
        report.compare(Sums { expected: zeros, found: Checksum(xxh3_64(padding)) }, || {
            let (path, offset) = origin(catalog, key, part);
            (Checked::Padding { key, part }, path, offset + weights[i] as u64)
        });
    }
    report.records += 1;
    report.parts += 2;
    report.bytes += catalog.record(key).file_bytes();
}

/// Where a part begins on disk: in a container inside the record, in a published checkpoint with
/// its first piece.
fn origin(catalog: &Catalog, key: ExpertKey, part: Part) -> (PathBuf, u64) {
    let first_part_bytes = catalog.layer(key.layer).layout.first_part_bytes();
    let pieces = &catalog.record(key).pieces;
    let begins = |place| match place {
        Place::Copy { at } if at < first_part_bytes => Part::GateUp,
        Place::InTurns { .. }
        | Place::Interleave { role: MatrixRole::Gate | MatrixRole::Up, .. } => Part::GateUp,
        Place::Copy { .. } | Place::Interleave { .. } => Part::Down,
    };
    let own = pieces.iter().find(|piece| begins(piece.place) == part);
    // A piece that holds both begins with the first.
    let (extent, skipped) =
        own.map_or((pieces[0].extent, first_part_bytes as u64), |piece| (piece.extent, 0));
    (catalog.path(extent.file).clone(), extent.offset + skipped)
}
