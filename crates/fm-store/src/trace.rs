//! Traces: which experts every layer asked for, step by step, to try policies on.
//!
//! ```text
//! "fm-trace" | header bytes: u32 | header: JSON | frame … | 0: u8 | frames: u64 | XXH3-64 of all before
//! frame: 1: u8 | layer: u16 | rows: u32 | rows × top_k: u16 | rows × experts: f32, if scores
//! ```
//!
//! Numbers are little-endian. A frame is one layer in one step; a step begins where the layers do
//! not ascend. `docs/trace.md` says the same to people.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use fm_format::{key::ExpertIndex, new_file::NewFile, record::Catalog};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;

const MAGIC: &[u8; 8] = b"fm-trace";

/// The version this build writes, and the only one it reads.
const VERSION: u32 = 1;

/// A header is a few numbers per layer.
const HEADER_BYTES_MAX: u32 = 1 << 20;

/// Bytes of all experts: more than any model has, and so many that sums of them are numbers.
const EXPERT_BYTES_MAX: u128 = 1 << 60;

/// More rows than any step has.
const ROWS_MAX: u32 = 1 << 20;

/// What a trace is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceHeader {
    version: u32,
    /// Name of the model, for people.
    pub model: String,
    /// Family, as in `config.json`.
    pub model_type: String,
    /// Identity of the weights, in hexadecimal.
    pub fingerprint: String,
    /// Arithmetic in force.
    pub numerics: String,
    /// Experts per row.
    pub top_k: usize,
    /// Whether frames hold the router's scores of all experts.
    pub scores: bool,
    /// By layer of the model; `null` for layers without routed experts.
    pub layers: Vec<Option<TracedLayer>>,
}

/// A layer with routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedLayer {
    /// Its experts.
    pub experts: usize,
    /// Bytes that an expert takes in memory.
    pub slot_bytes: u64,
    /// Bytes that are read for it.
    pub read_bytes: u64,
}

/// Why a trace cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The system failed.
    #[error("cannot read or write the trace {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is not a trace of this version", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
    },
    /// A frame cannot be.
    #[error("the trace {} is damaged: {what} in frame {frame}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Frames before it.
        frame: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Sessions of different models cannot decode together.
    #[error("the traces are of different models or routes: {first} and {other}")]
    Different {
        /// Model of the first.
        first: String,
        /// Model of the other.
        other: String,
    },
}

impl TraceHeader {
    /// The geometry of a catalog; the names are for the caller to fill.
    pub fn new(catalog: &Catalog, top_k: usize) -> Self {
        let room = catalog.room_bytes();
        let layers = catalog.layers.iter().map(|layer| {
            layer.as_ref().map(|layer| TracedLayer {
                experts: layer.records.len(),
                slot_bytes: (layer.layout.bytes() + room) as u64,
                read_bytes: layer
                    .records
                    .first()
                    .map_or(0, |record| record.pieces.iter().map(|piece| piece.extent.bytes).sum()),
            })
        });
        Self::of_layers(layers.collect(), top_k)
    }

    /// A geometry without a catalog.
    pub fn of_layers(layers: Vec<Option<TracedLayer>>, top_k: usize) -> Self {
        Self {
            version: VERSION,
            model: String::new(),
            model_type: String::new(),
            fingerprint: String::new(),
            numerics: String::new(),
            top_k,
            scores: false,
            layers,
        }
    }
}

/// Writes a trace as it happens, under a temporary name until it is complete.
pub struct TraceWriter {
    path: PathBuf,
    out: NewFile,
    hash: Xxh3Default,
    scores: bool,
    frames: u64,
    /// One frame, reused.
    frame: Vec<u8>,
}

impl std::fmt::Debug for TraceWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TraceWriter({}, {} frames)", self.path.display(), self.frames)
    }
}

