//! Rotary position embedding of a family: which values turn, and how fast.

use std::f64::consts::TAU;

use fm_kernels::backend::RopeLayout;

/// Rotary position embedding. Source: Su et al., 2021, arXiv:2104.09864.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// Rotated values per head, even.
    pub dim: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Which of them make a pair.
    pub layout: RopeLayout,
    /// How a model came to contexts that are longer than those it was first trained on.
    pub scaling: RopeScaling,
}

/// How the frequencies are changed for long contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// By parts: fast pairs stay, slow ones are interpolated.
    Yarn(Yarn),
}

/// Parameters of `YaRN`. Source: Peng et al., 2023, arXiv:2309.00071.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// New context over old, above 1.
    pub factor: f64,
    /// The old context.
    pub original_max_position_embeddings: f64,
    /// Pairs that turn more often than this within the old context stay.
    pub beta_fast: f64,
    /// Pairs that turn less often are interpolated by the whole factor.
    pub beta_slow: f64,
    /// Whether the ramp in between begins and ends at whole pairs.
    pub truncate: bool,
    /// Factor on sine and cosine.
    pub attention_factor: f64,
    /// Factor on the scores of families that have it beside the other one.
    pub score_factor: f64,
}

impl Rotary {
    /// Pairs of rotated values per head.
    pub fn pairs(&self) -> usize {
        self.dim / 2
    }

    /// Angle of each pair at position 1: `theta^(-2i / dim)`, scaled.
    pub fn inv_freq(&self) -> Vec<f32> {
        let freq = |pair: usize| self.theta.powf(-2.0 * pair as f64 / self.dim as f64);
        let scaled = |pair: usize| match self.scaling {
            RopeScaling::None => freq(pair),
            RopeScaling::Yarn(yarn) => {
                let kept = 1.0 - yarn.ramp(self, pair);
                freq(pair) * (kept + (1.0 - kept) / yarn.factor)
            }
        };
        (0..self.pairs()).map(|pair| scaled(pair) as f32).collect()
    }

    /// Factor on sine and cosine.
    pub fn amplitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::None => 1.0,
            RopeScaling::Yarn(yarn) => yarn.attention_factor as f32,
        }
    }

    /// Factor on the scores, see [`Yarn::score_factor`].
    pub fn score_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::None => 1.0,
            RopeScaling::Yarn(yarn) => yarn.score_factor,
        }
    }
}

impl Yarn {
    /// `0.1 · mscale · ln(factor) + 1`: how much sharper a softmax over a longer context has to be.
    pub fn mscale(factor: f64, mscale: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
    }

    /// 0 for a pair that stays, 1 for one that is interpolated.
    fn ramp(&self, rotary: &Rotary, pair: usize) -> f64 {
        /// Keeps the ramp from being a wall.
        const STEEPEST: f64 = 0.001;
        // The pair that turns so often within the old context.
        let pair_of = |turns: f64| {
            let reach = self.original_max_position_embeddings / (turns * TAU);
            rotary.dim as f64 * reach.ln() / (2.0 * rotary.theta.ln())
        };
        let (low, high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(rotary.dim as f64 - 1.0));
        let width = if low == high { STEEPEST } else { high - low };
        ((pair as f64 - low) / width).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the equations, worked out by hand for a head of eight.
    fn rotary(truncate: bool) -> Rotary {
        // Pair of `b` turns: 8 ln(64 / (b · 2π)) / (2 ln 16) = 1.4427 ln(10.186 / b)
        let yarn = Yarn {
            factor: 4.0,
            original_max_position_embeddings: 64.0,
            beta_fast: 4.0,
            beta_slow: 1.0,
            truncate,
            attention_factor: 1.1,
            score_factor: 1.2,
        };
        let (dim, theta) = (8, 16.0);
        Rotary { dim, theta, layout: RopeLayout::HalfSplit, scaling: RopeScaling::Yarn(yarn) }
    }

    fn assert_close(found: &[f32], expected: [f64; 4]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn the_ramp_begins_and_ends_at_whole_pairs_or_does_not() {
        // From pair 1 to pair 4: shares 0, 0, 1/3, 2/3 of 16^(-i/4) are divided by 4.
        let whole = [1.0, 0.5, 0.25 * (2.0 / 3.0 + 1.0 / 12.0), 0.125 * (1.0 / 3.0 + 2.0 / 12.0)];
        assert_close(&rotary(true).inv_freq(), whole);
        // From pair 1.348504 to pair 3.348504.
        let ramp = |pair: f64| (pair - 1.348_504) / 2.0;
        let scaled = |freq: f64, pair: f64| freq * (1.0 - ramp(pair) * 0.75);
        assert_close(&rotary(false).inv_freq(), [1.0, 0.5, scaled(0.25, 2.0), scaled(0.125, 3.0)]);
    }

    #[test]
    fn without_scaling_nothing_is_scaled() {
        let plain = Rotary { scaling: RopeScaling::None, ..rotary(true) };
        assert_close(&plain.inv_freq(), [1.0, 0.5, 0.25, 0.125]);
        assert_eq!((plain.amplitude(), plain.score_factor()), (1.0, 1.0));
    }

    #[test]
    fn a_context_that_is_no_longer_needs_no_sharper_softmax() {
        assert_eq!(Yarn::mscale(1.0, 1.0), 1.0);
        assert!((Yarn::mscale(40.0, 1.0) - 1.368_887_9).abs() < 1e-6);
        assert!((Yarn::mscale(40.0, 0.707) - 1.260_803_8).abs() < 1e-6);
    }
}
