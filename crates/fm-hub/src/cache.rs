//! The cache of the hub, as all programs of this machine share it.
//!
//! ```text
//! models--ORG--NAME/
//!   blobs/CHECKSUM               the bytes of a file, under its checksum
//!   blobs/CHECKSUM.incomplete    what has come of it
//!   snapshots/COMMIT/FILE        a link to the blob
//!   refs/REVISION                the commit that a branch or tag was
//! .locks/models--ORG--NAME/CHECKSUM.lock
//! ```
//!
//! Source: the cache description of `huggingface_hub` ("Understand caching").

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use fm_format::source::gguf::part_name;

use crate::{
    error::{HubError, Variant, at},
    name::{ModelName, RepoId},
    select::{gguf_models, is_gguf, is_in, is_safetensors},
};

/// Ending of a blob that has not come whole.
pub(crate) const INCOMPLETE: &str = "incomplete";

/// A directory of models.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A model in the cache: of one commit of a repository, once for each of its names.
#[derive(Clone, Debug)]
pub struct Cached {
    /// Whose.
    pub id: RepoId,
    /// Branch or tag, or the commit if none points to it; empty if only parts of files came.
    pub revision: String,
    /// Its file, or the first of them, if the repository holds several models here.
    pub file: Option<String>,
    /// What there is to open, if all that was wanted came.
    pub path: Option<PathBuf>,
    /// Length of its files, or of what came of them.
    pub bytes: u64,
}

