//! Codes of ggml that stand for values of a table, in panels; see `fm_format::quant::ggml::iq4`.

use fm_format::quant::ggml::iq4::VALUES;

use super::{NO_HALF, Panels, Word, ggml_legacy::two_scales, nibble_planes};
use crate::cpu::{
    ints::{HalfLine, Line},
    lanes::Lanes,
};

/// What the smallest value lacks to zero.
const OFFSET: i32 = 127;

/// The largest value without a sign.
const CODE_MAX: u8 = TABLE[TABLE.len() - 1];

/// The values without a sign.
const TABLE: [u8; 16] = {
    let mut table = [0; 16];
    let mut at = 0;
    while at < 16 {
        table[at] = (VALUES[at] as i32 + OFFSET) as u8;
        at += 1;
    }
    table
};

/// `ggml` `IQ4_NL`: two blocks of 32 weights, `d · value`.
///
/// ```text
/// line 0  d | d     then for each block 4 lines of nibbles
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Iq4Nl;

impl Panels for Iq4Nl {
    const WEIGHTS: usize = 64;
    const LINES: usize = 9;
    const RUN: usize = 32;
    const OFFSET: i32 = OFFSET;
    const CODE_MAX: u8 = CODE_MAX;
    type Head<L: Lanes> = (L::F, L::F);

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        two_scales(unit, words);
        NO_HALF
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line], _: &HalfLine) -> (L::F, L::F) {
        lanes.f16_halves(lanes.words(&unit[0]))
    }
    #[inline(always)]
    fn scale<L: Lanes>(
        self,
        lanes: L,
        _: &[Line],
        head: &(L::F, L::F),
        run: usize,
    ) -> (L::F, L::F) {
        (if run == 0 { head.0 } else { head.1 }, lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        lanes.mapped(&TABLE, nibble_planes(lanes, &unit[1 + run * 4..], word))
    }
}

/// `ggml` `IQ4_XS`: 256 weights in runs of 32, `d · (scale - 32) · value`, scales of six bits.
///
/// ```text
/// line 0  d | upper bits of scales     line 1  their nibbles     lines 2-33  4 lines of nibbles for each run
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Iq4Xs;

impl Panels for Iq4Xs {
    const WEIGHTS: usize = 256;
    const LINES: usize = 34;
    const RUN: usize = 32;
    const OFFSET: i32 = OFFSET;
    const CODE_MAX: u8 = CODE_MAX;
    const IN_ORDER: bool = true;
    type Head<L: Lanes> = L::F;

    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line], _: &HalfLine) -> L::F {
        lanes.f16_halves(lanes.words(&unit[0])).0
    }
    #[inline(always)]
    fn scale<L: Lanes>(self, lanes: L, unit: &[Line], head: &L::F, run: usize) -> (L::F, L::F) {
        // What other runs have in the upper bytes is not looked at.
        let low = lanes.field(lanes.words(&unit[1]), 4 * run as u32, 15);
        let upper = lanes.field(lanes.words(&unit[0]), 12 + 2 * run as u32, 0x30);
        let scale = lanes.sub(lanes.byte(lanes.union(low, upper), 0), lanes.splat(32.0));
        (lanes.mul(*head, scale), lanes.splat(0.0))
    }
    #[inline(always)]
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I {
        lanes.mapped(&TABLE, nibble_planes(lanes, &unit[2 + run * 4..], word))
    }
}
