//! From rows to panels, in place or a little lower: a panel has as many bytes as its sixteen rows.

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
    host::{PANEL_ROWS, Parallel, arranging_bytes},
};

/// Arranges a matrix whose rows are at the end of `bytes`; its panels are at their start afterwards.
/// `scratch` grows to a copy of some panels once.
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
    let pass = arranging_bytes(shape.row_bytes()) / panel_bytes * panel_bytes;
    let (whole, lower) = (shape.bytes(), bytes.len() - shape.bytes());
    if scratch.len() < pass {
        scratch.resize(pass, 0);
    }
    for at in (0..whole).step_by(pass) {
        let some = pass.min(whole - at);
        let copies = &mut scratch[..some];
        let rows = (&mut bytes[lower + at..][..some], panel_bytes);
        // All are copied before any is written: a panel may end in what were rows of the next ones.
        parallel.for_each_pair(rows, (&mut *copies, panel_bytes), |_, rows, copy| {
            copy.copy_from_slice(rows);
        });
        let panels = (&mut bytes[at..][..some], panel_bytes);
        parallel.for_each_pair(panels, (copies, panel_bytes), |_, panel, rows| {
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
    assert_eq!(P::BYTES, P::WEIGHTS / format.block_len * format.block_bytes);
    level.run(ArrangePanel { panels, rows, panel });
}

/// Rows become the lines of their panel: one piece of work, so that bytes move in the widest registers there are.
struct ArrangePanel<'a, P> {
    panels: P,
    rows: &'a [u8],
    panel: &'a mut [u8],
}

impl<P: Panels> Work for ArrangePanel<'_, P> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        const { assert!(!(P::IN_ORDER && P::HALF), "a half line is not in order") };
        let Self { panels, rows, panel } = self;
        let row_bytes = rows.len() / PANEL_ROWS;
        if P::IN_ORDER {
            lanes.run(TurnRows::<false> { rows, lines: panel.as_chunks_mut().0 });
            for unit in panel.chunks_exact_mut(P::LINES * LINE_BYTES) {
                panels.reorder(lanes, unit.as_chunks_mut().0);
            }
            return;
        }
        let mut words = [[[0; 4]; UNIT_WORDS]; PANEL_ROWS];
        let mut halves = [[0; 2]; PANEL_ROWS];
        for at in 0..row_bytes / P::BYTES {
            for (r, words) in words.iter_mut().enumerate() {
                let unit = &rows[r * row_bytes + at * P::BYTES..][..P::BYTES];
                halves[r] = panels.words(unit, &mut words[..P::LINES]);
            }
            let (place, half) = place::<P>(panel.len(), at);
            let lines: &mut [Line] = panel[place..][..P::LINES * LINE_BYTES].as_chunks_mut().0;
            let rows = words.as_flattened().as_flattened();
            lanes.run(TurnRows::<true> { rows, lines: &mut *lines });
            panels.reorder(lanes, lines);
            if P::HALF {
                panel[half..][..LINE_BYTES / 2].copy_from_slice(halves.as_flattened());
            }
        }
    }
}

/// Room for the words of a unit, in whole lines.
const UNIT_WORDS: usize = UNIT_WORDS_MAX.next_multiple_of(LANES);

/// `lines[i]` becomes word `i` of each of sixteen rows. Work of its own, so that it is compiled once and not for every
/// format, which took half a minute of building. Rows are `WHOLE` lines of words, or end anywhere.
struct TurnRows<'a, const WHOLE: bool> {
    rows: &'a [u8],
    lines: &'a mut [Line],
}

impl<const WHOLE: bool> Work for TurnRows<'_, WHOLE> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { rows, lines } = self;
        let row_bytes = rows.len() / PANEL_ROWS;
        let mut lasts = [[0; LINE_BYTES]; PANEL_ROWS];
        for (at, lines) in lines.chunks_mut(LANES).enumerate() {
            let mut turned = [&[0; LINE_BYTES]; PANEL_ROWS];
            for (r, (turned, last)) in turned.iter_mut().zip(&mut lasts).enumerate() {
                let row = &rows[r * row_bytes..][at * LINE_BYTES..row_bytes];
                *turned = match row.first_chunk() {
                    Some(words) => words,
                    None if WHOLE => unreachable!("room for words is whole lines"),
                    None => {
                        last[..row.len()].copy_from_slice(row);
                        last
                    }
                };
            }
            lanes.turn(&turned, lines);
        }
    }
}
