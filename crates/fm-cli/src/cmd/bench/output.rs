//! What `bench` found, as it goes out: `table.rs` makes it readable.

use std::time::Duration;

use fm_engine::{
    Engine,
    engine::Planned,
    measure::{Discarded, Probe, Rate, Repeat, Spread, Stats, experts::Verified},
    report::ReadAhead,
};
use serde::Serialize;

use super::setup::Setup;
use crate::version::COMMIT;

/// Version of [`Output`].
const SCHEMA: &str = "flash-moe.bench/1";

/// Everything `bench --json` prints. Lists that were not asked for are empty.
#[derive(Debug, Serialize)]
pub(super) struct Output {
    pub(super) schema: &'static str,
    pub(super) commit: &'static str,
    pub(super) about: About,
    /// The most memory that was held, probes not counted.
    pub(super) peak_bytes: Option<u64>,
    pub(super) speed: Vec<SpeedTest>,
    pub(super) rates: Vec<RateTest>,
    pub(super) turns: Vec<Turn>,
    pub(super) determinism: Option<Determinism>,
}

impl Output {
    pub(super) fn new(about: About) -> Self {
        let (speed, rates, turns) = (Vec::new(), Vec::new(), Vec::new());
        let (schema, commit, peak_bytes, determinism) = (SCHEMA, COMMIT, None, None);
        Self { schema, commit, about, peak_bytes, speed, rates, turns, determinism }
    }
}

/// The model, and how it runs.
#[derive(Debug, Serialize)]
pub(super) struct About {
    pub(super) model: String,
    pub(super) geometry: String,
    pub(super) model_bytes: u64,
    pub(super) expert_bytes: u64,
    pub(super) slot_bytes: u64,
    /// Whether some experts have no slot.
    pub(super) out_of_core: bool,
    pub(super) budget_bytes: u64,
    pub(super) context: u32,
    pub(super) prefill_chunk: usize,
    /// What keys and values are kept in.
    pub(super) kv: &'static str,
    pub(super) threads: usize,
    pub(super) cpu: &'static str,
    pub(super) device: &'static str,
    pub(super) policy: &'static str,
    /// How the next layer's experts are to be guessed while tokens are written.
    pub(super) look_ahead: &'static str,
    /// Tokens that were taken in before anything was measured.
    pub(super) warm_up: usize,
    /// Measurements that had to count; the logits hash is over as many.
    pub(super) repeats: usize,
    /// What is taken in and written.
    pub(super) text: String,
    pub(super) checks: &'static str,
    /// Of the whole model; parts of it say it themselves.
    pub(super) numerics: Option<&'static str>,
    /// Whether reads were to go through the page cache.
    pub(super) io: &'static str,
    pub(super) reader: Option<String>,
    /// Other options that are not what they are by default, and change speed only.
    pub(super) others: Vec<String>,
    pub(super) lossy: Vec<String>,
}

impl About {
    pub(super) fn new(setup: &Setup, planned: &Planned) -> Self {
        let Planned { spec, plan, .. } = planned;
        let experts = spec.catalog.layers.iter().flatten();
        let most = experts.clone().map(|layer| layer.records.len()).max().unwrap_or(0);
        let dims = spec.moe_dims(setup.options.top_k);
        let format = experts.clone().next().map_or("no", |layer| layer.layout.gate.format.name);
        let geometry = format!(
            "{}, {} layers, {most} experts of {} in {format}, {} per token, hidden {}",
            spec.model_type,
            spec.layers.len(),
            dims.ffn,
            dims.top_k,
            spec.hidden
        );
        Self {
            model: planned.path.display().to_string(),
            geometry,
            model_bytes: planned.footprint.trunk + spec.catalog.file_bytes(),
            expert_bytes: plan.experts,
            slot_bytes: plan.store.slot_bytes(),
            out_of_core: !plan.store.holds_everything(),
            budget_bytes: plan.budget,
            context: plan.context,
            prefill_chunk: plan.decoder.rows_max,
            kv: setup.options.kv.name(),
            threads: planned.threads,
            cpu: fm_engine::backends::cpu_features(),
            device: planned.device.name(),
            policy: setup.options.policy.name(),
            look_ahead: setup.options.look_ahead.name(),
            warm_up: setup.work.warm_up,
            repeats: setup.work.repeats,
            text: setup.text_name(),
            checks: planned.checks.name(),
            numerics: None,
            io: setup.options.io.name(),
            reader: None,
            others: setup.others(),
            lossy: Vec::new(),
        }
    }

