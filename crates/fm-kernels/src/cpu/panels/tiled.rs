//! Products of panels with many rows, on machines that multiply tiles.
//!
//! Three things are under way at a time: the codes of a run are unpacked, those of the run before are
//! multiplied with tiles of activations, and the dots of the tile before last are scaled and added.
//! Sums are those of [`super::Many`], bit by bit.

use std::slice::ChunksExact;

use super::{PREFETCH_BYTES, Panels, TOKENS_PER_PASS, prefetch, unit};
use crate::{
    cpu::{
        ints::Line,
        lanes::{LANES, Lanes, OnLines, Sixteen, Work},
        tiles::{
            RunCodes, ShapedTiles, TILE_PANELS, TILE_ROWS, TileDots, TilePlace, TileWork, Tiles,
            no_dots,
        },
    },
    host::SpacedRows,
    reference::quantise::{BLOCK, Block},
};

/// Rows from which on tiles are faster, measured in `docs/experiments/0045`.
const ROWS_MIN: usize = 8;

/// Whether tiles are the faster way: a run of 16 makes as many dots to add as one of 32, for half of the
/// products.
pub(super) fn pays<P: Panels>(_: P, rows: usize) -> bool {
    P::RUN >= 32 && rows >= ROWS_MIN
}

/// `out[t][p · 16 + r] = (row r of panel p) · x[t]`, for up to [`TOKENS_PER_PASS`] rows.
pub(super) struct Products<'a, 'o, L, P, const CODES: usize> {
    pub(super) lanes: L,
    pub(super) format: P,
    pub(super) panels: ChunksExact<'a, u8>,
    pub(super) x: SpacedRows<'a, CODES>,
    pub(super) out: &'a mut [&'o mut [f32]],
}

impl<L: Lanes, P: Panels, const CODES: usize> TileWork for Products<'_, '_, L, P, CODES> {
    fn on<T: Tiles>(self, tiles: T) {
        let Self { lanes, format, mut panels, x, out } = self;
        let rows = out.len().min(TILE_ROWS);
        let tiles = &tiles.shape(rows, P::RUN);
        let mut first = 0;
        while let Some(panel) = panels.next() {
            // The last of an odd number is multiplied twice.
            let panels = [panel, panels.next().unwrap_or(panel)];
            lanes.run(Tiled { format, tiles, panels, x: &x, rows, out: (&mut *out, first) });
            first += TILE_PANELS * LANES;
        }
    }
}

/// Two panels and several rows of activations.
struct Tiled<'a, 'o, P, T, const CODES: usize> {
    format: P,
    tiles: &'a T,
    panels: [&'a [u8]; TILE_PANELS],
    x: &'a SpacedRows<'a, CODES>,
    /// Rows of a tile.
    rows: usize,
    /// Where results go to, and from which of a token's on.
    out: (&'a mut [&'o mut [f32]], usize),
}

/// A run of both panels, unpacked.
#[derive(Clone, Copy)]
struct Run {
    codes: [RunCodes; TILE_PANELS],
    scales: [OnLines<Sixteen>; TILE_PANELS],
    biases: [OnLines<Sixteen>; TILE_PANELS],
}

impl Run {
    const EMPTY: Self = Self {
        codes: [OnLines([[0; size_of::<Line>()]; 16]); TILE_PANELS],
        scales: [OnLines([0.0; LANES]); TILE_PANELS],
        biases: [OnLines([0.0; LANES]); TILE_PANELS],
    };
}

/// Runs that are unpacked, multiplied or added at a time.
const RUNS: usize = 4;

/// A tile of which the dots are under way.
#[derive(Clone, Copy, Default)]
struct Step {
    run: usize,
    first: usize,
    /// Rows that another tile has added already.
    skip: usize,
}

/// Sums of a row.
type Sums = [OnLines<Sixteen>; TILE_PANELS];

impl<P: Panels, T: ShapedTiles, const CODES: usize> Work for Tiled<'_, '_, P, T, CODES> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { format, tiles, panels, x, rows, out: (out, first_out) } = self;
        let mut all_sums = [[OnLines([0.0; LANES]); TILE_PANELS]; TOKENS_PER_PASS];
        let sums = &mut all_sums[..out.len()];
        let mut runs = [Run::EMPTY; RUNS];
        let mut dots = [no_dots::<CODES>(); 2];
        let mut steps = [Step::default(); 2];
        let (mut units, mut heads) = first_units(lanes, format, panels);
        let (runs_len, per_unit) = (x.len() * (BLOCK / P::RUN), P::WEIGHTS / P::RUN);
        let mut step = 0;
        for ahead in 0..=runs_len {
            if ahead < runs_len {
                if ahead % per_unit == 0 {
                    for n in 0..TILE_PANELS {
                        let (lines, half) = unit::<P>(panels[n], ahead / per_unit);
                        lanes.prefetch(half, PREFETCH_BYTES);
                        (units[n], heads[n]) = (lines, format.head(lanes, lines, half));
                    }
                }
                let run = &mut runs[ahead % RUNS];
                unpack(lanes, format, (&units, &heads), ahead % per_unit, run);
            }
            let Some(run) = ahead.checked_sub(1) else { continue };
            for done in (0..sums.len()).step_by(rows) {
                let [even, odd] = &mut dots;
                let (dots, before) = if step % 2 == 0 { (even, odd) } else { (odd, even) };
                if step >= 2 {
                    add::<L, P, CODES>(lanes, steps[step % 2], (x, rows), &runs, dots, sums);
                }
                // The last rows, if they are fewer, are multiplied with some of those before them.
                let first = done.min(sums.len() - rows);
                let at = run % (BLOCK / P::RUN) * P::RUN;
                let (column, again) = (run / (BLOCK / P::RUN), done > 0);
                let place = TilePlace { first, column, at, again };
                tiles.step(step % 2 == 1, &runs[run % RUNS].codes, (x, place), dots, before);
                steps[step % 2] = Step { run, first, skip: done - first };
                step += 1;
            }
        }
        tiles.last(step % 2 == 1, &mut dots[(step + 1) % 2]);
        for at in step.saturating_sub(2)..step {
            add::<L, P, CODES>(lanes, steps[at % 2], (x, rows), &runs, &dots[at % 2], sums);
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            for (out, sums) in out[first_out..].as_chunks_mut().0.iter_mut().zip(sums) {
                *out = sums.0;
            }
        }
    }
}

