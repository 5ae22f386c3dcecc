//! Activations of the host, and those of them that one matrix product reads.

use crate::{
    backend::{ExpertRow, Numerics, View},
    reference::quantise::{BLOCK, Block},
};

use super::{
    HostBuf, Kernels,
    view::{for_each_row, rows_per_task},
};

/// Rows of activations are filled up with zeros to a multiple of this many values: one cache line,
/// and the widest vector of any machine.
const ACTS_ALIGN: usize = 16;

/// Activations of a host backend, row by row.
#[derive(Debug)]
pub struct HostActs {
    values: HostBuf,
    rows: usize,
    cols: usize,
    rows_max: usize,
    quantised: Quantised,
}

/// Places for the blocks of some rows, as many for each row.
pub(super) enum QuantisedMut<'a> {
    Int8(&'a mut [Block<1>]),
    Int15(&'a mut [Block<2>]),
}

/// The same rows in the numerics in force, [`HostActs::blocks_stride`] apart.
#[derive(Debug)]
enum Quantised {
    /// They stay floats.
    No,
    Int8(Vec<Block<1>>),
    Int15(Vec<Block<2>>),
}

impl HostActs {
    /// Row stride: one cache line more than the row, because rows at a stride of 2048 or 4096
    /// bytes fall into the same few sets of the L1 cache.
    fn stride(cols: usize) -> usize {
        cols.next_multiple_of(ACTS_ALIGN) + ACTS_ALIGN
    }

    /// Blocks from one quantised row to the next: one more than the row has, as in [`Self::stride`].
    fn blocks_stride(cols: usize) -> usize {
        cols.div_ceil(BLOCK) + 1
    }

    /// Room for `rows` rows of `cols` values.
    pub(super) fn new(rows: usize, cols: usize, numerics: Numerics) -> Self {
        let values = HostBuf::zeroed(rows * Self::stride(cols));
        let blocks = rows * Self::blocks_stride(cols);
        let quantised = match numerics {
            Numerics::Reference | Numerics::F32 => Quantised::No,
            Numerics::Int8 => Quantised::Int8(vec![Block::ZERO; blocks]),
            Numerics::Int15 => Quantised::Int15(vec![Block::ZERO; blocks]),
        };
        Self { values, rows: 0, cols: 0, rows_max: rows, quantised }
    }

    /// Takes the rows of `x` over.
    ///
    /// # Panics
    /// If there is no room for them.
    pub(super) fn fill(&mut self, x: &View<'_, HostBuf>, kernels: &impl Kernels) {
        (self.rows, self.cols) = (x.rows, x.cols);
        let stride = Self::stride(x.cols);
        let values = &mut self.values[..x.rows * stride];
        match &mut self.quantised {
            Quantised::No => for_each_row(kernels, values, (stride, stride), |i, to| {
                copy_row(x.row(i), to);
            }),
            Quantised::Int8(blocks) => fill_both(x, kernels, (values, stride), blocks),
            Quantised::Int15(blocks) => fill_both(x, kernels, (values, stride), blocks),
        }
    }

    /// Takes copies of the quantised rows of `x`, and makes room for them.
    pub(super) fn gather(&mut self, x: &RowSelection<'_>, kernels: &impl Kernels) {
        fn copy<const LINES: usize>(
            x: &BlockRows<'_, LINES>,
            kernels: &impl Kernels,
            blocks: &mut Vec<Block<LINES>>,
        ) {
            let (rows, len) = (x.rows(), x.rows() * x.stride);
            blocks.resize(len.max(blocks.len()), Block::ZERO);
            let rows_per_task = rows_per_task(kernels, rows, rows * x.len * BLOCK);
            let chunk = rows_per_task * x.stride;
            kernels.for_each_chunk(&mut blocks[..len], chunk, |task, blocks| {
                for (i, to) in blocks.chunks_mut(x.stride).enumerate() {
                    to[..x.len].copy_from_slice(x.row(task * rows_per_task + i));
                }
            });
        }
        (self.rows, self.cols) = (x.rows(), x.cols());
        match (x.quantised(), &mut self.quantised) {
            (QuantisedRows::Int8(x), Quantised::Int8(blocks)) => copy(&x, kernels, blocks),
            (QuantisedRows::Int15(x), Quantised::Int15(blocks)) => copy(&x, kernels, blocks),
            _ => unreachable!("activations of one backend have the same numerics"),
        }
    }

    /// Rows of any length up to the longest that there is room for.
    pub(super) fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// Places for the blocks of `rows` rows of `cols` values, whose caller fills them. There are no
    /// floats of these rows: only arranged weights may read them.
    ///
    /// # Panics
    /// If there is no room, or activations stay floats.
    pub(super) fn quantised_mut(&mut self, rows: usize, cols: usize) -> QuantisedMut<'_> {
        (self.rows, self.cols) = (rows, cols);
        let blocks = rows * Self::blocks_stride(cols);
        match &mut self.quantised {
            Quantised::No => unreachable!("arranged weights need quantised activations"),
            Quantised::Int8(all) => QuantisedMut::Int8(&mut all[..blocks]),
            Quantised::Int15(all) => QuantisedMut::Int15(&mut all[..blocks]),
        }
    }

    /// Row `i` and what follows it.
    fn tail_from(&self, i: usize) -> &[f32] {
        &self.values[i * Self::stride(self.cols)..]
    }
}

