//! Rotary position embedding: pairs of values, each turned by an angle of its own.

use crate::{
    backend::{Rope, RopeLayout},
    host::HostBuf,
};

/// Rotates one head in place.
///
/// `x' = a (x cos − y sin)`, `y' = a (y cos + x sin)` with the angle `position · inv_freq[i]` and
/// the amplitude `a`, which is multiplied with sine and cosine.
pub fn rotate(spec: &Rope<'_, HostBuf>, position: u32, head: &mut [f32]) {
    let rotated = &mut head[spec.start..][..2 * spec.pairs];
    for (i, freq) in spec.inv_freq[..spec.pairs].iter().enumerate() {
        let (sin, cos) = (position as f32 * freq).sin_cos();
        let (sin, cos) = (sin * spec.amplitude, cos * spec.amplitude);
        let (first, second) = match spec.layout {
            RopeLayout::HalfSplit => (i, i + spec.pairs),
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
        };
        let (x, y) = (rotated[first], rotated[second]);
        (rotated[first], rotated[second]) = (x * cos - y * sin, y * cos + x * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(layout: RopeLayout, start: usize, amplitude: f32) -> Vec<f32> {
        let inv_freq = vec![std::f32::consts::FRAC_PI_2, 0.0].into();
        let positions = [1];
        let (head_dim, pairs) = (6, 2);
        let inv_freq = &inv_freq;
        let spec =
            Rope { head_dim, start, pairs, layout, inv_freq, amplitude, positions: &positions };
        let mut head = vec![1.0, 2.0, 3.0, 4.0, 5.0, 9.0];
        rotate(&spec, 1, &mut head);
        head.iter().map(|x| (x * 1e3).round() / 1e3).collect()
    }

    #[test]
    fn a_quarter_turn_swaps_a_pair_and_leaves_the_rest() {
        let halves = turned(RopeLayout::HalfSplit, 0, 1.0);
        assert_eq!(halves, [-3.0, 2.0, 1.0, 4.0, 5.0, 9.0]);
        let neighbours = turned(RopeLayout::Interleaved, 0, 1.0);
        assert_eq!(neighbours, [-2.0, 1.0, 3.0, 4.0, 5.0, 9.0]);
    }

    #[test]
    fn only_what_is_rotated_is_scaled() {
        let later = turned(RopeLayout::HalfSplit, 1, 2.0);
        assert_eq!(later, [1.0, -8.0, 6.0, 4.0, 10.0, 9.0]);
    }
}
