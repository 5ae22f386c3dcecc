//! Memory for packed weights.

use std::ops::{Deref, DerefMut};

use bytes::{Buf, BytesMut};

use crate::ffi;

/// A cache line. Arranged weights are loaded by whole lines, and a line that lies across two is two
/// loads: in the cache that costs 10 to 20 % of a product.
pub(crate) const LINE: usize = 64;

/// A huge page. Weights in pages of 4 KiB are read at 0.6 to 0.9 of the speed, measured in `docs/experiments/0073`.
const HUGE: usize = 2 << 20;

/// Bytes that begin at a cache line, wherever the allocator begins.
#[derive(Debug, Default)]
pub struct WeightBytes(BytesMut);

impl WeightBytes {
    /// So many zeros, in huge pages as far as they fill some.
    pub fn zeroed(len: usize) -> Self {
        WeightSlab::zeroed(len).take(len)
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
        &self.0
    }
}

impl DerefMut for WeightBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
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

/// One piece of memory for weights that lie side by side, so that no huge page ends with one of them. It is given
/// back when all of them are.
#[derive(Debug)]
pub struct WeightSlab(BytesMut);

impl WeightSlab {
    /// Room for weights that need `bytes` together, see [`WeightSlab::needed`].
    pub fn zeroed(bytes: usize) -> Self {
        let align = if bytes < HUGE { LINE } else { HUGE };
        let mut slab = BytesMut::zeroed(bytes + align - 1);
        slab.advance(slab.as_ptr().align_offset(align));
        slab.truncate(bytes);
        let whole = bytes / HUGE * HUGE; // the end would fill none, and what is not used is not taken
        ffi::advise_huge(&mut slab[..whole]);
        Self(slab)
    }

    /// What weights of `len` bytes need of a slab.
    pub fn needed(len: usize) -> usize {
        len.next_multiple_of(LINE)
    }

    /// The next `len` bytes, zeros.
    ///
    /// # Panics
    /// If there are fewer left.
    pub fn take(&mut self, len: usize) -> WeightBytes {
        let room = Self::needed(len).min(self.0.len());
        let mut taken = self.0.split_to(room);
        assert!(len <= room, "weights fit their slab");
        taken.truncate(len);
        WeightBytes(taken)
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
        assert!(WeightBytes::zeroed(0).is_empty());
    }

    #[test]
    fn weights_of_a_slab_lie_side_by_side_from_a_huge_page_on() {
        let lens = [HUGE + 1, 0, 3 * LINE, 7];
        let mut slab = WeightSlab::zeroed(lens.iter().map(|len| WeightSlab::needed(*len)).sum());
        let mut weights: Vec<WeightBytes> = lens.iter().map(|len| slab.take(*len)).collect();
        for (i, weights) in weights.iter_mut().enumerate() {
            assert!(weights.iter().all(|byte| *byte == 0));
            weights.fill(i as u8 + 1);
        }
        drop(slab);
        let first = weights[0].as_ptr();
        assert_eq!(first.align_offset(HUGE), 0);
        let mut at = 0;
        for (i, (weights, len)) in weights.iter().zip(lens).enumerate() {
            assert_eq!((weights.len(), weights.as_ptr()), (len, first.wrapping_add(at)));
            assert_eq!(weights.as_ptr().align_offset(LINE), 0);
            assert!(weights.iter().all(|byte| *byte == i as u8 + 1));
            at += WeightSlab::needed(len);
        }
    }

    #[test]
    #[should_panic(expected = "weights fit their slab")]
    fn a_slab_gives_no_more_than_it_has() {
        let mut slab = WeightSlab::zeroed(2 * LINE);
        slab.take(LINE);
        slab.take(LINE + 1);
    }
}