/// A row, filled up with zeros.
fn copy_row(row: &[f32], to: &mut [f32]) {
    let (values, rest) = to.split_at_mut(row.len());
    values.copy_from_slice(row);
    rest.fill(0.0);
}

/// Copies the rows of `x` and quantises each while a cache holds it.
fn fill_both<const LINES: usize>(
    x: &View<'_, HostBuf>,
    kernels: &impl Kernels,
    (values, stride): (&mut [f32], usize),
    blocks: &mut [Block<LINES>],
) {
    let (len, blocks_stride) = (x.cols.div_ceil(BLOCK), HostActs::blocks_stride(x.cols));
    let rows = rows_per_task(kernels, x.rows, x.rows * x.cols);
    let values = (values, rows * stride);
    let blocks = (&mut blocks[..x.rows * blocks_stride], rows * blocks_stride);
    kernels.for_each_pair(values, blocks, |task, values, blocks| {
        let rows_of_task = values.chunks_mut(stride).zip(blocks.chunks_mut(blocks_stride));
        for (i, (values, blocks)) in rows_of_task.enumerate() {
            let row = x.row(task * rows + i);
            copy_row(row, values);
            kernels.quantise(row, &mut blocks[..len]);
        }
    });
}

/// The rows of a selection, quantised.
#[derive(Clone, Copy, Debug)]
pub enum QuantisedRows<'a> {
    /// One line of codes per block.
    Int8(BlockRows<'a, 1>),
    /// Two.
    Int15(BlockRows<'a, 2>),
}

/// See [`QuantisedRows`].
#[derive(Clone, Copy, Debug)]
pub struct BlockRows<'a, const LINES: usize> {
    selection: RowSelection<'a>,
    blocks: &'a [Block<LINES>],
    stride: usize,
    len: usize,
}

impl<'a, const LINES: usize> BlockRows<'a, LINES> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.selection.rows()
    }

    /// Rows `first ..`, if the rows between them are as many everywhere.
    pub(crate) fn spaced(&self, first: usize, count: usize) -> Option<SpacedRows<'a, LINES>> {
        let step = match self.selection.chosen {
            Chosen::Listed(_) => return None,
            Chosen::All | Chosen::Range { .. } => 1,
            Chosen::Every { step, .. } => step,
        };
        assert!(first + count <= self.rows(), "rows of the selection");
        let blocks = &self.blocks[self.selection.acts_row(first) * self.stride..];
        Some(SpacedRows { blocks, stride: step * self.stride, len: self.len })
    }

    /// The blocks of the `i`-th row.
    pub fn row(&self, i: usize) -> &'a [Block<LINES>] {
        &self.blocks[self.selection.acts_row(i) * self.stride..][..self.len]
    }
}

