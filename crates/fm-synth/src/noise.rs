//! Seeded noise that can be asked for any position: a chunk of a tensor does not need the chunks
//! before it, so the bytes depend neither on the chunk size nor on who writes which part.

/// A stream of random words, addressed by position.
///
/// Word `n` is the `n`-th output of `SplitMix64`: Steele, Lea, Flood, *Fast Splittable
/// Pseudorandom Number Generators*, 2014.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    key: u64,
}

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Uniform 16-bit numbers in one normal value.
const SUMMANDS: u64 = 8;

impl Stream {
    /// The stream of `seed` for the thing called `name`: neither the order in which things are
    /// made nor the presence of others changes it. (FNV-1a of the name.)
    pub(crate) fn named(seed: u64, name: &str) -> Self {
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        Self { key: Self { key: seed ^ hash }.word(0) }
    }

    /// 64 random bits.
    pub(crate) fn word(self, position: u64) -> u64 {
        let mut z = self.key.wrapping_add(position.wrapping_add(1).wrapping_mul(GAMMA));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Four random bits.
    pub(crate) fn nibble(self, position: u64) -> usize {
        (self.word(position / 16) >> (position % 16 * 4)) as usize & 15
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(self, position: u64) -> f64 {
        (self.word(position) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Nearly normal with mean 0 and variance 1: the sum of eight uniform 16-bit numbers, within
    /// ±4.9. Exact arithmetic and one square root, so the same on every machine.
    pub(crate) fn normal(self, position: u64) -> f64 {
        let quarters = |word: u64| (0..4).map(move |at| word >> (16 * at) & 0xFFFF);
        let words = [self.word(2 * position), self.word(2 * position + 1)];
        let sum: u64 = words.into_iter().flat_map(quarters).sum();
        let largest = f64::from(u16::MAX);
        let deviation = (SUMMANDS as f64 * (largest * largest + 2.0 * largest) / 12.0).sqrt();
        (sum as f64 - SUMMANDS as f64 * largest / 2.0) / deviation
    }

    /// Fills whole words of `out`, beginning with word `first`.
    pub(crate) fn fill(self, first: u64, out: &mut [u8]) {
        debug_assert!(out.len().is_multiple_of(8), "noise comes in whole words");
        for (bytes, position) in out.chunks_exact_mut(8).zip(first..) {
            bytes.copy_from_slice(&self.word(position).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // First outputs of SplitMix64 for seed 1234567, as in the reference C code's test vectors.
        let stream = Stream { key: 1_234_567 };
        assert_eq!(stream.word(0), 6_457_827_717_110_365_317);
        assert_eq!(stream.word(1), 3_203_168_211_198_807_973);
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let stream = Stream::named(7, "normals");
        let values: Vec<f64> = (0..100_000).map(|at| stream.normal(at)).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.015, "{variance}");
    }

    #[test]
    fn any_part_of_the_stream_is_the_same_part() {
        let stream = Stream::named(7, "parts");
        let (mut whole, mut part) = ([0; 64], [0; 24]);
        stream.fill(3, &mut whole);
        stream.fill(5, &mut part);
        assert_eq!(whole[16..40], part);
    }
}
