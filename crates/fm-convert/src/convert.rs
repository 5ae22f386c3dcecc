//! A conversion from beginning to end.
//!
//! Every file is written under a temporary name, synced, renamed, and only then noted in the
//! journal; the manifest follows when all are there, and the journal goes when the manifest is.
//! So at any moment the directory is empty, or resumable, or a container.

use std::path::Path;

use fm_format::{
    container::{
        EXPERTS, JOURNAL, MANIFEST, TRUNK, layer_file,
        manifest::{Contents, LayerEntry, Manifest, PartChecksums},
    },
    key::LayerIndex,
    record::LayerRecords,
};

use crate::{
    disk::{Disk, RealDisk},
    error::ConvertError,
    journal::{Done, Finished, Journal},
    output::{self, State},
    progress::{Meter, OnProgress, Phase},
    records::each_batch,
    source::{Source, existing_ancestor, is_inside},
    staged::{self, Staged, refusal},
    trunk::Trunk,
};

/// Bytes of records in memory at once, twice: one batch is read while another is written.
///
/// 64 MiB leaves the processor's caches before it is written and was a fifth slower (5.1 GB from
/// memory into memory, two cores); 4 MiB gained another tenth there and costs seeks elsewhere.
pub const BUFFER_BYTES: usize = 16 << 20;

/// What to convert, and where to.
#[derive(Clone, Copy, Debug)]
pub struct Conversion<'a> {
    /// A published checkpoint; it is never changed.
    pub checkpoint: &'a Path,
    /// A directory that is empty, absent, or a conversion of the same checkpoint that was
    /// interrupted or has lost files.
    pub out: &'a Path,
    /// See [`BUFFER_BYTES`]; a single record may be longer.
    pub buffer_bytes: usize,
}

/// How a conversion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The container is complete.
    Converted {
        /// Bytes of its files, without the manifest.
        bytes: u64,
        /// Bytes of those that an earlier, interrupted run had finished.
        bytes_resumed: u64,
    },
    /// It was complete before.
    AlreadyDone,
}

impl Conversion<'_> {
    /// Makes the container, or writes what one of the same checkpoint lacks: it was begun only, or
    /// files are gone or of another length. The same checkpoint gives the same
    /// bytes, however often the work was interrupted.
    ///
    /// # Errors
    /// If the checkpoint cannot be read or run, if `out` is somebody else's or too small, or if
    /// `report` asks to stop. All but the first two can be resumed.
    pub fn run(&self, report: &mut OnProgress<'_>) -> Result<Outcome, ConvertError> {
        self.run_on(&RealDisk, report)
    }

    /// The same on another file system.
    ///
    /// # Errors
    /// As [`Conversion::run`].
    pub fn run_on(
        &self,
        disk: &dyn Disk,
        report: &mut OnProgress<'_>,
    ) -> Result<Outcome, ConvertError> {
        let out = self.out;
        let source = Source::open(self.checkpoint)?;
        if is_inside(out, self.checkpoint) {
            let (out, checkpoint) = (out.into(), self.checkpoint.into());
            return Err(ConvertError::InsideSource { out, checkpoint });
        }
        let trunk = Trunk::new(&source.checkpoint, &source.spec.trunk_tensors);
        let bytes = trunk.bytes
            + source.copied.iter().map(|file| file.entry.bytes).sum::<u64>()
            + source.spec.catalog.bytes();
        let manifest_bytes = manifest_bytes(&source);
        if !out.exists() {
            require_space(disk, out, bytes + manifest_bytes)?;
            disk.create_dir(out).map_err(|error| refusal(out, 0, error))?;
            staged::sync_parent(disk, out)?;
        }
        let _lock = output::lock(out)?;
        let layers = source.spec.layers.len();
        let finished = match output::inspect(out, layers)? {
            State::Empty => Vec::new(),
            State::Begun(print, finished) if print == source.fingerprint => finished,
            State::Finished(print) if print == source.fingerprint => {
                remove_journal(disk, out)?;
                return Ok(Outcome::AlreadyDone);
            }
            State::Begun(..) | State::Finished(_) => {
                return Err(ConvertError::OtherSource { out: out.into() });
            }
        };
        output::remove_partials(disk, out, layers)?;
        let bytes_resumed = finished.iter().map(Finished::bytes).sum();
        require_space(disk, out, bytes.saturating_sub(bytes_resumed) + manifest_bytes)?;
        let journal = Journal::begin(disk, out, source.fingerprint, &finished)?;
        remove_manifest(disk, out)?;
        let mut done = Done::default();
        finished.into_iter().for_each(|finished| done.add(finished));
        let mut meter = Meter::new(bytes, report);
        meter.resume(bytes_resumed);
        Run { disk, out, source: &source, journal, done, meter }
            .finish(&trunk, self.buffer_bytes)?;
        Ok(Outcome::Converted { bytes, bytes_resumed })
    }
}

/// The journal has done its duty once there is a manifest.
fn remove_journal(disk: &dyn Disk, out: &Path) -> Result<(), ConvertError> {
    remove(disk, out, JOURNAL)
}

/// A container that has lost files is none until they are back; its journal knows the others.
fn remove_manifest(disk: &dyn Disk, out: &Path) -> Result<(), ConvertError> {
    remove(disk, out, MANIFEST)
}

