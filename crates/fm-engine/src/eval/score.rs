//! What two rows of logits say, and what many of them say on average.

use serde::Serialize;

use crate::sampler::NotANumber;

/// `ln Σ exp(logit)` in f64, and the most likely token: the first of equals, as the sampler takes.
struct Row<'a> {
    logits: &'a [f32],
    log_sum: f64,
    likeliest: usize,
}

impl<'a> Row<'a> {
    fn new(logits: &'a [f32]) -> Result<Self, NotANumber> {
        let mut likeliest = 0;
        for (token, logit) in logits.iter().enumerate() {
            if logit.is_nan() {
                return Err(NotANumber { token });
            }
            if *logit > logits[likeliest] {
                likeliest = token;
            }
        }
        let max = f64::from(logits[likeliest]);
        if !max.is_finite() {
            return Err(NotANumber { token: likeliest });
        }
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - max).exp()).sum();
        Ok(Self { logits, log_sum: max + sum.ln(), likeliest })
    }

    fn log_probability(&self, token: usize) -> f64 {
        f64::from(self.logits[token]) - self.log_sum
    }
}

/// What a row says about the token that came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// `−ln p(token)`.
    pub loss: f64,
}

impl Scored {
    /// Scores `target`, a token of the vocabulary.
    ///
    /// # Errors
    /// If a logit is not a number.
    pub fn of(logits: &[f32], target: u32) -> Result<Self, NotANumber> {
        Ok(Self { loss: -Row::new(logits)?.log_probability(target as usize) })
    }
}

/// How far a row is from the row it is held to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Loss of the other row.
    pub loss: f64,
    /// `Σ p_other · (ln p_other − ln p)`, in nats.
    pub kl: f64,
    /// Whether both would say the same next.
    pub agree: bool,
}

impl Compared {
    /// Holds `logits` to `other`.
    ///
    /// # Errors
    /// If a logit is not a number.
    pub fn of(logits: &[f32], other: &[f32], target: u32) -> Result<Self, NotANumber> {
        let (row, other) = (Row::new(logits)?, Row::new(other)?);
        let terms = (0..logits.len()).map(|token| {
            let log_other = other.log_probability(token);
            let probability = log_other.exp();
            // What the other excludes costs nothing, whatever the row thinks of it.
            if probability == 0.0 {
                0.0
            } else {
                probability * (log_other - row.log_probability(token))
            }
        });
        let kl: f64 = terms.sum();
        Ok(Self {
            loss: -other.log_probability(target as usize),
            // Never negative but for rounding.
            kl: kl.max(0.0),
            agree: row.likeliest == other.likeliest,
        })
    }
}

/// Sums over the tokens of a window.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowSums {
    tokens: usize,
    loss: f64,
    other_loss: f64,
    kl: f64,
    agreeing: usize,
    /// The largest KL and its token.
    kl_max: (f64, usize),
}

impl WindowSums {
    /// Adds what was found at a token of the text.
    pub fn add(&mut self, token: usize, scored: Scored, compared: Option<Compared>) {
        self.tokens += 1;
        self.loss += scored.loss;
        if let Some(Compared { loss, kl, agree }) = compared {
            self.other_loss += loss;
            self.kl += kl;
            self.agreeing += usize::from(agree);
            if self.tokens == 1 || kl > self.kl_max.0 {
                self.kl_max = (kl, token);
            }
        }
    }
}

/// A mean per token with its 95 % confidence interval.
///
/// Windows are the sample: tokens of one window depend on each other. With `K` windows of `n` tokens
/// and sums `s`, the mean is `Σs / Σn`, its standard error
/// `√(K / (K − 1) · Σ (s − mean · n)²) / Σn`, and the interval is Student's t with `K − 1` degrees
/// of freedom. One window says nothing about the error: then there are no bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub value: f64,
    /// Lower bound.
    pub low: Option<f64>,
    /// Upper bound.
    pub high: Option<f64>,
}

