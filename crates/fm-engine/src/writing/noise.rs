//! Finds a text that is no text any more: tokens as if drawn by lot, or bytes that are no characters.
//!
//! Of tokens the model itself is asked. Where its own distribution is nearly uniform for a long time, it
//! has nothing to say; where the tokens that were chosen are for a long time no likelier than any token
//! drawn by lot, nobody listens to it. Both are far from whatever a model writes of its own: at a
//! temperature of 1 the surprise is the entropy, and the entropy of lists of numbers, base64 and scripts
//! that the demonstration model does not know was at most two thirds of the most that there can be. Tokens
//! that a grammar chose, and texts whose tokens have been made likelier by whoever asked, say nothing.

/// Tokens that a judgement is about.
const WINDOW: usize = 256;

/// One of so many tokens is looked at: a look takes a millisecond for the largest vocabularies.
const LOOK_EVERY: usize = 4;

/// Entropy, on average, as a part of that of a uniform distribution.
const ENTROPY_MAX: f64 = 0.9;

/// The same of the surprise at what was chosen: the logarithm of its probability.
const SURPRISE_MAX: f64 = 1.0;

/// Sequences of bytes in as many tokens that are no UTF-8; a healthy text has one by accident.
const ILL_FORMED_MAX: usize = 64;

const LOOKS: usize = WINDOW / LOOK_EVERY;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Noise {
    /// The most that entropy can be.
    uniform: f64,
    /// Of the latest looks: entropy and surprise.
    looks: Box<[(f64, f64); LOOKS]>,
    looked: usize,
    /// Tokens that the model chose.
    chosen: usize,
    /// Ill-formed sequences before each of the latest tokens.
    ill_formed: Box<[usize; WINDOW]>,
    tokens: usize,
}

impl Noise {
    pub(super) fn new(vocab: usize) -> Self {
        Self {
            uniform: (vocab as f64).ln(),
            looks: Box::new([(0.0, 0.0); LOOKS]),
            looked: 0,
            chosen: 0,
            ill_formed: Box::new([0; WINDOW]),
            tokens: 0,
        }
    }

    /// Looks at what the model thought of a token that it has chosen.
    pub(super) fn look(&mut self, logits: &[f32], token: u32) {
        self.chosen += 1;
        if self.chosen.is_multiple_of(LOOK_EVERY) {
            self.looks[self.looked % LOOKS] = judged(logits, token);
            self.looked += 1;
        }
    }

    /// Whether the text up to its latest token is noise, with so many ill-formed sequences in all of it.
    pub(super) fn found(&mut self, ill_formed: usize) -> bool {
        let before = std::mem::replace(&mut self.ill_formed[self.tokens % WINDOW], ill_formed);
        self.tokens += 1;
        let garbled = self.tokens > WINDOW && ill_formed - before >= ILL_FORMED_MAX;
        garbled || self.is_lot()
    }

    fn is_lot(&self) -> bool {
        let sum = |of: fn(&(f64, f64)) -> f64| self.looks.iter().map(of).sum::<f64>();
        let most = LOOKS as f64 * self.uniform;
        self.looked >= LOOKS
            && (sum(|look| look.0) >= ENTROPY_MAX * most
                || sum(|look| look.1) >= SURPRISE_MAX * most)
    }

    /// Begins anew.
    pub(super) fn forget(&mut self) {
        (self.looked, self.tokens) = (0, 0);
    }
}

/// Entropy of a distribution, and the surprise at a token of it. Sums in f64, in ascending order of
/// tokens.
fn judged(logits: &[f32], token: u32) -> (f64, f64) {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let below = |logit: f32| f64::from(logit - peak);
    let (mut sum, mut weighted) = (0.0, 0.0);
    for logit in logits.iter().filter(|logit| logit.is_finite()) {
        let (below, weight) = (below(*logit), below(*logit).exp());
        sum += weight;
        weighted += weight * below;
    }
    (sum.ln() - weighted / sum, sum.ln() - below(logits[token as usize]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB: usize = 1000;

    /// Tokens until noise is found, of at most 2000.
    fn found(of: impl Fn(usize) -> (Vec<f32>, u32)) -> Option<usize> {
        let mut noise = Noise::new(VOCAB);
        (1..=2000).find(|at| {
            let (logits, token) = of(*at);
            noise.look(&logits, token);
            noise.found(0)
        })
    }

    #[test]
    fn entropy_and_surprise_are_those_of_the_distribution() {
        let (entropy, surprise) = judged(&[0.0, 2.0, 1.0, f32::NEG_INFINITY], 2);
        let p = [0.0900_f64, 0.6652, 0.2447];
        let want: f64 = -p.iter().map(|p| p * p.ln()).sum::<f64>();
        assert!((entropy - want).abs() < 1e-3 && (surprise + p[2].ln()).abs() < 1e-3);
        let (entropy, surprise) = judged(&vec![3.0; VOCAB], 5);
        let uniform = (VOCAB as f64).ln();
        assert!((entropy - uniform).abs() < 1e-9 && (surprise - uniform).abs() < 1e-9);
    }

    #[test]
    fn a_model_that_has_nothing_to_say_is_found_however_it_chooses() {
        assert_eq!(found(|_| (vec![0.0; VOCAB], 7)), Some(WINDOW));
        let nearly = |at: usize| {
            let mut logits = vec![0.0; VOCAB];
            logits[at % VOCAB] = 1.0;
            (logits, (at % VOCAB) as u32)
        };
        assert_eq!(found(nearly), Some(WINDOW), "the likeliest of them all");
    }

    #[test]
    fn choices_against_the_model_are_found() {
        let sure = |at: usize| {
            let mut logits = vec![0.0; VOCAB];
            logits[at % VOCAB] = 8.0;
            logits
        };
        assert_eq!(found(|at| (sure(at), ((at + 1) % VOCAB) as u32)), Some(WINDOW));
        assert_eq!(found(|at| (sure(at), (at % VOCAB) as u32)), None, "its own are not");
        // Every other one is as much surprise as lots of two thirds of the tokens.
        let half = |at: usize| (sure(at), ((at + at / LOOK_EVERY % 2) % VOCAB) as u32);
        assert_eq!(found(half), None);
        // All letters of a script as likely as each other are no noise.
        let script = |at: usize| {
            let logits = (0..VOCAB).map(|token| if token < 400 { 5.0 } else { -5.0 });
            (logits.collect(), (at * 7 % 400) as u32)
        };
        assert_eq!(found(script), None);
    }

    #[test]
    fn bytes_that_are_no_characters_for_long_are_found() {
        let mut noise = Noise::new(VOCAB);
        let mut until = |every: usize| (1..=2000).find(|at| noise.found(at / every));
        assert_eq!(until(5), None, "now and then");
        noise.forget();
        let mut until = |every: usize| (1..=2000).find(|at| noise.found(at / every));
        assert_eq!(until(4), Some(WINDOW + 1));
    }

    #[test]
    fn what_was_before_is_forgotten() {
        let mut noise = Noise::new(VOCAB);
        for _ in 1..WINDOW {
            noise.look(&[0.0; VOCAB], 1);
            assert!(!noise.found(0));
        }
        noise.forget();
        let mut after = 0;
        while !noise.found(0) {
            noise.look(&[0.0; VOCAB], 1);
            after += 1;
        }
        assert!(after > WINDOW - LOOK_EVERY, "{after}");
    }
}
