//! Weight rows against activation rows.
//!
//! Every result is one chain: run `j` of sixteen weights meets run `j` of the activations in
//! sixteen lane sums, `j` ascending, and the lanes are added at the end. Nothing else enters, so
//! its bits depend on the two rows alone. What is free is only which chains run side by side: one
//! activation row is multiplied with [`ROWS`] weight rows while they are decoded; several share
//! weights that were decoded into a buffer once.

use std::ops::Range;

use fm_format::quant::{FloatKind, FormatKind, GgmlKind, QuantFormat, ScaleKind};

use crate::host::RowSelection;

use super::{
    decode::{
        Affine, Bf16, DecodeRows, Decoder, F16, F32, Run, WideAffine, block_runs,
        ggml::{self, codebooks, k_quants},
        prefetch_block, short_run, small_floats,
    },
    lanes::{LANES, Lanes, OnLines, Sixteen, Work},
};

/// Weight rows side by side: enough chains to hide the latency of a multiply-add.
const ROWS: usize = 4;

/// Groups of [`ROWS`] weight rows that one tile of activations meets while the L1 cache holds it.
const GROUPS_PER_PASS: usize = 2;
const ROWS_PER_PASS: usize = ROWS * GROUPS_PER_PASS;

/// Runs of a row that are decoded at a time: [`ROWS_PER_PASS`] · 32 · 64 bytes, a third of an L1
/// cache, and as many for the activations of a tile.
const SEGMENT: usize = 32;

/// Activation rows that one decoded segment meets before the next is decoded: few enough that
/// their sums stay in the L2 cache, enough that decoding is a small share.
const TOKENS_PER_PASS: usize = 96;

/// How far ahead weights are asked for. Of 1 to 16 KB the best on Zen 5, one thread: without it
/// half of the memory's speed, with 2 or 16 KB a tenth less.
const PREFETCH_BYTES: usize = 6 << 10;

/// See [`Lanes::near`]; of a row of activations that is alone.
const NEAR_BYTES: usize = 2 << 10;

/// `out[r · tokens + t] = rows[r] · x[t]`; `rows` are whole rows of `format`.
///
/// # Panics
/// If the lengths do not fit each other.
pub(super) fn rows_dots<L: Lanes>(
    lanes: L,
    format: &'static QuantFormat,
    rows: &[u8],
    x: &RowSelection<'_>,
    out: &mut [f32],
) {
    let row_bytes = format.row_bytes(x.cols()).expect("the row tiles into blocks");
    assert_eq!(rows.len() * x.rows(), row_bytes * out.len(), "one result per row and token");
    let shape = Rows { bytes: rows, row_bytes };
    match format.kind {
        FormatKind::Float(FloatKind::F32) => known(lanes, F32, shape, x, out),
        FormatKind::Float(FloatKind::F16) => known(lanes, F16, shape, x, out),
        FormatKind::Float(FloatKind::Bf16) => known(lanes, Bf16, shape, x, out),
        FormatKind::Affine { bits, group, scale } => {
            macro_rules! affine {
                ($($bits:literal)*) => {
                    match (bits, group, scale) {$(
                        ($bits, group, ScaleKind::F32) => {
                            let decoder = WideAffine::<$bits> { group: group.into() };
                            buffered(lanes, decoder, shape, x, out);
                        }
                        ($bits, 32, ScaleKind::Bf16) => affine!($bits, 32),
                        ($bits, 64, ScaleKind::Bf16) => affine!($bits, 64),
                        ($bits, 128, ScaleKind::Bf16) => affine!($bits, 128),
                    )*
                        _ => unknown(lanes, format, shape, x, out),
                    }
                };
                ($bits:literal, $group:literal) => {
                    known(lanes, Affine::<$bits, $group>, shape, x, out)
                };
            }
            affine!(2 3 4 5 6 8);
        }
        FormatKind::Mxfp4 => known(lanes, small_floats::Mxfp4, shape, x, out),
        FormatKind::Nvfp4 => known(lanes, small_floats::Nvfp4, shape, x, out),
        FormatKind::Mxfp8 => known(lanes, small_floats::Mxfp8, shape, x, out),
        FormatKind::Fp8 { group: 32 } => buffered(lanes, small_floats::Fp8::<2>, shape, x, out),
        FormatKind::Fp8 { group: 64 } => buffered(lanes, small_floats::Fp8::<4>, shape, x, out),
        FormatKind::Fp8 { group: 128 } => known(lanes, small_floats::Fp8::<8>, shape, x, out),
        FormatKind::Ggml(kind) => ggml_rows_dots(lanes, (format, kind), shape, x, out),
        _ => unknown(lanes, format, shape, x, out),
    }
}

