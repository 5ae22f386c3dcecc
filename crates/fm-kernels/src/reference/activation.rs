//! Elementwise non-linearities.

/// `x · sigmoid(x)`. Source: Elfwing, Uchibe, Doya, 2017, arXiv:1702.03118.
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
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
    }
}
