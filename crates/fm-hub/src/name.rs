//! What models are called: `ORG/NAME`, of a revision, or a file of it.

use std::{fmt, str::FromStr};

use crate::error::HubError;

/// Longest part of a name that the hub gives.
const PART_BYTES_MAX: usize = 96;

/// A repository. Its two parts are plain: they can be put into an address or a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RepoId {
    org: String,
    name: String,
}

impl RepoId {
    /// The repository of an owner, if both names can be.
    pub fn new(org: &str, name: &str) -> Option<Self> {
        let plain = |part: &str| {
            let inside = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            let ends = part.bytes().next().zip(part.bytes().last());
            ends.is_some_and(|(first, last)| first != b'.' && last != b'.' && first != b'-')
                && part.len() <= PART_BYTES_MAX
                && part.bytes().all(inside)
                && !part.contains("--")
                && !part.contains("..")
        };
        (plain(org) && plain(name)).then(|| Self { org: org.to_owned(), name: name.to_owned() })
    }

    /// The directory of this repository in a cache.
    pub(crate) fn dir_name(&self) -> String {
        format!("models--{}--{}", self.org, self.name)
    }

    /// The repository of a directory of a cache.
    pub(crate) fn from_dir_name(dir: &str) -> Option<Self> {
        let (org, name) = dir.strip_prefix("models--")?.split_once("--")?;
        Self::new(org, name)
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)
    }
}

/// What a user calls a model: `ORG/NAME[@REVISION][/FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// The repository.
    pub id: RepoId,
    /// Branch, tag or commit; the main branch if `None`.
    pub revision: Option<String>,
    /// A file or directory of the repository, if it holds several models.
    pub file: Option<String>,
}

impl ModelName {
    /// The same at a revision, whatever it is called.
    ///
    /// # Errors
    /// If its name leads out of where revisions are kept.
    pub fn at(self, revision: &str) -> Result<Self, HubError> {
        let named = Self { revision: Some(revision.to_owned()), ..self };
        if is_inside(revision) {
            Ok(named)
        } else {
            Err(HubError::Name { name: named.to_string() })
        }
    }

    /// The revision, or the main branch.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, revision, file } = self;
        write!(f, "{id}")?;
        revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        file.iter().try_for_each(|file| write!(f, "/{file}"))
    }
}

impl FromStr for ModelName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let wrong = || HubError::Name { name: text.to_owned() };
        let (org, rest) = text.split_once('/').ok_or_else(wrong)?;
        let (rest, file) = match split_file(rest) {
            Some((rest, file)) => (rest, Some(file.trim_end_matches('/').to_owned())),
            None => (rest, None),
        };
        let (name, revision) = match rest.split_once('@') {
            Some((name, revision)) => (name, Some(revision.to_owned())),
            None => (rest, None),
        };
        let inside = |path: &Option<String>| path.as_deref().is_none_or(is_inside);
        let id = RepoId::new(org, name).ok_or_else(wrong)?;
        let file = file.filter(|file| !file.is_empty());
        if !inside(&revision) || !inside(&file) {
            return Err(wrong());
        }
        Ok(Self { id, revision, file })
    }
}

/// Splits `NAME[@REVISION]/FILE` where the file begins. The hub calls proposed changes `refs/pr/N`.
fn split_file(text: &str) -> Option<(&str, &str)> {
    let in_revision = text.find('/').is_some_and(|at| text[..at].ends_with("@refs"));
    let (at, _) = text.match_indices('/').nth(if in_revision { 2 } else { 0 })?;
    Some((&text[..at], &text[at + 1..]))
}

/// Whether a relative path of the hub stays where it is put, on every system.
pub(crate) fn is_inside(path: &str) -> bool {
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    path.split('/').all(plain)
        && !path.chars().any(|c| c.is_control() || matches!(c, '\\' | ':' | '\u{202e}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_repository_a_revision_and_a_file() {
        let name: ModelName = "unsloth/Qwen3-30B-A3B-GGUF@v1.0/Q4/x.gguf".parse().unwrap();
        assert_eq!(name.id.to_string(), "unsloth/Qwen3-30B-A3B-GGUF");
        assert_eq!((name.revision(), name.file.as_deref()), ("v1.0", Some("Q4/x.gguf")));
        let name: ModelName = "a/b@refs/pr/1".parse().unwrap();
        assert_eq!((name.revision(), name.file.as_deref()), ("refs/pr/1", None));
        let name: ModelName = "a/b@refs/pr/12/Q4/x.gguf".parse().unwrap();
        assert_eq!((name.revision(), name.file.as_deref()), ("refs/pr/12", Some("Q4/x.gguf")));
        let name: ModelName = "a/b/x.gguf".parse().unwrap();
        let name = name.at("refs/pr/1").unwrap();
        assert_eq!(name.to_string(), "a/b@refs/pr/1/x.gguf");
        assert_eq!(name.clone().at("a/branch").unwrap().revision(), "a/branch");
        assert!(name.at("../x").is_err());
        let name: ModelName = "a/b/".parse().unwrap();
        assert_eq!((name.revision(), name.file.as_deref()), ("main", None));
    }

    #[test]
    fn what_would_leave_the_cache_is_no_name() {
        let wrong = [
            "a", "/a/b", "../b", "a/..", "a/b--c", "a/b/../c", "a/b@../x", "a/b@", "a\\b/c", "~/x",
            "./x", "a/b//c", "a/b/c:d", "-a/b", "a/.b",
        ];
        for name in wrong {
            assert!(name.parse::<ModelName>().is_err(), "{name}");
        }
    }

    #[test]
    fn directories_of_a_cache_are_read_back() {
        let id = RepoId::new("Qwen", "Qwen3-30B_A3B.x").unwrap();
        assert_eq!(id.dir_name(), "models--Qwen--Qwen3-30B_A3B.x");
        assert_eq!(RepoId::from_dir_name(&id.dir_name()), Some(id));
        assert_eq!(RepoId::from_dir_name("datasets--a--b"), None);
    }
}
