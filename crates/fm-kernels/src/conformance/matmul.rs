//! Matrix products, in every format.

use std::fmt;

use fm_format::{
    quant::{FORMATS, QuantFormat},
    record::MatrixShape,
};

use crate::{
    backend::{Backend, Combine, DeviceResult, ExpertRow, Product, View, ViewMut},
    tolerance,
};

use super::{Case, Weights, noise, noise_weights, read_all};

/// Shapes that a format has to cope with: one row, fewer rows than run side by side, more rows
/// than a task has; one block, and more columns than a kernel decodes at a time.
fn shapes(format: &QuantFormat) -> Vec<(usize, usize)> {
    let block = format.block_len;
    let mut shapes = vec![(1, 5 * block), (3, block), (301, 2 * block)];
    shapes.push((5, 1152_usize.next_multiple_of(block)));
    // Whole panels, an odd number of them, and an odd number of units of their rows.
    shapes.extend([(16, 512), (80, 768), (48, 3 * block.max(64))]);
    if block == 1 {
        shapes.extend([(7, 77), (3, 15), (2, 16), (9, 1049)]); // rows that end inside a vector
    }
    shapes
}

/// `y = W x`; the activations are columns of a wider matrix.
struct Matmul<'a> {
    shape: MatrixShape,
    weights: &'a [u8],
    tokens: usize,
}

impl fmt::Debug for Matmul<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} times {} rows", self.shape, self.tokens)
    }
}

impl Case for Matmul<'_> {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let MatrixShape { rows, cols, .. } = self.shape;
        let weights = Weights::of(device, self.shape, self.weights)?;
        let x = device.upload(&noise(2, self.tokens * (cols + 3)))?;
        let mut acts = device.acts(self.tokens, cols + 3)?;
        // Larger activations were here before. What they left must not be seen, not even as
        // infinity times the zero that a row is filled up with.
        let before = device.upload(&vec![f32::INFINITY; self.tokens * (cols + 3)])?;
        device.prepare(View::new(&before, self.tokens, cols + 3), &mut acts)?;
        let mut y = device.upload(&noise(3, self.tokens * rows))?;
        device.prepare(View::new(&x, self.tokens, cols + 3).columns(2, cols), &mut acts)?;
        device.matmul(weights.matrix(), &acts, ViewMut::new(&mut y, self.tokens, rows))?;
        read_all(device, &y, self.tokens * rows)
    }
}

/// [`Backend::matmul`] for one, few and many rows of activations.
pub fn matmul<B: Backend>(devices: &[B]) {
    for format in &FORMATS {
        for (rows, cols) in shapes(format) {
            let shape = MatrixShape { rows, cols, format };
            let weights = &noise_weights(shape, 1);
            for tokens in [1, 2, 5, 17, 64] {
                Matmul { shape, weights, tokens }.check(devices, tolerance::DOT_F32);
            }
        }
    }
}

/// Two matrices that read the same rows.
#[derive(Debug)]
struct MatmulEach {
    formats: [&'static QuantFormat; 2],
    tokens: usize,
    /// By one [`Backend::matmul`] per matrix instead.
    one_by_one: bool,
}

impl Case for MatmulEach {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let (cols, tokens) = (512, self.tokens);
        let [first, second] = self.formats;
        let first = Weights::noise(device, first, (208, cols), 1)?;
        let second = Weights::noise(device, second, (48, cols), 4)?;
        let mut acts = device.acts(tokens, cols)?;
        let x = device.upload(&noise(2, tokens * cols))?;
        device.prepare(View::new(&x, tokens, cols), &mut acts)?;
        let mut y = device.upload(&noise(3, tokens * 208))?;
        let mut z = device.upload(&noise(5, tokens * 48))?;
        let products = [
            Product { w: first.matrix(), y: ViewMut::new(&mut y, tokens, 208) },
            Product { w: second.matrix(), y: ViewMut::new(&mut z, tokens, 48) },
        ];
        if self.one_by_one {
            for Product { w, y } in products {
                device.matmul(w, &acts, y)?;
            }
        } else {
            device.matmul_each(&acts, products)?;
        }
        let mut values = read_all(device, &y, tokens * 208)?;
        values.extend(read_all(device, &z, tokens * 48)?);
        Ok(values)
    }
}