    /// With what is known only of an open model.
    pub(super) fn with_engine(self, engine: &Engine) -> Self {
        Self {
            numerics: Some(engine.numerics.name()),
            reader: Some(engine.reader.to_string()),
            lossy: engine.lossy.clone(),
            ..self
        }
    }

    pub(super) fn with_reader(self, reader: String) -> Self {
        Self { reader: Some(reader), ..self }
    }
}

/// Tokens per second of one kind of work. Spreads are over the repeats that count.
#[derive(Debug, Serialize)]
pub(super) struct SpeedTest {
    pub(super) test: String,
    pub(super) tok_s: Option<Spread>,
    /// From the prompt to the first token; of prompts the median, before writing all prompts'.
    pub(super) ttft_s: Option<f64>,
    pub(super) memory_share: Option<Spread>,
    pub(super) disk_share: Option<Spread>,
    pub(super) read_bytes_per_token: Option<Spread>,
    /// Share of the requested experts that needed no read.
    pub(super) hit_rate: Option<Spread>,
    /// What was read before it was asked for, in all repeats.
    #[serde(flatten)]
    pub(super) ahead: ReadAhead,
    /// Whether the text was too short and began anew: tokens that come again find their experts.
    pub(super) text_came_again: bool,
    pub(super) logits_hash: String,
    /// Those that write; none for prompts.
    pub(super) sessions: Vec<SessionOutput>,
    pub(super) kept: usize,
    pub(super) discarded: usize,
    pub(super) repeats: Vec<SpeedRepeat>,
}

impl SpeedTest {
    pub(super) fn new(
        test: String,
        (repeats, ahead): (Vec<SpeedRepeat>, ReadAhead),
        logits_hash: u128,
    ) -> Self {
        let kept: Vec<&SpeedRepeat> =
            repeats.iter().filter(|repeat| repeat.around.discarded.is_none()).collect();
        let spread = |of: fn(&SpeedRepeat) -> Option<f64>| {
            Spread::of(kept.iter().filter_map(|repeat| of(repeat)))
        };
        Self {
            test,
            tok_s: spread(|repeat| Some(repeat.tok_s)),
            ttft_s: None,
            memory_share: spread(|repeat| repeat.memory_share),
            disk_share: spread(|repeat| repeat.disk_share),
            read_bytes_per_token: spread(|repeat| {
                Some(repeat.read_bytes as f64 / repeat.tokens as f64)
            }),
            hit_rate: spread(|repeat| Some(repeat.hit_rate)),
            ahead,
            text_came_again: false,
            logits_hash: hash_text(logits_hash),
            sessions: Vec::new(),
            kept: kept.len(),
            discarded: repeats.len() - kept.len(),
            repeats,
        }
    }
}

/// One of the sessions that write.
#[derive(Debug, Serialize)]
pub(super) struct SessionOutput {
    /// Where its text begins in the vocabulary, or in the text that was given.
    pub(super) first: usize,
    /// What a run of its text alone has.
    pub(super) logits_hash: String,
}

/// One measurement of tokens.
#[derive(Debug, Serialize)]
pub(super) struct SpeedRepeat {
    tokens: usize,
    pub(super) seconds: f64,
    tok_s: f64,
    hits: u64,
    misses: u64,
    hit_rate: f64,
    read_bytes: u64,
    /// Waiting for reads.
    wait_s: f64,
    /// Weights and states read from memory per second; `null` for prompts.
    memory_bytes_per_s: Option<f64>,
    memory_share: Option<f64>,
    disk_bytes_per_s: f64,
    disk_share: Option<f64>,
    pub(super) logits_hash: String,
    #[serde(flatten)]
    around: Around,
}

/// What was counted in one measurement.
pub(super) struct Counted {
    pub(super) tokens: usize,
    pub(super) elapsed: Duration,
    pub(super) store: Stats,
    pub(super) logits_hash: u128,
}

impl SpeedRepeat {
    /// `memory_bytes` are what was read of weights and states, where they are all there is.
    pub(super) fn new<T>(counted: &Counted, memory_bytes: Option<f64>, repeat: &Repeat<T>) -> Self {
        let Counted { tokens, elapsed, store, logits_hash } = *counted;
        let seconds = elapsed.as_secs_f64();
        let memory_bytes_per_s = memory_bytes.map(|bytes| bytes / seconds);
        let disk_bytes_per_s = store.read_bytes as f64 / seconds;
        Self {
            tokens,
            seconds,
            tok_s: tokens as f64 / seconds,
            hits: store.hits,
            misses: store.misses(),
            hit_rate: store.hit_rate(),
            read_bytes: store.read_bytes,
            wait_s: store.wait_ns as f64 / 1e9,
            memory_bytes_per_s,
            memory_share: memory_bytes_per_s
                .and_then(|rate| Probe::memory_share(rate, repeat.around)),
            disk_bytes_per_s,
            disk_share: Probe::disk_share(disk_bytes_per_s, repeat.around),
            logits_hash: hash_text(logits_hash),
            around: repeat.into(),
        }
    }
}

