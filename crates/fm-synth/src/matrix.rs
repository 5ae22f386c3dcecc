//! The bytes of one matrix on disk, any rows of it: codes, scales, biases, or plain bf16.

use half::bf16;

use crate::{
    affine::{Bits, GROUP, GroupHead, noise_floats, noise_heads, pack},
    noise::Stream,
    tape::{CodedRow, Tape},
};

/// What the rows of a matrix hold. Deviations are those of the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fill {
    /// Noise everywhere.
    Noise { deviation: f64 },
    /// Noise, but a layer's output must not touch the tape: in every matrix of `period` rows, of
    /// which there may be several, the first rows are zero.
    Output { deviation: f64, period: usize },
    /// The embedding: the tape's codes, then noise.
    Embedding { deviation: f64 },
    /// The head: rows of the tape align with the code before them, all have noise behind it.
    Head { deviation: f64 },
    /// The router of a layer: reads the tape and nothing else.
    Router { layer: usize },
}

/// A matrix `[rows, cols]`; stacked matrices are one with all their rows.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    /// Names the noise: the module, without what a layout adds to it.
    pub(crate) name: String,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) bits: Bits,
    pub(crate) fill: Fill,
}

/// Which tensor of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Packed codes, or plain weights.
    Weight,
    /// One scale per group.
    Scales,
    /// One bias per group.
    Biases,
}

/// A span of columns: the reserved ones, or the rest.
enum Span {
    Noise,
    Zero,
    Coded(CodedRow),
}

impl Matrix {
    /// Bytes of one row of a part.
    pub(crate) fn row_bytes(&self, part: Part) -> usize {
        match part {
            Part::Weight => self.bits.code_bytes(self.cols),
            Part::Scales | Part::Biases => self.cols / GROUP * 2,
        }
    }

    /// Writes rows `first..` of a part into `out`, as many as fit.
    pub(crate) fn write(&self, tape: &Tape, seed: u64, part: Part, first: usize, out: &mut [u8]) {
        let rows = Rows::new(self, tape, seed);
        match part {
            Part::Weight if self.bits.is_plain() => rows.plain(first, out),
            Part::Weight => rows.codes(first, out),
            Part::Scales => rows.heads(first, out, |head| head.scale),
            Part::Biases => rows.heads(first, out, |head| head.bias),
        }
    }

    fn deviation(&self) -> f64 {
        match self.fill {
            Fill::Noise { deviation }
            | Fill::Output { deviation, .. }
            | Fill::Embedding { deviation }
            | Fill::Head { deviation } => deviation,
            Fill::Router { .. } => 0.0,
        }
    }
}

/// A matrix being written.
struct Rows<'a> {
    matrix: &'a Matrix,
    tape: &'a Tape,
    router: Vec<CodedRow>,
    weights: Stream,
    heads: Stream,
}

impl<'a> Rows<'a> {
    fn new(matrix: &'a Matrix, tape: &'a Tape, seed: u64) -> Self {
        let router = match matrix.fill {
            Fill::Router { layer } => tape.router(layer),
            _ => Vec::new(),
        };
        let weights = Stream::named(seed, &matrix.name);
        let heads = Stream::named(seed, &format!("{}.scales", matrix.name));
        Self { matrix, tape, router, weights, heads }
    }

    /// What stands in the reserved columns of a row, and what behind them.
    fn spans(&self, row: usize) -> [Span; 2] {
        match self.matrix.fill {
            Fill::Output { period, .. } if row % period < self.tape.dims() => {
                [Span::Zero, Span::Zero]
            }
            Fill::Noise { .. } | Fill::Output { .. } => [Span::Noise, Span::Noise],
            Fill::Embedding { .. } => [Span::Coded(self.tape.embedding(row)), Span::Noise],
            Fill::Head { .. } => [self.tape.head(row).map_or(Span::Zero, Span::Coded), Span::Noise],
            Fill::Router { .. } => [Span::Coded(self.router[row].clone()), Span::Zero],
        }
    }

