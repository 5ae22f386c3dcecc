//! The experts of a few rows, all in two operations: with a fork per product, a layer of eight would wait
//! for threads 24 times, and that of four texts, which choose some 26, eighty times.

use std::{array, ops::Range};

use crate::{
    backend::{ExpertCall, ExpertRow, ExpertScratch, QMatrix, ViewMut},
    reference::quantise::{BLOCK, Block},
};

use super::{
    Host, HostActs, HostBuf, Kernels, PANEL_ROWS, RowSelection,
    acts::QuantisedMut,
    neurons,
    places::{cut, list_rows, take_target},
};

/// Experts that are computed together at most.
pub const EXPERTS_TOGETHER_MAX: usize = 16;

/// Rows that each of them has at most.
const ROWS_TOGETHER_MAX: usize = 16;

/// Tasks per thread: a layer of eight experts is shared out evenly among sixteen threads, and among two
/// whoever is done early waits for little.
const TASKS_PER_THREAD: usize = 8;

/// Tasks of an operation at most: they are listed on the stack.
const TASKS_MAX: usize = 256;

type Call<'a> = ExpertCall<'a, [u8], HostBuf>;
type Calls<'a> = [Option<Call<'a>>; EXPERTS_TOGETHER_MAX];

/// What one task computes: some rows of weights times all rows of a call.
struct Part<'s, 'p, T> {
    /// Which call it belongs to.
    at: usize,
    /// Where its rows are among those of all calls.
    rows: Range<usize>,
    /// The first of its rows of weights.
    first: usize,
    /// Room for products.
    values: &'s mut [f32],
    /// Where results go to, for each row of the call.
    places: &'s mut [&'p mut [T]],
}

/// The tasks of an operation.
struct Parts<'s, 'p, T> {
    all: [Option<Part<'s, 'p, T>>; TASKS_MAX],
    len: usize,
}

impl<'s, 'p, T: Send> Parts<'s, 'p, T> {
    /// Tasks of `len` of the `weights` rows of each call's matrix. `places` are listed call by call
    /// and task by task, see [`cut`]; of `values` every result gets `each`.
    fn new(
        calls: &Calls<'_>,
        (weights, len): (usize, usize),
        (mut values, each): (&'s mut [f32], usize),
        mut places: &'s mut [&'p mut [T]],
    ) -> Self {
        let mut parts = Self { all: [const { None }; TASKS_MAX], len: 0 };
        let mut done = 0;
        for (at, call) in calls.iter().flatten().enumerate() {
            let rows = done..done + call.rows.len();
            done = rows.end;
            for first in (0..weights).step_by(len) {
                let results = rows.len() * len.min(weights - first);
                let values = values.split_off_mut(..each * results).expect("room for all");
                let places = places.split_off_mut(..rows.len()).expect("a place for each row");
                let part = Part { at, rows: rows.clone(), first, values, places };
                parts.all[parts.len] = Some(part);
                parts.len += 1;
            }
        }
        parts
    }

    fn run<K: Kernels>(&mut self, kernels: &K, task: impl Fn(&mut Part<'s, 'p, T>) + Sync) {
        kernels.for_each_chunk(&mut self.all[..self.len], 1, |_, parts| {
            parts.iter_mut().flatten().for_each(&task);
        });
    }
}

