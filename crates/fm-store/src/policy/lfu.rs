//! Least frequently used: the rank is the number of uses, and every use counts alike for ever.
//!
//! What a text liked long ago keeps its slots: the policy is there to tell how much popularity alone is
//! worth, and `lfru`, where uses fade, how much fading is.
//!
//! Source: Coffman, Denning, *Operating Systems Theory*, Prentice-Hall, 1973, chapter 6; there a
//! count ends with residency in some variants, here it does not.

use super::ranked::Rule;

/// See the file.
#[derive(Debug)]
pub(super) struct Lfu;

impl Rule for Lfu {
    fn used(&self, rank: f64, _now: u64) -> f64 {
        rank.max(0.0) + 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_number_of_uses_counts() {
        let ranked =
            |uses: &[u64]| uses.iter().fold(f64::NEG_INFINITY, |rank, now| Lfu.used(rank, *now));
        assert!((ranked(&[1, 2, 3]) - 3.0).abs() < f64::EPSILON);
        assert!(ranked(&[1, 2, 3]) > ranked(&[1000, 1001]));
    }
}