/// [`Backend::matmul_each`] of matrices of one format and of several.
///
/// # Panics
/// If one by one they have other bits.
pub fn matmul_each<B: Backend>(devices: &[B]) {
    let format = |name| fm_format::quant::by_name(name).expect("it is in the table");
    for formats in [["q4_k", "q4_k"], ["q4_k", "affine4_g64"], ["q8_0", "bf16"], ["f32", "f32"]] {
        for tokens in [0, 1, 2, 33, 70] {
            let together = MatmulEach { formats: formats.map(format), tokens, one_by_one: false };
            together.check(devices, tolerance::DOT_F32);
            together.check_bits(devices, &MatmulEach { one_by_one: true, ..together });
        }
    }
}

/// `y[i] = W x[rows[i]]`.
#[derive(Debug)]
struct MatmulRows {
    format: &'static QuantFormat,
    rows: usize,
    chosen: Vec<u32>,
}

impl Case for MatmulRows {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let (rows, cols, tokens) = (self.rows, 512, 70);
        let weights = Weights::noise(device, self.format, (rows, cols), 1)?;
        let x = device.upload(&noise(2, tokens * cols))?;
        let mut acts = device.acts(tokens, cols)?;
        device.prepare(View::new(&x, tokens, cols), &mut acts)?;
        let chosen: Vec<ExpertRow> =
            self.chosen.iter().map(|row| ExpertRow { row: *row, target: 0, weight: 1.0 }).collect();
        let mut y = device.alloc(chosen.len().max(1) * rows)?;
        let out = ViewMut::new(&mut y, chosen.len(), rows);
        device.matmul_rows(weights.matrix(), &acts, &chosen, out)?;
        read_all(device, &y, chosen.len() * rows)
    }
}

/// [`Backend::matmul_rows`] for selections of every size, with gaps, and for none.
pub fn matmul_rows<B: Backend>(devices: &[B]) {
    for format in &FORMATS {
        for chosen in [vec![], vec![69], vec![3, 7], vec![0, 1, 4, 9, 30, 31, 69]] {
            for rows in [13, 32] {
                let chosen = chosen.clone();
                MatmulRows { format, rows, chosen }.check(devices, tolerance::DOT_F32);
            }
        }
    }
    let chosen = (0..70).step_by(1).collect();
    MatmulRows { format: &FORMATS[0], rows: 13, chosen }.check(devices, tolerance::DOT_F32);
}

/// Every head times a matrix of its own; heads are columns of wider rows on both sides.
#[derive(Debug)]
struct MatmulHeads {
    format: &'static QuantFormat,
    heads: usize,
    /// Rows of one head's matrix.
    rows: usize,
    tokens: usize,
    /// By one [`Backend::matmul`] per head instead.
    one_by_one: bool,
}

impl Case for MatmulHeads {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let &Self { format, heads, rows, tokens, one_by_one } = self;
        let (cols, all) = (3 * format.block_len.max(11), tokens * heads);
        let (in_stride, out_stride) = (cols + 5, rows + 3);
        let x = device.upload(&noise(2, all * in_stride))?;
        let mut y = device.upload(&noise(3, all * out_stride))?;
        let shape = MatrixShape { rows: heads * rows, cols, format };
        let bytes = noise_weights(shape, 1);
        let mut acts = device.acts(all, cols)?;
        if one_by_one {
            let shape = MatrixShape { rows, ..shape };
            for (head, bytes) in bytes.chunks_exact(shape.bytes()).enumerate() {
                let weights = Weights::rows_of(device, shape, bytes)?;
                let x = View::new(&x, tokens, heads * in_stride);
                device.prepare(x.columns(head * in_stride + 4, cols), &mut acts)?;
                let mut own = device.alloc(tokens * rows)?;
                device.matmul(weights.matrix(), &acts, ViewMut::new(&mut own, tokens, rows))?;
                let y = ViewMut::new(&mut y, tokens, heads * out_stride);
                let y = y.columns(head * out_stride + 2, rows);
                device.copy(View::new(&own, tokens, rows), y)?;
            }
        } else {
            let x = View::new(&x, all, in_stride).columns(4, cols);
            let y = ViewMut::new(&mut y, all, out_stride).columns(2, rows);
            let weights = Weights::rows_of(device, shape, &bytes)?;
            device.prepare(x, &mut acts)?;
            device.matmul_heads(weights.matrix(), heads, &acts, y)?;
        }
        read_all(device, &y, all * out_stride)
    }
}

