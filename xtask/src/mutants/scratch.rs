//! A copy of the tree to break: the user's own files are never touched.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::table::Mutant;

/// A copy of every file that git knows or would add, kept between runs so that little is built.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// The copied tree.
    pub(crate) tree: PathBuf,
    /// Build outputs of the copy.
    pub(crate) build: PathBuf,
    files: BTreeSet<PathBuf>,
}

impl Scratch {
    /// Brings the copy in `dir` up to date with the current directory. Files that did not change
    /// keep their times, and with them what was built from them.
    pub(crate) fn copy(dir: &Path) -> Result<Self> {
        let dir = std::path::absolute(dir)?;
        let scratch =
            Self { tree: dir.join("tree"), build: dir.join("build"), files: listed_files()? };
        for file in &scratch.files {
            let wanted = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            let copy = scratch.tree.join(file);
            if fs::read(&copy).is_ok_and(|found| found == wanted) {
                continue;
            }
            fs::create_dir_all(copy.parent().unwrap_or(&scratch.tree))?;
            fs::write(&copy, wanted).with_context(|| format!("writing {}", copy.display()))?;
        }
        scratch.remove_others(Path::new(""))?;
        Ok(scratch)
    }

    /// Deletes what an earlier copy left behind.
    fn remove_others(&self, below: &Path) -> Result<()> {
        for entry in fs::read_dir(self.tree.join(below))? {
            let entry = entry?;
            let file = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                self.remove_others(&file)?;
            } else if !self.files.contains(&file) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The one file in which the mutant's text stands once.
    pub(crate) fn find(&self, mutant: &Mutant) -> Result<PathBuf> {
        let mut found = Vec::new();
        let candidates = self.files.iter().filter(|file| {
            let path = file.to_string_lossy();
            path.starts_with(&mutant.file) && path.ends_with(".rs")
        });
        for file in candidates {
            let text = fs::read_to_string(self.tree.join(file))?;
            found.extend(text.matches(&mutant.find).map(|_| file));
        }
        match found[..] {
            [file] => Ok(file.clone()),
            [] => bail!("{}: the text is not there: {:?}", mutant.file, mutant.find),
            _ => bail!("{}: the text is there {} times", mutant.file, found.len()),
        }
    }

    /// Replaces the mutant's text in `file` until the result is dropped.
    pub(crate) fn plant(&self, mutant: &Mutant, file: &Path) -> Result<Planted> {
        let path = self.tree.join(file);
        let original = fs::read_to_string(&path)?;
        let broken = original.replacen(&mutant.find, &mutant.replace, 1);
        ensure!(broken != original, "the mutant changes nothing");
        fs::write(&path, broken)?;
        Ok(Planted { path, original })
    }
}

/// A mistake in the copy; taken out when dropped.
#[derive(Debug)]
pub(crate) struct Planted {
    path: PathBuf,
    original: String,
}

impl Drop for Planted {
    fn drop(&mut self) {
        // If this fails the next run repairs the copy.
        let _ = fs::write(&self.path, &self.original);
    }
}

/// Files of the working tree that are tracked or would be, and exist.
fn listed_files() -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("starting git")?;
    ensure!(output.status.success(), "git cannot list the tree");
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let files = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(files.filter(|file| file.is_file()).collect())
}