impl Estimate {
    fn of(windows: &[WindowSums], sum: impl Fn(&WindowSums) -> f64) -> Self {
        let count = windows.len() as f64;
        let tokens: f64 = windows.iter().map(|window| window.tokens as f64).sum();
        let value = windows.iter().map(&sum).sum::<f64>() / tokens;
        if windows.len() < 2 {
            return Self { value, low: None, high: None };
        }
        let residual = |window: &WindowSums| sum(window) - value * window.tokens as f64;
        let squares: f64 = windows.iter().map(|window| residual(window).powi(2)).sum();
        let error = (count / (count - 1.0) * squares).sqrt() / tokens;
        let half = student(windows.len() - 1) * error;
        Self { value, low: Some(value - half), high: Some(value + half) }
    }

    /// The same after a function that nowhere decreases.
    fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { value: f(self.value), low: self.low.map(&f), high: self.high.map(&f) }
    }
}

/// 97.5 % quantile of Student's t; off by less than 0.2 % beyond the table.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 12] =
        [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179];
    let tail = |freedom: usize| 1.960 + 2.372 / freedom as f64 + 2.8 / (freedom as f64).powi(2);
    TABLE.get(freedom - 1).copied().unwrap_or_else(|| tail(freedom))
}

/// What a text said about a model.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// Windows.
    pub windows: usize,
    /// Tokens whose probability counted.
    pub scored_tokens: usize,
    /// `−ln p` of a token, in nats.
    pub loss: Estimate,
    /// `exp(loss)`.
    pub perplexity: Estimate,
    /// How far it is from what it was held to.
    pub against: Option<Distance>,
}

/// How far two sources of logits are apart.
#[derive(Clone, Debug, Serialize)]
pub struct Distance {
    /// Perplexity of the other.
    pub perplexity: Estimate,
    /// Loss less that of the other, in nats per token.
    pub loss_difference: Estimate,
    /// `KL(other ‖ model)`, in nats per token.
    pub kl: Estimate,
    /// The largest KL of a token.
    pub kl_max: f64,
    /// The token of the text before which it was found.
    pub kl_max_token: usize,
    /// Share of tokens before which both would say the same.
    pub top1_agreement: Estimate,
    /// Tokens before which they would not.
    pub top1_differences: usize,
}

impl Evaluation {
    /// Sums up windows, of which there is at least one.
    pub(super) fn of(windows: &[WindowSums]) -> Self {
        // Of a text no loss is negative, whatever few windows say.
        let loss = Estimate::of(windows, |window| window.loss).map(|loss| loss.max(0.0));
        let scored_tokens = windows.iter().map(|window| window.tokens).sum();
        let (windows, perplexity) = (windows.len(), loss.map(f64::exp));
        Self { windows, scored_tokens, loss, perplexity, against: None }
    }
}