    /// Codes are noise wherever they are not the tape's: a scale of zero silences them.
    fn codes(&self, first: usize, out: &mut [u8]) {
        let (row_bytes, bits) = (self.matrix.row_bytes(Part::Weight), self.matrix.bits);
        self.weights.fill((first * row_bytes / 8) as u64, out);
        if matches!(self.matrix.fill, Fill::Noise { .. } | Fill::Output { .. }) {
            return;
        }
        for (row, out) in (first..).zip(out.chunks_exact_mut(row_bytes)) {
            let [Span::Coded(CodedRow::Affine { codes, .. }), _] = self.spans(row) else {
                continue;
            };
            let groups = out.chunks_exact_mut(bits.code_bytes(GROUP));
            codes.chunks(GROUP).zip(groups).for_each(|(codes, out)| pack(codes, bits, out));
        }
    }

    fn heads(&self, first: usize, out: &mut [u8], of: impl Fn(&GroupHead) -> bf16) {
        let noise = noise_heads(self.matrix.deviation(), self.matrix.bits);
        let groups = self.matrix.cols / GROUP;
        let reserved = self.tape.dims() / GROUP;
        for (row, out) in (first..).zip(out.chunks_exact_mut(2 * groups)) {
            let [tape, rest] = self.spans(row);
            for (group, out) in out.chunks_exact_mut(2).enumerate() {
                let head = match if group < reserved { &tape } else { &rest } {
                    Span::Zero => GroupHead::SILENT,
                    Span::Coded(CodedRow::Affine { heads, .. }) => heads[group],
                    Span::Noise | Span::Coded(CodedRow::Plain(_)) => {
                        noise[self.heads.nibble((row * groups + group) as u64)]
                    }
                };
                out.copy_from_slice(&of(&head).to_le_bytes());
            }
        }
    }

    /// Plain weights: one random byte each, as an index into evenly spaced values.
    fn plain(&self, first: usize, out: &mut [u8]) {
        let levels = noise_floats(self.matrix.deviation()).map(bf16::to_le_bytes);
        let cols = self.matrix.cols;
        let reserved = self.tape.dims().min(cols);
        for (row, out) in (first..).zip(out.chunks_exact_mut(2 * cols)) {
            let [tape, rest] = self.spans(row);
            let words = (row * cols / 8) as u64..;
            for (position, out) in words.zip(out.chunks_exact_mut(16)) {
                let bytes = self.weights.word(position).to_le_bytes();
                for (out, byte) in out.chunks_exact_mut(2).zip(bytes) {
                    out.copy_from_slice(&levels[usize::from(byte)]);
                }
            }
            let (front, back) = out.split_at_mut(2 * reserved);
            for (span, out) in [(tape, front), (rest, back)] {
                match span {
                    Span::Zero => out.fill(0),
                    Span::Coded(CodedRow::Plain(values)) => out
                        .chunks_exact_mut(2)
                        .zip(values)
                        .for_each(|(out, value)| out.copy_from_slice(&value.to_le_bytes())),
                    Span::Noise | Span::Coded(CodedRow::Affine { .. }) => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Geometry;

    #[test]
    fn rows_are_the_same_in_one_piece_and_in_many() {
        let geometry = Geometry { vocab: 20, ..Geometry::by_name("qwen3-30b").unwrap().clone() };
        let fills = [
            Fill::Noise { deviation: 0.1 },
            Fill::Output { deviation: 0.1, period: 3 },
            Fill::Embedding { deviation: 0.7 },
            Fill::Head { deviation: 0.1 },
            Fill::Router { layer: 1 },
        ];
        for (fill, bits) in fills.into_iter().flat_map(|fill| [(fill, 3), (fill, 8), (fill, 16)]) {
            let bits = Bits::new(bits).unwrap();
            let router = matches!(fill, Fill::Router { .. });
            if router && bits.get() == 3 {
                continue; // routers have eight
            }
            let tape = Tape::new(&geometry, bits, 1);
            let matrix = Matrix { name: "m".to_owned(), rows: 24, cols: 192, bits, fill };
            for part in [Part::Weight, Part::Scales, Part::Biases] {
                if bits.is_plain() && part != Part::Weight {
                    continue;
                }
                let row_bytes = matrix.row_bytes(part);
                let rows = |first: usize, count: usize| {
                    let mut out = vec![0xAA; count * row_bytes];
                    matrix.write(&tape, 1, part, first, &mut out);
                    out
                };
                assert_eq!(rows(0, 24), [rows(0, 5), rows(5, 1), rows(6, 18)].concat(), "{fill:?}");
            }
        }
    }
}
