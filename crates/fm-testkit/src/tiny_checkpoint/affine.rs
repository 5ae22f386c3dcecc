//! MLX affine packing: groups of a row share a scale and a bias, the integers form one bit stream.

use super::Float;

/// A width of integers and how many of them share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affine {
    /// 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// 32, 64 or 128.
    pub group: usize,
}

/// One packed tensor: `w ≈ q · scale + bias`.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    pub(super) words: Vec<u32>,
    pub(super) scales: Vec<f32>,
    pub(super) biases: Vec<f32>,
}

impl Affine {
    /// Packs rows of `columns` values. Integers are chosen for the scales and biases as they will
    /// be stored.
    ///
    /// # Panics
    /// If a row does not consist of whole groups, or its bits do not fill whole words.
    pub(super) fn pack(self, values: &[f32], columns: usize, stored: Float) -> Packed {
        assert!(columns.is_multiple_of(self.group), "rows consist of whole groups");
        let mut packed = Packed { words: Vec::new(), scales: Vec::new(), biases: Vec::new() };
        for row in values.chunks(columns) {
            let mut integers = Vec::with_capacity(columns);
            for group in row.chunks(self.group) {
                let (scale, bias) = self.scale_and_bias(group);
                let (scale, bias) = (stored.round(scale), stored.round(bias));
                let largest = ((1_u32 << self.bits) - 1) as f32;
                integers.extend(
                    group.iter().map(|w| ((w - bias) / scale).round().clamp(0.0, largest) as u32),
                );
                packed.scales.push(scale);
                packed.biases.push(bias);
            }
            packed.words.extend(self.bit_stream(&integers));
        }
        packed
    }

    /// As MLX chooses them: the end of the range that is farther from zero is hit exactly, and
    /// zero is an integer multiple of the scale away from it.
    fn scale_and_bias(self, group: &[f32]) -> (f32, f32) {
        let low = group.iter().copied().fold(f32::INFINITY, f32::min);
        let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let steps = ((1_u32 << self.bits) - 1) as f32;
        let size = ((high - low) / steps).max(1e-7);
        let (edge, scale) = if low.abs() > high.abs() { (low, size) } else { (high, -size) };
        let zero = (edge / scale).round();
        if zero == 0.0 { (scale, 0.0) } else { (edge / zero, edge) }
    }

    /// Least significant bit first, without gaps.
    fn bit_stream(self, integers: &[u32]) -> Vec<u32> {
        let bit_count = integers.len() * self.bits;
        assert!(bit_count.is_multiple_of(32), "a packed row consists of whole words");
        let mut words = vec![0_u32; bit_count / 32];
        for (index, integer) in integers.iter().enumerate() {
            for bit in 0..self.bits {
                let at = index * self.bits + bit;
                words[at / 32] |= (integer >> bit & 1) << (at % 32);
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;

    #[test]
    fn packed_values_are_at_most_a_step_away() {
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                let values = Noise::new(5).normals(3 * 256, 1.0);
                let packed = Affine { bits, group }.pack(&values, 256, Float::F32);
                assert_eq!(packed.words.len(), 3 * 256 * bits / 32);
                for (index, value) in values.iter().enumerate() {
                    let (row, column) = (index / 256, index % 256);
                    let mut integer = 0;
                    for bit in 0..bits {
                        let at = row * 256 * bits + column * bits + bit;
                        integer |= (packed.words[at / 32] >> (at % 32) & 1) << bit;
                    }
                    let (scale, bias) =
                        (packed.scales[index / group], packed.biases[index / group]);
                    let error = (integer as f32 * scale + bias - value).abs();
                    // Half a step inside the range, and up to one where the range was shifted to
                    // make zero exact.
                    assert!(error <= 1.01 * scale.abs(), "{bits} bits: {error} > {scale}");
                }
            }
        }
    }
}
