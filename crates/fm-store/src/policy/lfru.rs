//! Frequency with decay: every use counts, and counts half after a while.
//!
//! ```text
//! score(now) = Σ 2^((t_use − now) / half_life)        over all uses
//! rank       = log2(score(now)) + now / half_life     does not change between uses
//! rank'      = log2(2^rank + 2^(now / half_life))     one more use
//! ```
//!
//! Decay multiplies every score by the same factor, so the order of two experts changes only when
//! one is used: the rank is a key for a heap, and logarithms keep it finite for ever.
//!
//! Source: Lee, Choi, Kim et al., *LRFU*, IEEE Trans. Computers 50(12), 2001, with λ = 1/half-life;
//! there a score ends with residency, here it does not.

use super::ranked::Rule;

/// Tokens after which a use counts half. A conversation's topic lasts for some hundred tokens, and
/// an expert that a hot prompt used must not hold its slot for longer than that.
const HALF_LIFE_TOKENS: usize = 64;

/// See the file.
#[derive(Debug)]
pub(super) struct Lfru {
    half_life: f64,
}

impl Lfru {
    pub(super) fn new(requests_per_token: usize) -> Self {
        Self { half_life: (HALF_LIFE_TOKENS * requests_per_token.max(1)) as f64 }
    }
}

impl Rule for Lfru {
    fn used(&self, rank: f64, now: u64) -> f64 {
        let use_now = now as f64 / self.half_life;
        let (low, high) = if rank < use_now { (rank, use_now) } else { (use_now, rank) };
        high + (low - high).exp2().ln_1p() / std::f64::consts::LN_2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(uses: &[u64]) -> f64 {
        let policy = Lfru::new(1);
        uses.iter().fold(f64::NEG_INFINITY, |rank, now| policy.used(rank, *now))
    }

    #[test]
    fn two_uses_outrank_a_later_one_until_a_half_life_has_passed() {
        assert!(ranked(&[0, 0]) > ranked(&[63]));
        assert!(ranked(&[0, 0]) < ranked(&[65]));
        assert!((ranked(&[0, 0]) - ranked(&[64])).abs() < 1e-12);
    }

    #[test]
    fn ranks_stay_finite_and_ordered_for_ever() {
        let late = 1_u64 << 50;
        assert!(ranked(&[late, late]) > ranked(&[late]));
        assert!(ranked(&[late]).is_finite());
    }
}
