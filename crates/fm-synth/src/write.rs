//! Puts a checkpoint on disk: checks first, then file by file, the configuration last.

use std::{
    fs::{self, File},
    io::{self, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use fm_format::new_file::sync_dir;
use serde_json::Value;

use crate::{
    Progress, Synth,
    config_json::{config, generation_config},
    error::SynthError,
    layout::{Content, Layout, Tensor},
    shard::{self, SHARD_BYTES, Shard},
    tape::Tape,
};

/// Rows are made and written in pieces of about this many bytes.
const CHUNK_BYTES: usize = 4 << 20;

/// See [`Synth::write`].
pub(crate) fn write(
    synth: &Synth<'_>,
    dir: &Path,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), SynthError> {
    write_sharded(synth, dir, SHARD_BYTES, progress)
}

fn write_sharded(
    synth: &Synth<'_>,
    dir: &Path,
    shard_bytes: u64,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), SynthError> {
    let available = prepare(dir)?;
    let (tensors, routers) = Layout::of(synth);
    let shards = shard::shards(&tensors, shard_bytes);
    let needed: u64 = tensors.iter().map(Tensor::bytes).sum();
    if needed > available {
        return Err(SynthError::DiskFull { path: dir.into(), needed, available });
    }
    let mut files = NewFiles::begin(dir)?;
    let format = if synth.bits.is_plain() { "pt" } else { "mlx" };
    let mut bytes = Bytes {
        synth,
        tape: synth.tape(),
        chunk: Vec::new(),
        progress: Progress { bytes_done: 0, bytes_total: needed },
        report: progress,
    };
    for Shard { file, tensors: range } in &shards {
        let tensors = &tensors[range.clone()];
        files.add(file, |out| {
            out.write_all(&shard::header(tensors, format))?;
            tensors.iter().try_for_each(|tensor| bytes.write(tensor, out))
        })?;
    }
    files.add_json("model.safetensors.index.json", &shard::index(&tensors, &shards))?;
    files.add_json("generation_config.json", &generation_config(synth))?;
    files.add_json("config.json", &config(synth, &routers))?; // what makes it a checkpoint
    files.keep()
}

/// Refuses a directory with something in it; bytes that may be written where it is or will be.
fn prepare(dir: &Path) -> Result<u64, SynthError> {
    let io_error = |source| SynthError::Io { path: dir.into(), source };
    match fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Ok(false) => return Err(SynthError::Occupied { path: dir.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(SynthError::Occupied { path: dir.into() });
        }
        Err(error) => return Err(io_error(error)),
    }
    let whole = std::path::absolute(dir).map_err(io_error)?;
    let existing = whole.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    fs4::available_space(existing).map_err(io_error)
}

/// What was just written should not push anything out of the page cache, and a measurement that
/// follows should begin with the disk. Advice: may fail, and is given where it is understood.
fn leave_page_cache(file: &File) {
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Makes the bytes of tensors and reports on them.
struct Bytes<'a> {
    synth: &'a Synth<'a>,
    tape: Tape,
    chunk: Vec<u8>,
    progress: Progress,
    report: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
}

impl Bytes<'_> {
    fn write(&mut self, tensor: &Tensor, out: &mut File) -> Result<(), Stop> {
        let (matrix, part) = match &tensor.content {
            Content::Small(bytes) => {
                out.write_all(bytes)?;
                return self.count(bytes.len());
            }
            Content::Rows(matrix, part) => (matrix, *part),
        };
        let row_bytes = matrix.row_bytes(part);
        let rows_max = (CHUNK_BYTES / row_bytes).max(1);
        let mut first = 0;
        while first < matrix.rows {
            let rows = rows_max.min(matrix.rows - first);
            self.chunk.resize(rows * row_bytes, 0);
            matrix.write(&self.tape, self.synth.seed, part, first, &mut self.chunk);
            out.write_all(&self.chunk)?;
            self.count(rows * row_bytes)?;
            first += rows;
        }
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), Stop> {
        self.progress.bytes_done += bytes as u64;
        match (self.report)(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stop::Asked(self.progress)),
        }
    }
}

/// Why a file was not finished.
enum Stop {
    Failed(io::Error),
    Asked(Progress),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Files that are removed again unless all of them were written.
struct NewFiles<'a> {
    dir: &'a Path,
    created_dir: bool,
    paths: Vec<PathBuf>,
}

impl<'a> NewFiles<'a> {
    fn begin(dir: &'a Path) -> Result<Self, SynthError> {
        let created_dir = !dir.is_dir();
        fs::create_dir_all(dir).map_err(|source| SynthError::Io { path: dir.into(), source })?;
        Ok(Self { dir, created_dir, paths: Vec::new() })
    }

    /// Writes a file under a temporary name, flushes it to the disk and gives it its own.
    fn add(
        &mut self,
        name: &str,
        fill: impl FnOnce(&mut File) -> Result<(), Stop>,
    ) -> Result<(), SynthError> {
        let (path, temporary) = (self.dir.join(name), self.dir.join(format!("{name}.partial")));
        let written = File::create_new(&temporary).map_err(Stop::Failed).and_then(|mut file| {
            // Not before: it may be somebody else's.
            self.paths.push(temporary.clone());
            fill(&mut file)?;
            file.sync_all()?;
            leave_page_cache(&file);
            Ok(fs::rename(&temporary, &path)?)
        });
        match written {
            Ok(()) => {
                self.paths.push(path);
                Ok(())
            }
            Err(Stop::Failed(source)) => Err(SynthError::Io { path, source }),
            Err(Stop::Asked(Progress { bytes_done, bytes_total })) => {
                Err(SynthError::Cancelled { bytes_done, bytes_total })
            }
        }
    }

