//! From rows to panels, in place: a panel has as many bytes as its sixteen rows.

use fm_format::{quant::QuantFormat, record::MatrixShape};

use super::formats::{Panels, UNIT_WORDS_MAX, with_panels};
use crate::{
    cpu::ints::Line,
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
                arrange_panel(panels, shape.format, rows, panel);
            });
            arranged.expect("only formats with panels are arranged");
        });
    }
}

fn arrange_panel<P: Panels>(panels: P, format: &QuantFormat, rows: &[u8], panel: &mut [u8]) {
    let unit_bytes = P::LINES * 4;
    assert_eq!(unit_bytes, P::WEIGHTS / format.block_len * format.block_bytes);
    let row_bytes = rows.len() / PANEL_ROWS;
    let mut words = [[0; UNIT_WORDS_MAX]; PANEL_ROWS];
    let (lines, _): (&mut [Line], _) = panel.as_chunks_mut();
    for (at, lines) in lines.chunks_exact_mut(P::LINES).enumerate() {
        for (row, words) in rows.chunks_exact(row_bytes).zip(&mut words) {
            panels.words(&row[at * unit_bytes..][..unit_bytes], &mut words[..P::LINES]);
        }
        for (i, line) in lines.iter_mut().enumerate() {
            for (words, word) in words.iter().zip(line.as_chunks_mut().0) {
                *word = words[i].to_le_bytes();
            }
        }
    }
}
