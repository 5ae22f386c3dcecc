//! Several rows of activations: a run of weights is unpacked once for all of them.

use super::{
    LINE_BYTES, PART_WORDS, PARTS_MAX, PREFETCH_BYTES, Part, for_parts,
    formats::Panels,
    parts, prefetch,
    sums::{Dots, RunOf, finish, multiply, multiply_two, start},
    unit, unpack,
};
use crate::{
    cpu::{
        ints::Line,
        lanes::{LANES, Lanes, Sixteen, Work},
    },
    reference::quantise::{BLOCK, Block},
};

/// So few rows wait for weights rather than for arithmetic, and two panels are two streams that get in each
/// other's way.
pub(super) const FEW: usize = 4;

/// Some panels and several activation rows: a run of weights is unpacked once for all of them, and a
/// code of an activation loaded once for all panels.
pub(super) struct Many<'a, 'o, P, const TOGETHER: usize, const CODES: usize> {
    pub(super) format: P,
    pub(super) panels: [&'a [u8]; TOGETHER],
    pub(super) rows: &'a [&'a [Block<CODES>]],
    /// Room for the sums of all rows.
    pub(super) sums: &'a mut [Sixteen],
    /// Where results go to, and from which of a token's on.
    pub(super) out: (&'a mut [&'o mut [f32]], usize),
}