impl TraceWriter {
    /// Begins a trace.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(path: &Path, header: &TraceHeader) -> Result<Self, TraceError> {
        let io = |source| TraceError::Io { path: path.into(), source };
        let out = NewFile::create(path).map_err(io)?;
        let mut writer = Self {
            path: path.into(),
            out,
            hash: Xxh3Default::new(),
            scores: header.scores,
            frames: 0,
            frame: Vec::new(),
        };
        let text = serde_json::to_vec(header).map_err(|error| io(error.into()))?;
        writer.frame.extend_from_slice(MAGIC);
        writer.frame.extend_from_slice(&(text.len() as u32).to_le_bytes());
        writer.frame.extend_from_slice(&text);
        writer.put()?;
        Ok(writer)
    }

    /// Whether it wants scores.
    pub fn scores(&self) -> bool {
        self.scores
    }

    /// Adds what a layer's rows chose: `top_k` experts each, and all scores if the trace has them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn layer(
        &mut self,
        layer: u16,
        rows: usize,
        experts: &[ExpertIndex],
        scores: &[f32],
    ) -> Result<(), TraceError> {
        self.frame.push(1);
        self.frame.extend_from_slice(&layer.to_le_bytes());
        self.frame.extend_from_slice(&(rows as u32).to_le_bytes());
        self.frame.extend(experts.iter().flat_map(|expert| expert.0.to_le_bytes()));
        if self.scores {
            self.frame.extend(scores.iter().flat_map(|score| score.to_le_bytes()));
        }
        self.frames += 1;
        self.put()
    }

    /// Ends the trace and puts it in its place.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<(), TraceError> {
        self.frame.push(0);
        self.frame.extend_from_slice(&self.frames.to_le_bytes());
        self.put()?;
        let checksum = self.hash.digest();
        self.frame.extend_from_slice(&checksum.to_le_bytes());
        self.put()?;
        let Self { path, out, .. } = self;
        out.finish().map_err(|source| TraceError::Io { path, source })
    }

    fn put(&mut self) -> Result<(), TraceError> {
        self.hash.update(&self.frame);
        let written = self.out.write_all(&self.frame);
        self.frame.clear();
        written.map_err(|source| TraceError::Io { path: self.path.clone(), source })
    }
}

/// A trace in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// What it is of.
    pub header: TraceHeader,
    /// In the order of the steps, ascending within a step.
    pub frames: Vec<Frame>,
    /// Experts of all rows of all frames.
    experts: Vec<u16>,
    /// Scores of all rows of all frames; empty if the trace has none.
    scores: Vec<f32>,
}

/// One layer in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Counted from 0.
    pub step: usize,
    /// Layer of the model.
    pub layer: u16,
    /// Rows of the step that this layer computed.
    pub rows: usize,
    experts_from: usize,
    scores_from: usize,
}

impl Trace {
    /// An empty trace.
    pub fn new(header: TraceHeader) -> Self {
        Self { header, frames: Vec::new(), experts: Vec::new(), scores: Vec::new() }
    }