/// See [`rows_dots`].
fn ggml_rows_dots<L: Lanes>(
    lanes: L,
    (format, kind): (&'static QuantFormat, GgmlKind),
    rows: Rows<'_>,
    x: &RowSelection<'_>,
    out: &mut [f32],
) {
    match kind {
        GgmlKind::Q4_0 => known(lanes, ggml::Q4_0, rows, x, out),
        GgmlKind::Q4_1 => known(lanes, ggml::Q4_1, rows, x, out),
        GgmlKind::Q5_0 => known(lanes, ggml::Q5_0, rows, x, out),
        GgmlKind::Q5_1 => known(lanes, ggml::Q5_1, rows, x, out),
        GgmlKind::Q8_0 => known(lanes, ggml::Q8_0, rows, x, out),
        GgmlKind::Q2K => known(lanes, k_quants::Q2K, rows, x, out),
        GgmlKind::Q3K => known(lanes, k_quants::Q3K, rows, x, out),
        GgmlKind::Q4K => known(lanes, k_quants::Q4K, rows, x, out),
        GgmlKind::Q5K => known(lanes, k_quants::Q5K, rows, x, out),
        GgmlKind::Q6K => known(lanes, k_quants::Q6K, rows, x, out),
        GgmlKind::Iq1S => known(lanes, codebooks::Iq1S, rows, x, out),
        GgmlKind::Iq1M => known(lanes, codebooks::Iq1M, rows, x, out),
        GgmlKind::Iq2Xxs => known(lanes, codebooks::Iq2Xxs, rows, x, out),
        GgmlKind::Iq2Xs => known(lanes, codebooks::Iq2Xs, rows, x, out),
        GgmlKind::Iq2S => known(lanes, codebooks::Iq2S, rows, x, out),
        GgmlKind::Iq3Xxs => known(lanes, codebooks::Iq3Xxs, rows, x, out),
        GgmlKind::Iq3S => known(lanes, codebooks::Iq3S, rows, x, out),
        GgmlKind::Iq4Nl => known(lanes, ggml::Iq4Nl, rows, x, out),
        GgmlKind::Iq4Xs => known(lanes, ggml::Iq4Xs, rows, x, out),
        GgmlKind::Mxfp4 => known(lanes, ggml::Mxfp4, rows, x, out),
        GgmlKind::Nvfp4 => known(lanes, ggml::Nvfp4, rows, x, out),
        GgmlKind::Tq2_0 => known(lanes, k_quants::Tq2_0, rows, x, out),
        GgmlKind::Tq1_0 => unknown(lanes, format, rows, x, out),
    }
}

/// Weight rows one after the other.
#[derive(Clone, Copy)]
struct Rows<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
}

impl<'a> Rows<'a> {
    fn count(self) -> usize {
        self.bytes.len() / self.row_bytes
    }

    /// `R` rows from `first` on; past the end the last row stands in.
    #[inline(always)]
    fn several<const R: usize>(self, first: usize) -> [&'a [u8]; R] {
        let last = self.count() - 1;
        let mut rows: [&[u8]; R] = [&[]; R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = &self.bytes[(first + r).min(last) * self.row_bytes..][..self.row_bytes];
        }
        rows
    }
}

/// A format with a decoder of its own, and with a loop of its own for one activation row.
fn known<L: Lanes, D: Decoder>(
    lanes: L,
    decoder: D,
    rows: Rows<'_>,
    x: &RowSelection<'_>,
    out: &mut [f32],
) {
    if x.rows() == 1 {
        return lanes.run(Fused { decoder, rows, x: x.padded_row(0), out });
    }
    buffered(lanes, decoder, rows, x, out);
}

/// A format with a decoder of its own that is too rare for more: at one activation row a third of
/// the speed of a [`known`] one, for a tenth of the time to compile.
fn buffered<L: Lanes, D: Decoder>(
    lanes: L,
    decoder: D,
    rows: Rows<'_>,
    x: &RowSelection<'_>,
    out: &mut [f32],
) {
    blocked(lanes, rows, x, out, &|rows, runs, out| {
        lanes.run(DecodeRows { decoder, rows, runs, out });
    });
}

/// A format that only its row in the table can decode.
fn unknown<L: Lanes>(
    lanes: L,
    format: &'static QuantFormat,
    rows: Rows<'_>,
    x: &RowSelection<'_>,
    out: &mut [f32],
) {
    let segment_blocks = SEGMENT * LANES / format.block_len;
    assert_eq!(segment_blocks * format.block_len, SEGMENT * LANES, "blocks tile a segment");
    blocked(lanes, rows, x, out, &|rows, runs, out| {
        let first = runs.start * LANES / format.block_len;
        for (row, out) in rows.iter().zip(out) {
            let blocks = row.chunks_exact(format.block_bytes).skip(first);
            let out = out[..runs.len()].as_flattened_mut();
            out.fill(0.0);
            for (block, out) in blocks.zip(out.chunks_exact_mut(format.block_len)) {
                (format.decode)(block, out);
            }
        }
    });
}

