//! Integer products of packed weights: sixteen weight rows side by side.
//!
//! ```text
//! panel = 16 rows; line = 64 bytes = 16 words; lane r belongs to row r; lines follow each other along the row
//!
//! a unit of a row is some blocks of its format, a whole number of words:
//!   rows      r0: w0 w1 w2 …    r1: w0 w1 w2 …   …        as published
//!   panel     w0 of r0 … r15 │ w1 of r0 … r15 │ …         the same bytes, arranged
//! ```
//!
//! Units of some formats are two bytes more than whole words: two units share a line of those before
//! them, and the last of an odd number has half a line behind it.
//!
//! Four codes of a row lie in a word, so one instruction multiplies them with four activations that
//! all rows share, sixteen rows need no sum across lanes, and scales of sixteen rows are one
//! register. Some formats exchange codes inside a unit on the way, so that the four codes of a word
//! are neighbours. Measured against other layouts in `docs/experiments`.
//!
//! Every result is one chain of floats: for each run of weights that share a scale, ascending,
//! `sum = fma(exact integer dot, scale, sum)`. Its bits depend on the two rows alone.

use std::slice::ChunksExact;

use fm_format::{quant::QuantFormat, record::MatrixShape};

use super::{
    ints::{HalfLine, Ints, Line},
    lanes::{ASKED_AHEAD, AskedAhead, LANES, Lanes, Sixteen, Work},
    tiles::Tiles,
};
use crate::{
    host::{BlockRows, PANEL_ROWS, QuantisedRows, RowSelection},
    reference::quantise::{BLOCK, Block},
};

mod arrange;
mod formats;
mod many;
mod shared;
mod sums;
#[cfg(test)]
mod tests;
mod tiled;

pub(super) use arrange::arrange;
use formats::{Panels, with_panels};
use many::{FEW, Many, two_panels_fit};
use sums::{finish, multiply, start};

/// How far ahead products of several rows of activations ask for weights.
const PREFETCH_BYTES: usize = ASKED_AHEAD;

const LINE_BYTES: usize = size_of::<Line>();

/// Activation rows whose codes and sums stay in a cache while weights of many panels pass by.
const TOKENS_PER_PASS: usize = 64;

/// Whether a matrix of this shape can be arranged: whole panels of whole units.
pub fn arranges(shape: MatrixShape) -> bool {
    let weights = with_panels!(shape.format, panels => unit_weights(panels));
    let whole = weights.is_some_and(|weights| shape.cols.is_multiple_of(weights));
    whole && shape.cols > 0 && shape.rows.is_multiple_of(PANEL_ROWS)
}

/// See [`crate::host::Kernels::wants_rows_spaced`].
pub(super) fn wants_rows_spaced<L: Lanes>(lanes: L, format: &QuantFormat, rows: usize) -> bool {
    let pays = with_panels!(format, panels => tiled::pays(panels, rows));
    lanes.tiles().is_some() && pays == Some(true)
}

fn unit_weights<P: Panels>(_: P) -> usize {
    P::WEIGHTS
}

/// `out[t][p · 16 + r] = (row r of panel p) · x[t]`.
///
/// # Panics
/// If the lengths do not fit each other, or the activations were not quantised.
pub(super) fn dots<L: Lanes>(
    lanes: L,
    format: &'static QuantFormat,
    panels: &[u8],
    x: &RowSelection<'_>,
    out: &mut [&mut [f32]],
) {
    let row_bytes = format.row_bytes(x.cols()).expect("the row tiles into blocks");
    assert_eq!(out.len(), x.rows(), "a row of results per token");
    assert!(out.iter().all(|out| out.len() * row_bytes == panels.len()), "a result per row");
    let panels = panels.chunks_exact(PANEL_ROWS * row_bytes);
    let done = with_panels!(format, format => match x.quantised() {
        _ if const { !L::PRODUCTS_PER_FORMAT } => shared::dots(lanes, format, &panels, x, out),
        QuantisedRows::Int8(x) => products(lanes, format, &panels, &x, out),
        QuantisedRows::Int15(x) => products(lanes, format, &panels, &x, out),
    });
    done.expect("only formats with panels are arranged");
}

