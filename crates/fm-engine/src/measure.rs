//! Measurements of one model on this machine, each between two probes of what the machine can do at
//! that moment: where memory and disk are shared, only the ratio of the two says something.

pub mod experts;
pub mod kernels;
pub mod records;
pub mod walk;

use std::{path::PathBuf, time::Duration};

use fm_format::{
    quant::{FloatKind, float_format},
    record::MatrixShape,
};
use fm_kernels::{backend::Numerics, conformance::noise_weights};
pub use fm_store::Stats;
use serde::Serialize;

use crate::{
    engine::{Places, Planned},
    error::EngineError,
    limits::{Limits, MEMORY_PROBE_BYTES, ProbeMemory, Watched},
    machine::load_average,
};

/// What the machine can do at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Probe {
    /// Reading memory with all threads; `null` if there is no room for the probe.
    pub memory_bytes_per_s: Option<f64>,
    /// Reading the model's largest file directly; `null` if the disk does not matter.
    pub disk_bytes_per_s: Option<f64>,
    /// Processes that ran or wanted to, on average over the last minute.
    pub load: Option<f64>,
}

impl Probe {
    /// The share of `bytes_per_s` in the mean of two probes' memory bandwidth.
    pub fn memory_share(bytes_per_s: f64, around: [Self; 2]) -> Option<f64> {
        share(bytes_per_s, around.map(|probe| probe.memory_bytes_per_s))
    }

    /// The share of `bytes_per_s` in the mean of two probes' disk bandwidth.
    pub fn disk_share(bytes_per_s: f64, around: [Self; 2]) -> Option<f64> {
        share(bytes_per_s, around.map(|probe| probe.disk_bytes_per_s))
    }
}

/// Nothing where a probe got no time on a busy machine: then it says nothing.
fn share(bytes_per_s: f64, around: [Option<f64>; 2]) -> Option<f64> {
    let limit = 0.5 * (around[0]? + around[1]?);
    (limit > 0.0).then(|| bytes_per_s / limit)
}

/// Memory of virtual machines has a slow and a fast mode, 50 and 79 GB/s on one we met, and flips
/// between them within seconds. Probes that are further apart than this share stand on both sides
/// of a flip, and what lies between them belongs to neither.
const MODE_SHARE: f64 = 0.1;

/// Whether the memory has kept its mode between two probes.
pub fn is_steady(around: [Probe; 2]) -> bool {
    match around.map(|probe| probe.memory_bytes_per_s) {
        [Some(before), Some(after)] => (before - after).abs() <= MODE_SHARE * before.max(after),
        _ => true,
    }
}

/// Takes probes.
#[derive(Clone, Debug)]
pub struct Prober {
    threads: usize,
    files: Vec<PathBuf>,
    memory: ProbeMemory,
    root: PathBuf,
}

impl Prober {
    /// Probes for a planned model: its threads, and its disk if that is `watched`.
    pub fn new(planned: &Planned, disk: Watched, places: &Places) -> Self {
        let left = planned.plan.allowed.saturating_sub(planned.plan.total());
        let room = left >= MEMORY_PROBE_BYTES as u64;
        Self {
            threads: planned.threads,
            files: match disk {
                Watched::Yes => planned.files.clone(),
                Watched::No => Vec::new(),
            },
            memory: if room { ProbeMemory::Allocate } else { ProbeMemory::Leave },
            root: places.root.clone(),
        }
    }

    /// As long as [`Limits::measure`].
    pub fn probe(&self) -> Probe {
        let limits = Limits::measure(&self.files, self.threads, self.memory);
        Probe {
            memory_bytes_per_s: limits.memory_bytes_per_s,
            disk_bytes_per_s: limits.disk_bytes_per_s,
            load: load_average(&self.root),
        }
    }
}

/// Why a measurement does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Discarded {
    /// The memory changed its mode meanwhile.
    MemoryMode,
    /// Experts that will stay in memory were read for the first time.
    ColdExperts,
}