    /// Reads a trace from a file.
    ///
    /// # Errors
    /// If it is not one, ends early, or is not what was written.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let io = |source| TraceError::Io { path: path.into(), source };
        let file = BufReader::new(File::open(path).map_err(io)?);
        let mut input = Hashed { input: file, hash: Xxh3Default::new() };
        let header = input.header().map_err(io)?;
        let header = header.ok_or_else(|| TraceError::NotATrace { path: path.into() })?;
        let mut trace = Self::new(header);
        loop {
            let frame = trace.frames.len();
            let damaged = |what| TraceError::Damaged { path: path.into(), frame, what };
            let failed = |error: io::Error| match error.kind() {
                io::ErrorKind::UnexpectedEof => damaged("the file ends"),
                _ => io(error),
            };
            match u8::from_le_bytes(input.number().map_err(failed)?) {
                0 => {
                    let frames = u64::from_le_bytes(input.number().map_err(failed)?);
                    let found = input.hash.digest();
                    let expected = u64::from_le_bytes(input.number().map_err(failed)?);
                    let whole = frames == trace.frames.len() as u64 && found == expected;
                    return if whole { Ok(trace) } else { Err(damaged("a wrong checksum")) };
                }
                1 => trace.read_frame(&mut input).map_err(failed)?.map_err(damaged)?,
                _ => return Err(damaged("an unknown mark")),
            }
        }
    }

    fn read_frame<R: Read>(
        &mut self,
        input: &mut Hashed<R>,
    ) -> io::Result<Result<(), &'static str>> {
        let layer = u16::from_le_bytes(input.number()?);
        let rows = u32::from_le_bytes(input.number()?);
        let Some(Some(traced)) = self.header.layers.get(usize::from(layer)).copied() else {
            return Ok(Err("a layer without experts"));
        };
        if rows == 0 || rows > ROWS_MAX {
            return Ok(Err("an impossible number of rows"));
        }
        let mut experts = Vec::new();
        for _ in 0..rows as usize * self.header.top_k {
            let expert = u16::from_le_bytes(input.number()?);
            if usize::from(expert) >= traced.experts {
                return Ok(Err("an expert that does not exist"));
            }
            experts.push(ExpertIndex(expert));
        }
        let mut scores = Vec::new();
        if self.header.scores {
            for _ in 0..rows as usize * traced.experts {
                scores.push(f32::from_le_bytes(input.number()?));
            }
        }
        self.push(layer, rows as usize, &experts, &scores);
        Ok(Ok(()))
    }

    /// Adds what a layer's rows chose.
    ///
    /// # Panics
    /// If the experts are not `top_k` for each row.
    pub fn push(&mut self, layer: u16, rows: usize, experts: &[ExpertIndex], scores: &[f32]) {
        assert_eq!(experts.len(), rows * self.header.top_k, "every row has top_k experts");
        let step =
            self.frames.last().map_or(0, |last| last.step + usize::from(layer <= last.layer));
        let (experts_from, scores_from) = (self.experts.len(), self.scores.len());
        self.frames.push(Frame { step, layer, rows, experts_from, scores_from });
        self.experts.extend(experts.iter().map(|expert| expert.0));
        self.scores.extend_from_slice(scores);
    }

    /// Steps it has.
    pub fn steps(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.step + 1)
    }

    /// `top_k` experts of every row of a frame.
    pub fn experts(&self, frame: &Frame) -> &[u16] {
        &self.experts[frame.experts_from..][..frame.rows * self.header.top_k]
    }

    /// The scores of all experts for every row of a frame, `[rows, experts]`.
    pub fn scores(&self, frame: &Frame) -> Option<&[f32]> {
        let layer = self.header.layers[usize::from(frame.layer)].as_ref();
        let experts = layer.map_or(0, |layer| layer.experts);
        self.header.scores.then(|| &self.scores[frame.scores_from..][..frame.rows * experts])
    }

    /// What sessions that decode together ask for: step `i` is step `i` of all of them, as far as
    /// the shortest goes.
    ///
    /// # Errors
    /// If they are not of one model.
    pub fn together(traces: &[Self]) -> Result<Self, TraceError> {
        let first = traces.first().map(|trace| trace.header.clone()).ok_or_else(|| {
            TraceError::Different { first: "nothing".into(), other: "nothing".into() }
        })?;
        let same = |header: &TraceHeader| {
            (&header.layers, header.top_k, &header.fingerprint)
                == (&first.layers, first.top_k, &first.fingerprint)
        };
        if let Some(other) = traces.iter().find(|trace| !same(&trace.header)) {
            let (first, other) = (first.model, other.header.model.clone());
            return Err(TraceError::Different { first, other });
        }
        let scores = traces.iter().all(|trace| trace.header.scores);
        let mut all = Self::new(TraceHeader { scores, ..first });
        let steps = traces.iter().map(Self::steps).min().unwrap_or(0);
        let mut cursors = vec![0; traces.len()];
        for step in 0..steps {
            for layer in 0..all.header.layers.len() as u16 {
                let (mut rows, mut experts, mut values) = (0, Vec::new(), Vec::new());
                for (trace, cursor) in traces.iter().zip(&mut cursors) {
                    let frame = trace.frames.get(*cursor);
                    let ours = |frame: &&Frame| frame.step == step && frame.layer == layer;
                    let Some(frame) = frame.filter(ours) else { continue };
                    *cursor += 1;
                    rows += frame.rows;
                    experts.extend(trace.experts(frame).iter().map(|expert| ExpertIndex(*expert)));
                    values.extend_from_slice(trace.scores(frame).filter(|_| scores).unwrap_or(&[]));
                }
                if rows > 0 {
                    all.push(layer, rows, &experts, &values);
                }
            }
        }
        Ok(all)
    }
}

/// Input that is summed up as it is read.
struct Hashed<R> {
    input: R,
    hash: Xxh3Default,
}

impl<R: Read> Hashed<R> {
    fn number<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        self.hash.update(&bytes);
        Ok(bytes)
    }

    /// The header; `None` if this is not a trace.
    fn header(&mut self) -> io::Result<Option<TraceHeader>> {
        let start = (|| Ok::<_, io::Error>((self.number::<8>()?, self.number::<4>()?)))();
        let (magic, bytes) = match start {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            start => start?,
        };
        let bytes = u32::from_le_bytes(bytes);
        if magic != *MAGIC || bytes > HEADER_BYTES_MAX {
            return Ok(None);
        }
        let mut text = Vec::new();
        self.input.by_ref().take(u64::from(bytes)).read_to_end(&mut text)?;
        self.hash.update(&text);
        let header: Option<TraceHeader> = serde_json::from_slice(&text).ok();
        let possible = |layer: &TracedLayer| (1..=usize::from(u16::MAX)).contains(&layer.experts);
        let bytes = |layer: &TracedLayer| {
            layer.experts as u128 * u128::from(layer.slot_bytes.max(layer.read_bytes))
        };
        Ok(header.filter(|header| {
            header.version == VERSION
                && (1..=usize::from(u16::MAX)).contains(&header.top_k)
                && u16::try_from(header.layers.len()).is_ok()
                && header.layers.iter().flatten().all(possible)
                && header.layers.iter().flatten().map(bytes).sum::<u128>() <= EXPERT_BYTES_MAX
        }))
    }
}
