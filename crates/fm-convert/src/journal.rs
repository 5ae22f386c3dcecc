//! What of a conversion is finished, so that it need not be done again.
//!
//! ```text
//! 81c3…  {"version":0,"source":"…"}        which checkpoint
//! 0f72…  {"file":{"name":"config.json",…}} one line per finished file, in any order
//! ```
//!
//! A line begins with the XXH3-64 of the rest of it. Lines are appended and synced after the file
//! they tell of has got its name; a torn last line is the mark of an interrupted append and is
//! dropped with everything behind it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use fm_format::container::{
    EXPERTS, JOURNAL, TRUNK, layer_file,
    manifest::{self, FileEntry, Fingerprint, LayerEntry, Manifest, TrunkEntry},
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    disk::{Disk, OutFile},
    error::ConvertError,
    staged::{self, refusal},
};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    version: u32,
    source: Fingerprint,
}

/// A finished file, with what the manifest will say about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Finished {
    File { name: String, entry: FileEntry },
    Trunk(TrunkEntry),
    Layer { layer: usize, entry: LayerEntry },
}

/// Everything that is finished.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) files: BTreeMap<String, FileEntry>,
    pub(crate) trunk: Option<TrunkEntry>,
    pub(crate) layers: BTreeMap<usize, LayerEntry>,
}

impl Finished {
    /// Length of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.file().1
    }

    /// What a manifest says is finished.
    pub(crate) fn all_of(manifest: &Manifest) -> Vec<Self> {
        let files = manifest.files.iter();
        let files = files.map(|(name, entry)| Self::File { name: name.clone(), entry: *entry });
        let layers = manifest.layers.iter().enumerate();
        let layers =
            layers.filter_map(|(layer, entry)| Some(Self::Layer { layer, entry: entry.clone()? }));
        files.chain([Self::Trunk(manifest.trunk.clone())]).chain(layers).collect()
    }

    /// Whether the file is there, as long as it should be.
    pub(crate) fn is_there(&self, out: &Path) -> bool {
        let (file, bytes) = self.file();
        fs::symlink_metadata(out.join(file)).is_ok_and(|is| is.is_file() && is.len() == bytes)
    }

    /// Name and length of the file, relative to the container.
    fn file(&self) -> (PathBuf, u64) {
        match self {
            Self::File { name, entry } => (name.into(), entry.bytes),
            Self::Trunk(entry) => (TRUNK.into(), entry.bytes),
            Self::Layer { layer, entry } => {
                (Path::new(EXPERTS).join(layer_file(*layer)), entry.bytes)
            }
        }
    }
}

impl Done {
    pub(crate) fn add(&mut self, finished: Finished) {
        match finished {
            Finished::File { name, entry } => {
                self.files.insert(name, entry);
            }
            Finished::Trunk(entry) => self.trunk = Some(entry),
            Finished::Layer { layer, entry } => {
                self.layers.insert(layer, entry);
            }
        }
    }
}

/// Reads the journal in `out`: whose it is, and those entries whose files are as long as they say.
///
/// No more is checked. Bytes were synced before their entry was written, so a killed converter
/// leaves no wrong ones, and neither does a power cut; `verify` finds what a broken disk does.
pub(crate) fn read(out: &Path) -> Result<(Fingerprint, Vec<Finished>), ConvertError> {
    let path = out.join(JOURNAL);
    let text =
        fs::read(&path).map_err(|source| ConvertError::Read { path: path.clone(), source })?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let head = lines.next().and_then(parse::<Head>);
    let Some(head) = head.filter(|head| head.version == manifest::VERSION) else {
        return Err(ConvertError::Journal { path });
    };
    let finished = lines.map_while(parse::<Finished>);
    Ok((head.source, finished.filter(|finished| finished.is_there(out)).collect()))
}

fn parse<T: for<'de> Deserialize<'de>>(line: &[u8]) -> Option<T> {
    let (checksum, json) = str::from_utf8(line).ok()?.split_once(' ')?;
    (checksum == format!("{:016x}", xxh3_64(json.as_bytes()))).then_some(())?;
    serde_json::from_str(json).ok()
}

fn line<T: Serialize>(value: &T) -> Vec<u8> {
    let json = serde_json::to_string(value).expect("strings and numbers have a text");
    format!("{:016x} {json}\n", xxh3_64(json.as_bytes())).into_bytes()
}

/// The journal of the conversion that is running.
pub(crate) struct Journal {
    path: PathBuf,
    file: Box<dyn OutFile>,
}

impl Journal {
    /// Writes the journal anew, with what is finished already.
    pub(crate) fn begin(
        disk: &dyn Disk,
        out: &Path,
        source: Fingerprint,
        finished: &[Finished],
    ) -> Result<Self, ConvertError> {
        let path = out.join(JOURNAL);
        staged::write_file(disk, &path, |staged| {
            let mut text = line(&Head { version: manifest::VERSION, source });
            finished.iter().for_each(|finished| text.extend(line(finished)));
            staged.write(&text)
        })?;
        let file = disk.append(&path).map_err(|source| refusal(&path, 0, source))?;
        Ok(Self { path, file })
    }

    /// Notes a finished file.
    pub(crate) fn add(&mut self, finished: &Finished) -> Result<(), ConvertError> {
        let written = self.file.write(&line(finished)).and_then(|()| self.file.sync());
        written.map_err(|source| refusal(&self.path, 0, source))
    }
}