fn remove(disk: &dyn Disk, out: &Path, name: &str) -> Result<(), ConvertError> {
    let path = out.join(name);
    if path.exists() {
        disk.remove(&path).map_err(|error| refusal(&path, 0, error))?;
        disk.sync_dir(out).map_err(|error| refusal(out, 0, error))?;
    }
    Ok(())
}

fn require_space(disk: &dyn Disk, out: &Path, needed: u64) -> Result<(), ConvertError> {
    let existing = existing_ancestor(out);
    let free = disk
        .free_bytes(existing)
        .map_err(|source| ConvertError::Read { path: existing.into(), source })?;
    if free < needed {
        Err(ConvertError::NoSpace { out: out.into(), needed, free })
    } else {
        Ok(())
    }
}

/// More than manifest and journal take up together, and what a file system needs for names.
fn manifest_bytes(source: &Source) -> u64 {
    let records: usize = source.layers().map(|(_, layer)| layer.records.len()).sum();
    let names: usize = source.spec.trunk_tensors.iter().map(|name| name.len() + 32).sum();
    let layers = source.spec.layers.len() * 1024;
    2 * (64 * records + names + layers) as u64 + (1 << 20)
}

/// A conversion under way.
struct Run<'a> {
    disk: &'a dyn Disk,
    out: &'a Path,
    source: &'a Source,
    journal: Journal,
    done: Done,
    meter: Meter<'a>,
}

impl Run<'_> {
    fn finish(mut self, trunk: &Trunk<'_>, buffer_bytes: usize) -> Result<(), ConvertError> {
        self.meter.enter(Phase::Files)?;
        self.copy_files()?;
        self.meter.enter(Phase::Trunk)?;
        self.write_trunk(trunk)?;
        self.write_layers(buffer_bytes)?;
        self.meter.enter(Phase::Manifest)?;
        self.write_manifest()
    }

    fn copy_files(&mut self) -> Result<(), ConvertError> {
        for file in &self.source.copied {
            if self.done.files.contains_key(file.name) {
                continue;
            }
            let path = self.out.join(file.name);
            self.make_parent(&path)?;
            let meter = &mut self.meter;
            let entry = staged::write_file(self.disk, &path, |to| {
                file.each_chunk(|chunk| {
                    to.write(chunk)?;
                    meter.advance(chunk.len() as u64)
                })
            })?;
            self.note(Finished::File { name: file.name.to_owned(), entry })?;
        }
        Ok(())
    }

    /// Makes the directory that a file goes into, if it is not there.
    fn make_parent(&self, path: &Path) -> Result<(), ConvertError> {
        let Some(parent) = path.parent().filter(|parent| !parent.exists()) else { return Ok(()) };
        self.disk.create_dir(parent).map_err(|error| refusal(parent, 0, error))?;
        self.disk.sync_dir(self.out).map_err(|error| refusal(self.out, 0, error))
    }

    fn write_trunk(&mut self, trunk: &Trunk<'_>) -> Result<(), ConvertError> {
        if self.done.trunk.is_some() {
            return Ok(());
        }
        let (files, meter) = (&self.source.files, &mut self.meter);
        let path = self.out.join(TRUNK);
        let entry = staged::write_file(self.disk, &path, |to| trunk.write(files, to, meter))?;
        self.note(Finished::Trunk(entry))
    }

    fn write_layers(&mut self, buffer_bytes: usize) -> Result<(), ConvertError> {
        let experts = self.out.join(EXPERTS);
        if self.source.layers().next().is_some() {
            self.make_parent(&experts.join(layer_file(0)))?;
        }
        let source = self.source;
        for (index, layer) in source.layers() {
            if self.done.layers.contains_key(&index) {
                continue;
            }
            self.meter.enter(Phase::Experts(LayerIndex(index as u16)))?;
            let path = experts.join(layer_file(index));
            let checksums = staged::write_file(self.disk, &path, |to| {
                self.write_records(layer, buffer_bytes, to)
            })?;
            let entry = LayerEntry::new(index, &layer.layout, checksums);
            self.note(Finished::Layer { layer: index, entry })?;
        }
        Ok(())
    }

    fn write_records(
        &mut self,
        layer: &LayerRecords,
        buffer_bytes: usize,
        to: &mut Staged,
    ) -> Result<Vec<PartChecksums>, ConvertError> {
        let meter = &mut self.meter;
        let mut checksums = Vec::with_capacity(layer.records.len());
        each_batch(&self.source.files, layer, buffer_bytes, |_, batch| {
            let records = batch.chunks_exact(layer.layout.bytes());
            checksums.extend(records.map(|record| PartChecksums(layer.layout.checksums(record))));
            to.write(batch)?;
            meter.advance(batch.len() as u64)
        })?;
        Ok(checksums)
    }

    fn note(&mut self, finished: Finished) -> Result<(), ConvertError> {
        self.journal.add(&finished)?;
        self.done.add(finished);
        Ok(())
    }

    fn write_manifest(self) -> Result<(), ConvertError> {
        let Self { disk, out, source, done: Done { files, trunk, mut layers }, .. } = self;
        let manifest = Manifest::from(Contents {
            model_type: source.spec.model_type.to_owned(),
            publisher: source.spec.publisher.name().to_owned(),
            source: source.fingerprint,
            files,
            trunk: trunk.expect("the trunk was written before"),
            layers: (0..source.spec.layers.len()).map(|layer| layers.remove(&layer)).collect(),
        });
        staged::write_file(disk, &out.join(MANIFEST), |to| to.write(&manifest.to_text()))?;
        remove_journal(disk, out)
    }
}
