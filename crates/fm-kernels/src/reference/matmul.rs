//! One weight row against many activation rows.

use fm_format::quant::QuantFormat;

use crate::host::RowSelection;

/// Longest block of any format, so that a decoded block fits the stack.
const BLOCK_LEN_MAX: usize = 256;

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
        for (token, out) in out.iter_mut().enumerate() {
            let x = &x.row(token)[i * format.block_len..][..format.block_len];
            for (weight, x) in weights.iter().zip(x) {
                *out += weight * x;
            }
        }
    }
}
