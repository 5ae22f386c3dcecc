//! The tape: routing that an engine cannot tell from a trained model's, yet known in advance.
//!
//! A random router uses all experts alike, so that every cache looks useless, and a random model
//! decoding freely falls into a loop of its own, so that two engines are measured on different
//! traces. Here both are designed:
//!
//! * The first `R` residual dimensions are reserved: no layer writes them. The embedding of token
//!   `t` puts `[1, c_t]` there (the constant is the level next to 1 that the format has), and
//!   router `l` reads only them: `logits = B_l + W_l · c_t`. A norm only scales, so the chosen
//!   experts are an exact function of the token id.
//! * Token id is time step: `c_t = √α · s_t + √(1 − α) · n_t` with `s` an AR(1) process of
//!   coefficient ρ = 0.8 and `n` noise. `B_l` is σ = 0.3 times the Gaussian quantiles, shuffled in
//!   every layer: the same popularity spectrum everywhere, other favourites.
//! * Row `t + 1` of the head is `c_t` scaled to a fixed length. By Cauchy–Schwarz it wins after token `t`,
//!   so greedy decoding walks `t → t + 1` (from the last step back to 0) on every engine. All other
//!   columns of the head are noise that gives logits a deviation of 1: they depend on every layer.
//!   Whoever measures speed compares logits too, for an engine that skips all layers walks as well.
//!
//! Ids beyond the tape are plain noise: their codes have no neighbours. Prompts should be ranges
//! of the tape; the same ids in random order keep the skew and lose the repetition.
//!
//! Since routing is known from the embedding on, a predictor that applies the next layer's router
//! to this layer's hidden state is always right here: no prefetch accuracy may be claimed from it.
//!
//! # Calibration
//!
//! Mean over 8 layers of 4096 steps, 4 bits, seed 1, from the weights as a reader decodes them; "lag
//! n" is the share of a token's experts that token `t − n` used in the same layer. Trained models show
//! about 26 % at lag 1; ρ and σ are a choice, not a measurement.
//!
//! | experts, `top_k` | α | lag 1 | lag 8 | lag 64 | uses of the top 25 % of experts |
//! |---|---|---|---|---|---|
//! | 128, 8 | 0.573 | 26.5 % | 11.2 % | 8.7 % | 46.4 % |
//! | 256, 8 | 0.708 | 26.5 % | 7.3 % | 4.8 % | 50.6 % |
//! | 512, 10 | 0.770 | 26.4 % | 5.5 % | 3.4 % | 53.7 % |
//!
//! Rounding codes to `2^bits` levels turns a part `D` of their variance into noise without memory
//! (12 % at 2 bits, 4 % at 3, 1 % at 4), which [`Tape::new`] makes up for with `α / (1 − D)` and
//! `σ · √(1 − D)`: at 2 bits lag 1 is within 1 % and the other columns within 0.2 % of the table.
//!
//! The 26 % is what ports of flash-moe measured on Qwen3.5-397B (temporal hit rates of 25 to 27 %).

mod routes;

use fm_format::quant::{FormatKind, QuantFormat, ScaleKind, by_kind};
use half::bf16;

use crate::{
    affine::{Bits, GROUP, GroupHead},
    geometry::Geometry,
    noise::Stream,
};

pub use self::routes::{Repetition, TapeRoutes};

/// How much of its slow part a step hands to the next.
const RHO: f64 = 0.8;
/// Deviation of the popularity bias, where `W · c` has deviation 1.
const POPULARITY: f64 = 0.3;
/// Logit of the next step for activations of unit size. The row of the step itself shares 0.6 of it
/// on average, 0.8 at worst, and a quarter of a million rows of noise reach 5.
const WALK: f64 = 36.0;

/// Levels that quantise a unit normal value with little error, and the error's share of the
/// variance. Steps have few bits, so that bias and scale are exact in bf16 and levels symmetric.
/// Source: J. Max, *Quantizing for Minimum Distortion*, 1960; steps rounded.
const LEVELS: [(u8, f32, f64); 6] = [
    (2, 1.0, 0.119),
    (3, 0.5625, 0.038),
    (4, 0.343_75, 0.0116),
    (5, 0.1875, 0.0035),
    (6, 0.093_75, 0.0011),
    (8, 0.031_25, 0.0001),
];

/// The codes of all tokens and the routers that read them. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Tape {
    geometry: Geometry,
    bits: Bits,
    seed: u64,
    /// Part of the codes' variance that their bits keep.
    kept: f64,
    /// `[steps, dims − 1]`, before rounding.
    steps: Vec<f32>,
}

