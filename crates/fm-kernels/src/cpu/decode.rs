//! From packed weights to floats, sixteen at a time, exactly as `QuantFormat::decode` gives them.

use std::ops::Range;

use fm_format::quant::affine;

use super::lanes::{LANES, Lanes, Sixteen, Work};

pub(super) mod ggml;
pub(super) mod small_floats;

/// What a prefetch brings.
const LINE_BYTES: usize = 64;

/// How the weights of a row lie in its bytes: blocks, each a header and groups of runs of sixteen
/// weights.
pub(super) trait Decoder: Copy + Sync {
    /// What a block's header says.
    type Head<L: Lanes>: Copy;
    /// What the runs of a group have in common.
    type Group<L: Lanes>: Copy;

    /// Bytes of a block.
    fn block_bytes(self) -> usize;
    /// Groups of a block.
    fn groups(self) -> usize;
    /// Runs of sixteen weights in a group.
    fn runs(self) -> usize;
    /// Whether a row may end inside a run.
    fn may_end_short(self) -> bool {
        false
    }
    /// Reads the header of `block`.
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> Self::Head<L>;
    /// Prepares a group.
    fn group<L: Lanes>(
        self,
        lanes: L,
        head: &Self::Head<L>,
        block: &[u8],
        group: usize,
    ) -> Self::Group<L>;
    /// Sixteen weights.
    fn decode<L: Lanes>(self, lanes: L, shared: &Self::Group<L>, block: &[u8], at: Run) -> L::F;
}

/// Which weights of a block: run `run` of group `group`.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) group: usize,
    pub(super) run: usize,
}

/// Plain floats: a block is one run, the last of a row may be short.
#[derive(Clone, Copy)]
pub(super) struct F32;
/// See [`F32`].
#[derive(Clone, Copy)]
pub(super) struct F16;
/// See [`F32`].
#[derive(Clone, Copy)]
pub(super) struct Bf16;

macro_rules! float_decoder {
    ($name:ident, $bytes:literal, $decode:ident) => {
        impl Decoder for $name {
            type Head<L: Lanes> = ();
            type Group<L: Lanes> = ();

            #[inline(always)]
            fn block_bytes(self) -> usize {
                $bytes
            }
            #[inline(always)]
            fn groups(self) -> usize {
                1
            }
            #[inline(always)]
            fn runs(self) -> usize {
                1
            }
            #[inline(always)]
            fn may_end_short(self) -> bool {
                true
            }
            #[inline(always)]
            fn head<L: Lanes>(self, _: L, _: &[u8]) {}
            #[inline(always)]
            fn group<L: Lanes>(self, _: L, (): &(), _: &[u8], _: usize) {}
            #[inline(always)]
            fn decode<L: Lanes>(self, lanes: L, (): &(), block: &[u8], _: Run) -> L::F {
                lanes.$decode(block.first_chunk::<$bytes>().expect("a block is a whole run"))
            }
        }
    };
}

float_decoder!(F32, 64, f32);
float_decoder!(F16, 32, f16);
float_decoder!(Bf16, 32, bf16);

/// MLX affine blocks, see `fm_format::quant::affine`. `GROUP` weights share scale and bias, bf16: a
/// scale of 8 bits times a code of 8 is exact in an f32.
#[derive(Clone, Copy)]
pub(super) struct Affine<const BITS: usize, const GROUP: usize>;

impl<const BITS: usize, const GROUP: usize> Affine<BITS, GROUP> {
    const HEAD: usize = affine::head_bytes(false);
}

impl<const BITS: usize, const GROUP: usize> Decoder for Affine<BITS, GROUP> {
    type Head<L: Lanes> = L::Palette;
    type Group<L: Lanes> = L::Palette;

    #[inline(always)]
    fn groups(self) -> usize {
        1
    }
    #[inline(always)]
    fn block_bytes(self) -> usize {
        Self::HEAD + GROUP / 8 * BITS
    }
    #[inline(always)]
    fn runs(self) -> usize {
        GROUP / LANES
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> L::Palette {
        let (scale, bias) = lanes.bf16_pair(*block.first_chunk().expect("a block has a header"));
        lanes.palette::<BITS, true>(scale, bias)
    }
    #[inline(always)]
    fn group<L: Lanes>(self, _: L, head: &L::Palette, _: &[u8], _: usize) -> L::Palette {
        *head
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, shared: &L::Palette, block: &[u8], at: Run) -> L::F {
        lanes.affine::<BITS, true>(*shared, block, Self::HEAD + at.run * 2 * BITS)
    }
}

/// As [`Affine`] with scale and bias in f32, for any group. Products are rounded here.
#[derive(Clone, Copy)]
pub(super) struct WideAffine<const BITS: usize> {
    pub(super) group: usize,
}

impl<const BITS: usize> WideAffine<BITS> {
    const HEAD: usize = affine::head_bytes(true);
}

impl<const BITS: usize> Decoder for WideAffine<BITS> {
    type Head<L: Lanes> = L::Palette;
    type Group<L: Lanes> = L::Palette;

