//! Whether the files are still those that were opened: who writes into them while the model runs changes experts that
//! are read later, and no length tells.

use std::{
    fs::{File, Metadata},
    path::PathBuf,
    time::{Duration, Instant, SystemTime},
};

use fm_format::record::Catalog;
use fm_store::StoreError;

/// Time between two looks. What was read in between may have been used already.
const INTERVAL: Duration = Duration::from_millis(500);

/// What a write into a file changes, if nobody sets it back.
type Stamp = (u64, Option<SystemTime>);

/// See the module. A file that has given its name to another one stays as it was: it is looked at through its handle.
#[derive(Debug)]
pub(super) struct SameFiles {
    files: Vec<(PathBuf, File, Stamp)>,
    /// Whether every expert is read once: then what is in memory is good, whatever becomes of the files.
    read_once: bool,
    due: Instant,
    /// Records that had been read when it was looked last.
    read: u64,
    changed: Option<PathBuf>,
}

impl SameFiles {
    /// The files of a catalog. Those that cannot be opened are whoever's who reads them.
    pub(super) fn of(catalog: &Catalog, read_once: bool, now: Instant) -> Self {
        let files = catalog.files.iter().filter_map(|path| {
            let file = File::open(path).ok()?;
            let stamp = stamp(&file.metadata().ok()?);
            Some((path.clone(), file, stamp))
        });
        Self { files: files.collect(), read_once, due: now + INTERVAL, read: 0, changed: None }
    }

    /// Looks if it is time to. `read` records have been read by now.
    ///
    /// # Errors
    /// If a file has changed, from then on.
    pub(super) fn look(&mut self, now: Instant, read: u64) -> Result<(), StoreError> {
        if now >= self.due && (read > self.read || !self.read_once) {
            (self.due, self.read) = (now + INTERVAL, read);
            let other = |file: &File, as_opened: &Stamp| {
                file.metadata().is_ok_and(|found| stamp(&found) != *as_opened)
            };
            let changed = self.files.iter().find(|(_, file, as_opened)| other(file, as_opened));
            if let Some((path, ..)) = changed {
                self.changed.get_or_insert_with(|| path.clone());
            }
        }
        self.changed.clone().map_or(Ok(()), |path| Err(StoreError::Changed { path }))
    }
}

fn stamp(found: &Metadata) -> Stamp {
    (found.len(), found.modified().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_was_written_into_is_told_where_something_may_be_read_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        paths.iter().for_each(|path| fs::write(path, "as it was").unwrap());
        let catalog = Catalog { files: paths.to_vec(), layers: Vec::new() };
        let began = Instant::now();
        let same = |read_once| SameFiles::of(&catalog, read_once, began);
        let (mut same, mut again_and_again) = (same(true), same(false));
        let later = |looks: u32| began + looks * INTERVAL;
        assert!(same.look(later(1), 1).is_ok());
        // Another file under the name is no change of the one that is open.
        fs::rename(&paths[0], dir.path().join("old")).unwrap();
        fs::write(&paths[0], "another").unwrap();
        assert!(same.look(later(2), 2).is_ok());
        fs::write(&paths[1], "as it is").unwrap();
        assert!(same.look(later(3), 2).is_ok(), "nothing was read");
        assert!(again_and_again.look(later(0), 2).is_ok(), "not yet");
        assert!(again_and_again.look(later(3), 0).is_err());
        for looks in [3, 4] {
            let changed = same.look(later(looks), 3);
            assert!(matches!(changed, Err(StoreError::Changed { path }) if path == paths[1]));
        }
    }
}
