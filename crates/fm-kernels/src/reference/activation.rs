//! Elementwise non-linearities.

use crate::backend::Clamp;

/// `x · sigmoid(x)`. Source: Elfwing, Uchibe, Doya, 2017, arXiv:1702.03118.
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `(up + 1) · gate · sigmoid(alpha · gate)` of clamped operands. Not-a-number stays.
pub fn clamped(clamp: Clamp, gate: f32, up: f32) -> f32 {
    let Clamp { limit, alpha } = clamp;
    let gate = if gate > limit { limit } else { gate };
    (up.clamp(-limit, limit) + 1.0) * (gate * sigmoid(alpha * gate))
}

/// `1 / (1 + exp(-x))`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + exp(x))`, which is `x` to f32 precision above 20.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_and_limits() {
        assert_eq!(silu(0.0), 0.0);
        assert!((sigmoid(1.0) - 0.731_058_6).abs() < 1e-6);
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-6);
        assert!((softplus(-30.0) - 9.357_623e-14).abs() < 1e-19);
        assert_eq!(softplus(100.0), 100.0);
        assert_eq!(silu(-200.0), 0.0);
        let clamp = Clamp { limit: 7.0, alpha: 1.702 };
        assert_eq!(clamped(clamp, 0.0, 3.0), 0.0);
        assert!((clamped(clamp, 1.0, 0.0) - 0.845_795_8).abs() < 1e-6);
        assert_eq!(clamped(clamp, 100.0, 100.0), clamped(clamp, 7.0, 7.0));
        assert_eq!(clamped(clamp, -1.0, -100.0), clamped(clamp, -1.0, -7.0));
        assert_ne!(clamped(clamp, -9.0, 1.0), clamped(clamp, -7.0, 1.0));
        assert!(clamped(clamp, f32::NAN, 1.0).is_nan() && clamped(clamp, 1.0, f32::NAN).is_nan());
    }
}