/// The reserved columns of one row, as they are stored.
#[derive(Clone, Debug)]
pub(crate) enum CodedRow {
    /// One code per column, one head per group.
    Affine { codes: Vec<u8>, heads: Vec<GroupHead>, bits: Bits },
    /// bf16.
    Plain(Vec<bf16>),
}

impl CodedRow {
    /// What a reader makes of it.
    pub(crate) fn values(&self) -> Vec<f32> {
        match self {
            Self::Plain(values) => values.iter().map(|value| value.to_f32()).collect(),
            Self::Affine { codes, heads, .. } => {
                let groups = codes.chunks(GROUP).zip(heads);
                groups
                    .flat_map(|(codes, head)| codes.iter().map(|code| head.weight(*code)))
                    .collect()
            }
        }
    }
}

impl Tape {
    /// The tape of a geometry whose embedding is stored in `bits`.
    pub fn new(geometry: &Geometry, bits: Bits, seed: u64) -> Self {
        let lost = LEVELS.iter().find(|(width, ..)| *width == bits.get()).map_or(0.0, |row| row.2);
        let kept = 1.0 - lost;
        let alpha = (geometry.tape_alpha / kept).min(1.0);
        let steps = steps(geometry.tape_tokens(), geometry.tape_dims - 1, alpha, seed);
        Self { geometry: geometry.clone(), bits, seed, kept, steps }
    }

    /// Steps of the tape: token ids below it decode to their successor.
    pub fn steps(&self) -> usize {
        self.geometry.tape_tokens()
    }

    /// Reserved dimensions.
    pub(crate) fn dims(&self) -> usize {
        self.geometry.tape_dims
    }

    /// `[1, c_t]` of a token: its row of the embedding.
    pub(crate) fn embedding(&self, token: usize) -> CodedRow {
        let dims = self.dims() - 1;
        let code: Vec<f32> = if token < self.steps() {
            self.steps[token * dims..][..dims].to_vec()
        } else {
            let noise = Stream::named(self.seed, "tape.outside");
            (0..dims).map(|at| noise.normal((token * dims + at) as u64) as f32).collect()
        };
        let code = std::iter::once(1.0).chain(code);
        let Some((_, step, _)) = LEVELS.iter().find(|(width, ..)| *width == self.bits.get()) else {
            return CodedRow::Plain(code.map(bf16::from_f32).collect());
        };
        let middle = self.bits.middle();
        let nearest = |value: f32| (value / step + middle).round().clamp(0.0, 2.0 * middle) as u8;
        let heads = vec![GroupHead::symmetric(*step, self.bits); self.dims() / GROUP];
        CodedRow::Affine { codes: code.map(nearest).collect(), heads, bits: self.bits }
    }

    /// The row of the head that wins after the step before `token`; `None` beyond the tape.
    pub(crate) fn head(&self, token: usize) -> Option<CodedRow> {
        if token >= self.steps() {
            return None;
        }
        let before = self.embedding((token + self.steps() - 1) % self.steps());
        let length = before.values().iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
        let factor = (WALK / (self.dims() as f64).sqrt() / length) as f32;
        Some(match before {
            CodedRow::Plain(values) => CodedRow::Plain(
                values.iter().map(|value| bf16::from_f32(value.to_f32() * factor)).collect(),
            ),
            CodedRow::Affine { codes, heads, bits } => {
                let scaled =
                    |head: &GroupHead| GroupHead::symmetric(head.scale.to_f32() * factor, bits);
                CodedRow::Affine { codes, heads: heads.iter().map(scaled).collect(), bits }
            }
        })
    }

    /// One row per expert: popularity, then `W_l`.
    pub(crate) fn router(&self, layer: usize) -> Vec<CodedRow> {
        let Geometry { experts, tape_dims: dims, .. } = self.geometry;
        let noise = Stream::named(self.seed, &format!("tape.router.{layer}"));
        let popularity = shuffled_quantiles(experts, noise);
        let constant = f64::from(self.embedding(0).values()[0]);
        let popular = POPULARITY * self.kept.sqrt(); // where `W · c` has this deviation
        let deviation = ((dims - 1) as f64).sqrt().recip();
        let mut row = vec![0.0; dims];
        let rows = popularity.iter().enumerate().map(|(expert, quantile)| {
            row[0] = (popular * quantile / constant) as f32;
            for (column, weight) in row.iter_mut().enumerate().skip(1) {
                let at = experts + expert * dims + column; // behind the words of the shuffle
                *weight = (noise.normal(at as u64) * deviation) as f32;
            }
            if self.bits.is_plain() {
                CodedRow::Plain(row.iter().map(|weight| bf16::from_f32(*weight)).collect())
            } else {
                encoded(&row)
            }
        });
        rows.collect()
    }
}

