//! How close a run came: speeds, reads, memory, and what bound it.

use std::fmt;

use fm_store::Stats;
use serde::Serialize;

use crate::{
    bytes::Bytes,
    engine::Engine,
    generate::{Generated, Phase},
    limits::Limits,
};

/// Version of [`RunOutput`] and of `docs/report.schema.json`.
pub const SCHEMA: &str = "flash-moe.run/1";

/// Everything `run --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct RunOutput {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The model's directory.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: Vec<u32>,
    /// Generated tokens, a final end-of-text token not included.
    pub tokens: Vec<u32>,
    /// The answer; `null` without a tokenizer.
    pub text: Option<String>,
    /// What the model thought before it.
    pub thinking: Option<String>,
    /// [`FinishReason::name`](crate::generate::FinishReason::name).
    pub finish_reason: &'static str,
    /// What a user should know, in words; lossy switches are in the report.
    pub warnings: Vec<String>,
    /// How it went.
    pub report: Report,
}

/// How a run went. Rates are `null` where nothing was done.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// From the request to the first token.
    pub ttft_s: Option<f64>,
    /// Tokens of the prompt that were computed.
    pub prefill_tokens: usize,
    /// Tokens of the prompt that the session already held.
    pub reused_tokens: usize,
    /// Prompt tokens per second.
    pub prefill_tok_s: Option<f64>,
    /// Generated tokens per second, the first one not counted.
    pub decode_tok_s: Option<f64>,
    /// Bytes read per generated token.
    pub read_bytes_per_token: Option<f64>,
    /// Bytes read in all.
    pub read_bytes: u64,
    /// Share of requested experts that needed no read.
    pub hit_rate: f64,
    /// Experts that were found.
    pub hits: u64,
    /// Experts that were read for the first time.
    pub cold_misses: u64,
    /// Experts that were read again, because they had to go.
    pub capacity_misses: u64,
    /// What was read before it was asked for.
    #[serde(flatten)]
    pub ahead: ReadAhead,
    /// Share of the time of generation in which the disk had something to read.
    pub disk_busy_share: Option<f64>,
    /// Bytes of slots that were given back because memory was short.
    pub released_bytes: u64,
    /// Reads that were repeated.
    pub retries: u64,
    /// Experts that could not be read.
    pub io_errors: u64,
    /// Bytes per second from disk while generating.
    pub disk_bytes_per_s: Option<f64>,
    /// Bytes of weights per second while generating.
    pub memory_bytes_per_s: Option<f64>,
    /// Share of the time of generation that waited for reads.
    pub wait_share: Option<f64>,
    /// What the machine can do.
    pub limits: Limits,
    /// Ceiling for all memory but clean page cache.
    pub budget_bytes: u64,
    /// The most memory held at once, clean page cache not counted; `null` where the system does not
    /// tell.
    pub peak_bytes: Option<u64>,
    /// `locked` if the system never pages the trunk out, else `pageable`.
    pub trunk_memory: &'static str,
    /// Bytes of expert slots.
    pub slot_bytes: u64,
    /// Tokens the session can hold.
    pub context: u32,
    /// Arithmetic in force.
    pub numerics: &'static str,
    /// Threads that computed.
    pub threads: usize,
    /// How experts were read.
    pub reader: String,
    /// How their bytes were checked.
    pub checks: &'static str,
    /// Lossy switches in force.
    pub lossy: Vec<String>,
    /// XXH3-128 over the f32 bits of every row of logits that was sampled from, in order.
    pub logits_hash: String,
    /// What bound the run, and what would help.
    pub verdict: String,
    /// Where the time of both phases went.
    pub timing: Timing,
}

/// Seconds by kind of work.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Timing {
    /// The prompt.
    pub prefill: PhaseTiming,
    /// Generation.
    pub decode: PhaseTiming,
}

/// Seconds of one phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PhaseTiming {
    /// All of it.
    pub total_s: f64,
    /// Attention layers' mixers.
    pub attention_s: f64,
    /// Delta-net layers' mixers.
    pub delta_net_s: f64,
    /// Routed experts, shared experts and routers, without waiting.
    pub moe_s: f64,
    /// Waiting for reads.
    pub wait_s: f64,
    /// Dense feed-forward networks.
    pub mlp_s: f64,
    /// Final norm and head.
    pub head_s: f64,
}

impl From<&Phase> for PhaseTiming {
    fn from(phase: &Phase) -> Self {
        let times = phase.times;
        let wait_s = phase.store.wait_ns as f64 / 1e9;
        Self {
            total_s: phase.elapsed.as_secs_f64(),
            attention_s: times.attention.as_secs_f64(),
            delta_net_s: times.delta_net.as_secs_f64(),
            moe_s: (times.moe.as_secs_f64() - wait_s).max(0.0),
            wait_s,
            mlp_s: times.mlp.as_secs_f64(),
            head_s: times.head.as_secs_f64(),
        }
    }
}

