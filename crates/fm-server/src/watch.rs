//! What the server has done: for `/metrics`, and one line per request for whoever logs.

mod histogram;
mod metrics;

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fm_engine::{gauges::Gauges, generate::FinishReason, schedule::Activity};

use self::{histogram::Histogram, metrics::heading};
use crate::{
    answer::Submit,
    tally::{FAILED, GONE, Requested},
};

/// Hears of every request that has ended.
pub type Log = Box<dyn Fn(&dyn fmt::Display) + Send + Sync>;

/// See the module.
pub(crate) struct Watch {
    log: Log,
    pub(crate) activity: Arc<Activity>,
    pub(crate) gauges: Gauges,
    /// Requests by the way they ended.
    ended: Vec<(&'static str, AtomicU64)>,
    /// Requests that were refused, by status.
    refused: Mutex<BTreeMap<u16, u64>>,
    thinking_tokens: AtomicU64,
    times: Times,
}

/// Of requests that were answered, at least in part.
#[derive(Debug, Default)]
struct Times {
    queue: Histogram,
    /// From the request to its first token.
    first_token: Histogram,
    /// From token to token, the mean of each answer.
    token: Histogram,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Watch {
    pub(crate) fn new(log: Log, activity: Arc<Activity>, gauges: Gauges) -> Self {
        let ends = FinishReason::NAMES.into_iter().chain([GONE, FAILED]);
        let ended = ends.map(|end| (end, AtomicU64::new(0))).collect();
        // A rate needs a first value: this is the one that alarms are made of.
        let refused = Mutex::new(BTreeMap::from([(429, 0)]));
        let thinking_tokens = AtomicU64::new(0);
        let times = Times::default();
        Self { log, activity, gauges, ended, refused, thinking_tokens, times }
    }

    pub(crate) fn requested(&self, requested: &Requested) {
        let ended = self.ended.iter().find(|(end, _)| *end == requested.finish);
        if let Some((_, count)) = ended {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.thinking_tokens.fetch_add(requested.thinking_tokens as u64, Ordering::Relaxed);
        if requested.first_tokens > 0 {
            self.times.queue.note(requested.queue);
            self.times.first_token.note(requested.queue + requested.prefill);
        }
        if let Some(behind @ 1..) = requested.first_tokens.checked_sub(1) {
            self.times.token.note(requested.decode / behind as u32);
        }
        (self.log)(requested);
    }

    /// Counts a request that was refused, and says so unless its end was told already.
    pub(crate) fn refused(&self, status: u16, line: Option<&fmt::Arguments<'_>>) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(status).or_default() += 1;
        drop(refused);
        line.into_iter().for_each(|line| (self.log)(line));
    }

    /// What the machine can do and the process takes; nothing of what is not known, as 0 would be a number.
    fn measured(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let limits = &self.gauges.limits;
        let bytes = |limit: Option<f64>| limit.map(|limit| limit as u64);
        let rows = [
            ("disk_limit_bytes_per_second", bytes(limits.disk_bytes_per_s)),
            ("memory_limit_bytes_per_second", bytes(limits.memory_bytes_per_s)),
            ("memory_held_bytes", self.gauges.held_bytes()),
        ];
        rows.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }

    /// All counters as Prometheus reads them.
    pub(crate) fn metrics(&self, submit: &dyn Submit, kept_bytes: usize) -> String {
        let stats = self.gauges.stats();
        let activity = &self.activity;
        let prefixes = &activity.prefixes;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let rows = [
            ("steps_total", count(&activity.steps)),
            ("prompt_tokens_total", count(&activity.prompt_tokens)),
            ("prompt_rests_total", count(&activity.rests)),
            ("prefix_reused_tokens_total", count(&prefixes.reused_tokens)),
            ("prefix_restored_tokens_total", count(&prefixes.restored_tokens)),
            ("prefix_spilled_bytes_total", count(&prefixes.spilled_bytes)),
            ("prefix_damaged_total", count(&prefixes.damaged)),
            ("prefix_write_failures_total", count(&prefixes.write_failures)),
            ("prefix_on_disk", prefixes.on_disk.load(Ordering::Relaxed) as u64),
            ("prefix_disk_bytes", count(&prefixes.disk_bytes)),
            ("prefix_disk_evicted_total", count(&prefixes.evicted_from_disk)),
            ("prefix_evicted_total", count(&prefixes.evicted)),
            ("prefix_kept", prefixes.kept.load(Ordering::Relaxed) as u64),
            ("calls_kept_bytes", kept_bytes as u64),
            ("written_tokens_total", count(&activity.written_tokens)),
            ("thinking_tokens_total", count(&self.thinking_tokens)),
            ("expert_hits_total", stats.hits),
            ("expert_misses_total", stats.misses()),
            ("expert_read_bytes_total", stats.read_bytes),
            ("expert_io_errors_total", stats.io_errors),
            ("expert_foreseen_total", stats.foreseen_records),
            ("expert_foreseen_used_total", stats.foreseen_used),
            ("slots_released_bytes_total", stats.released_bytes),
            ("slots_taken_back_bytes_total", stats.taken_back_bytes),
            ("memory_budget_bytes", self.gauges.budget_bytes),
            ("sessions", activity.sessions.load(Ordering::Relaxed) as u64),
            ("queue_waiting", submit.waiting() as u64),
        ];
        let mut text = String::new();
        for (name, value) in rows.into_iter().chain(self.measured()) {
            let _ = writeln!(text, "{}flash_moe_{name} {value}", heading(name));
        }
        text.push_str(&heading("requests_total"));
        for (end, count) in &self.ended {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(text, "flash_moe_requests_total{{finish=\"{end}\"}} {count}");
        }
        text.push_str(&heading("requests_refused_total"));
        for (code, count) in &*self.refused.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(text, "flash_moe_requests_refused_total{{code=\"{code}\"}} {count}");
        }
        let seconds = Duration::from_micros(count(&activity.longest_wait_us)).as_secs_f64();
        let longest = "longest_wait_seconds";
        let _ = writeln!(text, "{}flash_moe_{longest} {seconds}", heading(longest));
        let Times { queue, first_token, token } = &self.times;
        let times = [("queue", queue), ("first_token", first_token), ("token", token)];
        for (name, histogram) in times {
            let _ = histogram.write(&format!("{name}_seconds"), &mut text);
        }
        text
    }
}
