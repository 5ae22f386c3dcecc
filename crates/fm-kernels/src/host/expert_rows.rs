//! One expert over several rows, in two operations: what its neurons say is quantised, and what they
//! add up to goes where it is wanted, while the cache of a core holds it.

use std::ops::Range;

use crate::{
    backend::{Combine, ExpertRow, ExpertWeights, QMatrix, ViewMut},
    reference::quantise::{BLOCK, Block},
};

use super::{
    Host, HostActs, HostBuf, Kernels, PANEL_ROWS, RowSelection,
    acts::QuantisedMut,
    neurons,
    places::{cut, list_rows, take_target},
};

/// Rows of an expert that are gathered, and whose results a task holds, at a time.
pub const EXPERT_ROWS_PER_PASS: usize = 64;
/// Of a row a task holds so many results: 16 KB.
const VALUES_PER_PASS: usize = BLOCK;

/// Tasks per thread, where there is enough to do.
const TASKS_PER_THREAD: usize = 4;

/// Rows of a task at least, where they are shared out: weights are unpacked once for all of them.
const ROWS_PER_TASK_MIN: usize = 8;

type Weights<'a> = ExpertWeights<'a, [u8], HostBuf>;
type Results = [f32; EXPERT_ROWS_PER_PASS * VALUES_PER_PASS];

impl<K: Kernels> Host<K> {
    /// Whether an expert can be computed so: arranged weights, and more than one row.
    pub(super) fn fuses_rows(w: &Weights<'_>, rows: &[ExpertRow]) -> bool {
        let arranged = w.gate.arranged && w.up.arranged && w.down.arranged;
        arranged && rows.len() > 1 && w.gate.shape.rows.is_multiple_of(BLOCK)
    }

    /// [`crate::Backend::expert_rows`] of such an expert.
    pub(super) fn expert_rows_fused(
        &self,
        w: &Weights<'_>,
        (x, rows): (&HostActs, &[ExpertRow]),
        acts: &mut HostActs,
        (combine, out): (Combine, ViewMut<'_, HostBuf>),
    ) {
        match acts.quantised_mut(rows.len(), w.gate.shape.rows) {
            QuantisedMut::Int8(blocks) => self.passes(w, (x, rows), blocks),
            QuantisedMut::Int15(blocks) => self.passes(w, (x, rows), blocks),
        }
        self.combined(w, acts, rows, (combine, out));
    }

    /// `activation(gate x, up x)` of the rows, quantised, in equal passes: small ones are slow.
    fn passes<const LINES: usize>(
        &self,
        w: &Weights<'_>,
        (x, rows): (&HostActs, &[ExpertRow]),
        blocks: &mut [Block<LINES>],
    ) {
        let stride = blocks.len() / rows.len();
        let len = pass_len(rows.len());
        let mut gathered = self.gathered.borrow_mut();
        let formats = [w.gate.shape.format, w.up.shape.format];
        for (rows, blocks) in rows.chunks(len).zip(blocks.chunks_mut(len * stride)) {
            if formats.iter().any(|format| self.kernels.wants_rows_spaced(format, rows.len())) {
                gathered.gather(&RowSelection::chosen(x, rows), &self.kernels);
                let gathered = &*gathered;
                let x = |part| RowSelection::range(gathered, part);
                self.activated(w, x, rows.len(), blocks);
            } else {
                let x = |part| RowSelection::chosen(x, &rows[part]);
                self.activated(w, x, rows.len(), blocks);
            }
        }
    }

    /// The same of up to [`EXPERT_ROWS_PER_PASS`] rows; `x` gives some of them.
    fn activated<'x, const LINES: usize>(
        &self,
        w: &Weights<'_>,
        x: impl Fn(Range<usize>) -> RowSelection<'x> + Sync,
        count: usize,
        blocks: &mut [Block<LINES>],
    ) {
        let (parts, stride) = (w.gate.shape.rows / BLOCK, blocks.len() / count);
        let (per_task, kernels) = (self.parts_per_task(parts), &self.kernels);
        let rows_per_task = self.rows_per_task(parts, count);
        let tasks_per_run = parts.div_ceil(per_task);
        let task = |task: usize, places: &mut [&mut [Block<LINES>]]| {
            let first = task / tasks_per_run * rows_per_task;
            let x = x(first..count.min(first + rows_per_task));
            let (mut gate, mut up): (Results, Results) = ([0.0; _], [0.0; _]);
            for (i, places) in places.chunks_mut(x.rows()).enumerate() {
                let first = (task % tasks_per_run * per_task + i) * BLOCK;
                for (matrix, out) in [(w.gate, &mut gate), (w.up, &mut up)] {
                    dots(kernels, (matrix, first, BLOCK), &x, out);
                }
                let products = gate.chunks_exact_mut(BLOCK).zip(up.chunks_exact_mut(BLOCK));
                for (products, place) in products.zip(places) {
                    neurons::activate(kernels, w, first, products, place);
                }
            }
        };
        self.places.with(|rows| {
            rows.extend(blocks.chunks_exact_mut(stride).map(|row| &mut row[..parts]));
            self.places.with(|places| {
                rows.chunks_mut(rows_per_task).for_each(|rows| cut(rows, 1, places));
                self.places.with(|tasks| {
                    for run in places.chunks_mut(parts * rows_per_task) {
                        // The last run may have fewer rows.
                        tasks.extend(run.chunks_mut(run.len() / parts * per_task));
                    }
                    kernels.for_each_chunk(tasks, 1, |at, places| task(at, places[0]));
                });
            });
        });
    }

