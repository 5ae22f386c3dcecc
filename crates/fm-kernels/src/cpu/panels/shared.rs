//! Products that are compiled once for all formats, which only unpack their units: for instructions that every
//! machine has, where nothing is gained by more. Every result is the same chain as in [`super::products`].

use std::slice::ChunksExact;

use super::{formats::Panels, sums::scaled, unit};
use crate::{
    cpu::{
        ints::Line,
        lanes::{LANES, Lanes, Sixteen},
    },
    host::{BlockRows, QuantisedRows, RowSelection},
    reference::quantise::{BLOCK, Block},
};

/// Weights of a unit, at most.
pub(super) const WEIGHTS_MAX: usize = 256;

/// Runs of a unit, at most.
pub(super) const RUNS_MAX: usize = 16;

/// What the runs of a format are.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    /// Weights of a unit, see [`Panels::WEIGHTS`].
    pub(super) weights: usize,
    /// Weights of a run, see [`Panels::RUN`].
    pub(super) len: usize,
    pub(super) offset: i32,
    pub(super) biased: bool,
}

impl Runs {
    pub(super) const fn of<P: Panels>() -> Self {
        const {
            assert!(P::WEIGHTS <= WEIGHTS_MAX && P::WEIGHTS / P::RUN <= RUNS_MAX, "room for it");
        }
        Self { weights: P::WEIGHTS, len: P::RUN, offset: P::OFFSET, biased: P::BIASED }
    }
}

/// A unit of a panel, unpacked.
pub(super) struct Unit {
    /// One of every row. Products with activations fit 16 bits, for which every baseline has a multiplication.
    pub(super) codes: [[i16; LANES]; WEIGHTS_MAX],
    /// Scale and bias of every run.
    pub(super) factors: [[Sixteen; 2]; RUNS_MAX],
}

/// Unpacks unit `at` of a panel.
type Unpack<'a> = dyn Fn(&[u8], usize, &mut Unit) + 'a;

/// See [`super::dots`].
pub(super) fn dots<L: Lanes, P: Panels>(
    lanes: L,
    format: P,
    panels: &ChunksExact<'_, u8>,
    x: &RowSelection<'_>,
    out: &mut [&mut [f32]],
) {
    let runs = Runs::of::<P>();
    let unpack = |panel: &[u8], at: usize, to: &mut Unit| unpack(lanes, format, (panel, at), to);
    match x.quantised() {
        QuantisedRows::Int8(x) => products(lanes, (runs, &unpack), panels, &x, out),
        QuantisedRows::Int15(x) => products(lanes, (runs, &unpack), panels, &x, out),
    }
}

fn unpack<L: Lanes, P: Panels>(lanes: L, format: P, (panel, at): (&[u8], usize), to: &mut Unit) {
    let (lines, half) = unit::<P>(panel, at);
    let head = format.head(lanes, lines, half);
    for run in 0..P::WEIGHTS / P::RUN {
        let (scale, bias) = format.scale(lanes, lines, &head, run);
        let factors = &mut to.factors[run];
        lanes.store(scale, &mut factors[0]);
        lanes.store(bias, &mut factors[1]);
        for word in 0..P::RUN / 4 {
            let mut line = [0; size_of::<Line>()];
            lanes.store_words(format.codes(lanes, lines, run, word), &mut line);
            for (row, codes) in line.as_chunks::<4>().0.iter().enumerate() {
                for (i, code) in codes.iter().enumerate() {
                    to.codes[run * P::RUN + 4 * word + i][row] = i16::from(*code);
                }
            }
        }
    }
}

fn products<L: Lanes, const CODES: usize>(
    lanes: L,
    (runs, unpack): (Runs, &Unpack<'_>),
    panels: &ChunksExact<'_, u8>,
    x: &BlockRows<'_, CODES>,
    out: &mut [&mut [f32]],
) {
    let mut unit =
        Unit { codes: [[0; LANES]; WEIGHTS_MAX], factors: [[[0.0; LANES]; 2]; RUNS_MAX] };
    let blocks = runs.weights / BLOCK;
    for (at, panel) in panels.clone().enumerate() {
        let first = at * LANES;
        out.iter_mut().for_each(|out| out[first..][..LANES].fill(0.0));
        for at in 0..x.row(0).len() / blocks {
            unpack(panel, at, &mut unit);
            for (row, out) in out.iter_mut().enumerate() {
                let row = &x.row(row)[at * blocks..][..blocks];
                let sums = out[first..].first_chunk_mut().expect("a result per row");
                add_unit(lanes, (runs, &unit), row, sums);
            }
        }
    }
}

/// Adds the products of a unit with its blocks of activations.
pub(super) fn add_unit<L: Lanes, const CODES: usize>(
    lanes: L,
    (runs, unit): (Runs, &Unit),
    blocks: &[Block<CODES>],
    sums: &mut Sixteen,
) {
    let mut sum = lanes.load(sums);
    for (run, factors) in unit.factors[..runs.weights / runs.len].iter().enumerate() {
        let (block, within) = (&blocks[run * runs.len / BLOCK], run % (BLOCK / runs.len));
        let mut dots = [[0; LANES]; CODES];
        dots[CODES - 1] = [-runs.offset * block.sum(runs.len, within); LANES];
        for (i, codes) in unit.codes[run * runs.len..][..runs.len].iter().enumerate() {
            for (dots, line) in dots.iter_mut().zip(&block.codes) {
                let x = i16::from(line.0[within * runs.len + i]);
                for (dot, code) in dots.iter_mut().zip(codes) {
                    *dot += i32::from(code * x);
                }
            }
        }
        let mut dot = [0.0; LANES];
        for (row, dot) in dot.iter_mut().enumerate() {
            // The upper bits are first, if there are two lines.
            *dot = dots.iter().fold(0, |all, line| 128 * all + line[row]) as f32;
        }
        let [scale, bias] = factors.each_ref().map(|factor| lanes.load(factor));
        let biased = runs.biased.then(|| block.scaled_sum(runs.len, within));
        sum = scaled(lanes, (lanes.load(&dot), block.scale), (scale, bias), biased, sum);
    }
    lanes.store(sum, sums);
}
