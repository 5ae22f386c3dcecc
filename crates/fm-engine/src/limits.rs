//! What the machine can do: bandwidth of its disk and of its memory, measured or remembered.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use fm_format::{
    key::{ExpertIndex, LayerIndex},
    new_file::NewFile,
    quant::{FloatKind, float_format},
    record::{
        Catalog, Extent, FileIndex, LayerRecords, MatrixShape, Piece, Place, Record, RecordLayout,
    },
};
use fm_kernels::{
    WeightBytes,
    cpu::{Level, probe},
};
use fm_store::{Order, PolicyKind, Store, StoreError, StoreOptions, Ticket, reader};
use serde::{Deserialize, Serialize};

use crate::{Places, engine::Planned, memory_plan::OVERHEAD_BYTES};

/// Longest that one probe may take, without the touching of its memory.
const PROBE_TIME: Duration = Duration::from_millis(140);

/// A remembered measurement serves for this long.
const AGE_MAX: Duration = Duration::from_hours(1);

/// Bytes of one probe read: larger ones are no faster on any disk we met.
const READ_BYTES: usize = 2 << 20;

/// Probe reads that are asked for together. As many again are asked for before the last of these have come, so
/// that the disk always has something to do.
const READS_TOGETHER: usize = 4;

/// A file must be at least this long to say something about the disk.
const FILE_BYTES_MIN: u64 = 64 << 20;

/// Memory that is read again and again to measure its bandwidth. A last cache of 32 MB keeps a part of it from pass to
/// pass: with 96 MB that was 9 to 16 % too fast, with this 1 % (`docs/experiments/0065`).
pub const MEMORY_PROBE_BYTES: usize = 256 << 20;

/// Bandwidths of this machine, in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Reading large pieces of the model's files directly.
    pub disk_bytes_per_s: Option<f64>,
    /// Reading memory with all threads.
    pub memory_bytes_per_s: Option<f64>,
    /// How long ago the older of the two was measured.
    pub age_s: f64,
}

#[derive(Serialize, Deserialize)]
struct Remembered {
    measured_at: SystemTime,
    limits: Limits,
}

impl Limits {
    /// Takes what was remembered less than an hour ago, measures the rest (see [`Limits::measure`]) and
    /// remembers it. `memory` says whether [`MEMORY_PROBE_BYTES`] may be allocated.
    pub fn get(
        files: &[PathBuf],
        threads: usize,
        (memory, disk): (ProbeMemory, Watched),
        cache_dir: Option<&Path>,
    ) -> Self {
        let path = cache_dir.map(|dir| dir.join(file_name(files)));
        let known = path.as_deref().and_then(remembered).unwrap_or_default();
        let memory = if known.memory_bytes_per_s.is_some() { ProbeMemory::Leave } else { memory };
        let watched = disk == Watched::Yes && known.disk_bytes_per_s.is_none();
        let measured = Self::measure(if watched { files } else { &[] }, threads, memory);
        if measured == Self::default() {
            return known;
        }
        let limits = Self {
            disk_bytes_per_s: measured.disk_bytes_per_s.or(known.disk_bytes_per_s),
            memory_bytes_per_s: measured.memory_bytes_per_s.or(known.memory_bytes_per_s),
            ..known
        };
        if let Some(path) = path {
            // A measurement that cannot be remembered is made again.
            let _ = remember(&path, limits);
        }
        limits
    }

    /// Those of a planned model's machine, as [`Limits::get`] has them; the disk's only where experts will be read.
    /// To be asked before the model is loaded: the budget has room for the probe then, and the disk nothing else to do.
    pub fn before_loading(planned: &Planned, places: &Places) -> Self {
        let plan = &planned.plan;
        let room = plan.budget >= MEMORY_PROBE_BYTES as u64 + OVERHEAD_BYTES;
        let memory = if room { ProbeMemory::Allocate } else { ProbeMemory::Leave };
        let disk = if plan.store.holds_everything() { Watched::No } else { Watched::Yes };
        Self::get(&planned.files, planned.threads, (memory, disk), places.cache_dir.as_deref())
    }