impl Distance {
    /// Sums up windows whose rows were all compared.
    pub(super) fn of(windows: &[WindowSums]) -> Self {
        let largest = windows.iter().map(|window| window.kl_max);
        let (kl_max, kl_max_token) = largest.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
        let agreement = Estimate::of(windows, |window| window.agreeing as f64);
        Self {
            perplexity: Estimate::of(windows, |window| window.other_loss)
                .map(|loss| loss.max(0.0).exp()),
            loss_difference: Estimate::of(windows, |window| window.loss - window.other_loss),
            kl: Estimate::of(windows, |window| window.kl).map(|kl| kl.max(0.0)),
            kl_max,
            kl_max_token,
            top1_agreement: agreement.map(|share| share.clamp(0.0, 1.0)),
            top1_differences: windows.iter().map(|window| window.tokens - window.agreeing).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_scored_by_its_softmax() {
        // Probabilities ¼, ½, ¼.
        let logits = [0.0, 2_f32.ln(), 0.0];
        assert!((Scored::of(&logits, 1).unwrap().loss - 2_f64.ln()).abs() < 1e-7);
        assert!((Scored::of(&logits, 2).unwrap().loss - 4_f64.ln()).abs() < 1e-7);
        // Adding a constant changes nothing, however large.
        let shifted = logits.map(|logit| logit + 3e4);
        assert!((Scored::of(&shifted, 1).unwrap().loss - 2_f64.ln()).abs() < 2e-3);
    }

    #[test]
    fn kl_is_of_the_other_from_the_row() {
        let (half, skewed) = ([0.0, 0.0], [0.0, 3_f32.ln()]); // ½ ½ and ¼ ¾
        let compared = Compared::of(&skewed, &half, 0).unwrap();
        let expected = 0.5 * (0.5_f64 / 0.25).ln() + 0.5 * (0.5_f64 / 0.75).ln();
        assert!((compared.kl - expected).abs() < 1e-7, "{compared:?}");
        assert!((compared.loss - 2_f64.ln()).abs() < 1e-7);
        assert!(!compared.agree, "the first of equals against the second");
        let same = Compared::of(&skewed, &skewed, 0).unwrap();
        assert_eq!((same.kl, same.agree), (0.0, true));
        let excluded = [0.0, f32::NEG_INFINITY];
        assert!(Compared::of(&half, &excluded, 0).unwrap().kl > 0.69);
        assert!(Compared::of(&excluded, &half, 0).unwrap().kl.is_infinite());
    }

    #[test]
    fn what_is_no_number_is_named() {
        let broken = [0.0, f32::NAN];
        assert_eq!(Scored::of(&broken, 0).unwrap_err().token, 1);
        assert_eq!(Compared::of(&[0.0, 0.0], &broken, 0).unwrap_err().token, 1);
        assert!(Scored::of(&[f32::NEG_INFINITY; 2], 0).is_err());
        assert!(Scored::of(&[0.0, f32::INFINITY], 0).is_err());
    }

    fn window(losses: &[f64]) -> WindowSums {
        let mut sums = WindowSums::default();
        losses.iter().enumerate().for_each(|(at, loss)| sums.add(at, Scored { loss: *loss }, None));
        sums
    }

    #[test]
    fn the_interval_is_that_of_a_mean_of_windows() {
        // Means 1, 2 and 3: the standard error is 1/√3, t with two degrees is 4.303.
        let windows = [window(&[1.0, 1.0]), window(&[2.0; 2]), window(&[2.0, 4.0])];
        let Estimate { value, low, high } = Estimate::of(&windows, |window| window.loss);
        assert!((value - 2.0).abs() < 1e-12);
        let half = 4.303 / 3_f64.sqrt();
        assert!((high.unwrap() - 2.0 - half).abs() < 1e-9, "{high:?}");
        assert!((low.unwrap() - 2.0 + half).abs() < 1e-9);
        let one = Estimate::of(&windows[..1], |window| window.loss);
        assert_eq!((one.value, one.low, one.high), (1.0, None, None));
    }

    #[test]
    fn intervals_of_ninety_five_per_cent_hold_the_truth_that_often() {
        let mut state = 1_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        for count in [5, 40] {
            let hits = (0..4000).filter(|_| {
                let mut next = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
                let windows: Vec<_> = (0..count).map(|_| window(&[next()])).collect();
                let estimate = Estimate::of(&windows, |window| window.loss);
                estimate.low.unwrap() <= 0.0 && estimate.high.unwrap() >= 0.0
            });
            let hits = hits.count();
            assert!((3740..=3860).contains(&hits), "{hits} of 4000 with {count} windows");
        }
    }

    #[test]
    fn student_meets_the_normal_distribution() {
        for (freedom, expected) in [(1, 12.706), (13, 2.160), (30, 2.042), (60, 2.000)] {
            let found = student(freedom);
            assert!((found / expected - 1.0).abs() < 2e-3, "{freedom}: {found}");
        }
    }
}
