//! Heat: how much every expert was used lately, kept from one run to the next.
//!
//! ```text
//! "fm-heat1" | model: u128 | layers: u16 | per layer experts: u16, experts × f32 | XXH3-64 of all before
//! ```
//!
//! Numbers are little-endian; layers without routed experts have 0. Heat decides what stays in the
//! cache, never what is computed, so a file that is not what it should be is no loss and no error.

use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"fm-heat1";

/// Faded uses of every expert, by layer; empty for layers without routed experts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heat {
    /// All finite and not negative.
    pub layers: Vec<Vec<f32>>,
}

/// Why the bytes of a file are no heat of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Bytes are missing or are not those that were written.
    #[error("it is damaged")]
    Damaged,
    /// It is of other weights, or of another version.
    #[error("it is of another model or version")]
    OfAnotherModel,
}

impl Heat {
    /// Whether anything was used.
    pub(crate) fn is_something(&self) -> bool {
        self.layers.iter().flatten().any(|heat| *heat > 0.0)
    }

    /// The bytes of a file.
    pub fn to_bytes(&self, model: u128) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&model.to_le_bytes());
        bytes.extend_from_slice(&(self.layers.len() as u16).to_le_bytes());
        for layer in &self.layers {
            bytes.extend_from_slice(&(layer.len() as u16).to_le_bytes());
            bytes.extend(layer.iter().flat_map(|heat| heat.to_le_bytes()));
        }
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// What a file says of a model whose layers have so many experts.
    ///
    /// # Errors
    /// If it says nothing of use.
    pub fn from_bytes(bytes: &[u8], model: u128, experts: &[usize]) -> Result<Self, Unusable> {
        let (bytes, checksum) = bytes.split_last_chunk::<8>().ok_or(Unusable::Damaged)?;
        if xxh3_64(bytes) != u64::from_le_bytes(*checksum) {
            return Err(Unusable::Damaged);
        }
        let rest = bytes.strip_prefix(MAGIC).ok_or(Unusable::OfAnotherModel)?;
        let (of, mut rest) = rest.split_first_chunk::<16>().ok_or(Unusable::Damaged)?;
        let mut count = || {
            let (count, after) = rest.split_first_chunk::<2>()?;
            rest = after;
            Some(usize::from(u16::from_le_bytes(*count)))
        };
        if u128::from_le_bytes(*of) != model || count() != Some(experts.len()) {
            return Err(Unusable::OfAnotherModel);
        }
        let mut layers = Vec::with_capacity(experts.len());
        for expected in experts {
            let (count, after) = rest.split_first_chunk::<2>().ok_or(Unusable::Damaged)?;
            if usize::from(u16::from_le_bytes(*count)) != *expected {
                return Err(Unusable::OfAnotherModel);
            }
            let (heats, after) = after.split_at_checked(4 * expected).ok_or(Unusable::Damaged)?;
            rest = after;
            let heats = heats.as_chunks().0.iter().map(|heat| f32::from_le_bytes(*heat));
            layers.push(
                heats.map(|heat| if heat.is_finite() { heat.max(0.0) } else { 0.0 }).collect(),
            );
        }
        if rest.is_empty() { Ok(Self { layers }) } else { Err(Unusable::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_comes_back_and_damage_is_noticed() {
        let heat = Heat { layers: vec![vec![0.0, 1.5, 3e-9], vec![], vec![7.0]] };
        let bytes = heat.to_bytes(42);
        assert_eq!(Heat::from_bytes(&bytes, 42, &[3, 0, 1]), Ok(heat));
        for experts in [&[3, 0, 2][..], &[3, 0], &[3, 1, 1]] {
            assert_eq!(Heat::from_bytes(&bytes, 42, experts), Err(Unusable::OfAnotherModel));
        }
        assert_eq!(Heat::from_bytes(&bytes, 43, &[3, 0, 1]), Err(Unusable::OfAnotherModel));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert_eq!(Heat::from_bytes(&flipped, 42, &[3, 0, 1]), Err(Unusable::Damaged));
            assert_eq!(Heat::from_bytes(&bytes[..at], 42, &[3, 0, 1]), Err(Unusable::Damaged));
        }
    }
}