/// A measurement with what was probed before and after it.
#[derive(Clone, Copy, Debug)]
pub struct Repeat<T> {
    /// What was measured.
    pub measured: T,
    /// The probes.
    pub around: [Probe; 2],
    /// Why it does not count, if it does not.
    pub discarded: Option<Discarded>,
}

/// Measures until `wanted` measurements count, but at most twice as often.
///
/// # Errors
/// If a measurement fails.
pub fn repeat<T>(
    prober: &Prober,
    wanted: usize,
    mut measure: impl FnMut() -> Result<T, EngineError>,
    discard: impl Fn(&T, [Probe; 2]) -> Option<Discarded>,
) -> Result<Vec<Repeat<T>>, EngineError> {
    let mut repeats = Vec::new();
    let (mut kept, mut before) = (0, prober.probe());
    while kept < wanted && repeats.len() < 2 * wanted {
        let measured = measure()?;
        let after = prober.probe();
        let around = [before, after];
        let discarded = discard(&measured, around);
        kept += usize::from(discarded.is_none());
        repeats.push(Repeat { measured, around, discarded });
        before = after;
    }
    Ok(repeats)
}

/// Bytes that went through in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// How much.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl Rate {
    /// Bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64()
    }
}

/// Something that can be measured again and again.
#[expect(missing_debug_implementations, reason = "a closure has nothing to show")]
pub struct Rated {
    /// The arithmetic in force.
    pub numerics: Numerics,
    /// Does it once.
    pub round: Box<dyn FnMut() -> Result<Rate, EngineError>>,
}

/// Where the middle of some values lies, and the outermost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of them are smaller; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = 0.5 * (values[(values.len() - 1) / 2] + values[middle]);
        Some(Self { median, min, max })
    }
}

/// Activations that look like nothing in particular.
fn activations(len: usize) -> Vec<f32> {
    let shape = MatrixShape { rows: 1, cols: len, format: float_format(FloatKind::F32) };
    let bytes = noise_weights(shape, 11);
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(memory: f64) -> Probe {
        Probe { memory_bytes_per_s: Some(memory), disk_bytes_per_s: None, load: None }
    }

    #[test]
    fn a_change_of_mode_is_more_than_a_tenth() {
        assert!(is_steady([probe(50e9), probe(54e9)]));
        assert!(is_steady([probe(54e9), probe(50e9)]));
        assert!(!is_steady([probe(50e9), probe(79e9)]));
        assert!(!is_steady([probe(79e9), probe(50e9)]));
        let unknown = Probe { memory_bytes_per_s: None, ..probe(0.0) };
        assert!(is_steady([probe(50e9), unknown]));
    }

    #[test]
    fn shares_are_of_the_mean_of_both_probes() {
        assert_eq!(Probe::memory_share(30e9, [probe(50e9), probe(70e9)]), Some(0.5));
        assert_eq!(Probe::disk_share(30e9, [probe(50e9), probe(70e9)]), None);
        assert_eq!(Probe::memory_share(30e9, [probe(0.0), probe(0.0)]), None);
    }

    #[test]
    fn spreads_of_odd_even_and_no_values() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(spread(&[4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn what_does_not_count_is_measured_again_up_to_twice_as_often() {
        let prober = Prober {
            threads: 1,
            files: Vec::new(),
            memory: ProbeMemory::Leave,
            root: "/nowhere".into(),
        };
        let run = |good_from: usize| {
            let mut count = 0;
            let measure = || {
                count += 1;
                Ok(count)
            };
            let discard =
                |at: &usize, _: [Probe; 2]| (*at < good_from).then_some(Discarded::ColdExperts);
            let repeats = repeat(&prober, 3, measure, discard).unwrap();
            let kept = repeats.iter().filter(|repeat| repeat.discarded.is_none()).count();
            (repeats.len(), kept)
        };
        assert_eq!(run(0), (3, 3));
        assert_eq!(run(3), (5, 3));
        assert_eq!(run(99), (6, 0));
    }
}
