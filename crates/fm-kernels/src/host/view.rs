//! Views into host buffers.

use crate::backend::{View, ViewMut};

use super::{HostBuf, Parallel};

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

impl View<'_, HostBuf> {
    /// Row `i`.
    pub(crate) fn row(&self, i: usize) -> &[f32] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        &self.buf[self.offset + i * self.stride..][..self.cols]
    }
}

impl ViewMut<'_, HostBuf> {
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

    /// Runs `task(i, first, part)` for every row, or for parts of a row that is alone, which have whole `unit`s
    /// and begin with value `first`; in parallel if all the `values` that this reads or writes are enough.
    pub(super) fn for_each_part(
        mut self,
        parallel: &impl Parallel,
        (unit, values): (usize, usize),
        task: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) {
        if self.rows != 1 {
            return self.for_each_row(parallel, |i, row| task(i, 0, row));
        }
        let len = unit * rows_per_task(parallel, self.cols.div_ceil(unit), values);
        parallel.for_each_chunk(self.row(0), len, |i, part| task(0, i * len, part));
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
