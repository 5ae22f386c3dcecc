//! Blocks of 32 weights of ggml in panels, see `fm_format::quant::ggml::legacy`.

use super::{Panels, copy_words};
use crate::cpu::{ints::Line, lanes::Lanes};

/// `ggml` `Q8_0`: two blocks of 32 weights, `d · code`. Codes get 128 more, so that they have no sign.
///
/// ```text
/// line 0  d | d     lines 1-16  codes
/// ```
#[derive(Clone, Copy)]
pub(in crate::cpu::panels) struct Q8_0;

impl Panels for Q8_0 {
    const WEIGHTS: usize = 64;
    const LINES: usize = 17;
    const RUN: usize = 32;
    const OFFSET: i32 = 128;
    const WIDE: bool = true;
    type Head<L: Lanes> = (L::F, L::F);

    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [u32]) {
        let (first, second) = unit.split_at(34);
        words[0] = u32::from_le_bytes([first[0], first[1], second[0], second[1]]);
        let (a, b) = words[1..].split_at_mut(8);
        copy_words(first, 2, a);
        copy_words(second, 2, b);
        words[1..].iter_mut().for_each(|word| *word ^= 0x8080_8080);
    }
    #[inline(always)]
    fn head<L: Lanes>(self, lanes: L, unit: &[Line]) -> (L::F, L::F) {
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
        lanes.words(&unit[1 + run * 8 + word])
    }
}
