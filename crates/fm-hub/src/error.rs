//! Why a model cannot be had.

use std::{fmt, io, path::PathBuf};

use crate::name::RepoId;

/// Why a model cannot be had. Messages never contain a token, nor the query of an address, which
/// signs it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Not a name of the hub.
    #[error(
        "`{name}` is no name of the hub: those read ORG/NAME, ORG/NAME@REVISION or ORG/NAME/FILE"
    )]
    Name {
        /// What was given.
        name: String,
    },
    /// A name that is neither a path nor in the cache.
    #[error("{name} is no path, and no model of that name is in {}", cache.display())]
    NotCached {
        /// What was asked for.
        name: String,
        /// The repository of that name.
        id: RepoId,
        /// Where it would be.
        cache: PathBuf,
    },
    /// A revision that was not pulled, of a repository of which others were.
    #[error("{id} is here, but not its revision {revision}")]
    RevisionNotCached {
        /// What was asked for, with revision and file.
        name: String,
        /// The repository.
        id: RepoId,
        /// The revision.
        revision: String,
    },
    /// A file that did not come with the others of its repository.
    #[error("{id} is here without {file}")]
    FileNotCached {
        /// What was asked for, with revision and file.
        name: String,
        /// The repository.
        id: RepoId,
        /// The file.
        file: String,
    },
    /// The address of the hub is none.
    #[error("`{endpoint}` is no address of a hub: it begins with https:// or http://")]
    Endpoint {
        /// What was given.
        endpoint: String,
    },
    /// Nobody answered.
    #[error("cannot reach {host}")]
    Connect {
        /// Who should have.
        host: String,
        /// What went wrong.
        source: Box<ureq::Error>,
    },
    /// The hub does not let this user in.
    #[error("{url} answered {status}: access denied {}", if *token { "with this token" } else { "without a token" })]
    Denied {
        /// What was asked for.
        url: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        token: bool,
    },
    /// The owners want to be asked first.
    #[error("{id} is gated: its owners give access {}", if *token { "and this token's user has none" } else { "to known users only" })]
    Gated {
        /// The repository.
        id: RepoId,
        /// Whether a token was sent.
        token: bool,
        /// Where access can be asked for.
        page: String,
    },
    /// There is no such thing, or it is private.
    #[error("{url} does not exist, or is private")]
    NotFound {
        /// What was asked for.
        url: String,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{url} does not exist: the repository has no such revision")]
    Revision {
        /// What was asked for.
        url: String,
    },
    /// An answer that means nothing here.
    #[error("{url} answered {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// The answer.
        status: u16,
    },
    /// A redirect that leads nowhere, in circles, or from https to http.
    #[error("{url} redirects where this program does not follow")]
    Redirect {
        /// The last address that was asked.
        url: String,
    },
    /// The server gave other bytes than it was asked for.
    #[error("{url} was asked for the bytes from {offset} on and sent others")]
    Range {
        /// What was asked for.
        url: String,
        /// First byte asked for.
        offset: u64,
    },
    /// The list of files is not the JSON it should be.
    #[error("{url} did not answer with a list of files")]
    Listing {
        /// What was asked for.
        url: String,
        /// Where the parser stopped.
        source: serde_json::Error,
    },
    /// The list of files lacks something, or has it in a shape that cannot be trusted.
    #[error("{id}: the list of files has no usable {field} for {file:?}")]
    Metadata {
        /// The repository.
        id: RepoId,
        /// The file.
        file: String,
        /// What is wrong.
        field: &'static str,
    },
    /// A file name that leads out of its directory.
    #[error(
        "{id} has a file of the name {file:?}, which may not be written: nothing was downloaded"
    )]
    FileName {
        /// The repository.
        id: RepoId,
        /// The name.
        file: String,
    },
    /// The connection broke too often.
    #[error("{file} broke off {attempts} times without getting further than {at} of {bytes} bytes")]
    Cut {
        /// The file.
        file: String,
        /// Bytes that are kept.
        at: u64,
        /// Its length.
        bytes: u64,
        /// How often it was tried.
        attempts: u32,
        /// What happened last.
        source: io::Error,
    },
    /// The bytes are not the published ones, twice.
    #[error(
        "{file} is corrupt: its checksum is {found}, the hub says {expected}; what came is kept as {}",
        kept.display()
    )]
    Corrupt {
        /// The file.
        file: String,
        /// Checksum of the list of files.
        expected: String,
        /// Checksum of what came.
        found: String,
        /// Where it lies.
        kept: PathBuf,
    },
    /// The disk is too small.
    #[error("{} has room for {free} bytes, and {needed} are still to be downloaded", dir.display())]
    NoSpace {
        /// The cache.
        dir: PathBuf,
        /// Bytes that are missing.
        needed: u64,
        /// Bytes that can be written.
        free: u64,
    },
    /// Nothing that this program could run.
    #[error("{id} has neither safetensors nor GGUF files")]
    NoModel {
        /// The repository.
        id: RepoId,
    },
    /// The globs leave nothing.
    #[error("{id} has no file that is wanted and matches {}", patterns.join(" "))]
    NoMatch {
        /// The repository.
        id: RepoId,
        /// The globs.
        patterns: Vec<String>,
    },
    /// A choice has to be made.
    #[error("{id} holds {} models:{}", variants.len(), Lines(variants))]
    Several {
        /// The repository.
        id: RepoId,
        /// Each of them.
        variants: Vec<Variant>,
    },
    /// Not a glob.
    #[error("`{pattern}` is no pattern")]
    Pattern {
        /// What was given.
        pattern: String,
        /// What is wrong with it.
        source: globset::Error,
    },
    /// A header cannot be understood.
    #[error(transparent)]
    Format(#[from] fm_format::FormatError),
    /// The file system failed.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another program is at it.
    #[error("another program is downloading {file}: it holds {}", lock.display())]
    Busy {
        /// The file.
        file: String,
        /// The lock.
        lock: PathBuf,
    },
    /// The user changed their mind.
    #[error("interrupted")]
    Cancelled,
}

/// One model among several of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its file, or the first of them.
    pub file: String,
    /// Length of all its files.
    pub bytes: u64,
}

struct Lines<'a>(&'a [Variant]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|Variant { file, bytes }| {
            write!(f, "\n  {:>8.2} GB  {file}", *bytes as f64 / 1e9)
        })
    }
}

/// Names the file of an error of the file system.
pub(crate) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HubError {
    let path = path.into();
    |source| HubError::Io { path, source }
}