    /// What the disk reaches: remembered, or measured for 0.14 s and remembered. `None` where the files
    /// say nothing about it.
    pub fn disk(files: &[PathBuf], cache_dir: Option<&Path>) -> Option<f64> {
        let path = cache_dir.map(|dir| dir.join(file_name(files)));
        let known = path.as_deref().and_then(remembered).unwrap_or_default();
        if known.disk_bytes_per_s.is_some() {
            return known.disk_bytes_per_s;
        }
        let disk_bytes_per_s = measure_disk_of(files);
        if let Some(path) = path {
            let _ = remember(&path, Self { disk_bytes_per_s, ..known });
        }
        disk_bytes_per_s
    }

    /// Measures for at most 0.3 s, beside about 0.1 s in which the probe's memory is touched. Without files the disk
    /// is left alone.
    pub fn measure(files: &[PathBuf], threads: usize, memory: ProbeMemory) -> Self {
        Self {
            disk_bytes_per_s: measure_disk_of(files),
            memory_bytes_per_s: match memory {
                ProbeMemory::Allocate => Some(measure_memory(threads)),
                ProbeMemory::Leave => None,
            },
            age_s: 0.0,
        }
    }
}

/// Whether the memory probe may allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeMemory {
    /// It may.
    Allocate,
    /// The budget has no room for it.
    Leave,
}

/// Whether a probe looks at the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// It does.
    Yes,
    /// It has nothing to do with what is measured.
    No,
}

/// Where limits are kept beside those of other disks: the largest of `files` says which disk is meant.
/// One name where the system numbers none, or no file is there.
pub fn file_name(files: &[PathBuf]) -> String {
    match largest(files).and_then(|(_, file)| disk_of(&file)) {
        Some(disk) => format!("limits-{disk:x}.json"),
        None => "limits.json".to_owned(),
    }
}

#[cfg(unix)]
fn disk_of(file: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(file).ok().map(|metadata| metadata.dev())
}

#[cfg(not(unix))]
fn disk_of(_: &Path) -> Option<u64> {
    None
}

fn remembered(path: &Path) -> Option<Limits> {
    latest(path).filter(|limits| limits.age_s < AGE_MAX.as_secs_f64())
}

fn latest(path: &Path) -> Option<Limits> {
    let Remembered { measured_at, mut limits } =
        serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    limits.age_s = SystemTime::now().duration_since(measured_at).ok()?.as_secs_f64();
    Some(limits)
}

fn remember(path: &Path, limits: Limits) -> std::io::Result<()> {
    let measured_at = SystemTime::now() - Duration::from_secs_f64(limits.age_s);
    let text = serde_json::to_vec(&Remembered { measured_at, limits })?;
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let mut file = NewFile::create(path)?; // two programs may measure at once
    file.write_all(&text)?;
    file.finish()
}

/// The longest file, and its bytes.
fn largest(files: &[PathBuf]) -> Option<(u64, PathBuf)> {
    let sized = files.iter().map(|path| (fs::metadata(path).map_or(0, |m| m.len()), path));
    sized.max().map(|(bytes, path)| (bytes, path.clone()))
}

/// Measures the disk that a model's files are on, if they say something about it.
fn measure_disk_of(files: &[PathBuf]) -> Option<f64> {
    let (_, file) = largest(files).filter(|(bytes, _)| *bytes >= FILE_BYTES_MIN)?;
    measure_disk(&file).ok().flatten()
}

