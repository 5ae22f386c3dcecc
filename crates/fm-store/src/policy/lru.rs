//! Least recently used: the rank is the time of the last use.

use super::ranked::Rule;

/// See the file.
#[derive(Debug)]
pub(super) struct Lru;

impl Rule for Lru {
    fn used(&self, _rank: f64, now: u64) -> f64 {
        now as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_use_counts() {
        let often = (0..10).fold(f64::NEG_INFINITY, |rank, now| Lru.used(rank, now));
        assert!(Lru.used(f64::NEG_INFINITY, 10) > often);
    }
}
