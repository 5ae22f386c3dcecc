//! What a run used, kept for the next run of the same model: `docs/experiments/0032-warm-start.md`.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use fm_format::record::Catalog;
use fm_store::heat::{Heat, Unusable};

/// How often a run leaves word: one that is killed, or whose machine goes dark, is forgotten from there on.
const KEPT_EVERY: Duration = Duration::from_mins(1);

/// Whether a run learns from those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmStart {
    /// Every run is the first.
    Off,
    /// What was used is kept in the cache directory.
    On,
}

/// Names of [`WarmStart`], in its order.
const NAMES: [(WarmStart, &str); 2] = [(WarmStart::Off, "off"), (WarmStart::On, "on")];

impl WarmStart {
    /// All names, for help.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|row| row.1)
    }

    /// Finds one by name.
    pub fn by_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|row| row.1 == name).map(|row| row.0)
    }
}

/// Why a file of heat was not used.
#[derive(Debug, thiserror::Error)]
#[error("{} does not say what earlier runs used: {source}", path.display())]
pub struct HeatIgnored {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub source: Unusable,
}

/// The file of one model.
#[derive(Clone, Debug)]
pub(crate) struct HeatFile {
    path: PathBuf,
    model: u128,
}

impl HeatFile {
    /// Where the heat of the weights with this fingerprint is.
    pub(crate) fn new(cache_dir: &Path, model: u128) -> Self {
        Self { path: cache_dir.join("heat").join(format!("{model:032x}")), model }
    }

    /// What it says; nothing before the first run ends.
    pub(crate) fn read(&self, catalog: &Catalog) -> Result<Option<Heat>, HeatIgnored> {
        let Ok(bytes) = fs::read(&self.path) else { return Ok(None) };
        let layers = catalog.layers.iter();
        let experts: Vec<usize> =
            layers.map(|layer| layer.as_ref().map_or(0, |layer| layer.records.len())).collect();
        let heat = Heat::from_bytes(&bytes, self.model, &experts);
        heat.map(Some).map_err(|source| HeatIgnored { path: self.path.clone(), source })
    }

    /// Replaces it as a whole. Two runs that end at once leave what one of them used.
    pub(crate) fn write(&self, heat: &Heat) -> io::Result<()> {
        // A name of its own: other engines write too, in this process as well.
        let name = RandomState::new().hash_one(0);
        let temporary = self.path.with_extension(format!("{name:016x}.new"));
        fs::create_dir_all(self.path.parent().unwrap_or(Path::new(".")))?;
        let written = fs::write(&temporary, heat.to_bytes(self.model))
            .and_then(|()| fs::rename(&temporary, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

/// Leaves word of what a run uses, now and then and in the end.
#[derive(Debug)]
pub(crate) struct HeatKeeper {
    file: HeatFile,
    due: Instant,
}

impl HeatKeeper {
    /// For a run that begins `now`.
    pub(crate) fn new(file: HeatFile, now: Instant) -> Self {
        Self { file, due: now + KEPT_EVERY }
    }

    /// Leaves word if it is time; 40 KB of 10,000 experts are no wait.
    pub(crate) fn look(&mut self, now: Instant, heat: impl FnOnce() -> Option<Heat>) {
        if now >= self.due {
            self.due = now + KEPT_EVERY;
            self.keep(heat());
        }
    }

    /// Leaves word. Without it the next run starts cold, which costs a few reads.
    pub(crate) fn keep(&self, heat: Option<Heat>) {
        if let Some(heat) = heat {
            let _ = self.file.write(&heat);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_left_once_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let file = HeatFile::new(dir.path(), 7);
        let begun = Instant::now();
        let mut keeper = HeatKeeper::new(file.clone(), begun);
        let at = |seconds| begun + Duration::from_secs(seconds);
        let heat = |heat| Some(Heat { layers: vec![vec![heat; 3]] });
        let left =
            || fs::read(&file.path).ok().map(|bytes| Heat::from_bytes(&bytes, 7, &[3]).unwrap());
        keeper.look(at(59), || heat(1.0));
        assert_eq!(left(), None);
        keeper.look(at(60), || heat(2.0));
        assert_eq!(left(), heat(2.0));
        keeper.look(at(119), || heat(3.0));
        assert_eq!(left(), heat(2.0));
        keeper.look(at(121), || heat(4.0));
        assert_eq!(left(), heat(4.0));
    }
}