/// See [`dots`].
fn products<L: Lanes, P: Panels, const CODES: usize>(
    lanes: L,
    format: P,
    panels: &ChunksExact<'_, u8>,
    x: &BlockRows<'_, CODES>,
    out: &mut [&mut [f32]],
) {
    if let [out] = out {
        return alone(lanes, format, panels, x.row(0), out);
    }
    in_passes(x, out, &mut |Pass { first, rows, sums, out }| {
        if let Some(tiles) = lanes.tiles()
            && tiled::pays(format, out.len())
            && let Some(x) = x.spaced(first, out.len())
        {
            return tiles.run(tiled::Products { lanes, format, panels: panels.clone(), x, out });
        }
        let mut panels = panels.clone().enumerate();
        while let Some((at, panel)) = panels.next() {
            let (to, sums) = ((&mut *out, at * LANES), &mut *sums);
            // Decided where it is compiled: what an instruction set never runs costs half a minute of building.
            if const { two_panels_fit::<L, P>(CODES) }
                && rows.len() > FEW
                && lanes.loads_bind()
                && let Some((_, other)) = panels.next()
            {
                lanes.run(Many { format, panels: [panel, other], rows, sums, out: to });
            } else {
                lanes.run(Many { format, panels: [panel], rows, sums, out: to });
            }
        }
    });
}

/// Some rows of activations, and where their results go to.
struct Pass<'a, 'o, const CODES: usize> {
    /// The first of them.
    first: usize,
    rows: &'a [&'a [Block<CODES>]],
    /// Room for the sums of two panels.
    sums: &'a mut [Sixteen],
    out: &'a mut [&'o mut [f32]],
}

/// Activations in passes, so that they stay in a cache while panels pass by. What all formats share is compiled once.
fn in_passes<'o, const CODES: usize>(
    x: &BlockRows<'_, CODES>,
    out: &mut [&'o mut [f32]],
    multiply: &mut dyn FnMut(Pass<'_, 'o, CODES>),
) {
    let mut sums = [[[0.0; LANES]; 2]; TOKENS_PER_PASS];
    // Equal passes: weights are unpacked for each.
    let per_pass = out.len().div_ceil(out.len().div_ceil(TOKENS_PER_PASS));
    for (pass, out) in out.chunks_mut(per_pass).enumerate() {
        let first = pass * per_pass;
        let mut rows: [&[Block<CODES>]; TOKENS_PER_PASS] = [&[]; TOKENS_PER_PASS];
        let rows = &mut rows[..out.len()];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = x.row(first + i);
        }
        multiply(Pass { first, rows, sums: sums.as_flattened_mut(), out });
    }
}

/// See [`dots`]: one row of activations.
fn alone<L: Lanes, P: Panels, const CODES: usize>(
    lanes: L,
    format: P,
    panels: &ChunksExact<'_, u8>,
    row: &[Block<CODES>],
    out: &mut [f32],
) {
    for (panel, out) in panels.clone().zip(out.as_chunks_mut().0) {
        lanes.run(One { format, panel, row, out });
    }
}

/// The same for every part of a run, written out.
macro_rules! for_parts {
    ($panels:ident, $part:ident => $do:expr) => {
        const { assert!(parts::<$panels>() <= PARTS_MAX, "all parts are written out") };
        let $part = 0;
        $do;
        if parts::<$panels>() > 1 {
            let $part = 1;
            $do;
        }
    };
}
use for_parts;

/// The same for every word of a part, written out where a loop would be too long for the compiler to do it.
macro_rules! for_words {
    ($panels:ident, $word:ident => $do:expr) => {
        const { assert!(PART_WORDS == 8, "all words are written out") };
        for_words!(@ $panels, $word => $do; 0 1 2 3 4 5 6 7);
    };
    (@ $panels:ident, $word:ident => $do:expr; $($at:literal)*) => {$(
        if $at < words::<$panels>() {
            let $word = $at;
            $do;
        }
    )*};
}
use for_words;

/// A panel and one activation row, whose sum stays in a register.
struct One<'a, P, const CODES: usize> {
    format: P,
    panel: &'a [u8],
    row: &'a [Block<CODES>],
    out: &'a mut Sixteen,
}

