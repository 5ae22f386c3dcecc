//! From rows to panels, in place: a panel has as many bytes as its sixteen rows.

use fm_format::{quant::QuantFormat, record::MatrixShape};

use super::{
    LINE_BYTES,
    formats::{Panels, UNIT_WORDS_MAX, with_panels},
    place,
};
use crate::{
    cpu::{
        Level,
        ints::Line,
        lanes::{LANES, Lanes, Work},
    },
    host::{ARRANGED_ROWS_MAX, PANEL_ROWS, Parallel},
};

/// Panels that are arranged at a time: their copies stay in a cache.
const PANELS_PER_PASS: usize = ARRANGED_ROWS_MAX / PANEL_ROWS;

/// Arranges a matrix; `scratch` grows to a copy of some panels once.
///
/// # Panics
/// If the format has no panels or the lengths do not fit each other.
pub(in crate::cpu) fn arrange(
    parallel: &impl Parallel,
    level: Level,
    shape: MatrixShape,
    bytes: &mut [u8],
    scratch: &mut Vec<u8>,
) {
    let panel_bytes = PANEL_ROWS * shape.row_bytes();
    if scratch.len() < PANELS_PER_PASS * panel_bytes {
        scratch.resize(PANELS_PER_PASS * panel_bytes, 0);
    }
    for panels in bytes.chunks_mut(PANELS_PER_PASS * panel_bytes) {
        let panels = (panels, panel_bytes);
        parallel.for_each_pair(panels, (&mut scratch[..], panel_bytes), |_, panel, rows| {
            rows.copy_from_slice(panel);
            let arranged = with_panels!(shape.format, panels => {
                arrange_panel(level, (panels, shape.format), rows, panel);
            });
            arranged.expect("only formats with panels are arranged");
        });
    }
}

fn arrange_panel<P: Panels>(
    level: Level,
    (panels, format): (P, &QuantFormat),
    rows: &[u8],
    panel: &mut [u8],
) {
    let unit_bytes = P::LINES * 4 + if P::HALF { 2 } else { 0 };
    assert_eq!(unit_bytes, P::WEIGHTS / format.block_len * format.block_bytes);
    let row_bytes = rows.len() / PANEL_ROWS;
    let mut words = [[0; WORDS]; PANEL_ROWS];
    let mut halves = [[0; 2]; PANEL_ROWS];
    for at in 0..row_bytes / unit_bytes {
        let units = rows.chunks_exact(row_bytes).map(|row| &row[at * unit_bytes..][..unit_bytes]);
        for (unit, (words, half)) in units.zip(words.iter_mut().zip(&mut halves)) {
            *half = panels.words(unit, &mut words[..P::LINES]);
        }
        let (place, half) = place::<P>(panel.len(), at);
        let lines: &mut [Line] = panel[place..][..P::LINES * LINE_BYTES].as_chunks_mut().0;
        level.run(Turn { words: &words, lines });
        if P::REORDERS {
            level.run(Reorder { panels, lines });
        }
        if P::HALF {
            panel[half..][..LINE_BYTES / 2].copy_from_slice(halves.as_flattened());
        }
    }
}

/// Words of a unit in whole lines.
const WORDS: usize = UNIT_WORDS_MAX.next_multiple_of(LANES);

/// Words of rows become lines.
struct Turn<'a> {
    words: &'a [[u32; WORDS]; PANEL_ROWS],
    lines: &'a mut [Line],
}

impl Work for Turn<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        for (at, lines) in self.lines.chunks_mut(LANES).enumerate() {
            let mut rows = [&[0; LANES]; PANEL_ROWS];
            for (row, words) in rows.iter_mut().zip(self.words) {
                *row = &words.as_chunks().0[at];
            }
            lanes.turn(&rows, lines);
        }
    }
}

/// See [`Panels::reorder`].
struct Reorder<'a, P> {
    panels: P,
    lines: &'a mut [Line],
}

impl<P: Panels> Work for Reorder<'_, P> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        self.panels.reorder(lanes, self.lines);
    }
}
