//! What each metric of `/metrics` is, for whoever looks at it in Prometheus.

use self::Kind::{Counter, Gauge, Histogram};

/// What Prometheus may do with its values.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// By the name behind `flash_moe_`.
const METRICS: [(&str, Kind, &str); 36] = [
    ("steps_total", Counter, "Passes through the model."),
    ("prompt_tokens_total", Counter, "Tokens of prompts that were computed."),
    ("prompt_rests_total", Counter, "Times that a prompt let answers have a token in between."),
    ("prefix_reused_tokens_total", Counter, "Tokens of prompts that memory had already."),
    ("prefix_restored_tokens_total", Counter, "Tokens of prompts that were read from the disk."),
    ("prefix_spilled_bytes_total", Counter, "Bytes of prompts written to the disk."),
    ("prefix_damaged_total", Counter, "Prompts on disk that were damaged, and removed."),
    ("prefix_write_failures_total", Counter, "Prompts that could not be written to the disk."),
    ("prefix_on_disk", Gauge, "Prompts on disk."),
    ("prefix_disk_bytes", Gauge, "Bytes of prompts on disk."),
    ("prefix_disk_evicted_total", Counter, "Prompts that made room for others on disk."),
    ("prefix_evicted_total", Counter, "Prompts that made room for others in memory."),
    ("prefix_kept", Gauge, "Prompts in memory."),
    ("calls_kept_bytes", Gauge, "Bytes of calls and items that clients may send back."),
    ("written_tokens_total", Counter, "Tokens of answers."),
    ("longest_wait_seconds", Gauge, "The longest time between two tokens of an answer."),
    ("thinking_tokens_total", Counter, "Tokens of thoughts."),
    ("requests_refused_total", Counter, "Requests that were refused, by status."),
    ("expert_hits_total", Counter, "Experts that were asked for and in memory."),
    ("expert_misses_total", Counter, "Experts that were asked for and had to be read."),
    ("expert_read_bytes_total", Counter, "Bytes of experts that were read."),
    ("expert_io_errors_total", Counter, "Reads of experts that failed."),
    ("expert_foreseen_total", Counter, "Experts that were read before they were asked for."),
    ("expert_foreseen_used_total", Counter, "Those of them that were used."),
    ("slots_released_bytes_total", Counter, "Bytes of memory given back to the system."),
    ("slots_taken_back_bytes_total", Counter, "Bytes of memory taken back from the system."),
    ("memory_budget_bytes", Gauge, "Memory that the server may have."),
    ("memory_held_bytes", Gauge, "Memory that it has."),
    ("sessions", Gauge, "Texts that are being written."),
    ("queue_waiting", Gauge, "Requests that wait."),
    ("disk_limit_bytes_per_second", Gauge, "What the disk was measured to give."),
    ("memory_limit_bytes_per_second", Gauge, "What memory was measured to give."),
    ("requests_total", Counter, "Requests that have ended, by how."),
    ("queue_seconds", Histogram, "From a request to its first step."),
    ("first_token_seconds", Histogram, "From a request to its first token."),
    ("token_seconds", Histogram, "From token to token, the mean of each answer."),
];

/// The two lines above the values of a metric.
pub(super) fn heading(name: &str) -> String {
    let metric = METRICS.iter().find(|(own, ..)| *own == name);
    let (_, kind, help) = metric.expect("every metric has its row");
    format!("# HELP flash_moe_{name} {help}\n# TYPE flash_moe_{name} {}\n", kind.name())
}