/// Direct reads of large pieces from all over a file; `None` if the file system has no direct
/// reads, because the page cache would answer instead of the disk.
fn measure_disk(file: &Path) -> Result<Option<f64>, StoreError> {
    let bytes = fs::metadata(file).map_or(0, |m| m.len());
    let pieces = pieces_in_turn((bytes / READ_BYTES as u64).min(1 << 12) as usize);
    // A record of f32: gate and up a quarter of the read each, down the rest.
    let half = MatrixShape { rows: 1, cols: READ_BYTES / 16, format: float_format(FloatKind::F32) };
    let down = MatrixShape { cols: READ_BYTES / 8, ..half };
    let layout = RecordLayout { gate: half, up: half, down };
    let record = |piece: &usize| {
        let offset = (piece * READ_BYTES) as u64;
        let extent = Extent { file: FileIndex(0), offset, bytes: READ_BYTES as u64 };
        let piece = Piece { extent, place: Place::Copy { at: 0 } };
        Record { pieces: vec![piece], checksums: None }
    };
    let layer = LayerRecords { layout, records: pieces.iter().map(record).collect() };
    let catalog = Arc::new(Catalog { files: vec![file.to_path_buf()], layers: vec![Some(layer)] });
    let options =
        reader::ReaderOptions { io: reader::IoMode::Direct, ..reader::ReaderOptions::default() };
    let Ok((reader, _)) = reader::open(&catalog, options) else { return Ok(None) };
    let slots_bytes = 2 * READS_TOGETHER * READ_BYTES;
    let budget_bytes = reader.staging_bytes() + slots_bytes as u64;
    let store_options =
        StoreOptions { budget_bytes, policy: PolicyKind::Lru, top_k: 1, chunk_bytes: slots_bytes };
    let mut store = Store::open(&catalog, store_options, reader)?;
    let (started, mut records) = (Instant::now(), 0);
    let mut before = None;
    for first in (0..pieces.len()).step_by(READS_TOGETHER) {
        let together = first..pieces.len().min(first + READS_TOGETHER);
        let wanted: Vec<ExpertIndex> = together.map(|i| ExpertIndex(i as u16)).collect();
        let ticket = store.request(LayerIndex(0), &wanted)?;
        records += before.replace(ticket).map_or(Ok(0), |ticket| receive(&mut store, ticket))?;
        if started.elapsed() > PROBE_TIME {
            break;
        }
    }
    records += before.map_or(Ok(0), |ticket| receive(&mut store, ticket))?;
    Ok(Some((records * READ_BYTES) as f64 / started.elapsed().as_secs_f64()))
}

/// The pieces of a file in an order that no read-ahead foresees, each once; an odd last one is left out.
fn pieces_in_turn(count: usize) -> Vec<usize> {
    let half = count / 2;
    // The odd number next above the half of an even one shares no factor with it.
    let stride = half + 1 + half % 2;
    (0..2 * half).map(|i| i * stride % (2 * half)).collect()
}

/// Waits for the records of a request, and says how many there were.
fn receive(store: &mut Store, mut ticket: Ticket) -> Result<usize, StoreError> {
    let mut records = 0;
    while let Some(arrived) = store.next(&mut ticket, Order::Arrival)? {
        arrived.record?;
        records += 1;
    }
    Ok(records)
}

