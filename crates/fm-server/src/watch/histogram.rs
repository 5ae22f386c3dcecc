//! Times, counted by how long they were, as Prometheus reads them.

use std::{
    fmt::{self, Write},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::metrics::heading;

/// Ends of the buckets in seconds: from a token of a small model to a prompt that is read from a slow disk.
const ENDS: [f64; 14] =
    [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// How many ended within each bucket and not in the one before.
    counts: [AtomicU64; ENDS.len()],
    /// Those that took longer than the last end.
    longer: AtomicU64,
    sum_us: AtomicU64,
}

impl Histogram {
    pub(super) fn note(&self, time: Duration) {
        let bucket = ENDS.iter().position(|end| time.as_secs_f64() <= *end);
        let count = bucket.map_or(&self.longer, |bucket| &self.counts[bucket]);
        count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    pub(super) fn write(&self, name: &str, to: &mut String) -> fmt::Result {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        to.push_str(&heading(name));
        let mut count = 0;
        for (end, counter) in ENDS.iter().zip(&self.counts) {
            count += load(counter);
            writeln!(to, "flash_moe_{name}_bucket{{le=\"{end}\"}} {count}")?;
        }
        count += load(&self.longer);
        writeln!(to, "flash_moe_{name}_bucket{{le=\"+Inf\"}} {count}")?;
        writeln!(to, "flash_moe_{name}_sum {}", load(&self.sum_us) as f64 / 1e6)?;
        writeln!(to, "flash_moe_{name}_count {count}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_what_all_shorter_ones_have() {
        let (histogram, mut text) = (Histogram::default(), String::new());
        for ms in [5, 10, 150, 400_000] {
            histogram.note(Duration::from_millis(ms));
        }
        histogram.write("token_seconds", &mut text).unwrap();
        for line in ["le=\"0.01\"} 2\n", "le=\"0.1\"} 2\n", "le=\"0.2\"} 3\n", "le=\"300\"} 3\n"] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(text.contains("le=\"+Inf\"} 4\n") && text.contains("_count 4\n"), "{text}");
        assert!(text.contains("token_seconds_sum 400.165\n"), "{text}");
    }
}