/// Rows whose blocks lie [`SpacedRows::stride`] apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpacedRows<'a, const LINES: usize> {
    blocks: &'a [Block<LINES>],
    stride: usize,
    len: usize,
}

impl<'a, const LINES: usize> SpacedRows<'a, LINES> {
    /// Blocks of a row.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Blocks from one of a row to that of the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// From block `column` of row `first` on all up to that of the last of `rows` rows: those of the rows
    /// lie [`Self::stride`] apart.
    ///
    /// # Panics
    /// If there are no rows, or fewer.
    #[inline]
    pub(crate) fn column(&self, column: usize, first: usize, rows: usize) -> &'a [Block<LINES>] {
        &self.blocks[first * self.stride + column..][..=(rows - 1) * self.stride]
    }
}

/// The activations that one matrix product reads: all prepared rows, or those that chose an expert.
#[derive(Clone, Copy, Debug)]
pub struct RowSelection<'a> {
    acts: &'a HostActs,
    chosen: Chosen<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Chosen<'a> {
    All,
    Listed(&'a [ExpertRow]),
    /// These rows.
    Range {
        first: usize,
        count: usize,
    },
    /// Row `first` and every `step`-th after it.
    Every {
        first: usize,
        step: usize,
    },
}

impl<'a> RowSelection<'a> {
    /// All prepared rows.
    pub(super) fn all(acts: &'a HostActs) -> Self {
        Self { acts, chosen: Chosen::All }
    }

    /// The rows that chose an expert.
    pub(super) fn chosen(acts: &'a HostActs, rows: &'a [ExpertRow]) -> Self {
        Self { acts, chosen: Chosen::Listed(rows) }
    }

    /// Some rows that follow each other.
    pub(super) fn range(acts: &'a HostActs, rows: std::ops::Range<usize>) -> Self {
        Self { acts, chosen: Chosen::Range { first: rows.start, count: rows.len() } }
    }

    /// One head of every token: rows are the heads of tokens.
    pub(super) fn head(acts: &'a HostActs, head: usize, heads: usize) -> Self {
        Self { acts, chosen: Chosen::Every { first: head, step: heads } }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self.chosen {
            Chosen::All => self.acts.rows,
            Chosen::Listed(rows) => rows.len(),
            Chosen::Range { count, .. } => count,
            Chosen::Every { step, .. } => self.acts.rows / step,
        }
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.acts.cols
    }

    /// The `i`-th selected row.
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.acts.tail_from(self.acts_row(i))[..self.acts.cols]
    }

    /// The activations as integers of 15 bits, or else of 8.
    ///
    /// # Panics
    /// If they were not quantised.
    pub fn quantised(&self) -> QuantisedRows<'a> {
        let stride = HostActs::blocks_stride(self.acts.cols);
        let len = self.acts.cols.div_ceil(BLOCK);
        match &self.acts.quantised {
            Quantised::No => unreachable!("arranged weights need quantised activations"),
            Quantised::Int8(blocks) => {
                QuantisedRows::Int8(BlockRows { selection: *self, blocks, stride, len })
            }
            Quantised::Int15(blocks) => {
                QuantisedRows::Int15(BlockRows { selection: *self, blocks, stride, len })
            }
        }
    }

    /// The `i`-th selected row, filled up with zeros to a multiple of sixteen.
    pub(crate) fn padded_row(&self, i: usize) -> &'a [[f32; ACTS_ALIGN]] {
        let values = self.acts.tail_from(self.acts_row(i));
        values[..self.acts.cols.next_multiple_of(ACTS_ALIGN)].as_chunks().0
    }

    fn acts_row(&self, i: usize) -> usize {
        match self.chosen {
            Chosen::All => i,
            Chosen::Listed(rows) => rows[i].row as usize,
            Chosen::Range { first, .. } => first + i,
            Chosen::Every { first, step } => first + i * step,
        }
    }
}
