//! Views into host buffers.

use crate::backend::{KV_BLOCK_TOKENS, View, ViewMut};

impl View<'_, Vec<f32>> {
    /// Row `i`.
    pub(crate) fn row(&self, i: usize) -> &[f32] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        &self.buf[self.offset + i * self.stride..][..self.cols]
    }
}

impl ViewMut<'_, Vec<f32>> {
    /// Row `i`.
    pub(crate) fn row(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        &mut self.buf[self.offset + i * self.stride..][..self.cols]
    }

    /// All rows as one slice.
    ///
    /// # Panics
    /// If there are gaps between the rows.
    pub(crate) fn contiguous(&mut self) -> &mut [f32] {
        assert!(self.stride == self.cols || self.rows == 1, "the rows lie side by side");
        &mut self.buf[self.offset..][..self.rows * self.cols]
    }
}

/// See [`crate::Backend::kv_write`].
pub(super) fn kv_write(
    x: &View<'_, Vec<f32>>,
    position: usize,
    table: &[u32],
    dim: usize,
    pool: &mut [f32],
) {
    let kv_heads = x.cols / dim;
    for i in 0..x.rows {
        let block = table[(position + i) / KV_BLOCK_TOKENS] as usize;
        let token = (position + i) % KV_BLOCK_TOKENS;
        for (head, values) in x.row(i).chunks_exact(dim).enumerate() {
            let at = ((block * kv_heads + head) * KV_BLOCK_TOKENS + token) * dim;
            pool[at..at + dim].copy_from_slice(values);
        }
    }
}
