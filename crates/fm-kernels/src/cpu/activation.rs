//! Elementwise non-linearities, sixteen at a time.

use crate::backend::Clamp;

use super::{
    lanes::{LANES, Lanes, Work, load_some, store_some},
    vector::zip_map,
};

/// `e^x` with an error of at most two units in the last place.
///
/// Splits `x = n · ln 2 + r` with `|r| ≤ ln 2 / 2` and evaluates a polynomial of degree 6 at `r`.
/// Gives 0 below -87.7 (no denormals) and infinity above 88.4. Not-a-number stays.
#[inline(always)]
pub(super) fn exp<L: Lanes>(lanes: L, x: L::F) -> L::F {
    /// ln 2 in two parts; the first has so few bits that its product with `n` is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    /// Minimax coefficients of `(e^r - 1 - r) / r²`, highest power first. Source: Cephes `expf`.
    const COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // The outermost exponents that `power_of_two` knows; operand order keeps not-a-number.
    let x = lanes.max(lanes.splat(-88.0), x);
    let x = lanes.min(lanes.splat(88.7), x);
    let n = lanes.round(lanes.mul(x, lanes.splat(std::f32::consts::LOG2_E)));
    let r = lanes.fma(n, lanes.splat(-LN_2_HIGH), x);
    let r = lanes.fma(n, lanes.splat(-LN_2_LOW), r);
    let mut tail = lanes.splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        tail = lanes.fma(tail, r, lanes.splat(*coefficient));
    }
    let one = lanes.splat(1.0);
    let fraction = lanes.add(lanes.fma(lanes.mul(r, r), tail, r), one);
    lanes.mul(fraction, lanes.power_of_two(n))
}

/// `1 / (1 + e^-x)`
#[inline(always)]
fn sigmoid<L: Lanes>(lanes: L, x: L::F) -> L::F {
    let one = lanes.splat(1.0);
    lanes.div(one, lanes.add(one, exp(lanes, lanes.sub(lanes.splat(0.0), x))))
}

/// `x / (1 + e^-x)`
#[inline(always)]
pub(super) fn silu<L: Lanes>(lanes: L, x: L::F) -> L::F {
    lanes.mul(x, sigmoid(lanes, x))
}

/// `gate = silu(gate) · up`.
pub(super) struct SiluMul<'a> {
    pub(super) up: &'a [f32],
    pub(super) gate: &'a mut [f32],
}

impl Work for SiluMul<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        zip_map(lanes, self.gate, self.up, |lanes, gate, up| lanes.mul(silu(lanes, gate), up));
    }
}

/// See [`crate::Backend::clamped_mul`].
pub(super) struct ClampedMul<'a> {
    pub(super) clamp: Clamp,
    pub(super) up: &'a [f32],
    pub(super) gate: &'a mut [f32],
}

impl Work for ClampedMul<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Clamp { limit, alpha } = self.clamp;
        zip_map(lanes, self.gate, self.up, |lanes, gate, up| {
            // Operand order keeps not-a-number.
            let gate = lanes.min(lanes.splat(limit), gate);
            let up = lanes.max(lanes.splat(-limit), lanes.min(lanes.splat(limit), up));
            let open = sigmoid(lanes, lanes.mul(lanes.splat(alpha), gate));
            lanes.mul(lanes.add(up, lanes.splat(1.0)), lanes.mul(gate, open))
        });
    }
}

/// `x = x · silu(z)`.
pub(super) struct MulSilu<'a> {
    pub(super) z: &'a [f32],
    pub(super) x: &'a mut [f32],
}

impl Work for MulSilu<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        zip_map(lanes, self.x, self.z, |lanes, x, z| lanes.mul(x, silu(lanes, z)));
    }
}

/// `x = sigmoid(gate) · x`.
pub(super) struct SigmoidMul<'a> {
    pub(super) gate: &'a [f32],
    pub(super) x: &'a mut [f32],
}

impl Work for SigmoidMul<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        zip_map(lanes, self.x, self.gate, |lanes, x, gate| lanes.mul(x, sigmoid(lanes, gate)));
    }
}

/// `scores = softmax(logits)`.
pub(super) struct Softmax<'a> {
    pub(super) logits: &'a [f32],
    pub(super) scores: &'a mut [f32],
}

impl Work for Softmax<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { logits, scores } = self;
        scores.copy_from_slice(logits);
        let peak = largest(lanes, scores, f32::NEG_INFINITY);
        let sum = exp_sum(lanes, peak, scores);
        scores.iter_mut().for_each(|score| *score /= sum);
    }
}

/// The largest value, or `floor` if that is larger.
#[inline(always)]
pub(super) fn largest<L: Lanes>(lanes: L, x: &[f32], floor: f32) -> f32 {
    let (x, tail) = x.as_chunks::<LANES>();
    let mut peaks = lanes.splat(floor);
    for x in x {
        peaks = lanes.max(lanes.load(x), peaks);
    }
    let mut all = [0.0; LANES];
    lanes.store(peaks, &mut all);
    all.iter().chain(tail).copied().fold(floor, f32::max)
}

/// `scores = e^(scores - peak)`; gives their sum.
#[inline(always)]
pub(super) fn exp_sum<L: Lanes>(lanes: L, peak: f32, scores: &mut [f32]) -> f32 {
    let peak = lanes.splat(peak);
    let mut sum = lanes.splat(0.0);
    for scores in scores.chunks_mut(LANES) {
        let share = exp(lanes, lanes.sub(load_some(lanes, scores), peak));
        store_some(lanes, share, scores);
        sum = lanes.add(sum, load_some(lanes, scores)); // loaded again: lanes past the end are 0
    }
    lanes.sum(sum)
}