impl Cache {
    /// The cache in a directory, which need not be there.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Room on its disk.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn free_bytes(&self) -> Result<u64, HubError> {
        let root = &self.root;
        // Above a relative path lies the working directory, which `ancestors` gives no name.
        let mut named = root.ancestors().filter(|dir| !dir.as_os_str().is_empty());
        let existing = named.find(|dir| dir.exists()).unwrap_or(Path::new("."));
        fs4::available_space(existing).map_err(at(existing))
    }

    pub(crate) fn repo_dir(&self, id: &RepoId) -> PathBuf {
        self.root.join(id.dir_name())
    }

    pub(crate) fn blob(&self, id: &RepoId, digits: &str) -> PathBuf {
        self.repo_dir(id).join("blobs").join(digits)
    }

    pub(crate) fn snapshot_dir(&self, id: &RepoId, commit: &str) -> PathBuf {
        self.repo_dir(id).join("snapshots").join(commit)
    }

    pub(crate) fn reference(&self, id: &RepoId, revision: &str) -> PathBuf {
        self.repo_dir(id).join("refs").join(revision)
    }

    pub(crate) fn lock(&self, id: &RepoId, digits: &str) -> PathBuf {
        self.root.join(".locks").join(id.dir_name()).join(format!("{digits}.lock"))
    }

    /// The model of a name: a directory to open, or a GGUF file.
    ///
    /// # Errors
    /// If it is not here, or is several.
    pub fn resolve(&self, name: &ModelName) -> Result<PathBuf, HubError> {
        let missing = || HubError::NotCached {
            name: name.id.to_string(),
            id: name.id.clone(),
            cache: self.root.clone(),
        };
        let revision = name.revision();
        let commit = fs::read_to_string(self.reference(&name.id, revision));
        let commit = commit.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
        let snapshot = self.snapshot_dir(&name.id, &commit);
        if commit.is_empty() || !snapshot.exists() {
            if entries(&self.repo_dir(&name.id).join("snapshots"))?.is_empty() {
                return Err(missing());
            }
            let (name, id, revision) = (name.to_string(), name.id.clone(), revision.to_owned());
            return Err(HubError::RevisionNotCached { name, id, revision });
        }
        let given = name.file.as_ref().map_or_else(|| snapshot.clone(), |file| snapshot.join(file));
        if let Some(file) = name.file.clone().filter(|_| !given.exists()) {
            let (name, id) = (name.to_string(), name.id.clone());
            return Err(HubError::FileNotCached { name, id, file });
        }
        model_in(&given, &name.id)?.ok_or_else(missing)
    }

    /// Everything in the cache, by name.
    ///
    /// # Errors
    /// If a directory cannot be read.
    pub fn list(&self) -> Result<Vec<Cached>, HubError> {
        let mut found = Vec::new();
        for (name, path) in entries(&self.root)? {
            if let Some(id) = RepoId::from_dir_name(&name) {
                list_repo(&id, &path, &mut found)?;
            }
        }
        Ok(found)
    }

    /// Bytes that a repository takes, whole files and parts; or those that only one of its GGUF models needs.
    ///
    /// # Errors
    /// If it is not here.
    pub fn size(&self, id: &RepoId, file: Option<&str>) -> Result<u64, HubError> {
        match file {
            None => size_of(&self.known_dir(id)?),
            Some(file) => self.files_of(id, file)?.iter().map(|path| len_of(path)).sum(),
        }
    }

    /// Removes a repository with all its revisions, or one of its GGUF models from all of them, and nothing that
    /// links only point to. Returns the bytes freed.
    ///
    /// # Errors
    /// If it is not here or cannot be removed.
    pub fn remove(&self, id: &RepoId, file: Option<&str>) -> Result<u64, HubError> {
        let bytes = self.size(id, file)?;
        if let Some(file) = file {
            let remove = |path: PathBuf| fs::remove_file(&path).map_err(at(&path));
            self.files_of(id, file)?.into_iter().try_for_each(remove)?;
            return Ok(bytes);
        }
        let dir = self.repo_dir(id);
        fs::remove_dir_all(&dir).map_err(at(&dir))?;
        let locks = self.root.join(".locks").join(id.dir_name());
        match fs::remove_dir_all(&locks) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(locks)(error)),
            _ => Ok(bytes),
        }
    }

    /// The directory of a repository that is here.
    fn known_dir(&self, id: &RepoId) -> Result<PathBuf, HubError> {
        let dir = self.repo_dir(id);
        if dir.symlink_metadata().is_ok() {
            return Ok(dir);
        }
        let (name, cache) = (id.to_string(), self.root.clone());
        Err(HubError::NotCached { name, id: id.clone(), cache })
    }

    /// What a model has in all revisions, and no other: the links to its files, and then the blobs that nothing else
    /// points to.
    fn files_of(&self, id: &RepoId, file: &str) -> Result<Vec<PathBuf>, HubError> {
        let dir = self.known_dir(id)?;
        let (mut own, mut blobs, mut others) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let snapshots = entries(&dir.join("snapshots"))?.into_values();
        for snapshot in snapshots.filter(|snapshot| !snapshot.is_symlink()) {
            for path in files_below(&snapshot)? {
                let name = name_below(&snapshot, &path);
                let is_own = is_gguf(&name) && is_in(&name, file);
                // What is no link is a file of its own; a link to nothing has no blob.
                let blob = fs::read_link(&path).ok().and_then(|_| fs::canonicalize(&path).ok());
                let pointed_to = if is_own { &mut blobs } else { &mut others };
                pointed_to.extend(blob);
                if is_own {
                    own.push(path);
                }
            }
        }
        if own.is_empty() {
            let (name, id) = (format!("{id}/{file}"), id.clone());
            return Err(HubError::FileNotCached { name, id, file: file.to_owned() });
        }
        let inside = fs::canonicalize(dir.join("blobs")).ok();
        let freed = blobs.difference(&others);
        own.extend(freed.filter(|blob| blob.parent() == inside.as_deref()).cloned());
        Ok(own)
    }
}

