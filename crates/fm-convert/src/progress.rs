//! How far a long piece of work has come, and when it will be done.

use std::{
    fmt,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use fm_format::key::LayerIndex;

use crate::error::ConvertError;

/// What is being worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Configuration and tokenizer.
    Files,
    /// Everything that is no routed expert.
    Trunk,
    /// The routed experts of a layer.
    Experts(LayerIndex),
    /// Everything is written; the manifest follows.
    Manifest,
}

/// A report, several times a second on a fast disk.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// What is being worked on.
    pub phase: Phase,
    /// Bytes that are finished, including those of an earlier, interrupted run.
    pub bytes_done: u64,
    /// Bytes in all.
    pub bytes_total: u64,
    /// Time to the end at this run's average speed; `None` before there is one.
    pub eta: Option<Duration>,
}

/// Takes reports; breaking stops the work with [`ConvertError::Cancelled`].
pub type OnProgress<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files => f.write_str("configuration and tokenizer"),
            Self::Trunk => f.write_str("trunk"),
            Self::Experts(layer) => write!(f, "experts of layer {}", layer.0),
            Self::Manifest => f.write_str("manifest"),
        }
    }
}

/// Counts bytes and reports them.
pub(crate) struct Meter<'a> {
    report: &'a mut OnProgress<'a>,
    started: Instant,
    phase: Phase,
    resumed: u64,
    done: u64,
    total: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(total: u64, report: &'a mut OnProgress<'a>) -> Self {
        let (phase, started) = (Phase::Files, Instant::now());
        Self { report, started, phase, resumed: 0, done: 0, total }
    }

    pub(crate) fn enter(&mut self, phase: Phase) -> Result<(), ConvertError> {
        self.phase = phase;
        self.advance(0)
    }

    /// These bytes were finished before; they say nothing about the speed.
    pub(crate) fn resume(&mut self, bytes: u64) {
        self.resumed += bytes;
        self.done += bytes;
    }

    pub(crate) fn advance(&mut self, bytes: u64) -> Result<(), ConvertError> {
        self.done += bytes;
        let own = self.done - self.resumed;
        let rest = self.total.saturating_sub(self.done);
        let per_byte = (own > 0).then(|| self.started.elapsed().as_secs_f64() / own as f64);
        let progress = Progress {
            phase: self.phase,
            bytes_done: self.done,
            bytes_total: self.total,
            eta: per_byte.map(|seconds| Duration::from_secs_f64(seconds * rest as f64)),
        };
        match (self.report)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ConvertError::Cancelled),
        }
    }
}
