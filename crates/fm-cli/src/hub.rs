//! The hub as the commands use it: names, options, and what may help when it refuses.

use std::{
    borrow::Cow,
    fmt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use fm_engine::bytes::Bytes;
use fm_hub::{
    Cache, Client, HubError, ModelName, Options, RemoteFile, Repository, Selection, Token,
};

use serde_json::json;

use crate::{console::Interrupt, flags::Usage, places};

/// How often a wait looks at whether the user has given up.
const LOOK: Duration = Duration::from_millis(100);

/// Adds the options of every command that asks the hub.
pub(crate) fn add_args(command: Command) -> Command {
    let valued = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("Hub")
    };
    command
        .arg(valued(
            "token",
            "T",
            "Access token [default: $HF_TOKEN, or what `hf auth login` has left]",
        ))
        .arg(valued(
            "endpoint",
            "URL",
            "Address of the hub [default: $HF_ENDPOINT, or https://huggingface.co]",
        ))
}

/// The model of the hub that a path names if nothing lies there.
pub(crate) fn name_of(given: &Path) -> Option<ModelName> {
    if given.exists() { None } else { given.to_str()?.parse().ok() }
}

/// The cache that all programs share.
pub(crate) fn cache() -> anyhow::Result<Cache> {
    places::hub_cache().context(places::NO_HUB_CACHE)
}

/// Whoever asks the hub. Waits end when the user gives up.
pub(crate) fn client(matches: &ArgMatches, interrupt: &Interrupt) -> anyhow::Result<Client> {
    let token = match matches.get_one::<String>("token") {
        Some(text) => Some(Token::new(text).ok_or_else(|| Usage("--token is no token".into()))?),
        None => places::hub_token(),
    };
    let endpoint = matches.get_one::<String>("endpoint").cloned();
    let endpoint = endpoint.unwrap_or_else(places::hub_endpoint);
    let interrupt = interrupt.clone();
    let pause = Box::new(move |time: Duration| {
        let mut left = time;
        while !left.is_zero() && !interrupt.is_set() {
            thread::sleep(left.min(LOOK));
            left = left.saturating_sub(LOOK);
        }
        interrupt.flow()
    });
    Ok(Client::new(Options { endpoint, token, pause })?)
}

/// A model on the hub, of which nothing but headers is here.
pub(crate) struct RemoteModel {
    /// What to plan from. It goes when this does.
    pub(crate) path: PathBuf,
    pub(crate) name: ModelName,
    pub(crate) repository: Repository,
    pub(crate) endpoint: String,
    /// Length of the files that a download would bring.
    pub(crate) download_bytes: u64,
    /// Room on the disk of the cache.
    pub(crate) free_bytes: u64,
    /// What came for the plan.
    pub(crate) read_bytes: u64,
    _dir: tempfile::TempDir,
}

impl RemoteModel {
    /// Asks the hub for configuration and headers.
    pub(crate) fn peek(matches: &ArgMatches, name: ModelName) -> anyhow::Result<Self> {
        let client = client(matches, &Interrupt::install())?;
        let repository = Repository::open(&client, &name.id, name.revision())?;
        let selection = Selection { file: name.file.clone(), ..Selection::default() };
        let files: Vec<RemoteFile> = selection.choose(&repository)?;
        let dir = tempfile::tempdir().context("making a temporary directory")?;
        let peeked = fm_hub::peek(&client, &repository, &files, dir.path())?;
        Ok(Self {
            path: peeked.path,
            name,
            endpoint: client.endpoint().to_owned(),
            download_bytes: files.iter().map(|file| file.bytes).sum(),
            free_bytes: cache()?.free_bytes()?,
            read_bytes: peeked.read_bytes,
            repository,
            _dir: dir,
        })
    }

    fn fits_disk(&self) -> bool {
        self.download_bytes <= self.free_bytes
    }

    /// For programs.
    pub(crate) fn as_json(&self) -> serde_json::Value {
        json!({
            "endpoint": self.endpoint,
            "revision": self.repository.revision,
            "commit": self.repository.commit,
            "download_bytes": self.download_bytes,
            "free_bytes": self.free_bytes,
            "fits_disk": self.fits_disk(),
            "read_bytes": self.read_bytes,
        })
    }
}

/// For people, in one line.
impl fmt::Display for RemoteModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let room = if self.fits_disk() { "" } else { "only " };
        write!(
            f,
            "not downloaded: planned from {} of headers at {}; {} to download, the disk has {room}{} free",
            Bytes(self.read_bytes),
            self.endpoint,
            Bytes(self.download_bytes),
            Bytes(self.free_bytes)
        )
    }
}

/// What may help against an error of the hub.
pub(crate) fn hint(error: &HubError) -> Option<Cow<'static, str>> {
    Some(match error {
        HubError::NotCached { id, .. } => {
            format!("`flash-moe pull {id}` downloads it; a path would have to exist").into()
        }
        HubError::RevisionNotCached { name, .. } | HubError::FileNotCached { name, .. } => {
            format!("`flash-moe pull {name}` downloads it").into()
        }
        HubError::Connect { .. } => {
            "check the network; behind a mirror, give --endpoint or set HF_ENDPOINT".into()
        }
        HubError::Denied { token: false, .. } => {
            "give --token, or set HF_TOKEN: https://huggingface.co/settings/tokens makes one".into()
        }
        HubError::Denied { token: true, .. } => {
            "the token may be old, or lack the right to read this repository".into()
        }
        HubError::Gated { page, token, .. } => {
            let then = if *token { "" } else { ", then give --token" };
            format!("ask for access at {page}{then}").into()
        }
        HubError::NotFound { .. } => {
            "check the spelling; a private repository needs a --token that may read it".into()
        }
        HubError::Revision { .. } => "--revision takes a branch, a tag or a commit".into(),
        HubError::NoSpace { .. } => {
            "free some, or set HF_HUB_CACHE to a directory on a larger disk; `flash-moe list` \
             shows what is there"
                .into()
        }
        HubError::Several { id, variants } => {
            let file = variants.first().map_or("FILE", |variant| variant.file.as_str());
            format!("pull one with --include '*PATTERN*'; elsewhere say which, as {id}/{file}")
                .into()
        }
        HubError::NoMatch { .. } => "patterns take the whole path: '*Q4_K_M*'".into(),
        HubError::Corrupt { .. } => "try again later; the server or the disk may be broken".into(),
        HubError::Cut { .. } | HubError::Cancelled => {
            "what has come is kept: the same command goes on from there".into()
        }
        HubError::Busy { .. } => "wait for it, or end it".into(),
        _ => return None,
    })
}
