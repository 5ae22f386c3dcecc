//! Products of matrices of bytes (`FEAT_I8MM`): Apple's cores since the M2, Arm's since Neoverse V1 and N2.
//!
//! One instruction multiplies two rows of eight codes with two rows of eight activations, twice what `sdot` does:
//!
//! ```text
//! sums[2 · i + j] += Σ codes[i][k] · x[j][k]      i, j < 2, k < 8      (usmmla: codes without a sign, x with one)
//! ```
//!
//! Two rows that a register holds side by side are a *couple*.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

use crate::{
    cpu::{
        ints::Line,
        lanes::LANES,
        tiles::{
            RunCodes, ShapedTiles, TILE_PANELS, TILE_ROWS, TileDots, TilePlace, TileWork, Tiles,
        },
    },
    host::SpacedRows,
    reference::quantise::Block,
};

/// Codes of a row in a register.
const CODES: usize = 8;
/// Registers that a row's run has at most.
const PARTS_MAX: usize = size_of::<RunCodes>() / LANES / CODES;
/// Couples of a panel.
const PANEL_COUPLES: usize = LANES / 2;
/// Couples of activations that are multiplied at a time: with a panel's, sixteen registers of sums.
const X_COUPLES: usize = 2;

/// Couples of a panel's codes, part by part.
type PanelCouples = [[uint8x16_t; PANEL_COUPLES]; PARTS_MAX];
/// Couples of activations, part by part.
type Couples = [[int8x16_t; PARTS_MAX]; TILE_ROWS / 2];
/// Of every couple of activations and of a panel their four sums.
type Sums = [[uint32x4_t; PANEL_COUPLES]; X_COUPLES];

/// Proof that this CPU multiplies matrices of bytes. The only way to obtain one is [`I8mm::detect`].
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct I8mm(());