    /// What becomes of `down acts`.
    ///
    /// # Panics
    /// If two rows have one target.
    fn combined(
        &self,
        w: &Weights<'_>,
        acts: &HostActs,
        rows: &[ExpertRow],
        (combine, mut out): (Combine, ViewMut<'_, HostBuf>),
    ) {
        let (count, hidden) = (rows.len(), out.cols);
        let per_task = self.parts_per_task(hidden.div_ceil(VALUES_PER_PASS));
        let kernels = &self.kernels;
        let task = |task: usize, places: &mut [&mut [f32]]| {
            let mut results: Results = [0.0; _];
            for (i, places) in places.chunks_mut(count).enumerate() {
                let (first, cols) = ((task * per_task + i) * VALUES_PER_PASS, places[0].len());
                let (mut done, len) = (0, pass_len(count));
                for (rows, places) in rows.chunks(len).zip(places.chunks_mut(len)) {
                    let x = RowSelection::range(acts, done..done + rows.len());
                    done += rows.len();
                    places.iter().for_each(|place| kernels.ask_for(place));
                    dots(kernels, (w.down, first, cols), &x, &mut results);
                    let results = results.chunks_exact_mut(cols).zip(rows);
                    for ((result, row), place) in results.zip(places) {
                        neurons::add_down_bias(w, first, result);
                        match combine {
                            Combine::Store => place.copy_from_slice(result),
                            Combine::Accumulate => kernels.axpy(row.weight, result, place),
                        }
                    }
                }
            }
        };
        self.places.with(|all| {
            list_rows(&mut out, all);
            self.places.with(|targets| {
                targets.extend(rows.iter().map(|row| take_target(all, row)));
                self.places.with(|places| {
                    cut(targets, VALUES_PER_PASS, places);
                    kernels.for_each_chunk(places, per_task * count, task);
                });
            });
        });
    }

    /// Rows that a task takes of so many: all of them, but where threads would get less than two parts each.
    fn rows_per_task(&self, parts: usize, rows: usize) -> usize {
        let runs = (2 * self.kernels.threads()).div_ceil(parts);
        rows.div_ceil(runs.min(rows / ROWS_PER_TASK_MIN).max(1))
    }

    /// Parts that a task takes of so many.
    fn parts_per_task(&self, parts: usize) -> usize {
        (parts / (self.kernels.threads() * TASKS_PER_THREAD)).max(1)
    }
}

/// Rows of equal passes of up to [`EXPERT_ROWS_PER_PASS`].
fn pass_len(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(EXPERT_ROWS_PER_PASS))
}

/// Some rows of arranged weights, from `first` on, times activations: a run of results for each.
fn dots(
    kernels: &impl Kernels,
    (matrix, first, len): (QMatrix<'_, [u8]>, usize, usize),
    x: &RowSelection<'_>,
    results: &mut Results,
) {
    debug_assert!(first.is_multiple_of(PANEL_ROWS), "whole panels");
    let row_bytes = matrix.shape.row_bytes();
    let panels = &matrix.bytes[first * row_bytes..][..len * row_bytes];
    let mut out: [&mut [f32]; EXPERT_ROWS_PER_PASS] = std::array::from_fn(|_| Default::default());
    let out = &mut out[..x.rows()];
    for (out, results) in out.iter_mut().zip(results.chunks_exact_mut(len)) {
        *out = results;
    }
    kernels.arranged_dots(matrix.shape.format, panels, x, out);
}