impl<K: Kernels> Host<K> {
    /// Whether these can be computed together: few rows each, which there is room for, and arranged
    /// weights.
    pub(super) fn fuses(calls: &Calls<'_>, acts: &HostActs) -> bool {
        let fits = |call: &Call<'_>| {
            let w = &call.weights;
            let arranged = w.gate.arranged && w.up.arranged && w.down.arranged;
            let whole = w.gate.shape.rows.is_multiple_of(BLOCK);
            whole && arranged && (1..=ROWS_TOGETHER_MAX).contains(&call.rows.len())
        };
        calls.iter().flatten().all(fits) && rows_of(calls) <= acts.rows_max()
    }

    /// `out[target] = down(activation(gate x, up x))` for every row of each call.
    pub(super) fn experts_fused(
        &self,
        calls: &Calls<'_>,
        x: &HostActs,
        scratch: &mut ExpertScratch<Self>,
        out: ViewMut<'_, HostBuf>,
    ) {
        let Some(first) = &calls[0] else { return };
        let ffn = first.weights.gate.shape.rows;
        match scratch.acts.quantised_mut(rows_of(calls), ffn) {
            QuantisedMut::Int8(blocks) => self.gates(calls, x, ffn, blocks),
            QuantisedMut::Int15(blocks) => self.gates(calls, x, ffn, blocks),
        }
        self.downs(calls, &scratch.acts, out);
    }

    /// What the last products read: `activation(gate x, up x)`, quantised, row by row and call by call.
    fn gates<const LINES: usize>(
        &self,
        calls: &Calls<'_>,
        x: &HostActs,
        ffn: usize,
        blocks: &mut [Block<LINES>],
    ) {
        let (count, kernels) = (rows_of(calls), &self.kernels);
        let len = self.rows_per_part(calls, ffn, BLOCK);
        let stride = blocks.len() / count;
        let mut blocks = blocks.chunks_exact_mut(stride).map(|row| &mut row[..ffn / BLOCK]);
        self.places.with(|places| {
            for ExpertCall { rows, .. } in calls.iter().flatten() {
                let mut blocks = of_each(rows, |_| blocks.next().expect("as many as rows"));
                cut(&mut blocks[..rows.len()], len / BLOCK, places);
            }
            self.with_scratch(count * 2 * ffn, |products| {
                let mut parts = Parts::new(calls, (ffn, len), (products, 2), places);
                parts.run(kernels, |part| gate_up(kernels, calls, x, part));
            });
        });
    }

    /// `down acts`, a row after the other of `acts` for the rows of all calls.
    ///
    /// # Panics
    /// If two rows have one target.
    fn downs(&self, calls: &Calls<'_>, acts: &HostActs, mut out: ViewMut<'_, HostBuf>) {
        let (hidden, kernels) = (out.cols, &self.kernels);
        let len = self.rows_per_part(calls, hidden, PANEL_ROWS);
        self.places.with(|targets| {
            list_rows(&mut out, targets);
            self.places.with(|places| {
                for ExpertCall { rows, .. } in calls.iter().flatten() {
                    let mut of_call = of_each(rows, |row| take_target(targets, row));
                    cut(&mut of_call[..rows.len()], len, places);
                }
                let mut parts = Parts::new(calls, (hidden, len), (&mut [], 0), places);
                parts.run(kernels, |Part { at, rows, first, places, .. }| {
                    let weights = &calls[*at].as_ref().expect("counted").weights;
                    let x = RowSelection::range(acts, rows.clone());
                    dots(kernels, (weights.down, *first), &x, places);
                    places.iter_mut().for_each(|y| neurons::add_down_bias(weights, *first, y));
                });
            });
        });
    }

    /// Rows of weights that a task takes of each call's matrix, a multiple of `align`.
    fn rows_per_part(&self, calls: &Calls<'_>, rows: usize, align: usize) -> usize {
        let count = calls.iter().flatten().count();
        let tasks = self.kernels.threads() * TASKS_PER_THREAD;
        let parts = tasks.div_ceil(count).min(TASKS_MAX / count);
        rows.div_ceil(parts).next_multiple_of(align)
    }
}

/// Rows of all calls.
fn rows_of(calls: &Calls<'_>) -> usize {
    calls.iter().flatten().map(|call| call.rows.len()).sum()
}

/// Something for each row of a call, and nothing behind.
fn of_each<'p, T>(
    rows: &[ExpertRow],
    mut place: impl FnMut(&ExpertRow) -> &'p mut [T],
) -> [&'p mut [T]; ROWS_TOGETHER_MAX] {
    array::from_fn(|i| rows.get(i).map_or_else(Default::default, &mut place))
}

/// A task of [`Host::gates`].
fn gate_up<const LINES: usize>(
    kernels: &impl Kernels,
    calls: &Calls<'_>,
    x: &HostActs,
    part: &mut Part<'_, '_, Block<LINES>>,
) {
    let ExpertCall { weights, rows } = calls[part.at].as_ref().expect("counted");
    let x = RowSelection::chosen(x, rows);
    let (gate, up) = part.values.split_at_mut(part.values.len() / 2);
    let len = gate.len() / rows.len();
    for (matrix, out) in [(weights.gate, &mut *gate), (weights.up, &mut *up)] {
        let mut out = out.chunks_exact_mut(len);
        let mut out = of_each(rows, |_| out.next().expect("as many as rows"));
        dots(kernels, (matrix, part.first), &x, &mut out[..rows.len()]);
    }
    let products = gate.chunks_exact_mut(len).zip(up.chunks_exact_mut(len));
    for (products, place) in products.zip(&mut *part.places) {
        neurons::activate(kernels, weights, part.first, products, place);
    }
}

/// Rows of arranged weights, from `first` on, times activations: as many as `out` has room for.
fn dots(
    kernels: &impl Kernels,
    (matrix, first): (QMatrix<'_, [u8]>, usize),
    x: &RowSelection<'_>,
    out: &mut [&mut [f32]],
) {
    let row_bytes = matrix.shape.row_bytes();
    let panels = &matrix.bytes[first * row_bytes..][..out[0].len() * row_bytes];
    kernels.arranged_dots(matrix.shape.format, panels, x, out);
}