/// The first units of both panels.
#[inline(always)]
fn first_units<L: Lanes, P: Panels>(
    lanes: L,
    format: P,
    panels: [&[u8]; TILE_PANELS],
) -> ([&[Line]; TILE_PANELS], [P::Head<L>; TILE_PANELS]) {
    let (lines, half) = unit::<P>(panels[0], 0);
    ([lines; TILE_PANELS], [format.head(lanes, lines, half); TILE_PANELS])
}

/// Run `at` of a unit of both panels.
#[inline(always)]
fn unpack<L: Lanes, P: Panels>(
    lanes: L,
    format: P,
    (units, heads): (&[&[Line]; TILE_PANELS], &[P::Head<L>; TILE_PANELS]),
    at: usize,
    run: &mut Run,
) {
    for n in 0..TILE_PANELS {
        prefetch::<L, P>(lanes, units[n], at);
        for word in 0..P::RUN / 4 {
            let codes = format.codes(lanes, units[n], at, word);
            lanes.store_words(codes, &mut run.codes[n].0[word]);
        }
        let (scale, bias) = format.scale(lanes, units[n], &heads[n], at);
        lanes.store(scale, &mut run.scales[n].0);
        if P::BIASED {
            lanes.store(bias, &mut run.biases[n].0);
        }
    }
}

/// `sums` of the rows of a step and its dots, scaled.
#[inline(always)]
fn add<L: Lanes, P: Panels, const CODES: usize>(
    lanes: L,
    Step { run, first, skip }: Step,
    (x, rows): (&SpacedRows<'_, CODES>, usize),
    runs: &[Run; RUNS],
    dots: &TileDots<CODES>,
    sums: &mut [Sums],
) {
    let (column, within) = (run / (BLOCK / P::RUN), run % (BLOCK / P::RUN));
    let run = &runs[run % RUNS];
    let mut factors = [[lanes.splat(0.0); 2]; TILE_PANELS];
    for (n, factors) in factors.iter_mut().enumerate() {
        *factors = [lanes.load(&run.scales[n].0), lanes.load(&run.biases[n].0)];
    }
    let (sums, stride) = (&mut sums[first..][..rows], x.stride());
    let x = x.column(column, first, rows);
    if let (Ok(sums), 0) = (<&mut [Sums; TILE_ROWS]>::try_from(&mut *sums), skip) {
        // Written out, so that places are constants in what is compiled.
        macro_rules! add_rows {
            ($($row:literal)*) => {$(
                let block = (&x[$row * stride], within);
                add_row::<L, P, CODES>(lanes, &factors, block, (dots, $row), &mut sums[$row]);
            )*};
        }
        add_rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        return;
    }
    for (row, sums) in sums.iter_mut().enumerate().skip(skip) {
        let block = (&x[row * stride], within);
        add_row::<L, P, CODES>(lanes, &factors, block, (dots, row), sums);
    }
}

/// The same of one row, by scales and biases of both panels.
#[inline(always)]
fn add_row<L: Lanes, P: Panels, const CODES: usize>(
    lanes: L,
    factors: &[[L::F; 2]; TILE_PANELS],
    (block, within): (&Block<CODES>, usize),
    (dots, row): (&TileDots<CODES>, usize),
    sums: &mut Sums,
) {
    let block_scale = lanes.splat(block.scale);
    for n in 0..TILE_PANELS {
        let mut dot = lanes.words(&dots[n][0].0[row]);
        if CODES == 2 {
            dot = lanes.join(dot, lanes.words(&dots[n][CODES - 1].0[row]));
        }
        if P::OFFSET != 0 {
            let start = lanes.splat_int(-P::OFFSET * block.sum(P::RUN, within));
            dot = lanes.sum_words(dot, start);
        }
        let [scale, bias] = factors[n];
        let mut sum = lanes.load(&sums[n].0);
        sum = lanes.fma(lanes.to_float(dot), lanes.mul(scale, block_scale), sum);
        if P::BIASED {
            sum = lanes.fma(bias, lanes.splat(block.scaled_sum(P::RUN, within)), sum);
        }
        lanes.store(sum, &mut sums[n].0);
    }
}