/// Bytes per second that `threads` threads read from memory together, over as many passes as fit
/// the time.
fn measure_memory(threads: usize) -> f64 {
    let level = Level::best();
    let mut bytes = WeightBytes::zeroed(MEMORY_PROBE_BYTES);
    bytes.fill(0x3C);
    let share = bytes.len() / threads.max(1);
    let started = Instant::now();
    let passes = std::thread::scope(|scope| {
        let read_until_late = |part: &[u8]| {
            let mut passes = 0_usize;
            while started.elapsed() < PROBE_TIME / 2 {
                std::hint::black_box(probe::read(level, part));
                passes += 1;
            }
            passes
        };
        let parts = bytes.chunks_exact(share).take(threads.max(1));
        let workers: Vec<_> =
            parts.map(|part| scope.spawn(move || read_until_late(part))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(0)).sum::<usize>()
    });
    (passes * share) as f64 / started.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_remembered_and_forgotten_when_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/limits.json");
        let limits =
            Limits { disk_bytes_per_s: Some(1e9), memory_bytes_per_s: Some(5e10), age_s: 0.0 };
        assert_eq!(remembered(&path), None);
        remember(&path, limits).unwrap();
        let back = remembered(&path).unwrap();
        assert_eq!(back.disk_bytes_per_s, limits.disk_bytes_per_s);
        assert!(back.age_s < 60.0);
        let long_ago = SystemTime::now() - 2 * AGE_MAX;
        let old = serde_json::to_vec(&Remembered { measured_at: long_ago, limits }).unwrap();
        fs::write(&path, old).unwrap();
        assert_eq!(remembered(&path), None);
        let latest = latest(&path).unwrap();
        assert!(latest.memory_bytes_per_s == Some(5e10) && latest.age_s > 7000.0);
        fs::write(&path, "{").unwrap();
        assert_eq!(remembered(&path), None);
    }

    #[test]
    fn the_disk_is_remembered_even_if_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("limits.json");
        let disk = Limits { disk_bytes_per_s: Some(123.0), ..Limits::default() };
        remember(&path, disk).unwrap();
        // No file has to be read for it. The rest is measured when it is asked for.
        assert_eq!(Limits::disk(&[], Some(dir.path())), Some(123.0));
        let probes = (ProbeMemory::Allocate, Watched::Yes);
        let all = Limits::get(&[], 1, probes, Some(dir.path()));
        assert!(all.disk_bytes_per_s == Some(123.0) && all.memory_bytes_per_s.is_some());
        // And what is known is not measured again. Written and read, a float may be the next one.
        let again = Limits::get(&[], 1, probes, Some(dir.path()));
        let bytes_per_s = |limits: Limits| limits.memory_bytes_per_s.unwrap().round();
        assert!((bytes_per_s(again) - bytes_per_s(all)).abs() <= 1.0);
    }

    #[test]
    fn what_is_remembered_grows_older_when_the_rest_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("limits.json");
        let disk = Limits { disk_bytes_per_s: Some(123.0), age_s: 1800.0, ..Limits::default() };
        remember(&path, disk).unwrap();
        let probes = (ProbeMemory::Allocate, Watched::Yes);
        for _ in 0..2 {
            let all = Limits::get(&[], 1, probes, Some(dir.path()));
            assert!(all.memory_bytes_per_s.is_some() && all.age_s >= 1800.0, "{all:?}");
        }
    }

    #[test]
    fn the_disk_is_read_all_over_and_nothing_twice() {
        for count in 32..4_200 {
            let mut pieces = pieces_in_turn(count);
            let far = |pair: &[usize]| pair[0].abs_diff(pair[1]) >= count / 2 - 2;
            assert!(pieces.windows(2).all(far), "{count}");
            pieces.sort_unstable();
            assert!(pieces.iter().copied().eq(0..count / 2 * 2), "{count}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_disk_that_nobody_will_read_from_is_left_alone() {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.as_file().set_len(FILE_BYTES_MIN).unwrap();
        let files = [file.path().to_path_buf()];
        let limits = |disk| Limits::get(&files, 1, (ProbeMemory::Leave, disk), None);
        assert_eq!(limits(Watched::No), Limits::default());
        // Not every file system has direct reads, and without them there is nothing to compare with.
        let direct = measure_disk(&files[0]).unwrap().is_some();
        assert_eq!(limits(Watched::Yes).disk_bytes_per_s.is_some(), direct);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn disks_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let [here, small] = ["here", "small"].map(|name| dir.path().join(name));
        fs::write(&here, [0; 10]).unwrap();
        fs::write(&small, [0; 9]).unwrap();
        // The kernel's own file systems are never on a disk.
        let elsewhere = PathBuf::from("/proc/self/status");
        let own = file_name(std::slice::from_ref(&here));
        assert_eq!(own, file_name(&[small.clone(), here.clone()]));
        assert_ne!(own, file_name(&[elsewhere]));
        let disk = Limits { disk_bytes_per_s: Some(123.0), ..Limits::default() };
        remember(&dir.path().join(own), disk).unwrap();
        assert_eq!(Limits::disk(&[here], Some(dir.path())), Some(123.0));
        assert_eq!(Limits::disk(&[PathBuf::from("/proc/self/status")], Some(dir.path())), None);
    }

    #[test]
    fn a_small_file_says_nothing_about_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("small");
        fs::write(&path, [0; 4096]).unwrap();
        let limits = Limits::get(&[path], 1, (ProbeMemory::Leave, Watched::Yes), None);
        assert_eq!(limits, Limits::default());
    }
}
