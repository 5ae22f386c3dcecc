//! Matrix products on the host: weight rows are shared out, each result is one task's alone.

use fm_format::record::MatrixShape;

use crate::backend::{QMatrix, ViewMut};

use super::{
    Host, HostActs, HostBuf, Kernels, PANEL_ROWS, RowSelection,
    places::{cut, list_rows},
};

type Weights<'a> = QMatrix<'a, [u8]>;
type Results<'a> = ViewMut<'a, HostBuf>;

/// Tasks per thread: enough that a late thread costs little, few enough that a task streams a
/// long run of weights.
const TASKS_PER_THREAD: usize = 4;

/// Kernels multiply several weight rows side by side; a task of whole groups wastes none.
const ROWS_PER_TASK_ALIGN: usize = 8;

/// Panels of arranged weights in a task of many tokens, at least: activations are read once for all of them.
const PANELS_PER_TASK_MIN: usize = 4;

/// Rows of the result that are filled side by side: what one cache line of products goes to.
const TURN_TOKENS: usize = 16;

/// Fewer multiplications than this are not worth a second thread.
const MULTIPLICATIONS_PER_FORK: usize = 1 << 15;

impl<K: Kernels> Host<K> {
    /// `y[i] = W x[i]` for the selected rows.
    pub(super) fn matmul_selected(
        &self,
        w: QMatrix<'_, [u8]>,
        x: &RowSelection<'_>,
        mut y: ViewMut<'_, HostBuf>,
    ) {
        assert_eq!((y.rows, y.cols), (x.rows(), w.shape.rows), "y is [rows, w.rows]");
        assert_eq!(x.cols(), w.shape.cols, "weights fit the activations");
        let tokens = x.rows();
        if tokens == 0 {
            return;
        }
        if w.arranged {
            return self.matmul_arranged(x, &[w], &mut [y]);
        }
        let rows_per_task = w
            .shape
            .rows
            .div_ceil(self.tasks(w.shape.rows * w.shape.cols * tokens))
            .next_multiple_of(ROWS_PER_TASK_ALIGN);
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
        self.with_scratch(w.shape.rows * tokens, |by_weight| {
            self.kernels.for_each_chunk(by_weight, rows_per_task * tokens, products);
            self.turn(by_weight, (tokens, w.shape.rows), y.contiguous(), |row| row);
        });
    }