    #[inline(always)]
    fn groups(self) -> usize {
        1
    }
    #[inline(always)]
    fn block_bytes(self) -> usize {
        Self::HEAD + self.group / 8 * BITS
    }
    #[inline(always)]
    fn runs(self) -> usize {
        self.group / LANES
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> L::Palette {
        let head: &[u8; 8] = block.first_chunk().expect("a block has a header");
        let (numbers, _) = head.as_chunks();
        let number = |at: usize| lanes.splat(f32::from_le_bytes(numbers[at]));
        lanes.palette::<BITS, false>(number(0), number(1))
    }
    #[inline(always)]
    fn group<L: Lanes>(self, _: L, head: &L::Palette, _: &[u8], _: usize) -> L::Palette {
        *head
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, shared: &L::Palette, block: &[u8], at: Run) -> L::F {
        lanes.affine::<BITS, false>(*shared, block, Self::HEAD + at.run * 2 * BITS)
    }
}

/// Decodes `runs` of some rows; they begin and end with a block. A short last run is filled up with
/// zeros.
pub(super) struct DecodeRows<'a, D, const N: usize> {
    pub(super) decoder: D,
    pub(super) rows: &'a [&'a [u8]],
    pub(super) runs: Range<usize>,
    pub(super) out: &'a mut [[Sixteen; N]],
}

impl<D: Decoder, const N: usize> Work for DecodeRows<'_, D, N> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { decoder, rows, runs, out } = self;
        let bytes_of = |runs: usize| runs / block_runs(decoder) * decoder.block_bytes();
        let (first, len) = (bytes_of(runs.start), bytes_of(runs.len()));
        for (row, out) in rows.iter().zip(out) {
            // The next segment of this row, or the first of the row that comes in its place.
            let more = row.len() > first + len;
            let ahead = if more { len } else { len + (rows.len() - 1) * row.len() };
            decode_row(lanes, decoder, (&row[first..], ahead), &mut out[..runs.len()]);
        }
    }
}

/// Runs of sixteen weights in a block.
#[inline(always)]
pub(super) fn block_runs<D: Decoder>(decoder: D) -> usize {
    decoder.groups() * decoder.runs()
}

/// Decodes consecutive blocks until `out` is full, and asks for what lies `ahead` bytes behind each.
#[inline(always)]
fn decode_row<L: Lanes, D: Decoder>(
    lanes: L,
    decoder: D,
    (bytes, ahead): (&[u8], usize),
    out: &mut [Sixteen],
) {
    let mut blocks = bytes.chunks_exact(decoder.block_bytes());
    for out in out.chunks_exact_mut(block_runs(decoder)) {
        let Some(block) = blocks.next() else {
            assert!(decoder.may_end_short(), "the row has as many blocks as runs ask for");
            let bytes = bytes.chunks_exact(decoder.block_bytes()).remainder();
            return lanes.store(short_run(lanes, decoder, bytes), &mut out[0]);
        };
        prefetch_block(lanes, block, (ahead, 0));
        let head = decoder.head(lanes, block);
        for (group, out) in out.chunks_exact_mut(decoder.runs()).enumerate() {
            let shared = decoder.group(lanes, &head, block, group);
            for (run, out) in out.iter_mut().enumerate() {
                lanes.store(decoder.decode(lanes, &shared, block, Run { group, run }), out);
            }
        }
    }
}

/// Asks for every line of the blocks that lie so many bytes behind this one, far and near.
#[inline(always)]
pub(super) fn prefetch_block<L: Lanes>(lanes: L, block: &[u8], (far, near): (usize, usize)) {
    for line in (0..block.len()).step_by(LINE_BYTES) {
        lanes.prefetch_both(block, (far + line, near + line));
    }
}

/// The short last run of a row of floats, filled up with zeros.
#[inline(always)]
pub(super) fn short_run<L: Lanes, D: Decoder>(lanes: L, decoder: D, bytes: &[u8]) -> L::F {
    let mut block = [0; 64];
    block[..bytes.len()].copy_from_slice(bytes);
    let shared = decoder.group(lanes, &decoder.head(lanes, &block), &block, 0);
    decoder.decode(lanes, &shared, &block, Run { group: 0, run: 0 })
}
