//! From logits to a token.
//!
//! The order is that of transformers: bias, penalties, temperature, top-k, top-p, min-p, draw.

pub(crate) mod weights;

use std::cmp::Ordering;

use self::weights::{
    are_finite, exp, find_from, floor_of_largest, largest, position_of, spend, sum, weigh,
};

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Candidates; 0 for all.
    pub top_k: usize,
    /// Probability that the candidates have together.
    pub top_p: f32,
    /// Smallest probability of a candidate, relative to the likeliest.
    pub min_p: f32,
    /// Divides positive logits (multiplies negative ones) of tokens that stand in the text.
    /// Source: Keskar et al., 2019, arXiv:1909.05858.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token that was generated.
    pub presence_penalty: f32,
    /// Subtracted for each time it was generated.
    pub frequency_penalty: f32,
    /// Start of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    /// The most likely token, always.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

/// Why no token can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the logit of token {token} is not a number or has no bounds: the weights or the arithmetic are broken"
)]
pub struct NotANumber {
    /// The first such token.
    pub token: usize,
}

/// Chooses tokens for one session. Allocates once.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
    /// Times each token was generated.
    generated: Vec<u32>,
    /// Whether each token stands in the text.
    present: Vec<bool>,
    /// Those that do, each once.
    seen: Vec<u32>,
    /// Added to logits before anything else.
    bias: Vec<(u32, f32)>,
    /// Logits, and when a token is drawn from all of them their weights.
    logits: Vec<f32>,
    /// Candidates with their weights.
    candidates: Vec<(u32, f32)>,
    /// Room for what finds candidates.
    maxima: Vec<f32>,
}

impl Sampler {
    /// A sampler for a vocabulary, with the prompt as the text so far.
    pub fn new(sampling: Sampling, vocab: usize, prompt: &[u32]) -> Self {
        let mut sampler = Self {
            sampling,
            random: SplitMix64(sampling.seed),
            generated: vec![0; vocab],
            present: vec![false; vocab],
            seen: Vec::new(),
            bias: Vec::new(),
            logits: Vec::with_capacity(vocab),
            candidates: Vec::new(),
            maxima: Vec::new(),
        };
        prompt.iter().for_each(|token| sampler.see(*token));
        sampler
    }

    /// Adds to the logits of some tokens, before anything else is done to them. Tokens without logits are
    /// never chosen, whatever is added.
    pub fn with_bias(self, mut bias: Vec<(u32, f32)>) -> Self {
        bias.retain(|(token, _)| (*token as usize) < self.present.len());
        Self { bias, ..self }
    }

    /// Notes a token that was not sampled but put into the text.
    pub fn note(&mut self, token: u32) {
        self.generated[token as usize] += 1;
        self.see(token);
    }

    fn see(&mut self, token: u32) {
        if !std::mem::replace(&mut self.present[token as usize], true) {
            self.seen.push(token);
        }
    }

    /// Chooses a token and notes it.
    ///
    /// # Errors
    /// If a logit is not a number, or infinite.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, NotANumber> {
        self.sample_within(logits, |_| ())
    }

    /// Chooses a token among those that `mask` leaves: it sets the others to minus infinity, after
    /// bias and penalties, and must leave one.
    ///
    /// # Errors
    /// If a logit is not a number, or infinite.
    pub(crate) fn sample_within(
        &mut self,
        logits: &[f32],
        mask: impl FnOnce(&mut [f32]),
    ) -> Result<u32, NotANumber> {
        // Of the model's own: what bias and masks make infinite, they mean.
        if !are_finite(logits) {
            let token = logits.iter().position(|logit| !logit.is_finite()).expect("one is");
            return Err(NotANumber { token });
        }
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.bias.iter().for_each(|(token, bias)| self.logits[*token as usize] += bias);
        self.penalise();
        mask(&mut self.logits);
        let token = if self.is_cold() { self.likeliest() } else { self.draw() };
        self.note(token);
        Ok(token)
    }

    /// Whether only the likeliest token is left: at 0, and where its quotient is too large for f32. Those of others
    /// may be: they are impossible then.
    fn is_cold(&self) -> bool {
        let temperature = self.sampling.temperature;
        temperature == 0.0 || !(largest(&self.logits) / temperature).is_finite()
    }

    fn penalise(&mut self) {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.sampling;
        if (repetition_penalty, presence_penalty, frequency_penalty) == (1.0, 0.0, 0.0) {
            return;
        }
        for token in self.seen.iter().map(|token| *token as usize) {
            let (logit, count) = (&mut self.logits[token], self.generated[token]);
            if repetition_penalty != 1.0 {
                *logit *=
                    if *logit > 0.0 { repetition_penalty.recip() } else { repetition_penalty };
            }
            if count > 0 {
                *logit -= presence_penalty + frequency_penalty * count as f32;
            }
        }
    }

    /// The lowest of the tokens with the largest logit.
    fn likeliest(&self) -> u32 {
        position_of(&self.logits, largest(&self.logits)).unwrap_or(0) as u32
    }

    fn draw(&mut self) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let peak = largest(&self.logits) / temperature;
        let part = self.random.unit();
        let drawn = if top_k > 0 || top_p < 1.0 || min_p > 0.0 {
            self.select_candidates(peak);
            let mut rest =
                part * self.candidates.iter().map(|(_, weight)| f64::from(*weight)).sum::<f64>();
            let drawn = self.candidates.iter().find(|(_, weight)| {
                rest -= f64::from(*weight);
                rest < 0.0
            });
            drawn.map(|(token, _)| *token)
        } else {
            weigh(&mut self.logits, temperature, peak);
            spend(&self.logits, part * sum(&self.logits)).map(|token| token as u32)
        };
        // Rounding may leave a rest behind all of them, and the last may be as good as impossible.
        drawn.unwrap_or_else(|| self.likeliest())
    }

    /// Fills `candidates` with tokens in their order, and weights, of which the likeliest has 1. Of a large
    /// vocabulary nothing is sorted, and only the likeliest become pairs.
    fn select_candidates(&mut self, peak: f32) {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let (logits, candidates) = (&mut self.logits, &mut self.candidates);
        let mut total = 0.0;
        if top_k > 0 && top_k < logits.len() {
            let floor = floor_of_largest(logits, top_k, &mut self.maxima).max(f32::MIN);
            find_from(logits, floor, candidates);
            if top_k < candidates.len() {
                candidates.select_nth_unstable_by(top_k - 1, descending);
                candidates.truncate(top_k);
            }
            for (_, x) in candidates.iter_mut() {
                *x = exp(*x / temperature - peak);
                total += f64::from(*x);
            }
        } else {
            weigh(logits, temperature, peak);
            total = sum(logits);
            // All that weigh less have less than the share that goes, together.
            let least = (1.0 - f64::from(top_p)) * total / logits.len() as f64;
            let least = (least as f32 * 0.999).max(f32::MIN_POSITIVE).max(min_p.min(1.0));
            find_from(logits, least, candidates);
        }
        if top_p < 1.0 {
            keep_likeliest(candidates, f64::from(top_p) * total);
        }
        candidates.retain(|(_, weight)| *weight >= min_p.min(1.0));
        candidates.sort_unstable_by_key(|(token, _)| *token);
    }
}

