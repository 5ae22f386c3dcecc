//! What a repository holds, as the hub lists it.

use serde::Deserialize;

use crate::{
    checksum::Checksum,
    client::Client,
    error::HubError,
    name::{RepoId, is_inside},
};

/// A repository at one commit.
#[derive(Clone, Debug)]
pub struct Repository {
    /// Whose.
    pub id: RepoId,
    /// Branch, tag or commit that was asked for.
    pub revision: String,
    /// Which commit that is.
    pub commit: String,
    /// Every file.
    pub files: Vec<RemoteFile>,
}

/// A file on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path inside the repository, with `/`. It leads nowhere else.
    pub name: String,
    /// Length.
    pub bytes: u64,
    /// What its bytes come to.
    pub checksum: Checksum,
}

#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Repository {
    /// Asks the hub.
    ///
    /// # Errors
    /// If it cannot be reached or does not let this user in, if there is no such repository, or if
    /// the list cannot be trusted: a file without length or checksum, or a name that leads out.
    pub fn open(client: &Client, id: &RepoId, revision: &str) -> Result<Self, HubError> {
        let url = client.listing_url(id, revision);
        let listing: Listing = serde_json::from_value(client.json(id, &url)?)
            .map_err(|source| HubError::Listing { url, source })?;
        let Some(Checksum::Git(commit)) = Checksum::parse(&listing.sha) else {
            let (id, file) = (id.clone(), revision.to_owned());
            return Err(HubError::Metadata { id, file, field: "commit" });
        };
        let files = listing.siblings.into_iter().map(|sibling| sibling.file(id));
        let files = files.collect::<Result<_, _>>()?;
        Ok(Self { id: id.clone(), revision: revision.to_owned(), commit, files })
    }
}

impl Sibling {
    fn file(self, id: &RepoId) -> Result<RemoteFile, HubError> {
        let name = self.rfilename;
        if !is_inside(&name) {
            return Err(HubError::FileName { id: id.clone(), file: name });
        }
        let missing = |field| HubError::Metadata { id: id.clone(), file: name.clone(), field };
        let (bytes, digits) = match self.lfs {
            Some(lfs) => (Some(lfs.size), Some(lfs.sha256)),
            None => (self.size, self.blob_id),
        };
        let bytes = bytes.ok_or_else(|| missing("length"))?;
        let checksum = digits.and_then(|digits| Checksum::parse(&digits));
        let checksum = checksum.ok_or_else(|| missing("checksum"))?;
        Ok(RemoteFile { name, bytes, checksum })
    }
}