/// One activation row: decodes in registers, [`ROWS`] weight rows at a time.
struct Fused<'a, D> {
    decoder: D,
    rows: Rows<'a>,
    /// Filled up with zeros to whole runs.
    x: &'a [Sixteen],
    out: &'a mut [f32],
}

impl<D: Decoder> Work for Fused<'_, D> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { decoder, rows, x, out } = self;
        for (group, out) in out.chunks_mut(ROWS).enumerate() {
            let sums = fused_rows(lanes, decoder, rows.several(group * ROWS), x);
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = sum;
            }
        }
    }
}

/// The chains of some weight rows and one activation row.
#[inline(always)]
fn fused_rows<L: Lanes, D: Decoder>(
    lanes: L,
    decoder: D,
    rows: [&[u8]; ROWS],
    x: &[Sixteen],
) -> [f32; ROWS] {
    let (block_bytes, runs) = (decoder.block_bytes(), block_runs(decoder));
    let row_bytes = rows[0].len();
    let mut sums = [lanes.splat(0.0); ROWS];
    let mut ahead = Ahead::new(row_bytes, ROWS);
    let near = lanes.near(NEAR_BYTES / ROWS);
    let (x, x_short) = x.split_at(row_bytes / block_bytes * runs);
    let mut streams = rows.map(|row| row.chunks_exact(block_bytes));
    for x in x.chunks_exact(runs) {
        let mut blocks: [&[u8]; ROWS] = [&[]; ROWS];
        for r in 0..ROWS {
            blocks[r] = streams[r].next().expect("rows are equally long");
        }
        let mut heads = [decoder.head(lanes, blocks[0]); ROWS];
        for r in 0..ROWS {
            heads[r] = decoder.head(lanes, blocks[r]);
            prefetch_block(lanes, blocks[r], (ahead.offset, near));
        }
        ahead.advance(block_bytes);
        for (group, x) in x.chunks_exact(decoder.runs()).enumerate() {
            let mut shared = [decoder.group(lanes, &heads[0], blocks[0], group); ROWS];
            for r in 1..ROWS {
                shared[r] = decoder.group(lanes, &heads[r], blocks[r], group);
            }
            for (run, x) in x.iter().enumerate() {
                let x = lanes.load(x);
                for r in 0..ROWS {
                    let weights = decoder.decode(lanes, &shared[r], blocks[r], Run { group, run });
                    sums[r] = lanes.fma(weights, x, sums[r]);
                }
            }
        }
    }
    if let ([x], true) = (x_short, decoder.may_end_short()) {
        let x = lanes.load(x);
        for r in 0..ROWS {
            let end = &rows[r][row_bytes / block_bytes * block_bytes..];
            sums[r] = lanes.fma(short_run(lanes, decoder, end), x, sums[r]);
        }
    }
    lanes.sums(sums)
}

/// Where to prefetch: the place that is reached [`PREFETCH_BYTES`] later, in this group of rows or
/// in a following one.
struct Ahead {
    /// From the current block to the place.
    offset: usize,
    /// Bytes until the place leaves its row.
    left: usize,
    /// From the end of a row to where its successor in the next group begins.
    skip: usize,
    row_bytes: usize,
}

impl Ahead {
    #[inline(always)]
    fn new(row_bytes: usize, rows: usize) -> Self {
        let per_row = PREFETCH_BYTES / rows;
        let skip = (rows - 1) * row_bytes;
        let offset = per_row + per_row / row_bytes * skip;
        Self { offset, left: row_bytes - per_row % row_bytes, skip, row_bytes }
    }

    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        if self.left > bytes {
            self.left -= bytes;
        } else {
            self.offset += self.skip;
            self.left += self.row_bytes - bytes;
        }
    }
}

/// `decode(rows, runs, out)` decodes these runs of some weight rows.
type DecodeSegment<'a> = dyn Fn(&[&[u8]], Range<usize>, &mut [[Sixteen; SEGMENT]]) + 'a;