    /// [`Self::matmul_selected`] of arranged matrices, all in one operation: one that is small alone
    /// would wait for threads as long as it works.
    pub(super) fn matmul_arranged(
        &self,
        x: &RowSelection<'_>,
        ws: &[Weights<'_>],
        ys: &mut [Results<'_>],
    ) {
        let (kernels, tokens) = (&self.kernels, x.rows());
        for (w, y) in ws.iter().zip(&*ys) {
            assert_eq!((y.rows, y.cols), (tokens, w.shape.rows), "y is [rows, w.rows]");
            assert_eq!(x.cols(), w.shape.cols, "weights fit the activations");
        }
        let panels: usize = ws.iter().map(|w| w.shape.rows / PANEL_ROWS).sum();
        let least = if tokens == 1 { 1 } else { PANELS_PER_TASK_MIN };
        let tasks = match self.tasks(panels * PANEL_ROWS * x.cols() * tokens) {
            // A row of activations costs nothing to read again.
            several @ 2.. if tokens == 1 => 2 * several,
            tasks => tasks,
        };
        // Kernels take the panels of many tokens in pairs.
        let together = if tokens == 1 { 1 } else { 2 };
        let per_task = panels.div_ceil(tasks).max(least).next_multiple_of(together);
        let rows_per_task = per_task * PANEL_ROWS;
        self.places.with(|places| {
            for y in ys {
                self.places.with(|rows| {
                    list_rows(y, rows);
                    cut(rows, rows_per_task, places);
                });
            }
            // A task writes its part of every row in place.
            kernels.for_each_chunk(places, tokens, |task, out| {
                let (shape, panels) = panels_of(ws, rows_per_task, task);
                kernels.arranged_dots(shape.format, panels, x, out);
            });
        });
    }

    /// See [`crate::Backend::matmul_heads`].
    pub(super) fn matmul_by_head(
        &self,
        w: QMatrix<'_, [u8]>,
        heads: usize,
        x: &HostActs,
        mut y: ViewMut<'_, HostBuf>,
    ) {
        let (cols, tokens) = (y.cols, RowSelection::head(x, 0, heads).rows());
        assert_eq!(w.shape.rows, heads * cols, "w is [heads · y.cols, cols]");
        assert_eq!(w.shape.cols, RowSelection::all(x).cols(), "weights fit the activations");
        assert_eq!((y.rows, RowSelection::all(x).rows()), (tokens * heads, tokens * heads));
        if tokens == 0 {
            return;
        }
        let heads_per_task = heads.div_ceil(self.tasks(w.shape.rows * w.shape.cols * tokens));
        let head_bytes = cols * w.shape.row_bytes();
        let (kernels, format) = (&self.kernels, w.shape.format);
        // `out` is [w.rows, tokens], cut into heads: `stride` from one to the next.
        let products = |task: usize, stride: usize, out: &mut [f32]| {
            for (i, out) in out.chunks_mut(stride).enumerate() {
                let head = task * heads_per_task + i;
                let rows = &w.bytes[head * head_bytes..][..head_bytes];
                let x = RowSelection::head(x, head, heads);
                kernels.rows_dots(format, rows, &x, &mut out[..cols * tokens]);
            }
        };
        let stride = y.stride;
        let y = y.spread();
        if tokens == 1 {
            let products = |task: usize, out: &mut [f32]| products(task, stride, out);
            return kernels.for_each_chunk(y, heads_per_task * stride, products);
        }
        self.with_scratch(w.shape.rows * tokens, |by_weight| {
            let head = cols * tokens;
            let products = |task: usize, out: &mut [f32]| products(task, head, out);
            kernels.for_each_chunk(by_weight, heads_per_task * head, products);
            self.turn(by_weight, (tokens, heads * stride), y, |row| {
                row / cols * stride + row % cols
            });
        });
    }

    /// Tasks that so many multiplications are worth.
    fn tasks(&self, multiplications: usize) -> usize {
        let small = multiplications < MULTIPLICATIONS_PER_FORK;
        if small { 1 } else { self.kernels.threads() * TASKS_PER_THREAD }
    }

    pub(super) fn with_scratch(&self, len: usize, work: impl FnOnce(&mut [f32])) {
        let mut scratch = self.scratch.borrow_mut();
        if scratch.len() < len {
            scratch.resize(len, 0.0);
        }
        work(&mut scratch[..len]);
    }

    /// `y[t · stride + place(r)] = by_weight[r · tokens + t]`.
    fn turn(
        &self,
        by_weight: &[f32],
        (tokens, stride): (usize, usize),
        y: &mut [f32],
        place: impl Fn(usize) -> usize + Sync,
    ) {
        self.kernels.for_each_chunk(y, stride * TURN_TOKENS, |part, y| {
            for (row, products) in by_weight.chunks_exact(tokens).enumerate() {
                let places = y[place(row)..].iter_mut().step_by(stride);
                for (y, product) in places.zip(&products[part * TURN_TOKENS..]) {
                    *y = *product;
                }
            }
        });
    }
}

/// The rows of a task, where each matrix is cut into tasks of so many.
fn panels_of<'a>(
    ws: &[Weights<'a>],
    rows_per_task: usize,
    mut task: usize,
) -> (MatrixShape, &'a [u8]) {
    for QMatrix { bytes, shape, .. } in ws {
        let mut tasks = bytes.chunks(rows_per_task * shape.row_bytes());
        let count = tasks.len();
        if let Some(panels) = tasks.nth(task) {
            return (*shape, panels);
        }
        task -= count;
    }
    unreachable!("there are as many tasks as parts of matrices")
}
