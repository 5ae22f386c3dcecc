//! What each counter of `/metrics` counts, for whoever looks at it in Prometheus.

/// By the name behind `flash_moe_`.
const HELP: [(&str, &str); 35] = [
    ("steps_total", "Passes through the model."),
    ("prompt_tokens_total", "Tokens of prompts that were computed."),
    ("prompt_rests_total", "Times that a prompt let answers have a token in between."),
    ("prefix_reused_tokens_total", "Tokens of prompts that memory had already."),
    ("prefix_restored_tokens_total", "Tokens of prompts that were read from the disk."),
    ("prefix_spilled_bytes_total", "Bytes of prompts written to the disk."),
    ("prefix_damaged_total", "Prompts on disk that were damaged, and removed."),
    ("prefix_write_failures_total", "Prompts that could not be written to the disk."),
    ("prefix_on_disk", "Prompts on disk."),
    ("prefix_disk_bytes", "Bytes of prompts on disk."),
    ("prefix_evicted_total", "Prompts that made room for others on disk."),
    ("prefix_kept", "Prompts in memory."),
    ("calls_kept_bytes", "Bytes of calls and items that clients may send back."),
    ("written_tokens_total", "Tokens of answers."),
    ("longest_wait_us", "The longest time between two tokens of an answer."),
    ("thinking_tokens_total", "Tokens of thoughts."),
    ("requests_refused_total", "Requests that were refused."),
    ("expert_hits_total", "Experts that were asked for and in memory."),
    ("expert_misses_total", "Experts that were asked for and had to be read."),
    ("expert_read_bytes_total", "Bytes of experts that were read."),
    ("expert_io_errors_total", "Reads of experts that failed."),
    ("expert_foreseen_total", "Experts that were read before they were asked for."),
    ("expert_foreseen_used_total", "Those of them that were used."),
    ("slots_released_bytes_total", "Bytes of memory given back to the system."),
    ("slots_taken_back_bytes_total", "Bytes of memory taken back from the system."),
    ("memory_budget_bytes", "Memory that the server may have."),
    ("memory_held_bytes", "Memory that it has."),
    ("sessions", "Texts that are being written."),
    ("queue_waiting", "Requests that wait."),
    ("disk_limit_bytes_per_second", "What the disk was measured to give."),
    ("memory_limit_bytes_per_second", "What memory was measured to give."),
    ("requests_total", "Requests that have ended, by how."),
    ("queue_seconds", "From a request to its first step."),
    ("first_token_seconds", "From a request to its first token."),
    ("token_seconds", "From token to token, the mean of each answer."),
];

/// The two lines above the values of a counter.
pub(super) fn heading(name: &str, kind: &str) -> String {
    let help = HELP.iter().find(|(own, _)| *own == name).map_or("", |(_, help)| help);
    format!("# HELP flash_moe_{name} {help}\n# TYPE flash_moe_{name} {kind}\n")
}
