//! Views into host buffers.

use crate::backend::{KV_BLOCK_TOKENS, View, ViewMut};

use super::Parallel;

/// Fewer values than this are not worth a second thread: it takes about a microsecond to start.
const VALUES_PER_FORK: usize = 1 << 14;

/// Tasks per thread for loops over rows.
const TASKS_PER_THREAD: usize = 4;

/// Runs `task(i, row)` for the rows of `data`, of `cols` values each and `stride` apart; in
/// parallel if there is enough to do.
pub(super) fn for_each_row(
    parallel: &impl Parallel,
    data: &mut [f32],
    (cols, stride): (usize, usize),
    task: impl Fn(usize, &mut [f32]) + Sync,
) {
    if data.is_empty() {
        return;
    }
    let rows = data.len().div_ceil(stride);
    let tasks =
        if data.len() < VALUES_PER_FORK { 1 } else { parallel.threads() * TASKS_PER_THREAD };
    let rows_per_task = rows.div_ceil(tasks);
    parallel.for_each_chunk(data, rows_per_task * stride, |i, chunk| {
        for (j, row) in chunk.chunks_mut(stride).enumerate() {
            task(i * rows_per_task + j, &mut row[..cols]);
        }
    });
}

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

    /// Runs `task(i, row)` for every row, in parallel if there is enough to do.
    pub(super) fn for_each_row(
        self,
        parallel: &impl Parallel,
        task: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        if self.rows > 0 && self.cols > 0 {
            let len = (self.rows - 1) * self.stride + self.cols;
            let data = &mut self.buf[self.offset..][..len];
            for_each_row(parallel, data, (self.cols, self.stride), task);
        }
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