fn per_second(amount: f64, phase: &Phase) -> Option<f64> {
    let seconds = phase.elapsed.as_secs_f64();
    (phase.tokens > 0 && seconds > 0.0).then(|| amount / seconds)
}

impl Report {
    /// Sums a run up. `peak_bytes` was read before the limits were measured, which takes memory too.
    pub fn new(
        engine: &Engine,
        generated: &Generated,
        limits: Limits,
        peak_bytes: Option<u64>,
    ) -> Self {
        let Generated { prefill, decode, .. } = generated;
        let store = prefill.store + decode.store;
        let weights = engine.footprint.active as f64 * decode.tokens as f64;
        let seconds = decode.elapsed.as_secs_f64();
        let wait_share = (decode.tokens > 0 && seconds > 0.0)
            .then(|| decode.store.wait_ns as f64 / 1e9 / seconds);
        let memory_bytes_per_s = per_second(weights, decode);
        Self {
            ttft_s: generated.first_token.map(|time| time.as_secs_f64()),
            prefill_tokens: prefill.tokens,
            reused_tokens: generated.reused,
            prefill_tok_s: per_second(prefill.tokens as f64, prefill),
            decode_tok_s: per_second(decode.tokens as f64, decode),
            read_bytes_per_token: (decode.tokens > 0)
                .then(|| decode.store.read_bytes as f64 / decode.tokens as f64),
            read_bytes: store.read_bytes,
            hit_rate: store.hit_rate(),
            hits: store.hits,
            cold_misses: store.cold_misses,
            capacity_misses: store.capacity_misses,
            ahead: ReadAhead::of(engine, store),
            disk_busy_share: per_second(decode.store.busy_ns as f64 / 1e9, decode),
            released_bytes: store.released_bytes,
            retries: store.retries,
            io_errors: store.io_errors,
            disk_bytes_per_s: per_second(decode.store.read_bytes as f64, decode),
            memory_bytes_per_s,
            wait_share,
            limits,
            budget_bytes: engine.plan.budget,
            peak_bytes,
            trunk_memory: engine.trunk_memory.name(),
            slot_bytes: engine.plan.store.slot_bytes(),
            context: engine.plan.context,
            numerics: engine.numerics.name(),
            threads: engine.threads,
            reader: engine.reader.to_string(),
            checks: engine.checks.name(),
            lossy: engine.lossy.clone(),
            logits_hash: format!("{:032x}", generated.logits_hash),
            verdict: verdict(engine, decode, wait_share, memory_bytes_per_s, limits),
            timing: Timing { prefill: prefill.into(), decode: decode.into() },
        }
    }
}

/// Experts that were read before their layer asked for them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ReadAhead {
    /// How the next layer's experts were to be guessed while tokens were written.
    pub look_ahead: &'static str,
    /// How they were in the end: with `auto`, what has measured faster.
    pub look_ahead_in_force: &'static str,
    /// Share of a token's time that `auto` has measured to be saved by a guess, negative for lost;
    /// `null` if it has not measured, or was not asked to.
    pub look_ahead_gain: Option<f64>,
    /// Records that were read before their layer asked for them: those of a guess, and in large
    /// batches those of the next layer.
    pub foreseen_records: u64,
    /// Records that were asked for before they had to go; no more than were read, although some of
    /// them may have been read before what is counted here began.
    pub foreseen_used: u64,
    /// Bytes of the others. Those still waiting to come true count.
    pub foreseen_wasted_bytes: u64,
}

impl ReadAhead {
    /// Of what a store did, and how it stands now.
    pub fn of(engine: &Engine, store: Stats) -> Self {
        let in_force = engine.looks_ahead();
        let foreseen_used = came_true(&store);
        let wasted = store.foreseen_records - foreseen_used;
        let record_bytes = store.read_bytes as f64 / store.records_read.max(1) as f64;
        Self {
            look_ahead: engine.look_ahead.name(),
            look_ahead_in_force: in_force.mode.name(),
            look_ahead_gain: in_force.gain,
            foreseen_records: store.foreseen_records,
            foreseen_used,
            foreseen_wasted_bytes: (wasted as f64 * record_bytes) as u64,
        }
    }
}

fn came_true(store: &Stats) -> u64 {
    store.foreseen_used.min(store.foreseen_records)
}

impl fmt::Display for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = self.foreseen_used as f64 / self.foreseen_records.max(1) as f64;
        write!(
            f,
            "{} records, {:.1} % of them used, {} in vain · look-ahead {}",
            self.foreseen_records,
            100.0 * right,
            Bytes(self.foreseen_wasted_bytes),
            self.look_ahead
        )?;
        let Some(gain) = self.look_ahead_gain else { return Ok(()) };
        let (in_force, gain) = (self.look_ahead_in_force, 100.0 * gain);
        write!(f, ": {in_force}, because a guess saves {gain:.1} % of the time")
    }
}

/// Waiting for more than this share of the time means bound by the disk.
const WAIT_SHARE: f64 = 0.4;

