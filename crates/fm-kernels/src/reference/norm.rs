//! Root-mean-square norm of one row, given its sum of squares.

/// The factor that brings a row of `len` values to unit root mean square.
pub fn rms_scale(sum_of_squares: f32, len: usize, eps: f32) -> f32 {
    1.0 / (sum_of_squares / len as f32 + eps).sqrt()
}

/// `out = x · scale · weight`.
pub fn scale_row(x: &[f32], scale: f32, weight: &[f32], out: &mut [f32]) {
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// `row = row · scale · weight`, in place.
pub fn scale_row_in_place(row: &mut [f32], scale: f32, weight: &[f32]) {
    for (x, weight) in row.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}