/// Keeps the likeliest candidates that weigh so much together, in no order. The one that crosses the border
/// belongs to them.
fn keep_likeliest(candidates: &mut Vec<(u32, f32)>, mut weight: f64) {
    // Where the border may be.
    let (mut from, mut to) = (0, candidates.len());
    while to - from > 1 {
        let middle = (to - from) / 2;
        candidates[from..to].select_nth_unstable_by(middle, descending);
        let half = &candidates[from..from + middle];
        let together: f64 = half.iter().map(|(_, weight)| f64::from(*weight)).sum();
        if together >= weight {
            to = from + middle;
        } else {
            weight -= together;
            from += middle;
        }
    }
    candidates.truncate(to);
}

/// The likelier token first, and the lower one of equals.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "sorting gives references")]
pub(crate) fn descending(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Random numbers that are the same on every machine and in every version. Source: Steele, Lea,
/// Flood, *Fast Splittable Pseudorandom Number Generators*, 2014.
#[derive(Clone, Copy, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 40) as f64 / (1_u64 << 24) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(sampling: Sampling, logits: &[f32]) -> Vec<f32> {
        let mut sampler = Sampler::new(sampling, logits.len(), &[]);
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[sampler.sample(logits).unwrap() as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn close(got: &[f32], want: &[f32]) {
        let near = got.iter().zip(want).all(|(got, want)| (got - want).abs() < 0.015);
        assert!(near, "{got:?} {want:?}");
    }

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, -1.0];

    #[test]
    fn a_token_that_is_as_good_as_impossible_leaves_the_others_their_chances() {
        // What a grammar makes of one that was banned, and must stay possible where it is the only one.
        for least in [f32::MIN, -1e38] {
            for temperature in [0.3, 0.7, 1.0, 2.0] {
                let sampling = Sampling { temperature, ..Sampling::default() };
                let want = shares(sampling, &LOGITS);
                let got = shares(sampling, &[&LOGITS[..], &[least]].concat());
                close(&got, &[want, vec![0.0]].concat());
            }
            let mut sampler = Sampler::new(Sampling::default(), 1, &[]);
            assert_eq!(sampler.sample(&[least]).unwrap(), 0);
        }
    }

    #[test]
    fn a_temperature_that_is_almost_nothing_takes_the_likeliest() {
        for temperature in [0.0, 1e-45, 1e-40, 1e-37, 1e-6] {
            for logits in [[10.0, 12.0, 11.0], [-12.0, -10.0, -11.0]] {
                let sampling = Sampling { temperature, ..Sampling::default() };
                let mut sampler = Sampler::new(sampling, 3, &[]);
                assert_eq!(sampler.sample(&logits).unwrap(), 1, "{temperature}");
            }
        }
    }

    #[test]
    fn temperature_one_draws_the_softmax() {
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        close(&shares(sampling, &LOGITS), &[0.087, 0.644, 0.237, 0.032]);
    }

    #[test]
    fn temperature_sharpens() {
        let sampling = Sampling { temperature: 0.5, ..Sampling::default() };
        close(&shares(sampling, &LOGITS), &[0.016, 0.865, 0.117, 0.002]);
    }

    #[test]
    fn top_k_top_p_and_min_p_leave_out_the_tail() {
        let warm = Sampling { temperature: 1.0, ..Sampling::default() };
        let two = [0.0, 0.731, 0.269, 0.0];
        close(&shares(Sampling { top_k: 2, ..warm }, &LOGITS), &two);
        close(&shares(Sampling { top_p: 0.7, ..warm }, &LOGITS), &two);
        close(&shares(Sampling { min_p: 0.3, ..warm }, &LOGITS), &two);
        close(&shares(Sampling { top_p: 0.0, ..warm }, &LOGITS), &[0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn what_is_not_sorted_is_left_out_as_if_it_were() {
        let mut random = SplitMix64(7);
        let logits: Vec<f32> = (0..3_000).map(|_| 9.0 * random.unit() as f32).collect();
        for (top_k, top_p, min_p) in [
            (0, 1.0, 0.0),
            (0, 0.9, 0.0),
            (0, 0.02, 0.0),
            (700, 0.9, 0.1),
            (5, 1.0, 0.6),
            (0, 1.0, 0.3),
        ] {
            let sampling =
                Sampling { temperature: 1.5, top_k, top_p, min_p, ..Sampling::default() };
            let mut sampler = Sampler::new(sampling, logits.len(), &[]);
            sampler.logits.clone_from(&logits);
            sampler.select_candidates(largest(&logits) / 1.5);
            let got: Vec<u32> = sampler.candidates.iter().map(|(token, _)| *token).collect();

            let mut all: Vec<(u32, f32)> =
                (0..).zip(logits.iter().map(|logit| (logit / 1.5).exp())).collect();
            all.sort_unstable_by(descending);
            all.truncate(if top_k == 0 { all.len() } else { top_k });
            let (peak, total) = (all[0].1, all.iter().map(|(_, p)| p).sum::<f32>());
            let mut before = 0.0;
            all.retain(|(_, p)| {
                before += p;
                before - p < top_p * total && *p >= min_p * peak
            });
            let mut want: Vec<u32> = all.iter().map(|(token, _)| *token).collect();
            want.sort_unstable();
            assert_eq!(got, want, "{sampling:?}");
        }
    }

    #[test]
    fn penalties_count_prompt_and_generated_tokens_as_they_should() {
        let greedy = Sampling::default();
        let mut sampler = Sampler::new(Sampling { repetition_penalty: 3.0, ..greedy }, 4, &[1]);
        assert_eq!(sampler.sample(&LOGITS).unwrap(), 2, "2.0 / 3 < 1.0");
        let mut sampler =
            Sampler::new(Sampling { repetition_penalty: 3.0, ..greedy }, 4, &[1, 2, 1]);
        assert_eq!(sampler.sample(&LOGITS).unwrap(), 1, "2.0 / 3 > 1.0 / 3, each once");
        let mut sampler = Sampler::new(Sampling { presence_penalty: 1.5, ..greedy }, 4, &[1]);
        assert_eq!(sampler.sample(&LOGITS).unwrap(), 1, "the prompt does not count");
        assert_eq!(sampler.sample(&LOGITS).unwrap(), 2, "2.0 - 1.5 < 1.0");
        let mut sampler = Sampler::new(Sampling { frequency_penalty: 0.6, ..greedy }, 4, &[]);
        let tokens: Vec<u32> = (0..3).map(|_| sampler.sample(&LOGITS).unwrap()).collect();
        assert_eq!(tokens, [1, 1, 2], "2.0, 1.4, 0.8");
    }

    #[test]
    fn a_bias_forbids_and_demands() {
        let mut sampler = Sampler::new(Sampling::default(), 4, &[]).with_bias(vec![(1, -100.0)]);
        assert_eq!(sampler.sample(&LOGITS).unwrap(), 2);
        let mut sampler = Sampler::new(Sampling::default(), 4, &[]).with_bias(vec![(3, 3.5)]);
        assert_eq!(sampler.sample(&LOGITS).unwrap(), 3, "-1.0 + 3.5 > 2.0");
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_refuses_what_is_no_number() {
        let mut sampler = Sampler::new(Sampling::default(), 3, &[]);
        assert_eq!(sampler.sample(&[1.0, 5.0, 5.0]).unwrap(), 1);
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(sampler.sample(&[1.0, broken, 5.0]), Err(NotANumber { token: 1 }));
        }
        let barred =
            sampler.sample_within(&[1.0, 5.0, 5.0], |logits| logits[1] = f32::NEG_INFINITY);
        assert_eq!(barred, Ok(2), "a mask is no arithmetic");
    }

    #[test]
    fn a_seed_gives_the_same_words_and_another_gives_others() {
        let run = |seed| {
            let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
            let mut sampler = Sampler::new(sampling, 4, &[]);
            (0..50).map(|_| sampler.sample(&LOGITS).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