impl I8mm {
    /// Asks the CPU.
    pub(super) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("i8mm").then_some(Self(()))
    }

    /// `sums` and the products of two couples.
    #[inline(always)]
    fn multiply(self, codes: uint8x16_t, x: int8x16_t, mut sums: uint32x4_t) -> uint32x4_t {
        // SAFETY: `self` proves the instruction, which touches these registers only. Its intrinsic is not stable
        // yet, and the assembler knows it only where it is told to.
        unsafe {
            asm!(
                ".arch_extension i8mm",
                "usmmla {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
                sums = inout(vreg) sums,
                codes = in(vreg) codes,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

/// A shape of tiles.
pub(in crate::cpu) struct Shaped {
    i8mm: I8mm,
    rows: usize,
    /// Registers of a row's run.
    parts: usize,
}

impl Tiles for I8mm {
    type Shaped = Shaped;

    fn shape(self, rows: usize, run: usize) -> Shaped {
        let fits = (1..=TILE_ROWS).contains(&rows) && matches!(run, 16 | 32 | 64);
        assert!(fits, "a shape of tiles");
        Shaped { i8mm: self, rows, parts: run / CODES }
    }

    fn run<W: TileWork>(self, work: W) {
        work.on(self);
    }
}

impl ShapedTiles for Shaped {
    // Codes are read for every tile, whether they are those of the step before or not.
    #[inline(always)]
    fn step<const LINES: usize>(
        &self,
        _odd: bool,
        codes: &[RunCodes; TILE_PANELS],
        (x, TilePlace { first, column, at, again: _again }): (&SpacedRows<'_, LINES>, TilePlace),
        dots: &mut TileDots<LINES>,
        _before: &mut TileDots<LINES>,
    ) {
        let blocks = x.column(column, first, self.rows);
        for line in 0..LINES {
            let couples = self.couples(blocks, x.stride(), line, at);
            for (codes, dots) in codes.iter().zip(&mut *dots) {
                // SAFETY: every AArch64 machine has NEON.
                let codes = unsafe { panel_couples(&codes.0[..2 * self.parts]) };
                let couples = couples[..self.rows.div_ceil(2)].chunks(X_COUPLES);
                for (x, dots) in couples.zip(dots[line].0.chunks_mut(2 * X_COUPLES)) {
                    let sums = self.sums(&codes, [&x[0], &x[x.len() - 1]]);
                    // SAFETY: every AArch64 machine has NEON.
                    unsafe { store(&sums, dots) };
                }
            }
        }
    }

    /// Nothing arrives late.
    fn last<const LINES: usize>(&self, _odd: bool, _before: &mut TileDots<LINES>) {}
}

impl Shaped {
    /// Rows of activations in couples, from code `at` of a block on; the last of an odd number is its own
    /// neighbour.
    #[inline(always)]
    fn couples<const LINES: usize>(
        &self,
        blocks: &[Block<LINES>],
        stride: usize,
        line: usize,
        at: usize,
    ) -> Couples {
        // SAFETY: every AArch64 machine has NEON.
        let mut couples = [[unsafe { vdupq_n_s8(0) }; PARTS_MAX]; TILE_ROWS / 2];
        for (couple, parts) in couples[..self.rows.div_ceil(2)].iter_mut().enumerate() {
            let neighbour = (2 * couple + 1).min(self.rows - 1);
            let rows = [2 * couple, neighbour].map(|row| {
                let codes = &blocks[row * stride].codes[line].0[at..][..self.parts * CODES];
                codes.as_chunks::<CODES>().0
            });
            for (part, x) in parts[..self.parts].iter_mut().enumerate() {
                // SAFETY: every AArch64 machine has NEON; eight readable bytes of any alignment each.
                let [a, b] = rows.map(|row| unsafe { vld1_s8(row[part].as_ptr()) });
                // SAFETY: every AArch64 machine has NEON.
                *x = unsafe { vcombine_s8(a, b) };
            }
        }
        couples
    }

    /// All sums of a panel's codes and couples of activations.
    #[inline(always)]
    fn sums(&self, codes: &PanelCouples, x: [&[int8x16_t; PARTS_MAX]; X_COUPLES]) -> Sums {
        // SAFETY: every AArch64 machine has NEON.
        let mut sums = [[unsafe { vdupq_n_u32(0) }; PANEL_COUPLES]; X_COUPLES];
        for part in 0..self.parts {
            for couple in 0..PANEL_COUPLES {
                for (x, sums) in x.iter().zip(&mut sums) {
                    sums[couple] = self.i8mm.multiply(codes[part][couple], x[part], sums[couple]);
                }
            }
        }
        sums
    }
}

/// Lines hold four codes of every row; a couple has two neighbouring lines of two rows.
#[inline]
#[target_feature(enable = "neon")]
fn panel_couples(codes: &[Line]) -> PanelCouples {
    let mut couples = [[vdupq_n_u8(0); PANEL_COUPLES]; PARTS_MAX];
    for (couples, lines) in couples.iter_mut().zip(codes.as_chunks::<2>().0) {
        for (four, couples) in couples.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // SAFETY: sixteen readable bytes of any alignment.
            let [a, b] = [0, 1].map(|line| unsafe { vld1q_u8(lines[line][16 * four..].as_ptr()) });
            let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
            *couples =
                [vzip1q_u32(a, b), vzip2q_u32(a, b)].map(|couple| vreinterpretq_u8_u32(couple));
        }
    }
    couples
}

/// The dots of every row of activations, weight row by weight row.
#[inline]
#[target_feature(enable = "neon")]
fn store(sums: &Sums, dots: &mut [Line]) {
    for (sums, dots) in sums.iter().zip(dots.as_chunks_mut::<2>().0) {
        for (four, couples) in sums.as_chunks::<2>().0.iter().enumerate() {
            let [a, b] = *couples;
            for (row, four_dots) in [vuzp1q_u32(a, b), vuzp2q_u32(a, b)].into_iter().enumerate() {
                let to = dots[row][16 * four..][..16].as_mut_ptr();
                // SAFETY: sixteen writable bytes of any alignment.
                unsafe { vst1q_u8(to, vreinterpretq_u8_u32(four_dots)) };
            }
        }
    }
}