/// [`Backend::matmul_heads`], and that it gives the bits of one product per head.
///
/// # Panics
/// If one bit differs.
pub fn matmul_heads<B: Backend>(devices: &[B]) {
    for format in &FORMATS {
        for (heads, rows, tokens) in [(1, 5, 3), (3, 7, 1), (20, 32, 1), (5, 33, 2), (3, 16, 70)] {
            let together = MatmulHeads { format, heads, rows, tokens, one_by_one: false };
            together.check(devices, tolerance::DOT_F32);
            together.check_bits(devices, &MatmulHeads { one_by_one: true, ..together });
        }
    }
}

/// Rows of a table.
#[derive(Debug)]
struct Embed {
    format: &'static QuantFormat,
}

impl Case for Embed {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let (rows, cols) = (11, 3 * 256);
        let table = Weights::noise_rows(device, self.format, (rows, cols), 1)?;
        let mut out = device.alloc(4 * cols)?;
        device.embed(table.matrix(), &[10, 0, 3, 3], ViewMut::new(&mut out, 4, cols))?;
        read_all(device, &out, 4 * cols)
    }
}

/// [`Backend::embed`] decodes exactly.
pub fn embed<B: Backend>(devices: &[B]) {
    for format in &FORMATS {
        Embed { format }.check(devices, tolerance::EXACT);
    }
}

/// The rows that choose an expert in these tests, and where their results go.
pub(super) const ROWS: [ExpertRow; 3] = [
    ExpertRow { row: 1, target: 4, weight: 0.25 },
    ExpertRow { row: 2, target: 0, weight: 1.5 },
    ExpertRow { row: 5, target: 2, weight: -0.75 },
];

/// Results on their way to their tokens.
#[derive(Debug)]
struct Scatter {
    combine: Combine,
}

impl Case for Scatter {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let cols = 37;
        let y = device.upload(&noise(1, 3 * cols))?;
        let mut out = device.upload(&noise(2, 6 * cols))?;
        let view = ViewMut::new(&mut out, 6, cols);
        device.scatter_rows(View::new(&y, 3, cols), &ROWS, self.combine, view)?;
        read_all(device, &out, 6 * cols)
    }
}

/// Results that were stored, and are combined afterwards.
#[derive(Clone, Copy, Debug)]
struct Combined {
    rows: usize,
    cols: usize,
    top_k: usize,
    /// By one [`Backend::scatter_rows`] per expert instead.
    one_by_one: bool,
}

impl Case for Combined {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let &Self { rows, cols, top_k, one_by_one } = self;
        let y = device.upload(&noise(1, rows * top_k * cols))?;
        let weights = noise(2, rows * top_k);
        let mut out = device.upload(&noise(3, rows * cols))?;
        if !one_by_one {
            let y = View::new(&y, rows * top_k, cols);
            device.combine_rows(y, &weights, ViewMut::new(&mut out, rows, cols))?;
            return read_all(device, &out, rows * cols);
        }
        for (i, weight) in weights.iter().enumerate() {
            let row = ExpertRow { row: 0, target: (i / top_k) as u32, weight: *weight };
            let y = View::new(&y, rows * top_k, cols).rows(i, 1);
            let view = ViewMut::new(&mut out, rows, cols);
            device.scatter_rows(y, &[row], Combine::Accumulate, view)?;
        }
        read_all(device, &out, rows * cols)
    }
}

/// [`Backend::combine_rows`], and that it gives the bits of [`Combine::Accumulate`].
///
/// # Panics
/// If one bit differs.
pub fn combine_rows<B: Backend>(devices: &[B]) {
    // One of them is a row that is worth sharing out.
    for (rows, cols, top_k) in [(1, 77, 1), (1, 77, 8), (5, 77, 3), (300, 77, 2), (1, 2900, 8)] {
        let together = Combined { rows, cols, top_k, one_by_one: false };
        together.check(devices, tolerance::ELEMENTWISE_F32);
        together.check_bits(devices, &Combined { one_by_one: true, ..together });
    }
}

/// [`Backend::scatter_rows`]: storing is exact, accumulating one multiply-add away.
pub fn scatter_rows<B: Backend>(devices: &[B]) {
    Scatter { combine: Combine::Store }.check(devices, tolerance::EXACT);
    Scatter { combine: Combine::Accumulate }.check(devices, tolerance::ELEMENTWISE_F32);
}
