//! Seeded noise: the same numbers on every machine and in every release.
//!
//! An own generator, because the checkpoints made from it are compared with numbers that were
//! written down: a dependency may change its stream, this file may not.

/// A stream of random numbers that depends on its seed and on nothing else.
///
/// `SplitMix64`: Steele, Lea, Flood, *Fast Splittable Pseudorandom Number Generators*, 2014.
#[derive(Clone, Debug)]
pub struct Noise {
    state: u64,
}

impl Noise {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The stream of `seed` for the thing called `name`: neither the order in which things are
    /// made nor the presence of others changes it. (FNV-1a of the name.)
    pub fn named(seed: u64, name: &str) -> Self {
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        let mut mixed = Self::new(seed ^ hash);
        Self::new(mixed.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`, all 53 bits of it random.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// A whole number below `bound`, which is not zero. Slightly favours small ones, by less
    /// than `bound / 2^64`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// Normal with mean 0 and variance 1 (Box–Muller; the second value of each pair is dropped,
    /// which keeps the stream free of hidden state).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// `count` normal values of standard deviation `scale`, in f32.
    pub fn normals(&mut self, count: usize, scale: f64) -> Vec<f32> {
        (0..count).map(|_| (self.normal() * scale) as f32).collect()
    }

    /// `count` token ids below `vocab`.
    pub fn tokens(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab) as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // First outputs of SplitMix64 for seed 1234567, as in the reference C code's test vectors.
        let mut noise = Noise::new(1_234_567);
        assert_eq!(noise.bits(), 6_457_827_717_110_365_317);
        assert_eq!(noise.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let values = Noise::new(7).normals(100_000, 1.0);
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / 1e5;
        let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn names_and_seeds_give_different_streams() {
        let first = |seed, name| Noise::named(seed, name).bits();
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_eq!(first(1, "a"), first(1, "a"));
    }

    #[test]
    fn ranges_hold() {
        let mut noise = Noise::new(3);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&noise.unit())));
        assert!((0..1000).all(|_| noise.below(7) < 7));
        assert!((0..1000).all(|_| (2.0..3.0).contains(&noise.uniform(2.0, 3.0))));
        assert!(noise.tokens(100, 5).iter().all(|&token| token < 5));
    }
}
