//! A model without its weights: headers and configuration of a repository, as sparse files of the
//! true lengths. Whoever plans from a directory can plan from that.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use fm_format::source::header_length;

use crate::{
    at_once::at_once,
    cache::model_in,
    client::{ATTEMPTS, Client, Range, backoff},
    error::{HubError, at},
    repository::{RemoteFile, Repository},
    select::{is_gguf, is_safetensors},
};

/// Files whose headers come at the same time.
const FILES_AT_ONCE: usize = 8;
/// The first request for a header; each that follows asks for twice as much, up to the last.
const FIRST_BYTES: usize = 16 << 10;
const LAST_BYTES: usize = 4 << 20;
/// Longest header that is read from the network. The longest known, of GGUF files with large
/// vocabularies, take 20 MB.
const HEADER_BYTES_MAX: u64 = 256 << 20;
/// What a plan reads whole.
const WHOLE: &[&str] = &["config.json", "model.safetensors.index.json", "manifest.json"];

/// A model of which only the headers came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// What to open: a directory, or a GGUF file.
    pub path: PathBuf,
    /// Bytes that came.
    pub read_bytes: u64,
}

/// Fetches headers and configuration of the chosen files into an empty directory.
///
/// # Errors
/// If a file cannot be had, or a header makes no sense.
pub fn peek(
    client: &Client,
    repository: &Repository,
    files: &[RemoteFile],
    dir: &Path,
) -> Result<Peeked, HubError> {
    let stop = AtomicBool::new(false);
    let fetch_one = |file: &RemoteFile| fetch(client, repository, file, dir);
    let read_bytes = at_once(files, FILES_AT_ONCE, &stop, fetch_one)?;
    let path = model_in(dir, &repository.id)?.unwrap_or_else(|| dir.to_path_buf());
    Ok(Peeked { path, read_bytes })
}

/// One file as a plan needs it. Returns the bytes that came.
fn fetch(
    client: &Client,
    repository: &Repository,
    file: &RemoteFile,
    dir: &Path,
) -> Result<u64, HubError> {
    let path = dir.join(&file.name);
    let parent = path.parent().unwrap_or(dir);
    fs::create_dir_all(parent).map_err(at(parent))?;
    let out = File::create(&path).map_err(at(&path))?;
    out.set_len(file.bytes).map_err(at(&path))?;
    let url = client.file_url(&repository.id, &repository.commit, &file.name);
    let mut header = Remote {
        client,
        repository,
        file,
        url,
        out,
        path: &path,
        bytes: file.bytes.min(HEADER_BYTES_MAX),
        block: Vec::new(),
        at: 0,
        came: 0,
        next: FIRST_BYTES,
        failed: None,
    };
    let read = if is_safetensors(&file.name) || is_gguf(&file.name) {
        let bytes = header.bytes;
        header_length(Path::new(&file.name), &mut header, bytes).map_err(HubError::from)
    } else if WHOLE.contains(&file.name.as_str()) {
        io::copy(&mut header, &mut io::sink()).map_err(at(&path))
    } else {
        Ok(0)
    };
    match header.failed.take() {
        Some(error) => Err(error),
        None => read.map(|_| header.came),
    }
}

/// The beginning of a file on the hub, fetched as it is read, and written where it belongs.
struct Remote<'a> {
    client: &'a Client,
    repository: &'a Repository,
    file: &'a RemoteFile,
    url: String,
    out: File,
    path: &'a Path,
    /// Bytes that may be read.
    bytes: u64,
    /// The latest bytes that came, read up to `at`.
    block: Vec<u8>,
    at: usize,
    /// Bytes that came, all together.
    came: u64,
    /// How many to ask for next time.
    next: usize,
    /// What went wrong: an [`io::Error`] would hide it.
    failed: Option<HubError>,
}

impl Remote<'_> {
    fn fetch(&mut self, wanted: usize) -> Result<(), HubError> {
        let bytes = (wanted.max(self.next) as u64).min(self.bytes - self.came);
        self.block = vec![0; bytes as usize];
        let mut attempt = 1;
        while let Err(source) = self.receive()? {
            if attempt == ATTEMPTS {
                let (file, at) = (self.file.name.clone(), self.came);
                let (bytes, attempts) = (self.file.bytes, ATTEMPTS);
                return Err(HubError::Cut { file, at, bytes, attempts, source });
            }
            self.client.pause(backoff(attempt))?;
            attempt += 1;
        }
        self.out.seek(SeekFrom::Start(self.came)).map_err(at(self.path))?;
        self.out.write_all(&self.block).map_err(at(self.path))?;
        self.came += bytes;
        self.at = 0;
        self.next = (2 * self.next).min(LAST_BYTES);
        Ok(())
    }

    /// Fills the block with what follows. The inner error is the connection's.
    fn receive(&mut self) -> Result<io::Result<()>, HubError> {
        let range = Range { offset: self.came, bytes: Some(self.block.len() as u64) };
        let answer = self.client.get(&self.repository.id, &self.url, Some(range))?;
        if !range.is_answered_by(&answer) {
            return Err(HubError::Range { url: self.url.clone(), offset: self.came });
        }
        Ok(answer.into_body().into_reader().read_exact(&mut self.block))
    }
}

impl Read for Remote<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.block.len()
            && self.came < self.bytes
            && !out.is_empty()
            && let Err(error) = self.fetch(out.len())
        {
            let message = error.to_string();
            self.failed = Some(error);
            return Err(io::Error::other(message));
        }
        let bytes = out.len().min(self.block.len() - self.at);
        out[..bytes].copy_from_slice(&self.block[self.at..][..bytes]);
        self.at += bytes;
        Ok(bytes)
    }
}