impl<P: Panels, const CODES: usize> Work for One<'_, P, CODES> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { format, panel, row, out } = self;
        let (mut sum, ahead) = (lanes.splat(0.0), lanes.asks_ahead());
        for (at, blocks) in row.chunks_exact(P::WEIGHTS / BLOCK).enumerate() {
            let (unit, half) = unit::<P>(panel, at);
            lanes.prefetch_both_here(half, ahead);
            let head = format.head(lanes, unit, half);
            // Written out, so that places and shifts are constants in what is compiled.
            macro_rules! runs {
                ($($run:literal)*) => {$(
                    if $run < P::WEIGHTS / P::RUN {
                        let at = ($run * P::RUN / BLOCK, $run % (BLOCK / P::RUN));
                        let block = (&blocks[at.0], at.1);
                        let mut dots = start::<L, P, CODES, 1, 1>(lanes, [block]);
                        for_parts!(P, part => {
                            for line in share(of_run::<P>(unit, $run), part, parts::<P>()) {
                                lanes.prefetch_both_here(line, ahead);
                            }
                            let unit = lanes.reread(unit);
                            let codes = unpack(lanes, format, unit, ($run, part));
                            dots = multiply::<L, P, CODES, 1>(lanes, [&codes], ([block], part), dots);
                        });
                        let factors = format.scale(lanes, unit, &head, $run);
                        [[sum]] = finish::<L, P, CODES, 1, 1>(lanes, [factors], ([block], dots), [[sum]]);
                    }
                )*};
            }
            const { assert!(P::WEIGHTS / P::RUN <= 16, "all runs of a unit are written out") };
            runs!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
        lanes.store(sum, out);
    }
}

/// Where the lines of unit `at` of a panel begin, and its half line.
#[inline(always)]
fn place<P: Panels>(panel_bytes: usize, at: usize) -> (usize, usize) {
    let lines_bytes = P::LINES * LINE_BYTES;
    if !P::HALF {
        return (at * lines_bytes, at * lines_bytes); // no half line
    }
    let pair = at / 2 * (LINE_BYTES + 2 * lines_bytes);
    if pair + LINE_BYTES + 2 * lines_bytes > panel_bytes {
        (pair, pair + lines_bytes)
    } else {
        (pair + LINE_BYTES + at % 2 * lines_bytes, pair + at % 2 * (LINE_BYTES / 2))
    }
}

/// The lines of unit `at` of a panel, and its half line if it has one.
#[inline(always)]
fn unit<P: Panels>(panel: &[u8], at: usize) -> (&[Line], &HalfLine) {
    let (lines, half) = place::<P>(panel.len(), at);
    let half = panel[half..].first_chunk().expect("a panel holds whole units");
    (panel[lines..][..P::LINES * LINE_BYTES].as_chunks().0, half)
}

/// A run's share of the lines of its unit, behind which more is asked for: a few at a time, because a
/// core has room for few that are on their way; measured in `docs/experiments/0040`.
#[inline(always)]
fn of_run<P: Panels>(unit: &[Line], run: usize) -> &[Line] {
    share(&unit[..P::LINES], run, P::WEIGHTS / P::RUN)
}

/// Part `at` of `parts`.
#[inline(always)]
fn share<T>(all: &[T], at: usize, parts: usize) -> &[T] {
    &all[at * all.len() / parts..(at + 1) * all.len() / parts]
}

/// Asks for what is [`PREFETCH_BYTES`] behind a run's share of its unit: panels follow each other.
#[inline(always)]
fn prefetch<L: Lanes, P: Panels>(lanes: L, unit: &[Line], run: usize) {
    let near = lanes.near(AskedAhead::twice(PREFETCH_BYTES).first);
    for line in of_run::<P>(unit, run) {
        lanes.prefetch_both(line, (PREFETCH_BYTES, near));
    }
}

/// Words of a part of a run, at most: so many are unrolled by the compiler, and the places of their bits are
/// constants.
const PART_WORDS: usize = 8;

/// Parts of a run, at most.
const PARTS_MAX: usize = 2;

/// Parts of a run.
const fn parts<P: Panels>() -> usize {
    (P::RUN / 4).div_ceil(PART_WORDS)
}

/// Words of a part of a run.
const fn words<P: Panels>() -> usize {
    P::RUN / 4 / parts::<P>()
}

/// Codes of a part of a run.
type Part<L> = [<L as Ints>::I; PART_WORDS];

/// Part `part` of run `run` of a unit.
#[inline(always)]
fn unpack<L: Lanes, P: Panels>(
    lanes: L,
    format: P,
    unit: &[Line],
    (run, part): (usize, usize),
) -> Part<L> {
    let mut codes = [lanes.splat_int(0); PART_WORDS];
    if const { P::WORDS_SHARE } {
        for_words!(P, word => {
            codes[word] = format.codes(lanes, unit, run, part * PART_WORDS + word);
        });
        return codes;
    }
    for (word, codes) in codes[..words::<P>()].iter_mut().enumerate() {
        *codes = format.codes(lanes, unit, run, part * PART_WORDS + word);
    }
    codes
}