fn steps(count: usize, dims: usize, alpha: f64, seed: u64) -> Vec<f32> {
    let noise = |name| Stream::named(seed, name);
    let (fast, push) = (noise("tape.fast"), noise("tape.slow"));
    let (alpha_slow, alpha_fast) = (alpha.sqrt(), (1.0 - alpha).sqrt());
    let push_deviation = (1.0 - RHO * RHO).sqrt();
    let start = noise("tape.start");
    let mut slow: Vec<f64> = (0..dims).map(|at| start.normal(at as u64)).collect();
    let mut codes = Vec::with_capacity(count * dims);
    for step in 0..count {
        for (dim, slow) in slow.iter_mut().enumerate() {
            let at = (step * dims + dim) as u64;
            *slow = RHO * *slow + push_deviation * push.normal(at);
            codes.push((alpha_slow * *slow + alpha_fast * fast.normal(at)) as f32);
        }
    }
    codes
}

/// The quantiles `(i + ½) / count` of the normal distribution in random order. Uses the first
/// `count` words of the stream.
fn shuffled_quantiles(count: usize, noise: Stream) -> Vec<f64> {
    let mut quantiles: Vec<f64> =
        (0..count).map(|at| normal_quantile((at as f64 + 0.5) / count as f64)).collect();
    for last in (1..count).rev() {
        let other = (noise.word(last as u64) % (last as u64 + 1)) as usize;
        quantiles.swap(last, other);
    }
    quantiles
}

/// The value below which a share `p` of the unit normal distribution lies, to 5e-4.
///
/// Source: Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.2.23.
fn normal_quantile(p: f64) -> f64 {
    let tail = p.min(1.0 - p);
    let t = (-2.0 * tail.ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let value = t - above / below;
    if p < 0.5 { -value } else { value }
}

/// A router's row in its 8 bits, as the format's own encoder packs it.
fn encoded(row: &[f32]) -> CodedRow {
    let format = router_format();
    let blocks = row.chunks(GROUP).map(|group| {
        let mut block = vec![0; format.block_bytes];
        format.encode_row(group, &mut block);
        block
    });
    let (mut codes, mut heads) = (Vec::with_capacity(row.len()), Vec::new());
    for block in blocks {
        let number = |at: usize| bf16::from_le_bytes([block[at], block[at + 1]]);
        heads.push(GroupHead { scale: number(0), bias: number(2) });
        codes.extend_from_slice(&block[4..]);
    }
    CodedRow::Affine { codes, heads, bits: Bits::ROUTER }
}

fn router_format() -> &'static QuantFormat {
    let (bits, group) = (Bits::ROUTER.get(), GROUP as u8);
    by_kind(FormatKind::Affine { bits, group, scale: ScaleKind::Bf16 })
        .expect("the format of routers is listed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        for (p, expected) in [(0.5, 0.0), (0.841_345, 1.0), (0.022_75, -2.0), (0.999, 3.0902)] {
            assert!((normal_quantile(p) - expected).abs() < 1e-3, "{p}: {}", normal_quantile(p));
        }
        let quantiles = shuffled_quantiles(512, Stream::named(1, "test"));
        let mut sorted = quantiles.clone();
        sorted.sort_by(f64::total_cmp);
        assert_ne!(quantiles, sorted);
        assert!((quantiles.iter().map(|q| q * q).sum::<f64>() / 512.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn the_next_step_wins_with_room_for_noise() {
        for (name, bits) in [("qwen3.5-397b", 2), ("qwen3.5-35b", 4), ("qwen3-30b", 16)] {
            let geometry = Geometry::by_name(name).unwrap();
            let tape = Tape::new(geometry, Bits::new(bits).unwrap(), 1);
            let head: Vec<Vec<f32>> =
                (0..tape.steps()).map(|token| tape.head(token).unwrap().values()).collect();
            for token in (0..tape.steps()).step_by(32) {
                let code = tape.embedding(token).values();
                let logit = |row: &Vec<f32>| row.iter().zip(&code).map(|(w, c)| w * c).sum::<f32>();
                let next = (token + 1) % tape.steps();
                let others = head.iter().enumerate().filter(|(other, _)| *other != next);
                let best = others.map(|(_, row)| logit(row)).fold(f32::NEG_INFINITY, f32::max);
                // The norm takes a quarter of it. What is left is four deviations of the noise
                // between two rows, and far from the largest of all rows.
                assert!(logit(&head[next]) - best > 7.5, "{name} {bits} {token}: {best}");
                assert!(logit(&head[next]) > 25.0, "{name} {bits} {token}");
            }
        }
    }
}