    fn add_json(&mut self, name: &str, value: &Value) -> Result<(), SynthError> {
        self.add(name, |file| Ok(file.write_all(format!("{value:#}\n").as_bytes())?))
    }

    fn keep(mut self) -> Result<(), SynthError> {
        self.paths.clear();
        self.created_dir = false;
        sync_dir(self.dir).map_err(|source| SynthError::Io { path: self.dir.into(), source })
    }
}

impl Drop for NewFiles<'_> {
    fn drop(&mut self) {
        // The error that brought us here is the one to report.
        for path in &self.paths {
            let _ = fs::remove_file(path);
        }
        if self.created_dir {
            let _ = fs::remove_dir(self.dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bits, GEOMETRIES, Geometry};
    use fm_format::source::Checkpoint;
    use fm_model::arch::describe;

    /// Headers and configuration as they would be written, over files without data.
    fn outline(synth: &Synth<'_>, dir: &Path, shard_bytes: u64) {
        let (tensors, routers) = Layout::of(synth);
        let shards = shard::shards(&tensors, shard_bytes);
        for Shard { file, tensors: range } in &shards {
            let tensors = &tensors[range.clone()];
            let header = shard::header(tensors, "mlx");
            let mut file = File::create(dir.join(file)).unwrap();
            file.write_all(&header).unwrap();
            let data: u64 = tensors.iter().map(Tensor::bytes).sum();
            file.set_len(header.len() as u64 + data).unwrap();
        }
        let json = |name: &str, value: Value| fs::write(dir.join(name), value.to_string()).unwrap();
        json("model.safetensors.index.json", shard::index(&tensors, &shards));
        json("config.json", config(synth, &routers));
    }

    #[test]
    fn the_engine_accepts_every_true_geometry_in_every_width() {
        for geometry in &GEOMETRIES {
            for bits in [2, 3, 4, 5, 6, 8, 16] {
                let dir = tempfile::tempdir().unwrap();
                let bits = Bits::new(bits).unwrap();
                let synth = Synth::new(geometry, 5, bits, 1).unwrap();
                outline(&synth, dir.path(), SHARD_BYTES);
                let checkpoint = Checkpoint::open(dir.path()).unwrap();
                assert_eq!(checkpoint.bytes(), synth.bytes());
                let spec = describe(&checkpoint).unwrap_or_else(|error| {
                    panic!("{} in {bits:?}: {error}", geometry.name);
                });
                assert_eq!(spec.layers.len(), 5);
                assert_eq!(spec.context_max as usize, geometry.context_max);
            }
        }
    }

    #[test]
    fn what_somebody_else_writes_meanwhile_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("a.partial");
        fs::write(&theirs, "theirs").unwrap();
        let mut files = NewFiles::begin(dir.path()).unwrap();
        assert!(files.add("a", |_| Ok(())).is_err());
        drop(files);
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    }

    #[test]
    fn an_expert_has_the_bytes_of_a_published_one() {
        // Sizes of the files that flash-moe's first version packs from the published models.
        for (name, bits, bytes) in [
            ("qwen3.5-397b", 4, 7_077_888),
            ("qwen3.5-397b", 2, 3_932_160),
            ("qwen3.5-35b", 4, 1_769_472),
        ] {
            let geometry = Geometry::by_name(name).unwrap();
            let synth = Synth::new(geometry, 1, Bits::new(bits).unwrap(), 1).unwrap();
            let (tensors, _) = Layout::of(&synth);
            let experts = tensors.iter().filter(|tensor| tensor.name.contains("switch_mlp"));
            assert_eq!(experts.map(Tensor::bytes).sum::<u64>(), bytes * geometry.experts as u64);
        }
    }

    #[test]
    fn shards_are_filled_in_order_and_none_outgrows_the_limit() {
        let geometry = Geometry::by_name("qwen3.5-35b").unwrap();
        let synth = Synth::new(geometry, 40, Bits::new(16).unwrap(), 1).unwrap();
        let (tensors, _) = Layout::of(&synth);
        let shards = shard::shards(&tensors, SHARD_BYTES);
        let mut next = 0;
        for Shard { tensors: range, .. } in &shards {
            assert_eq!(range.start, next);
            next = range.end;
            let bytes: u64 = tensors[range.clone()].iter().map(Tensor::bytes).sum();
            assert!(bytes <= SHARD_BYTES, "{bytes}");
            let following = tensors.get(range.end).map_or(u64::MAX, Tensor::bytes);
            assert!(bytes.saturating_add(following) > SHARD_BYTES, "{bytes} leave room");
        }
        assert_eq!(next, tensors.len());
        assert_eq!(shards[0].file, format!("model-00001-of-{:05}.safetensors", shards.len()));
    }
}
