//! Views into host buffers.

use crate::backend::{AttentionShape, KV_BLOCK_TOKENS, KvView, View, ViewMut};

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
    let rows_per_task = rows_per_task(parallel, data.len().div_ceil(stride), data.len());
    parallel.for_each_chunk(data, rows_per_task * stride, |i, chunk| {
        for (j, row) in chunk.chunks_mut(stride).enumerate() {
            task(i * rows_per_task + j, &mut row[..cols]);
        }
    });
}

/// Rows that a task takes of `rows` with `values` values in all.
pub(super) fn rows_per_task(parallel: &impl Parallel, rows: usize, values: usize) -> usize {
    let tasks = if values < VALUES_PER_FORK { 1 } else { parallel.threads() * TASKS_PER_THREAD };
    rows.div_ceil(tasks).max(1)
}

impl KvView<'_, Vec<f32>> {
    /// The values that begin at a lane of a block, `kv_head · KV_BLOCK_TOKENS` of them after the
    /// block's first, and how far apart they are.
    pub(crate) fn values(&self, shape: AttentionShape, lane: usize) -> (&[f32], usize) {
        match self.values {
            Some(values) => (&values[lane * shape.v_dim..], shape.v_dim),
            None => (&self.keys[lane * shape.k_dim..], shape.k_dim),
        }
    }
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
        mut self,
        parallel: &impl Parallel,
        task: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        if self.rows > 0 && self.cols > 0 {
            let shape = (self.cols, self.stride);
            for_each_row(parallel, self.spread(), shape, task);
        }
    }

    /// From the first value to the last, with what lies between the rows.
    pub(super) fn spread(&mut self) -> &mut [f32] {
        let len = self.rows.saturating_sub(1) * self.stride + self.cols;
        &mut self.buf[self.offset..][..len]
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
