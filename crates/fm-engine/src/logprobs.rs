//! How likely the model thought a token was, and what it would have liked as much.

use crate::sampler::{
    descending,
    weights::{find_from, floor_of_largest, largest, sum_of_exp},
};

/// Log-probabilities of one position. Reused, so that a steady step allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Logprobs {
    /// How many of the likeliest are wanted beside the chosen one.
    top: usize,
    /// `(token, log-probability)`, likeliest first.
    likeliest: Vec<(u32, f32)>,
    /// Room for what finds them.
    maxima: Vec<f32>,
}

impl Logprobs {
    pub(crate) fn new(top: usize) -> Self {
        Self { top, likeliest: Vec::new(), maxima: Vec::new() }
    }

    /// Takes the model's own distribution, before penalties and temperature, and returns the
    /// log-probability of `token`.
    pub(crate) fn look(&mut self, logits: &[f32], token: u32) -> f32 {
        let peak = largest(logits);
        let log_sum = f64::from(peak) + sum_of_exp(logits, peak).ln();
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        self.likeliest.clear();
        if self.top > 0 {
            let floor = floor_of_largest(logits, self.top, &mut self.maxima);
            find_from(logits, floor, &mut self.likeliest);
            if self.top < self.likeliest.len() {
                self.likeliest.select_nth_unstable_by(self.top - 1, descending);
                self.likeliest.truncate(self.top);
            }
            self.likeliest.sort_unstable_by(descending);
            self.likeliest.iter_mut().for_each(|(_, logit)| *logit = logprob(*logit));
        }
        logprob(logits[token as usize])
    }

    /// The likeliest tokens of the latest look.
    pub(crate) fn likeliest(&self) -> &[(u32, f32)] {
        &self.likeliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_logarithm_of_the_softmax() {
        let mut logprobs = Logprobs::new(2);
        let chosen = logprobs.look(&[0.0, 2.0, 1.0, -1.0], 2);
        let want = [0.032_f32, 0.087, 0.237, 0.644].map(f32::ln);
        assert!((chosen - want[2]).abs() < 2e-3, "{chosen}");
        let [(1, first), (2, second)] = logprobs.likeliest() else {
            panic!("{:?}", logprobs.likeliest())
        };
        assert!((first - want[3]).abs() < 2e-3 && *second == chosen, "{first} {second}");
        assert_eq!(Logprobs::new(9).look(&[1e30, 0.0], 0), 0.0);
    }
}
