//! Logits on disk, to hold later runs to.
//!
//! ```text
//! "fm-eval\0" | u32 version | u32 header bytes | u64 XXH3-64 of the header | header, JSON
//! then per window: its rows of f32 logits | u64 XXH3-64 of them
//! ```
//!
//! All little-endian. Text, windows and vocabulary stand in the header, and the length of the file
//! follows from it. Reading and writing hold one batch of rows.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use fm_format::new_file::NewFile;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::{Cutting, EvalError, Logits, Text, Window};
use crate::error::EngineError;

const MAGIC: [u8; 8] = *b"fm-eval\0";
/// The version this build writes, and the only one it reads.
const VERSION: u32 = 1;
/// Longest header that is read.
const HEADER_BYTES_MAX: u32 = 1 << 16;
/// Bytes before the header.
const START_BYTES: u64 = 24;

/// What was dumped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DumpHeader {
    /// The model, as it was named.
    pub model: String,
    /// Arithmetic in force.
    pub numerics: String,
    /// Lossy switches in force.
    pub lossy: Vec<String>,
    /// Values of a row.
    pub vocab: usize,
    /// How the text was cut.
    pub cutting: Cutting,
    /// Tokens of the text.
    tokens: usize,
    /// XXH3-128 of the tokens, in hexadecimal digits.
    text: String,
}

impl DumpHeader {
    /// Describes the logits of a model over a text.
    pub fn new(model: String, numerics: &str, lossy: &[String], vocab: usize, text: &Text) -> Self {
        let (numerics, lossy) = (numerics.to_owned(), lossy.to_vec());
        let (tokens, cutting) = (text.tokens.len(), text.cutting);
        Self { model, numerics, lossy, vocab, cutting, tokens, text: hash_of(text) }
    }

    /// Tokens of the text.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Bytes of a whole dump; `None` if they cannot be counted.
    fn file_bytes(&self, header_bytes: usize, windows: usize, scored: usize) -> Option<u64> {
        let rows = (scored as u64).checked_mul(self.vocab as u64)?.checked_mul(4)?;
        rows.checked_add(START_BYTES + header_bytes as u64 + 8 * windows as u64)
    }
}

/// Of what begins every document, and of the documents.
fn hash_of(text: &Text) -> String {
    let mut hash = Xxh3Default::new();
    let documents = text.documents().map(|document| &text.tokens[document]);
    for tokens in std::iter::once(&text.prefix[..]).chain(documents) {
        hash.update(&(tokens.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| hash.update(&token.to_le_bytes()));
    }
    format!("{:032x}", hash.digest128())
}

/// Writes a dump, under a temporary name until it is complete.
#[expect(missing_debug_implementations, reason = "a running hash has nothing to show")]
pub struct DumpWriter {
    path: PathBuf,
    file: NewFile,
    hash: Xxh3Default,
    bytes: Vec<u8>,
}

impl DumpWriter {
    /// Begins a dump.
    ///
    /// # Errors
    /// If the file cannot be written.
    ///
    /// # Panics
    /// Never: a header consists of strings and numbers.
    pub fn create(path: &Path, header: &DumpHeader) -> Result<Self, EvalError> {
        let path = path.to_path_buf();
        let file = NewFile::create(&path);
        let file = file.map_err(|source| EvalError::Io { path: path.clone(), source })?;
        let mut dump = Self { path, file, hash: Xxh3Default::new(), bytes: Vec::new() };
        let header = serde_json::to_vec(header).expect("strings and numbers have a text");
        dump.write(&MAGIC)?;
        dump.write(&VERSION.to_le_bytes())?;
        dump.write(&(header.len() as u32).to_le_bytes())?;
        dump.write(&xxh3_64(&header).to_le_bytes())?;
        dump.write(&header)?;
        Ok(dump)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), EvalError> {
        self.file.write_all(bytes).map_err(|source| self.io_error(source))
    }

    fn io_error(&self, source: io::Error) -> EvalError {
        EvalError::Io { path: self.path.clone(), source }
    }

    /// Appends rows of the window.
    pub(super) fn rows(&mut self, logits: &[f32]) -> Result<(), EvalError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        logits.iter().for_each(|logit| bytes.extend_from_slice(&logit.to_le_bytes()));
        self.hash.update(&bytes);
        let written = self.write(&bytes);
        self.bytes = bytes;
        written
    }

    pub(super) fn end_window(&mut self) -> Result<(), EvalError> {
        let checksum = self.hash.digest();
        self.hash.reset();
        self.write(&checksum.to_le_bytes())
    }

    /// Puts the finished file in its place.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(self) -> Result<(), EvalError> {
        let Self { path, file, .. } = self;
        file.finish().map_err(|source| EvalError::Io { path, source })
    }
}

