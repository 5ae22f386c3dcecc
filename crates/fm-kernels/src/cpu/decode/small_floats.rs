//! Small floats as they are published in two tensors, see `fm_format::quant::{fp4, fp8}`.

use fm_format::quant::{
    fp8::e4m3,
    ggml::fp4::{DOUBLED, half_of_e8m0},
};

use super::{Decoder, Run};
use crate::cpu::lanes::{LANES, Lanes};

/// Blocks of a scale and codes.
pub(in crate::cpu) trait Scaled: Copy + Sync {
    /// Of the scale.
    const HEAD: usize;
    /// Of the codes of a run.
    const RUN_BYTES: usize;
    /// Of a block.
    const RUNS: usize;

    /// What values are multiplied with.
    fn scale(block: &[u8]) -> f32;
    /// Values of run `run` of the codes.
    fn values<L: Lanes>(lanes: L, codes: &[u8], run: usize) -> L::F;
}

impl<S: Scaled> Decoder for S {
    type Head<L: Lanes> = L::F;
    type Group<L: Lanes> = L::F;

    #[inline(always)]
    fn block_bytes(self) -> usize {
        S::HEAD + S::RUNS * S::RUN_BYTES
    }
    #[inline(always)]
    fn groups(self) -> usize {
        1
    }
    #[inline(always)]
    fn runs(self) -> usize {
        S::RUNS
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, block: &[u8]) -> L::F {
        lanes.splat(S::scale(block))
    }
    #[inline(always)]
    fn group<L: Lanes>(self, _: L, scale: &L::F, _: &[u8], _: usize) -> L::F {
        *scale
    }
    #[inline(always)]
    fn decode<L: Lanes>(self, lanes: L, scale: &L::F, block: &[u8], at: Run) -> L::F {
        lanes.mul(S::values(lanes, &block[S::HEAD..], at.run), *scale)
    }
}

/// Eight-bit floats, `RUNS` times sixteen with an f32 as their scale.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Fp8<const RUNS: usize>;

impl<const RUNS: usize> Scaled for Fp8<RUNS> {
    const HEAD: usize = 4;
    const RUN_BYTES: usize = LANES;
    const RUNS: usize = RUNS;

    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        f32::from_le_bytes(*block.first_chunk().expect("a block has a scale"))
    }
    #[inline(always)]
    fn values<L: Lanes>(lanes: L, codes: &[u8], run: usize) -> L::F {
        eight_bits(lanes, codes, run)
    }
}

/// Eight-bit floats, 32 with one exponent.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Mxfp8;

impl Scaled for Mxfp8 {
    const HEAD: usize = 1;
    const RUN_BYTES: usize = LANES;
    const RUNS: usize = 2;

    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        half_of_e8m0(block[0])
    }
    #[inline(always)]
    fn values<L: Lanes>(lanes: L, codes: &[u8], run: usize) -> L::F {
        lanes.mul(eight_bits(lanes, codes, run), lanes.splat(2.0))
    }
}

/// Four-bit floats, 32 with one exponent.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Mxfp4;

impl Scaled for Mxfp4 {
    const HEAD: usize = 1;
    const RUN_BYTES: usize = LANES / 2;
    const RUNS: usize = 2;

    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        half_of_e8m0(block[0])
    }
    #[inline(always)]
    fn values<L: Lanes>(lanes: L, codes: &[u8], run: usize) -> L::F {
        doubled(lanes, codes.first_chunk().expect("the block has its codes"), run)
    }
}

/// Four-bit floats, sixteen with an eight-bit float as their scale.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Nvfp4;

impl Scaled for Nvfp4 {
    const HEAD: usize = 1;
    const RUN_BYTES: usize = LANES / 2;
    const RUNS: usize = 1;

    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        0.5 * e4m3(block[0])
    }
    #[inline(always)]
    fn values<L: Lanes>(lanes: L, codes: &[u8], run: usize) -> L::F {
        let mut pairs = [0; LANES];
        pairs[..LANES / 2].copy_from_slice(codes);
        doubled(lanes, &pairs, run)
    }
}

/// Run `run` of codes of eight bits.
#[inline(always)]
fn eight_bits<L: Lanes>(lanes: L, codes: &[u8], run: usize) -> L::F {
    lanes.e4m3(codes[run * LANES..].first_chunk().expect("the block has its codes"))
}

/// Twice the values of half `half` of the pairs of codes, the lower of each pair first.
#[inline(always)]
fn doubled<L: Lanes>(lanes: L, pairs: &[u8; LANES], half: usize) -> L::F {
    let pairs = lanes.bytes(pairs);
    let (even, odd) = (lanes.right(pairs, 0, 15), lanes.right(pairs, 4, 15));
    lanes.signed(lanes.look_up(&DOUBLED, lanes.in_turns(even, odd, half)))
}
