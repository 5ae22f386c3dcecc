//! Multipliers of whole tiles: sixteen weight rows with up to sixteen rows of activations at once.
//!
//! Integer arithmetic is exact, so their sums are those of [`super::ints::Ints::dot`].

use std::convert::Infallible;

use super::{ints::Line, lanes::OnLines};
use crate::host::SpacedRows;

/// Rows of activations that a tile has room for.
pub(super) const TILE_ROWS: usize = 16;

/// Panels that share the activations of a step.
pub(super) const TILE_PANELS: usize = 2;

/// Codes of a run of sixteen weight rows, four of each to a line, in as many lines as it needs.
pub(super) type RunCodes = OnLines<[Line; 16]>;

/// Of every panel and every line of codes the dots of all rows: sixteen numbers to a line.
pub(super) type TileDots<const LINES: usize> = [[OnLines<[Line; TILE_ROWS]>; LINES]; TILE_PANELS];

/// No dots yet.
pub(super) const fn no_dots<const LINES: usize>() -> TileDots<LINES> {
    [[OnLines([[0; size_of::<Line>()]; TILE_ROWS]); LINES]; TILE_PANELS]
}

/// A multiplier of tiles. A value is the proof that the machine has it.
pub(super) trait Tiles: Copy + Send + Sync + 'static {
    /// The multiplier of this thread, ready for one shape of tiles.
    type Shaped: ShapedTiles;

    /// Makes it ready for `rows` rows of activations and runs of `run` codes.
    ///
    /// # Panics
    /// If there is no row, or more than [`TILE_ROWS`], or a run is not 16, 32 or 64 codes.
    fn shape(self, rows: usize, run: usize) -> Self::Shaped;

    /// Does `work` with it. Where no machine can have one, it is not even compiled.
    fn run<W: TileWork>(self, work: W);
}

/// What needs a multiplier of tiles.
pub(super) trait TileWork {
    /// Does it.
    fn on<T: Tiles>(self, tiles: T);
}

/// See [`Tiles::Shaped`]. It stays on its thread, and gives the multiplier back when dropped.
pub(super) trait ShapedTiles {
    /// Begins `Σ codes[n][i] · (code at + i of block column of row t)` for both panels `n`, every line of codes and
    /// all rows `t` from `first` on.
    ///
    /// Results arrive late, so that nobody waits for them: those of a step are whole when the next one has
    /// been given the same `dots` as `before`. Steps alternate between odd and even.
    ///
    /// # Panics
    /// If a row or the run is not there.
    fn step<const LINES: usize>(
        &self,
        odd: bool,
        codes: &[RunCodes; TILE_PANELS],
        x: (&SpacedRows<'_, LINES>, TilePlace),
        dots: &mut TileDots<LINES>,
        before: &mut TileDots<LINES>,
    );

    /// Completes the dots of the last step; `odd` is what the next one would have been.
    fn last<const LINES: usize>(&self, odd: bool, before: &mut TileDots<LINES>);
}

/// What a tile of activations holds, and what it meets.
#[derive(Clone, Copy, Debug)]
pub(super) struct TilePlace {
    /// Its first row.
    pub(super) first: usize,
    /// The block of every row.
    pub(super) column: usize,
    /// The first code within a block.
    pub(super) at: usize,
    /// Whether the codes of the panels are those of the step before.
    pub(super) again: bool,
}

/// Of machines without one.
impl Tiles for Infallible {
    type Shaped = Self;

    fn shape(self, _: usize, _: usize) -> Self {
        self
    }

    fn run<W: TileWork>(self, _: W) {
        match self {}
    }
}

impl ShapedTiles for Infallible {
    fn step<const LINES: usize>(
        &self,
        _: bool,
        _: &[RunCodes; TILE_PANELS],
        _: (&SpacedRows<'_, LINES>, TilePlace),
        _: &mut TileDots<LINES>,
        _: &mut TileDots<LINES>,
    ) {
        match *self {}
    }

    fn last<const LINES: usize>(&self, _: bool, _: &mut TileDots<LINES>) {
        match *self {}
    }
}