/// Memory read at more than this share of its bandwidth means bound by memory.
const MEMORY_SHARE: f64 = 0.6;

/// What bound the run, in one plain sentence.
fn verdict(
    engine: &Engine,
    decode: &Phase,
    wait_share: Option<f64>,
    memory: Option<f64>,
    limits: Limits,
) -> String {
    let Some(wait_share) = wait_share else { return "too short to say what bound it".to_owned() };
    if wait_share > WAIT_SHARE {
        let missing = engine.plan.experts.saturating_sub(engine.plan.store.slot_bytes());
        let again = decode.store.capacity_misses as f64 / decode.store.misses().max(1) as f64;
        if missing == 0 || again < 0.5 {
            return "bound by disk: most experts were read for the first time; \
                    a longer run will be faster"
                .to_owned();
        }
        // Misses fall about in proportion to the experts that have no slot.
        let more = missing.min(2_000_000_000);
        let saved = wait_share * again * more as f64 / missing as f64;
        let gain = 100.0 * saved / (1.0 - saved);
        return format!("bound by disk; {} more memory would give about +{gain:.0} %", Bytes(more));
    }
    verdict_in_memory(memory, limits.memory_bytes_per_s).to_owned()
}

/// The same of a run that waited for no disk, and read memory so fast where so much is possible.
fn verdict_in_memory(reached: Option<f64>, limit: Option<f64>) -> &'static str {
    match (reached, limit) {
        (Some(reached), Some(limit)) if reached > MEMORY_SHARE * limit => {
            "bound by memory bandwidth; fewer bits per weight would help"
        }
        (Some(_), Some(_)) => "bound by arithmetic; more or faster cores would help",
        _ => "bound by memory or arithmetic; the budget left no room to measure memory",
    }
}

/// The report as people read it.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{rate:.1}"));
        let gigabytes =
            |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{:.2}", rate / 1e9));
        let ttft = self.ttft_s.map_or("–".to_owned(), |s| format!("{s:.2} s"));
        let age = if self.limits.age_s >= 1.0 {
            format!(", measured {:.0} min ago", self.limits.age_s / 60.0)
        } else {
            String::new()
        };
        writeln!(
            f,
            "first token {ttft} · prefill {} tok/s ({} tokens) · decode {} tok/s",
            rate(self.prefill_tok_s),
            self.prefill_tokens,
            rate(self.decode_tok_s)
        )?;
        writeln!(
            f,
            "experts     {:.1} % hits · {} cold and {} capacity misses · {} read per token",
            100.0 * self.hit_rate,
            self.cold_misses,
            self.capacity_misses,
            self.read_bytes_per_token.map_or("–".to_owned(), |b| Bytes(b as u64).to_string())
        )?;
        writeln!(
            f,
            "bandwidth   disk {} of {} GB/s · memory {} of {} GB/s{age}",
            gigabytes(self.disk_bytes_per_s),
            gigabytes(self.limits.disk_bytes_per_s),
            gigabytes(self.memory_bytes_per_s),
            gigabytes(self.limits.memory_bytes_per_s)
        )?;
        writeln!(
            f,
            "memory      {} of {} · slots {} · context {} tokens · trunk {}",
            self.peak_bytes.map_or("–".to_owned(), |bytes| Bytes(bytes).to_string()),
            Bytes(self.budget_bytes),
            Bytes(self.slot_bytes),
            self.context,
            self.trunk_memory
        )?;
        writeln!(
            f,
            "numerics    {} · {} threads · reader {} · {} · logits {}",
            self.numerics, self.threads, self.reader, self.checks, self.logits_hash
        )?;
        if self.ahead.foreseen_records > 0 {
            writeln!(f, "read ahead  {}", self.ahead)?;
        }
        if self.released_bytes > 0 {
            let released = Bytes(self.released_bytes);
            writeln!(f, "pressure    memory was short: {released} of slots were given back")?;
        }
        if self.io_errors + self.retries > 0 {
            writeln!(f, "I/O         {} retries · {} errors", self.retries, self.io_errors)?;
        }
        for lossy in &self.lossy {
            writeln!(f, "lossy       {lossy}")?;
        }
        write!(f, "verdict     {}", self.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_comes_true_than_was_read_ahead() {
        // What was read before a window may be used in it.
        let store = Stats { foreseen_records: 7, foreseen_used: 19, ..Stats::default() };
        assert_eq!(came_true(&store), 7);
    }

    #[test]
    fn arithmetic_is_blamed_only_where_memory_was_measured() {
        assert!(verdict_in_memory(Some(7e9), Some(10e9)).starts_with("bound by memory bandwidth"));
        assert!(verdict_in_memory(Some(5e9), Some(10e9)).starts_with("bound by arithmetic"));
        for unknown in [(Some(5e9), None), (None, Some(10e9))] {
            let verdict = verdict_in_memory(unknown.0, unknown.1);
            assert!(verdict.starts_with("bound by memory or arithmetic"), "{verdict}");
        }
    }
}
