//! A verification under way.

use std::{collections::BTreeMap, path::PathBuf};

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
    tensors: &'a BTreeMap<String, Checksum>,
    files: Files,
    meter: Meter<'a>,
    report: Report,
}

impl<'a> Check<'a> {
    /// `catalog` has the checksums of the records, `tensors` those of the trunk.
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        catalog: &'a Catalog,
        tensors: &'a BTreeMap<String, Checksum>,
        report: &'a mut OnProgress<'_>,
    ) -> Self {
        let trunk: u64 = tensors.keys().map(|name| checkpoint.tensors[name].extent.bytes).sum();
        let files = manifest(checkpoint).into_iter().flat_map(|manifest| manifest.files.values());
        let bytes = trunk + catalog.bytes() + files.map(|file| file.bytes).sum::<u64>();
        let (files, meter) = (Files::new(catalog.files.clone()), Meter::new(bytes, report));
        Self { checkpoint, catalog, tensors, files, meter, report: Report::default() }
    }

    pub(super) fn run(mut self) -> Result<Report, ConvertError> {
        if let Some(manifest) = manifest(self.checkpoint) {
            self.meter.enter(Phase::Files)?;
            self.check_files(manifest)?;
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

    fn check_files(&mut self, manifest: &Manifest) -> Result<(), ConvertError> {
        for (name, entry) in &manifest.files {
            let path = self.checkpoint.path.join(name);
            let meter = &mut self.meter;
            let found = each_file_chunk(&path, |chunk| meter.advance(chunk.len() as u64))?;
            self.report.files += 1;
            self.report.bytes += found.bytes;
            let sums = Sums { expected: entry.xxh3, found: found.xxh3 };
            self.report.compare(sums, || (Checked::File, path, 0));
        }
        let path = &self.checkpoint.files[0];
        let header = safetensors::header_text(path)?;
        self.report.bytes += 8 + header.len() as u64;
        let found = Checksum(xxh3_64(&header));
        let sums = Sums { expected: manifest.trunk.header, found };
        self.report.compare(sums, || (Checked::TrunkHeader, path.clone(), 8));
        Ok(())
    }

    fn check_trunk(&mut self) -> Result<(), ConvertError> {
        for (name, expected) in self.tensors {
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
