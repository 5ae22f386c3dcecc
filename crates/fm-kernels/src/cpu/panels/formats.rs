//! How the blocks of a format lie in a panel.

use crate::{
    cpu::{
        ints::{HalfLine, Line},
        lanes::Lanes,
    },
    host::PANEL_ROWS,
};

mod affine;
mod codebooks;
mod ggml_legacy;
mod i_quants;
mod k_quants;
mod mxfp;

pub(super) use affine::Affine;
pub(super) use codebooks::{Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub(super) use ggml_legacy::{Legacy, Q8_0};
pub(super) use i_quants::{Iq4Nl, Iq4Xs};
pub(super) use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(super) use mxfp::Mxfp4;

/// Runs `$work` with the format's way to lie in panels, `None` if it has none.
macro_rules! with_panels {
    ($format:expr, $panels:ident => $work:expr) => {{
        use fm_format::quant::{FormatKind, GgmlKind, ScaleKind};

        use $crate::cpu::panels::formats::{
            Affine, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Legacy, Mxfp4, Q2K, Q3K, Q4K,
            Q5K, Q6K, Q8_0,
        };

        with_panels! { @rows $format, $panels => $work;
            FormatKind::Affine { bits: 2, group: 64, scale: ScaleKind::Bf16 } => Affine::<2, 64, false>,
            FormatKind::Affine { bits: 3, group: 64, scale: ScaleKind::Bf16 } => Affine::<3, 64, false>,
            FormatKind::Affine { bits: 4, group: 32, scale: ScaleKind::Bf16 } => Affine::<4, 32, false>,
            FormatKind::Affine { bits: 4, group: 64, scale: ScaleKind::Bf16 } => Affine::<4, 64, false>,
            FormatKind::Affine { bits: 4, group: 128, scale: ScaleKind::Bf16 } => Affine::<4, 128, false>,
            FormatKind::Affine { bits: 5, group: 64, scale: ScaleKind::Bf16 } => Affine::<5, 64, false>,
            FormatKind::Affine { bits: 6, group: 64, scale: ScaleKind::Bf16 } => Affine::<6, 64, false>,
            FormatKind::Affine { bits: 8, group: 64, scale: ScaleKind::Bf16 } => Affine::<8, 64, false>,
            FormatKind::Affine { bits: 4, group: 64, scale: ScaleKind::F32 } => Affine::<4, 64, true>,
            FormatKind::Affine { bits: 8, group: 64, scale: ScaleKind::F32 } => Affine::<8, 64, true>,
            FormatKind::Ggml(GgmlKind::Q4_0) => Legacy::<false, false>,
            FormatKind::Ggml(GgmlKind::Q4_1) => Legacy::<false, true>,
            FormatKind::Ggml(GgmlKind::Q5_0) => Legacy::<true, false>,
            FormatKind::Ggml(GgmlKind::Q5_1) => Legacy::<true, true>,
            FormatKind::Ggml(GgmlKind::Q8_0) => Q8_0,
            FormatKind::Ggml(GgmlKind::Q2K) => Q2K,
            FormatKind::Ggml(GgmlKind::Q3K) => Q3K,
            FormatKind::Ggml(GgmlKind::Q4K) => Q4K,
            FormatKind::Ggml(GgmlKind::Q5K) => Q5K,
            FormatKind::Ggml(GgmlKind::Q6K) => Q6K,
            FormatKind::Ggml(GgmlKind::Iq2Xxs) => Iq2Xxs,
            FormatKind::Ggml(GgmlKind::Iq2Xs) => Iq2Xs,
            FormatKind::Ggml(GgmlKind::Iq2S) => Iq2S,
            FormatKind::Ggml(GgmlKind::Iq3Xxs) => Iq3Xxs,
            FormatKind::Ggml(GgmlKind::Iq3S) => Iq3S,
            FormatKind::Ggml(GgmlKind::Iq4Nl) => Iq4Nl,
            FormatKind::Ggml(GgmlKind::Iq4Xs) => Iq4Xs,
            FormatKind::Ggml(GgmlKind::Mxfp4) => Mxfp4::<false>,
            FormatKind::Mxfp4 => Mxfp4::<true>,
        }
    }};
    (@rows $format:expr, $panels:ident => $work:expr; $($kind:pat => $value:expr,)*) => {
        match $format.kind {
            $($kind => {
                let $panels = $value;
                Some($work)
            })*
            _ => None,
        }
    };
}
pub(super) use with_panels;

/// A format in panels. A unit is a run of whole blocks that is a whole number of words and of
/// activation blocks.
///
/// `weight = (code - OFFSET) · scale + bias`
pub(super) trait Panels: Copy + Sync {
    /// Weights of a unit, a multiple of 64.
    const WEIGHTS: usize;
    /// Words of a unit in a row, and lines of it in a panel.
    const LINES: usize;
    /// Whether a unit has two bytes more, and half a line.
    const HALF: bool = false;
    /// Bytes of a unit in a row.
    const BYTES: usize = 4 * Self::LINES + if Self::HALF { 2 } else { 0 };
    /// Neighbours that share a scale, or a block of activations of them: 16, 32 or 64.
    const RUN: usize;
    /// What codes have too much.
    const OFFSET: i32 = 0;
    /// Whether weights have a bias.
    const BIASED: bool = false;
    /// No code is above.
    const CODE_MAX: u8;
    /// Whether lines follow the words of a row as they are, and [`Panels::words`] is not asked.
    const IN_ORDER: bool = false;
    /// Whether words of a run share what they look up. The compiler sees that only where they are written out: a loop
    /// with so long a body it leaves one (`docs/experiments/0089`). Formats that share nothing gain nothing from it.
    const WORDS_SHARE: bool = false;
    /// What a unit's header says.
    type Head<L: Lanes>: Copy;

    /// A unit of a row as words, in the order of its lines, and the two bytes for its half line or
    /// [`NO_HALF`].
    #[inline(always)]
    fn words(self, unit: &[u8], words: &mut [Word]) -> [u8; 2] {
        copy_words(unit, 0, words);
        NO_HALF
    }
    /// What is done to the codes of a unit once its words are lines, where they do not stay as they are.
    #[inline(always)]
    fn reorder<L: Lanes>(self, _: L, _: &mut [Line]) {}
    /// Reads the header of a unit. Without a half line any is given.
    fn head<L: Lanes>(self, lanes: L, unit: &[Line], half: &HalfLine) -> Self::Head<L>;
    /// Scale and bias of a run.
    fn scale<L: Lanes>(
        self,
        lanes: L,
        unit: &[Line],
        head: &Self::Head<L>,
        run: usize,
    ) -> (L::F, L::F);
    /// Codes `4 · word ..` of a run.
    fn codes<L: Lanes>(self, lanes: L, unit: &[Line], run: usize, word: usize) -> L::I;
}

/// Of units that are whole words.
const NO_HALF: [u8; 2] = [0; 2];

/// A little-endian word in memory.
type Word = [u8; 4];

/// The words from byte `at` of a unit on.
#[inline(always)]
fn copy_words(unit: &[u8], at: usize, words: &mut [Word]) {
    let words = words.as_flattened_mut();
    words.copy_from_slice(&unit[at..][..words.len()]);
}

/// The low nibbles of words, or the high ones.
#[inline(always)]
fn nibbles<L: Lanes>(lanes: L, words: L::I, half: usize) -> L::I {
    lanes.field(words, 4 * half as u32, 15)
}

/// `bits` bits of every byte, from bit `from` to bit `to`; nothing else is left.
#[inline(always)]
fn moved<L: Lanes>(lanes: L, words: L::I, (from, to): (usize, usize), bits: usize) -> L::I {
    lanes.moved(words, from as u32, to as u32, u8::MAX >> (8 - bits) << to)
}

/// Codes `4 · word ..` of a block of 32 whose nibbles lie in two planes of four lines.
#[inline(always)]
fn nibble_planes<L: Lanes>(lanes: L, lines: &[Line], word: usize) -> L::I {
    nibbles(lanes, lanes.words(&lines[word % 4]), word / 4)
}

/// Most words of a unit.
pub(super) const UNIT_WORDS_MAX: usize = 52;

const _: () = assert!(PANEL_ROWS == 16, "a line is a word of every row");
