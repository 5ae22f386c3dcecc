//! The functions that the layers share, each as its definition.

use multiversion::multiversion;

/// `x / √(mean(x²) + eps) · w`
pub(super) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    assert_eq!(x.len(), weight.len(), "a norm has one weight per channel");
    let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean_square + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
}

/// `x / √(Σ x² + 1e-6)`: the eps of the delta-net is fixed and inside the root.
pub(super) fn l2_norm(x: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x * scale).collect()
}

/// `exp(xᵢ) / Σ exp(xⱼ)`
pub(super) fn softmax(x: &[f64]) -> Vec<f64> {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = x.iter().map(|x| (x - largest).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

/// `1 / (1 + exp(−x))`
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · sigmoid(x)`
pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + exp(x))`
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `Σ aᵢ · bᵢ`, in eight sums: with a single one every product waits for the sum before it. Half of what the oracle
/// does is this; with wider registers it has the same bits.
#[multiversion(targets("x86_64+avx2"))]
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "a dot product has two sides of one length");
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}

/// `a + b`
pub(super) fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    assert_eq!(a.len(), b.len(), "a sum has two sides of one length");
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
