//! Memory for packed weights.

use std::ops::{Deref, DerefMut};

/// A cache line. Arranged weights are loaded by whole lines, and a line that lies across two is two
/// loads: in the cache that costs 10 to 20 % of a product.
const LINE: usize = 64;

/// Bytes that begin at a cache line, wherever the allocator begins.
#[derive(Debug, Default)]
pub struct WeightBytes {
    bytes: Vec<u8>,
    start: usize,
}

impl WeightBytes {
    /// So many zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut bytes = vec![0; len + LINE - 1];
        let start = bytes.as_ptr().align_offset(LINE);
        bytes.truncate(start + len);
        Self { bytes, start }
    }
}

impl From<&[u8]> for WeightBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut copy = Self::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Deref for WeightBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for WeightBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

impl AsRef<[u8]> for WeightBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for WeightBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_begin_at_a_cache_line() {
        let kept: Vec<WeightBytes> = (0..40_u8).map(|i| WeightBytes::from(&[i; 33][..])).collect();
        for (i, bytes) in kept.iter().enumerate() {
            assert_eq!(bytes.as_ptr().align_offset(LINE), 0);
            assert_eq!(bytes[..], [i as u8; 33]);
        }
        assert_eq!(WeightBytes::zeroed(1 << 20).as_ptr().align_offset(LINE), 0);
    }
}