/// Every revision of one repository.
fn list_repo(id: &RepoId, dir: &Path, found: &mut Vec<Cached>) -> Result<(), HubError> {
    let mut names = BTreeMap::<String, Vec<String>>::new();
    let refs = dir.join("refs");
    for file in files_below(&refs)? {
        let name = name_below(&refs, &file);
        let commit = fs::read_to_string(&file).map_err(at(&file))?;
        names.entry(commit.trim().to_owned()).or_default().push(name);
    }
    let snapshots = entries(&dir.join("snapshots"))?;
    for (commit, path) in &snapshots {
        let files = files_below(path)?;
        // Lengths of what the links point to; a link to nothing is a file that did not come.
        let lengths: Option<Vec<u64>> =
            files.iter().map(|file| Some(fs::metadata(file).ok()?.len())).collect();
        let whole = lengths.is_some() && !files.is_empty();
        let all = Cached {
            id: id.clone(),
            revision: commit.clone(),
            file: None,
            path: whole.then(|| path.clone()),
            bytes: lengths.unwrap_or_default().iter().sum(),
        };
        let models = match models_in(path)? {
            several if several.len() > 1 => several
                .into_iter()
                .map(|(file, bytes)| Cached {
                    path: bytes.map(|_| path.join(&file)),
                    file: Some(file),
                    bytes: bytes.unwrap_or_default(),
                    ..all.clone()
                })
                .collect(),
            _ => vec![all],
        };
        for revision in names.remove(commit).unwrap_or_else(|| vec![commit.clone()]) {
            let named = |model: &Cached| Cached { revision: revision.clone(), ..model.clone() };
            found.extend(models.iter().map(named));
        }
    }
    let came = size_of(&dir.join("blobs"))?;
    if snapshots.is_empty() && came > 0 {
        let (id, revision) = (id.clone(), String::new());
        found.push(Cached { id, revision, file: None, path: None, bytes: came });
    }
    Ok(())
}

/// What there is to open in a snapshot: safetensors, or else its one GGUF model, wherever it lies.
///
/// # Errors
/// If there are several GGUF models.
pub(crate) fn model_in(dir: &Path, id: &RepoId) -> Result<Option<PathBuf>, HubError> {
    if dir.is_file() {
        return Ok(Some(dir.to_path_buf()));
    }
    let models = models_in(dir)?;
    match models.as_slice() {
        [] => Ok(Some(dir.to_path_buf())),
        [(one, _)] => Ok(Some(dir.join(one))),
        several => {
            let variants = several.iter().map(|(file, bytes)| Variant {
                file: file.clone(),
                bytes: bytes.unwrap_or_default(),
            });
            Err(HubError::Several { id: id.clone(), variants: variants.collect() })
        }
    }
}

/// The GGUF models of a snapshot without safetensors: the first file of each, and the length of all of its files, if
/// they came.
fn models_in(dir: &Path) -> Result<Vec<(String, Option<u64>)>, HubError> {
    let files = files_below(dir)?;
    let files: Vec<(String, PathBuf)> =
        files.into_iter().map(|file| (name_below(dir, &file), file)).collect();
    if files.iter().any(|(name, _)| !name.contains('/') && is_safetensors(name)) {
        return Ok(Vec::new());
    }
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let weights = files.iter().filter(|(name, _)| !last(name).starts_with("mmproj"));
    let models = gguf_models(weights, |(name, _)| name).into_values();
    // What lacks its first part is no model yet.
    let whole = models.filter(|parts| part_name(&parts[0].0).is_none_or(|(_, part, _)| part == 1));
    let model = |parts: Vec<&(String, PathBuf)>| {
        let bytes = parts.iter().map(|(_, path)| Some(fs::metadata(path).ok()?.len())).sum();
        (parts[0].0.clone(), bytes)
    };
    Ok(whole.map(model).collect())
}

/// Name and path of everything in a directory, by name, but for what macOS leaves beside files on foreign disks
/// (`._model.gguf`); nothing if there is no such directory.
fn entries(dir: &Path) -> Result<BTreeMap<String, PathBuf>, HubError> {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(at(dir)(error)),
        Ok(read) => Ok(read
            .flatten()
            .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
            .filter(|(name, _)| !name.starts_with("._"))
            .collect()),
    }
}

/// Every file and link below a directory; links to directories are not followed.
fn files_below(dir: &Path) -> Result<Vec<PathBuf>, HubError> {
    let mut files = Vec::new();
    for path in entries(dir)?.into_values() {
        let kind = path.symlink_metadata().map_err(at(&path))?;
        if kind.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// What the hub calls a file below a directory, on every system.
fn name_below(dir: &Path, file: &Path) -> String {
    let parts = file.strip_prefix(dir).unwrap_or(file).iter();
    parts.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// Length of all files below a directory; links count nothing.
fn size_of(dir: &Path) -> Result<u64, HubError> {
    files_below(dir)?.iter().map(|file| len_of(file)).sum()
}

/// Length of a file; a link has none.
fn len_of(file: &Path) -> Result<u64, HubError> {
    let metadata = file.symlink_metadata().map_err(at(file))?;
    Ok(if metadata.is_file() { metadata.len() } else { 0 })
}
