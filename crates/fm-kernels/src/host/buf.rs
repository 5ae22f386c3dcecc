//! Memory of the host for values.

use std::ops::{Deref, DerefMut};

use crate::weight_bytes::LINE;

/// Values that begin at a cache line, wherever the allocator begins: a vector that lies across two costs two loads, measured
/// in `docs/experiments/0075`.
#[derive(Debug)]
pub struct HostBuf<E = f32> {
    /// Never grows, so it stays where it is.
    room: Vec<E>,
    first: usize,
}

impl<E: Copy + Default> HostBuf<E> {
    /// So many zeros, which take memory only when they are written.
    pub fn zeroed(len: usize) -> Self {
        const { assert!(LINE.is_multiple_of(size_of::<E>())) };
        let mut room = vec![E::default(); len + LINE / size_of::<E>() - 1];
        let first = room.as_ptr().align_offset(LINE);
        room.truncate(first + len);
        Self { room, first }
    }
}

impl<E: Copy + Default> From<&[E]> for HostBuf<E> {
    fn from(values: &[E]) -> Self {
        let mut copy = Self::zeroed(values.len());
        copy.copy_from_slice(values);
        copy
    }
}

impl<E: Copy + Default> From<Vec<E>> for HostBuf<E> {
    fn from(values: Vec<E>) -> Self {
        Self::from(&values[..])
    }
}

impl<E> Deref for HostBuf<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &self.room[self.first..]
    }
}

impl<E> DerefMut for HostBuf<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        &mut self.room[self.first..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_begin_at_a_cache_line() {
        let kept: Vec<HostBuf> =
            (0..40_u8).map(|i| HostBuf::from(&[f32::from(i); 9][..])).collect();
        for (i, values) in kept.iter().enumerate() {
            assert_eq!(values.as_ptr().align_offset(LINE), 0);
            assert_eq!(values[..], [i as f32; 9]);
        }
        let halves = HostBuf::<[u8; 2]>::zeroed(1 << 19);
        assert_eq!(halves.as_ptr().align_offset(LINE / 2), 0);
        assert_eq!(halves.len(), 1 << 19);
        assert!(HostBuf::<f32>::zeroed(0).is_empty());
    }
}