impl<P: Panels, const TOGETHER: usize, const CODES: usize> Work
    for Many<'_, '_, P, TOGETHER, CODES>
{
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { format, panels, rows, sums, out: (out, first) } = self;
        let sums = &mut sums.as_chunks_mut::<TOGETHER>().0[..rows.len()];
        sums.fill([[0.0; LANES]; TOGETHER]);
        for at in 0..rows[0].len() / (P::WEIGHTS / BLOCK) {
            // Arrays are filled by loops: a closure would be compiled without the instructions at hand.
            let (lines, half) = unit::<P>(panels[0], at);
            let mut units = [lines; TOGETHER];
            let mut heads = [format.head(lanes, lines, half); TOGETHER];
            lanes.prefetch(half, PREFETCH_BYTES);
            for n in 1..TOGETHER {
                let (lines, half) = unit::<P>(panels[n], at);
                units[n] = lines;
                heads[n] = format.head(lanes, lines, half);
                lanes.prefetch(half, PREFETCH_BYTES);
            }
            for block in 0..P::WEIGHTS / BLOCK {
                for within in 0..BLOCK / P::RUN {
                    let run = block * (BLOCK / P::RUN) + within;
                    for unit in units {
                        prefetch::<L, P>(lanes, unit, run);
                    }
                    let mut runs = [Run::new(lanes, format, units[0], &heads[0], run); TOGETHER];
                    for n in 1..TOGETHER {
                        runs[n] = Run::new(lanes, format, units[n], &heads[n], run);
                    }
                    let place = (at * (P::WEIGHTS / BLOCK) + block, within);
                    let (mut rows, mut sums) = (rows, &mut *sums);
                    if const { two_rows_fit::<L, P>(TOGETHER, CODES) } {
                        let (pairs, pair_sums);
                        (pairs, rows) = rows.as_chunks();
                        (pair_sums, sums) = sums.as_chunks_mut();
                        for (rows, sums) in pairs.iter().zip(pair_sums) {
                            add_to_two::<L, P, CODES, TOGETHER>(lanes, &runs, (rows, place), sums);
                        }
                    }
                    for (row, sums) in rows.as_chunks().0.iter().zip(sums.as_chunks_mut().0) {
                        add_to::<L, P, CODES, TOGETHER>(lanes, &runs, (row, place), sums);
                    }
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            out[first..][..TOGETHER * LANES].copy_from_slice(sums.as_flattened());
        }
    }
}

/// Asks for the block behind one of activations: the blocks of many rows that are multiplied next lie far
/// from each other, and few fit into the first cache. Measured in `docs/experiments/0053`.
#[inline(always)]
fn prefetch_next<L: Lanes, const CODES: usize>(lanes: L, block: &Block<CODES>) {
    for line in (0..size_of_val(block)).step_by(LINE_BYTES) {
        lanes.prefetch_near(std::slice::from_ref(block), size_of_val(block) + line);
    }
}

/// Neighbouring weights that share a scale, unpacked.
#[derive(Clone, Copy)]
pub(super) struct Run<L: Lanes> {
    pub(super) codes: [Part<L>; PARTS_MAX],
    /// Scale and bias.
    pub(super) factors: (L::F, L::F),
}

impl<L: Lanes> Run<L> {
    /// Run `at` of a unit.
    #[inline(always)]
    fn new<P: Panels>(lanes: L, format: P, unit: &[Line], head: &P::Head<L>, at: usize) -> Self {
        let mut codes = [[lanes.splat_int(0); PART_WORDS]; PARTS_MAX];
        for_parts!(P, part => codes[part] = unpack(lanes, format, unit, (at, part)));
        Self { codes, factors: format.scale(lanes, unit, head, at) }
    }
}

/// Whether integer sums of two panels stay in registers, and codes where those of one panel do.
pub(super) const fn two_panels_fit<L: Lanes, P: Panels>(lines: usize) -> bool {
    let (sums, codes) = (lines * L::PARTS, P::RUN / 4 * L::PARTS);
    2 * sums <= L::SUMS && (2 * (sums + codes) <= L::CHAINS || sums + codes > L::CHAINS)
}

/// Whether integer sums of two rows of activations stay in registers. Both share loads of codes, and neither waits
/// for the other's sums. One panel of two is the last of an odd number, or meets few rows: not worth compiling for.
/// Measured in `docs/experiments/0080` and `0087`.
pub(super) const fn two_rows_fit<L: Lanes, P: Panels>(panels: usize, lines: usize) -> bool {
    let together = panels > 1 || !two_panels_fit::<L, P>(lines);
    together && 2 * panels * lines * L::PARTS <= L::SUMS
}

/// Adds the products of the same run of some panels with a row of activations to its sums: with which of its
/// blocks, and which run of that.
#[inline(always)]
pub(super) fn add_to<L: Lanes, P: Panels, const CODES: usize, const N: usize>(
    lanes: L,
    runs: &[Run<L>; N],
    (rows, (at, within)): (&[&[Block<CODES>]; 1], (usize, usize)),
    sums: &mut [[Sixteen; N]; 1],
) {
    let x = blocks(lanes, rows, (at, within));
    let mut dots = start::<L, P, CODES, N, 1>(lanes, x);
    for_parts!(P, part => {
        dots = multiply::<L, P, CODES, N>(lanes, codes_of(runs, part), (x, part), dots);
    });
    finish_in::<L, P, CODES, N, 1>(lanes, runs, (x, dots), sums);
}

/// [`add_to`] for two rows.
#[inline(always)]
pub(super) fn add_to_two<L: Lanes, P: Panels, const CODES: usize, const N: usize>(
    lanes: L,
    runs: &[Run<L>; N],
    (rows, (at, within)): (&[&[Block<CODES>]; 2], (usize, usize)),
    sums: &mut [[Sixteen; N]; 2],
) {
    let x = blocks(lanes, rows, (at, within));
    let mut dots = start::<L, P, CODES, N, 2>(lanes, x);
    for_parts!(P, part => {
        dots = multiply_two::<L, P, CODES, N>(lanes, codes_of(runs, part), (x, part), dots);
    });
    finish_in::<L, P, CODES, N, 2>(lanes, runs, (x, dots), sums);
}

/// Block `at` of every row, of which run `within` is next.
#[inline(always)]
fn blocks<'a, L: Lanes, const CODES: usize, const ROWS: usize>(
    lanes: L,
    rows: &[&'a [Block<CODES>]; ROWS],
    (at, within): (usize, usize),
) -> [RunOf<'a, CODES>; ROWS] {
    let x = rows.map(|row| (&row[at], within));
    if within == 0 {
        x.iter().for_each(|(block, _)| prefetch_next(lanes, block));
    }
    x
}

/// [`finish`] for sums in memory.
#[inline(always)]
fn finish_in<L: Lanes, P: Panels, const CODES: usize, const N: usize, const ROWS: usize>(
    lanes: L,
    runs: &[Run<L>; N],
    x_and_dots: ([RunOf<'_, CODES>; ROWS], Dots<L, CODES, N, ROWS>),
    sums: &mut [[Sixteen; N]; ROWS],
) {
    let (mut factors, mut parts) = ([runs[0].factors; N], [[lanes.splat(0.0); N]; ROWS]);
    for n in 0..N {
        factors[n] = runs[n].factors;
        for row in 0..ROWS {
            parts[row][n] = lanes.load(&sums[row][n]);
        }
    }
    parts = finish::<L, P, CODES, N, ROWS>(lanes, factors, x_and_dots, parts);
    for n in 0..N {
        for row in 0..ROWS {
            lanes.store(parts[row][n], &mut sums[row][n]);
        }
    }
}

/// The codes of a part of every panel.
#[inline(always)]
fn codes_of<L: Lanes, const N: usize>(runs: &[Run<L>; N], part: usize) -> [&Part<L>; N] {
    let mut codes = [&runs[0].codes[part]; N];
    for n in 1..N {
        codes[n] = &runs[n].codes[part];
    }
    codes
}