/// Whether a file begins like a dump.
pub fn is_dump(path: &Path) -> bool {
    let mut magic = [0; 8];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == MAGIC
}

/// A dump whose header has been read.
#[expect(missing_debug_implementations, reason = "a running hash has nothing to show")]
pub struct DumpReader {
    /// What was dumped.
    pub header: DumpHeader,
    path: PathBuf,
    file: BufReader<File>,
    header_bytes: usize,
    hash: Xxh3Default,
    window: usize,
    rows_left: usize,
    bytes: Vec<u8>,
    logits: Vec<f32>,
}

impl DumpReader {
    /// Reads the header of a dump.
    ///
    /// # Errors
    /// If it is none, is of another version, or its header is damaged.
    pub fn open(path: &Path) -> Result<Self, EvalError> {
        let path = path.to_path_buf();
        let io_error = |source| EvalError::Io { path: path.clone(), source };
        let not_a_dump = || EvalError::NotADump { path: path.clone() };
        let mut file = BufReader::new(File::open(&path).map_err(io_error)?);
        let mut start = [0; START_BYTES as usize];
        file.read_exact(&mut start).map_err(|_| not_a_dump())?;
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| start[at + i]));
        let header_bytes = number(12);
        if start[..8] != MAGIC || number(8) != VERSION || header_bytes > HEADER_BYTES_MAX {
            return Err(not_a_dump());
        }
        let mut text = vec![0; header_bytes as usize];
        file.read_exact(&mut text).map_err(|_| not_a_dump())?;
        if start[16..] != xxh3_64(&text).to_le_bytes() {
            return Err(not_a_dump());
        }
        let header: DumpHeader = serde_json::from_slice(&text).map_err(|_| not_a_dump())?;
        let (bytes, logits) = (Vec::new(), Vec::new());
        let (window, rows_left, header_bytes) = (0, 0, text.len());
        let hash = Xxh3Default::new();
        Ok(Self { header, path, file, header_bytes, hash, window, rows_left, bytes, logits })
    }

    /// Checks that the dump is of this text, cut alike, and complete.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, text: &Text) -> Result<(), EvalError> {
        let mismatch = |what| Err(EvalError::DumpMismatch { path: self.path.clone(), what });
        if self.header.cutting != text.cutting {
            return mismatch("--window or --warm-up");
        }
        if (self.header.tokens, &self.header.text) != (text.tokens.len(), &hash_of(text)) {
            return mismatch("text, --split or tokenizer");
        }
        let windows = text.windows().count();
        let expected = self.header.file_bytes(self.header_bytes, windows, text.scored());
        let expected = expected.unwrap_or(u64::MAX);
        let found = self.file.get_ref().metadata().map_err(|source| self.io_error(source))?.len();
        if found != expected {
            return Err(EvalError::DumpLength { path: self.path.clone(), found, expected });
        }
        Ok(())
    }

    fn io_error(&self, source: io::Error) -> EvalError {
        EvalError::Io { path: self.path.clone(), source }
    }

    fn read(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.bytes.resize(bytes, 0);
        let read = self.file.read_exact(&mut self.bytes);
        read.map_err(|source| self.io_error(source))
    }

    /// Holds the window that was read to its checksum.
    fn end_window(&mut self) -> Result<(), EvalError> {
        let found = self.hash.digest();
        self.hash.reset();
        self.read(8)?;
        let expected = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| self.bytes[i]));
        if found != expected {
            let (path, window) = (self.path.clone(), self.window);
            return Err(EvalError::DumpCorrupt { path, window, expected, found });
        }
        Ok(())
    }
}

impl Logits for DumpReader {
    fn vocab(&self) -> usize {
        self.header.vocab
    }

    fn rows_max(&self) -> usize {
        super::ROWS
    }

    fn begin(&mut self, window: &Window) -> Result<(), EngineError> {
        (self.window, self.rows_left) = (window.index, window.scored.len());
        Ok(())
    }

    fn next(&mut self, rows: usize) -> Result<&[f32], EngineError> {
        self.read(4 * rows * self.header.vocab)?;
        self.hash.update(&self.bytes);
        self.logits.clear();
        let words = self.bytes.chunks_exact(4);
        self.logits.extend(words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        self.rows_left -= rows;
        if self.rows_left == 0 {
            self.end_window()?;
        }
        Ok(&self.logits)
    }
}