/// Several activation rows. It is compiled once for all formats.
#[expect(clippy::large_stack_arrays, reason = "64 KB of the 2 MB that a thread has")]
fn blocked<L: Lanes>(
    lanes: L,
    rows: Rows<'_>,
    x: &RowSelection<'_>,
    out: &mut [f32],
    decode: &DecodeSegment<'_>,
) {
    let (tokens, runs) = (x.rows(), x.cols().div_ceil(LANES));
    // Flat: arrays of arrays are filled by hundreds of little copies, which takes longer than a small product.
    let mut weights = OnLines([0.0; ROWS_PER_PASS * SEGMENT * LANES]);
    let mut sums = OnLines([0.0; GROUPS_PER_PASS * TOKENS_PER_PASS * ROWS * LANES]);
    let weights = weights.0.as_chunks_mut().0.as_chunks_mut().0;
    let sums = sums.0.as_chunks_mut().0.as_chunks_mut().0.as_chunks_mut().0;
    for first in (0..tokens).step_by(TOKENS_PER_PASS) {
        let count = TOKENS_PER_PASS.min(tokens - first);
        for (pass, out) in out.chunks_mut(ROWS_PER_PASS * tokens).enumerate() {
            let groups = (out.len() / tokens).div_ceil(ROWS);
            for sums in &mut sums[..groups] {
                sums[..count].as_flattened_mut().as_flattened_mut().fill(0.0);
            }
            for segment in 0..runs.div_ceil(SEGMENT) {
                let from = segment * SEGMENT;
                let len = SEGMENT.min(runs - from);
                let packed = rows.several::<ROWS_PER_PASS>(pass * ROWS_PER_PASS);
                decode(&packed[..groups * ROWS], from..from + len, weights);
                let x = |token: usize| &x.padded_row(first + token)[from..][..len];
                tiles(lanes, &weights[..groups * ROWS], count, x, sums);
            }
            for (sums, out) in sums.iter().zip(out.chunks_mut(ROWS * tokens)) {
                lanes.run(Reduce { sums: &sums[..count], out: &mut out[first..], stride: tokens });
            }
        }
    }
}

/// Adds `count` activation rows times the decoded weights to their sums.
#[inline(always)]
fn tiles<'a, L: Lanes>(
    lanes: L,
    weights: &[[Sixteen; SEGMENT]],
    count: usize,
    x: impl Fn(usize) -> &'a [Sixteen],
    sums: &mut [[[Sixteen; ROWS]; TOKENS_PER_PASS]],
) {
    let tiles = count.div_ceil(L::CHAINS / ROWS);
    for tile in 0..tiles {
        // Sizes that differ by one at most: small tiles are slow ones.
        let (first, end) = (count * tile / tiles, count * (tile + 1) / tiles);
        macro_rules! tile {
            ($count:literal) => {{
                let x: [&[Sixteen]; $count] = std::array::from_fn(|token| x(first + token));
                for (weights, sums) in weights.as_chunks::<ROWS>().0.iter().zip(&mut *sums) {
                    let weights = weights.each_ref().map(|row| &row[..x[0].len()]);
                    let sums = sums[first..].first_chunk_mut().expect("room for the tile");
                    lanes.run(Tile::<$count> { weights, x, sums });
                }
            }};
        }
        match end - first {
            1 => tile!(1),
            2 => tile!(2),
            3 => tile!(3),
            4 => tile!(4),
            5 => tile!(5),
            _ => tile!(6),
        }
    }
}

/// [`ROWS`] decoded weight rows times `T` activation rows.
struct Tile<'a, const T: usize> {
    weights: [&'a [Sixteen]; ROWS],
    x: [&'a [Sixteen]; T],
    sums: &'a mut [[Sixteen; ROWS]; T],
}

impl<const T: usize> Work for Tile<'_, T> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { mut weights, mut x, sums } = self;
        let runs = weights[0].len();
        weights.iter_mut().for_each(|row| *row = &row[..runs]);
        x.iter_mut().for_each(|row| *row = &row[..runs]);
        for part in 0..L::PARTS {
            let mut chains = [[lanes.load_part(&sums[0][0], part); ROWS]; T];
            for t in 0..T {
                for r in 0..ROWS {
                    chains[t][r] = lanes.load_part(&sums[t][r], part);
                }
            }
            for run in 0..runs {
                // The fewer of the two stay in registers: with 12 chains there are four left.
                let mut xs = [lanes.load_part(&x[0][run], part); T];
                for t in 1..T {
                    xs[t] = lanes.load_part(&x[t][run], part);
                }
                for r in 0..ROWS {
                    let w = lanes.load_part(&weights[r][run], part);
                    for t in 0..T {
                        chains[t][r] = lanes.fma_part(w, xs[t], chains[t][r]);
                    }
                }
            }
            for t in 0..T {
                for r in 0..ROWS {
                    lanes.store_part(chains[t][r], &mut sums[t][r], part);
                }
            }
        }
    }
}

/// Adds up the lanes: `out[r · stride + t]` is the sum of `sums[t][r]`.
struct Reduce<'a> {
    sums: &'a [[Sixteen; ROWS]],
    out: &'a mut [f32],
    stride: usize,
}

impl Work for Reduce<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        for (token, sums) in self.sums.iter().enumerate() {
            let sums = lanes.sums(sums.each_ref().map(|sum| lanes.load(sum)));
            for (out, sum) in self.out[token..].iter_mut().step_by(self.stride).zip(sums) {
                *out = sum;
            }
        }
    }
}
