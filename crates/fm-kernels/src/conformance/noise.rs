//! Operands that look like nothing in particular and depend on a seed alone.

use fm_format::{quant::QuantFormat, record::MatrixShape};

/// `SplitMix64`.
struct Noise(u64);

impl Noise {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// `len` values in `(-1, 1)`.
pub(super) fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut noise = Noise::new(seed);
    (0..len).map(|_| ((noise.next() >> 40) as f32 + 0.5) / (1 << 23) as f32 - 1.0).collect()
}

/// Rows of a matrix that are encoded, because that takes longer than to multiply with them; those after
/// them are drawn from these. No loop has as many turns.
const ENCODED_ROWS: usize = 61;

/// A matrix in any format: noise as the format's encoder packs it, or random blocks.
pub fn noise_weights(shape: MatrixShape, seed: u64) -> Vec<u8> {
    let MatrixShape { rows, cols, format } = shape;
    let mut bytes = vec![0; shape.bytes()];
    if format.encode.is_some() {
        let (row_bytes, encoded) = (shape.row_bytes(), rows.min(ENCODED_ROWS));
        let packed = bytes.chunks_exact_mut(row_bytes);
        for (row, values) in packed.zip(noise(seed, encoded * cols).chunks_exact(cols)) {
            format.encode_row(values, row);
        }
        let mut noise = Noise::new(seed);
        for row in encoded..rows {
            let from = noise.next() as usize % encoded * row_bytes;
            bytes.copy_within(from..from + row_bytes, row * row_bytes);
        }
        return bytes;
    }
    let mut noise = Noise::new(seed);
    let blocks: [Vec<u8>; 32] = std::array::from_fn(|_| moderate_block(format, &mut noise));
    for block in bytes.chunks_exact_mut(format.block_bytes) {
        block.copy_from_slice(&blocks[noise.next() as usize % blocks.len()]);
    }
    bytes
}

/// Random bytes, drawn again until the largest weight is of moderate size. That meets every code,
/// every sign of a scale and small scales beside large ones.
///
/// # Panics
/// If a format has no such blocks.
fn moderate_block(format: &QuantFormat, noise: &mut Noise) -> Vec<u8> {
    /// One block in a hundred is moderate where a byte is the exponent of the scale.
    const ATTEMPTS_MAX: usize = 100_000;
    let (mut block, mut weights) = (vec![0; format.block_bytes], vec![0.0; format.block_len]);
    let moderate = (0..ATTEMPTS_MAX).any(|_| {
        for bytes in block.chunks_mut(8) {
            bytes.copy_from_slice(&noise.next().to_le_bytes()[..bytes.len()]);
        }
        (format.decode)(&block, &mut weights);
        // Written so that not-a-number is not moderate.
        weights.iter().all(|x| x.abs() <= 4.0) && weights.iter().any(|x| x.abs() >= 0.25)
    });
    assert!(moderate, "{format:?} has blocks of moderate weights");
    block
}
