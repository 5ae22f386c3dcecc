//! Matrix products on the host: weight rows are shared out, each result is one task's alone.

use crate::backend::{QMatrix, ViewMut};

use super::{Host, Kernels, RowSelection};

/// Tasks per thread: enough that a late thread costs little, few enough that a task streams a
/// long run of weights.
const TASKS_PER_THREAD: usize = 4;

/// Kernels multiply several weight rows side by side; a task of whole groups wastes none.
const ROWS_PER_TASK_ALIGN: usize = 8;

/// Rows of the result that are filled side by side: what one cache line of products goes to.
const TURN_TOKENS: usize = 16;

/// Fewer multiplications than this are not worth a second thread.
const PRODUCTS_PER_FORK: usize = 1 << 15;

impl<K: Kernels> Host<K> {
    /// `y[i] = W x[i]` for the selected rows.
    pub(super) fn matmul_selected(
        &self,
        w: QMatrix<'_, [u8]>,
        x: &RowSelection<'_>,
        mut y: ViewMut<'_, Vec<f32>>,
    ) {
        assert_eq!((y.rows, y.cols), (x.rows(), w.shape.rows), "y is [rows, w.rows]");
        assert_eq!(x.cols(), w.shape.cols, "weights fit the activations");
        let tokens = x.rows();
        if tokens == 0 {
            return;
        }
        let small = w.shape.rows * w.shape.cols * tokens < PRODUCTS_PER_FORK;
        let tasks = if small { 1 } else { self.kernels.threads() * TASKS_PER_THREAD };
        let rows_per_task = w.shape.rows.div_ceil(tasks).next_multiple_of(ROWS_PER_TASK_ALIGN);
        let row_bytes = w.shape.row_bytes();
        // One weight row gives one value per token: `out` is [w.rows, tokens].
        let kernels = &self.kernels;
        let products = |task: usize, out: &mut [f32]| {
            let rows = &w.bytes[task * rows_per_task * row_bytes..];
            let rows = &rows[..out.len() / tokens * row_bytes];
            kernels.rows_dots(w.shape.format, rows, x, out);
        };
        if tokens == 1 {
            return self.kernels.for_each_chunk(y.row(0), rows_per_task, products);
        }
        let mut scratch = self.scratch.borrow_mut();
        let needed = w.shape.rows * tokens;
        if scratch.len() < needed {
            scratch.resize(needed, 0.0);
        }
        self.kernels.for_each_chunk(&mut scratch[..needed], rows_per_task * tokens, products);
        let by_weight = &scratch[..needed];
        self.kernels.for_each_chunk(y.contiguous(), w.shape.rows * TURN_TOKENS, |part, y| {
            for (row, products) in by_weight.chunks_exact(tokens).enumerate() {
                let places = y[row..].iter_mut().step_by(w.shape.rows);
                for (y, product) in places.zip(&products[part * TURN_TOKENS..]) {
                    *y = *product;
                }
            }
        });
    }
}