/// The probes of a repeat, and whether it counts.
#[derive(Debug, Serialize)]
pub(super) struct Around {
    before: Probe,
    after: Probe,
    discarded: Option<Discarded>,
}

impl<T> From<&Repeat<T>> for Around {
    fn from(repeat: &Repeat<T>) -> Self {
        let [before, after] = repeat.around;
        Self { before, after, discarded: repeat.discarded }
    }
}

/// Bytes per second of a part of the work.
#[derive(Debug, Serialize)]
pub(super) struct RateTest {
    pub(super) test: String,
    pub(super) numerics: Option<&'static str>,
    /// What the share is a share of.
    pub(super) limit: Limit,
    pub(super) bytes_per_s: Option<Spread>,
    pub(super) share: Option<Spread>,
    pub(super) verified: Option<Verification>,
    pub(super) kept: usize,
    pub(super) discarded: usize,
    pub(super) repeats: Vec<RateRepeat>,
}

/// What could be the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Limit {
    Memory,
    Disk,
}

impl RateTest {
    pub(super) fn new(test: String, limit: Limit, repeats: &[Repeat<Rate>]) -> Self {
        let share = match limit {
            Limit::Memory => Probe::memory_share,
            Limit::Disk => Probe::disk_share,
        };
        let repeats: Vec<RateRepeat> = repeats
            .iter()
            .map(|repeat| RateRepeat {
                bytes: repeat.measured.bytes,
                seconds: repeat.measured.elapsed.as_secs_f64(),
                bytes_per_s: repeat.measured.bytes_per_s(),
                share: share(repeat.measured.bytes_per_s(), repeat.around),
                around: repeat.into(),
            })
            .collect();
        let kept = || repeats.iter().filter(|repeat| repeat.around.discarded.is_none());
        Self {
            test,
            numerics: None,
            limit,
            bytes_per_s: Spread::of(kept().map(|repeat| repeat.bytes_per_s)),
            share: Spread::of(kept().filter_map(|repeat| repeat.share)),
            verified: None,
            kept: kept().count(),
            discarded: repeats.len() - kept().count(),
            repeats,
        }
    }
}

/// One measurement of bytes.
#[derive(Debug, Serialize)]
pub(super) struct RateRepeat {
    bytes: u64,
    seconds: f64,
    bytes_per_s: f64,
    share: Option<f64>,
    #[serde(flatten)]
    around: Around,
}

/// How far a part of the work is from the reference.
#[derive(Debug, Serialize)]
pub(super) struct Verification {
    pub(super) values: usize,
    /// The largest difference, relative to the largest value.
    pub(super) difference: f64,
    pub(super) tolerance: f64,
}

impl From<Verified> for Verification {
    fn from(verified: Verified) -> Self {
        let Verified { values, difference, tolerance, .. } = verified;
        Self { values, difference, tolerance }
    }
}

/// One turn of a conversation.
#[derive(Debug, Serialize)]
pub(super) struct Turn {
    /// Tokens of the conversation after it.
    pub(super) context: usize,
    /// Tokens that the session already held.
    pub(super) reused: usize,
    pub(super) ttft_s: f64,
    pub(super) tok_s: Option<f64>,
    pub(super) read_bytes: u64,
    pub(super) held_bytes: Option<u64>,
    pub(super) logits_hash: String,
}

/// The same text, written several times.
#[derive(Debug, Serialize)]
pub(super) struct Determinism {
    pub(super) steps: usize,
    pub(super) equal: bool,
    pub(super) hashes: Vec<String>,
}

impl Output {
    /// The machine's load during all measurements.
    pub(super) fn load(&self) -> Option<Spread> {
        let speed = self.speed.iter().flat_map(|test| &test.repeats).map(|repeat| &repeat.around);
        let rates = self.rates.iter().flat_map(|test| &test.repeats).map(|repeat| &repeat.around);
        let probes = speed.chain(rates).flat_map(|around| [around.before, around.after]);
        Spread::of(probes.filter_map(|probe| probe.load))
    }
}

/// A hash as it is written everywhere.
pub(super) fn hash_text(hash: u128) -> String {
    format!("{hash:032x}")
}
