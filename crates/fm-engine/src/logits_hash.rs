//! What a run computed, in one number: two runs that agree in it gave the same bits.

use xxhash_rust::xxh3::Xxh3Default;

/// XXH3-128 over the f32 bits of rows of logits, little-endian, in order.
#[derive(Clone, Default)]
pub(crate) struct LogitsHash(Xxh3Default);

/// Values that are turned into bytes at a time: a call per value would cost a millisecond for a
/// vocabulary of 248,000 tokens.
const VALUES: usize = 256;

impl LogitsHash {
    /// Adds a row.
    pub(crate) fn row(&mut self, logits: &[f32]) {
        let mut bytes = [0; VALUES * size_of::<f32>()];
        for logits in logits.chunks(VALUES) {
            for (bytes, logit) in bytes.as_chunks_mut().0.iter_mut().zip(logits) {
                *bytes = logit.to_le_bytes();
            }
            self.0.update(&bytes[..size_of_val(logits)]);
        }
    }

    /// The hash of all rows so far.
    pub(crate) fn digest(&self) -> u128 {
        self.0.digest128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_length_hash_as_their_bytes() {
        for len in [0, 1, VALUES - 1, VALUES, 2 * VALUES + 5] {
            let logits: Vec<f32> = (0..len).map(|i| (i as f32).sin()).collect();
            let (mut hash, mut bytes) = (LogitsHash::default(), Vec::new());
            for row in [&logits[..], &logits[..len / 3]] {
                hash.row(row);
                bytes.extend(row.iter().flat_map(|logit| logit.to_le_bytes()));
            }
            assert_eq!(hash.digest(), xxhash_rust::xxh3::xxh3_128(&bytes), "{len} values");
        }
    }
}
