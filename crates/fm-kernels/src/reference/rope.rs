//! Rotary position embedding, half-split: value `i` is paired with value `i + pairs`.

/// Rotates one head in place.
///
/// `x' = x cos − y sin`, `y' = y cos + x sin` with the angle `position · inv_freq[i]`.
pub fn rotate_half_split(head: &mut [f32], position: u32, inv_freq: &[f32]) {
    let (first, second) = head.split_at_mut(inv_freq.len());
    for ((x, y), freq) in first.iter_mut().zip(second).zip(inv_freq) {
        let (sin, cos) = (position as f32 * freq).sin_cos();
        (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn_swaps_the_halves_and_leaves_the_rest() {
        let mut head = [1.0, 2.0, 3.0, 4.0, 9.0];
        rotate_half_split(&mut head, 1, &[std::f32::consts::FRAC_PI_2, 0.0]);
        for (got, want) in head.iter().zip([-3.0, 2.0, 1.0, 4.0, 9.0]) {
            assert!((got - want).abs() < 1e-6, "{head:?}");
        }
    }
}
