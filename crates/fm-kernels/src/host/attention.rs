//! Attention on the host: rows are shared out, or the heads of a row where there are few.

use crate::backend::{AttentionShape, View, ViewMut};

use super::{Host, HostBuf, HostKvView, Kernels, QUERIES_PER_TASK_MAX};

/// Later rows see more: tasks that are smaller than a thread's share even that out.
const TASKS_PER_THREAD: usize = 4;

impl<K: Kernels> Host<K> {
    /// See [`crate::Backend::attention`].
    pub(super) fn attend(
        &self,
        shape: AttentionShape,
        q: View<'_, HostBuf>,
        kv: HostKvView<'_>,
        position: usize,
        mut out: ViewMut<'_, HostBuf>,
    ) {
        let (kernels, rows) = (&self.kernels, out.rows);
        let AttentionShape { heads, kv_heads, k_dim, v_dim, .. } = shape;
        let (threads, share) = (kernels.threads(), heads / kv_heads);
        if rows >= threads {
            let most = (QUERIES_PER_TASK_MAX / share).max(1);
            let rows_per_task = rows.div_ceil(threads * TASKS_PER_THREAD).min(most);
            let task_len = rows_per_task * heads * v_dim;
            return kernels.for_each_chunk(out.contiguous(), task_len, |task, out| {
                let first = task * rows_per_task;
                let q = q.rows(first, out.len() / (heads * v_dim));
                kernels.attend(shape, q, (kv, 0), position + first, out);
            });
        }
        // As many heads of a row as read the same keys and leave no thread without work.
        let most = (rows * heads / threads).clamp(1, QUERIES_PER_TASK_MAX);
        let group = (1..=most).rev().find(|group| share.is_multiple_of(*group)).unwrap_or(1);
        kernels.for_each_chunk(out.contiguous(), group * v_dim, |task, out| {
            let (row, head) = (task * group / heads, task * group % heads);
            let q = q.rows(row, 1).columns(head * k_dim, group * k_dim);
            kernels.attend(shape, q, (kv, head), position + row, out);
        });
    }
}
