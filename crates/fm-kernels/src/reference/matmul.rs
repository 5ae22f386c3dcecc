//! One weight row against many activation rows.

use std::array;

use fm_format::quant::QuantFormat;

use crate::host::{BlockRows, QuantisedRows, RowSelection};

use super::quantise;

/// Longest block of any format, so that a decoded block fits the stack.
const BLOCK_LEN_MAX: usize = 256;

/// Sums that grow side by side: each waits for its own last product only.
const SUMS: usize = 8;

/// `out[i] = Σ_k decode(row)[k] · x[i][k]`, in f32 and in ascending `k`.
///
/// # Panics
/// If `row` is not as long as the activations say.
pub fn row_dots(format: &'static QuantFormat, row: &[u8], x: &RowSelection<'_>, out: &mut [f32]) {
    let mut weights = [0.0; BLOCK_LEN_MAX];
    let weights = &mut weights[..format.block_len];
    assert_eq!(Some(row.len()), format.row_bytes(x.cols()), "a weight row fits the activations");
    out.fill(0.0);
    for (i, block) in row.chunks_exact(format.block_bytes).enumerate() {
        (format.decode)(block, weights);
        let of_block = |token| &x.row(token)[i * format.block_len..][..format.block_len];
        let (together, alone) = out.as_chunks_mut::<SUMS>();
        for (turn, out) in together.iter_mut().enumerate() {
            let x: [&[f32]; SUMS] = array::from_fn(|at| of_block(turn * SUMS + at));
            let mut sums = *out;
            for (k, weight) in weights.iter().enumerate() {
                sums = array::from_fn(|at| sums[at] + weight * x[at][k]);
            }
            *out = sums;
        }
        for (token, out) in (together.len() * SUMS..).zip(alone) {
            weights.iter().zip(of_block(token)).for_each(|(weight, x)| *out += weight * x);
        }
    }
}

/// What panels of these rows give: `out[t][r]` is row `r` times the values that the codes of `x[t]`
/// stand for, in f64 and in ascending order.
///
/// # Panics
/// If `rows` are not as long as the activations say, or those are not quantised.
pub fn quantised_dots(
    format: &'static QuantFormat,
    rows: &[u8],
    x: &RowSelection<'_>,
    out: &mut [&mut [f32]],
) {
    match x.quantised() {
        QuantisedRows::Int8(x) => block_dots(format, rows, &x, out),
        QuantisedRows::Int15(x) => block_dots(format, rows, &x, out),
    }
}

fn block_dots<const LINES: usize>(
    format: &'static QuantFormat,
    rows: &[u8],
    x: &BlockRows<'_, LINES>,
    out: &mut [&mut [f32]],
) {
    let row_bytes = rows.len() / out[0].len();
    let mut weights = vec![0.0; row_bytes / format.block_bytes * format.block_len];
    for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
        format.decode_row(bytes, &mut weights);
        for (token, out) in out.iter_mut().enumerate() {
            let blocks = x.row(token).iter();
            let values = blocks.flat_map(|block| (0..quantise::BLOCK).map(|i| block.value(i)));
            let products = weights.iter().zip(values).map(|(w, x)| f64::from(*w) * f64::from(x));
            out[row] = products.sum::<f64>() as f32;
        }
    }
}
