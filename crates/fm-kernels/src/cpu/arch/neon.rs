//! NEON with dot products of bytes: four registers hold the sixteen lanes.
//!
//! NEON itself is part of every AArch64 machine; Apple's, Graviton's since the second and Arm's cores since 2018 have the
//! dot products, and later ones products of matrices (`i8mm.rs`). `cargo xtask arm` runs the suite of the kernels on
//! it, emulated where need be.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::{
    arch::{aarch64::*, asm, is_aarch64_feature_detected},
    array,
};

use crate::cpu::lanes::{Cache, LANES, Lanes, Sixteen, WINDOW_STARTS, Work, code_window};

mod i8mm;
mod ints;

use i8mm::I8mm;

/// Proof that this CPU has dot products of bytes. The only way to obtain one is [`Neon::detect`].
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Neon {
    tiles: Option<I8mm>,
}

impl Neon {
    /// Asks the CPU.
    pub(in crate::cpu) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("dotprod").then_some(Self { tiles: None })
    }

    /// The same with products of matrices beside it.
    pub(in crate::cpu) fn detect_with_tiles() -> Option<Self> {
        let mut neon = Self::detect()?;
        neon.tiles = Some(I8mm::detect()?);
        Some(neon)
    }
}

/// Lanes 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
type Quarters = [float32x4_t; 4];

/// As in `avx512.rs`, for half of the lanes: the two bytes in which a lane's code lies, and zeros.
const fn byte_picks(bits: usize, first_lane: usize, start: usize) -> [u8; 16] {
    let mut picks = [0xff; 16];
    let mut lane = 0;
    while lane < 8 {
        let byte = start + (first_lane + lane) * bits / 8;
        if byte < 16 {
            picks[lane * 2] = byte as u8;
        }
        if byte < 15 {
            picks[lane * 2 + 1] = byte as u8 + 1;
        }
        lane += 1;
    }
    picks
}

/// How far the code of every lane lies from the start of its first byte; negative, because a shift by
/// a negative count moves to the right.
const fn bit_shifts(bits: usize, first_lane: usize) -> [i16; 8] {
    let mut shifts = [0; 8];
    let mut lane = 0;
    while lane < 8 {
        shifts[lane] = -(((first_lane + lane) * bits % 8) as i16);
        lane += 1;
    }
    shifts
}

/// Constants of one code width.
struct Codes<const BITS: usize>;

impl<const BITS: usize> Codes<BITS> {
    /// By the byte of the window at which the codes begin, and by half.
    const PICKS: [[[u8; 16]; 2]; WINDOW_STARTS] = {
        let mut picks = [[[0; 16]; 2]; WINDOW_STARTS];
        let mut start = 0;
        while start < WINDOW_STARTS {
            picks[start] = [byte_picks(BITS, 0, start), byte_picks(BITS, 8, start)];
            start += 1;
        }
        picks
    };
    const SHIFTS: [[i16; 8]; 2] = [bit_shifts(BITS, 0), bit_shifts(BITS, 8)];
}

/// Where sixteen codes of two bits lie: the byte, and how far to the right in it.
const PAIR_PICKS: [u8; LANES] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];
const PAIR_SHIFTS: [i8; LANES] = [0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6];

/// Bit `i` of a byte in byte `i`, twice.
const BITS_OF_BYTES: [u8; LANES] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

/// `op` on every quarter.
#[inline(always)]
fn pairs(
    a: Quarters,
    b: Quarters,
    op: impl Fn(float32x4_t, float32x4_t) -> float32x4_t,
) -> Quarters {
    array::from_fn(|i| op(a[i], b[i]))
}

impl Lanes for Neon {
    type Tiles = I8mm;
    type Part = float32x4_t;
    type Palette = (float32x4_t, float32x4_t);
    type Bytes = uint8x16_t;

    const PARTS: usize = 4;
    const CHAINS: usize = 24;

    fn tiles(self) -> Option<I8mm> {
        self.tiles
    }

    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Out {
        work.on(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        [unsafe { vdupq_n_f32(x) }; 4]
    }
    #[inline(always)]
    fn load(self, x: &Sixteen) -> Quarters {
        array::from_fn(|part| self.load_part(x, part))
    }
    #[inline(always)]
    fn store(self, x: Quarters, out: &mut Sixteen) {
        for (part, x) in x.into_iter().enumerate() {
            self.store_part(x, out, part);
        }
    }

    #[inline(always)]
    fn add(self, a: Quarters, b: Quarters) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        pairs(a, b, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    fn sub(self, a: Quarters, b: Quarters) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        pairs(a, b, |a, b| unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    fn mul(self, a: Quarters, b: Quarters) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        pairs(a, b, |a, b| unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    fn div(self, a: Quarters, b: Quarters) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        pairs(a, b, |a, b| unsafe { vdivq_f32(a, b) })
    }
    #[inline(always)]
    fn fma(self, a: Quarters, b: Quarters, c: Quarters) -> Quarters {
        array::from_fn(|i| self.fma_part(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn min(self, a: Quarters, b: Quarters) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        pairs(a, b, |a, b| unsafe { chosen(vcltq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn max(self, a: Quarters, b: Quarters) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        pairs(a, b, |a, b| unsafe { chosen(vcgtq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn round(self, x: Quarters) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        x.map(|x| unsafe { vrndnq_f32(x) })
    }
    #[inline(always)]
    fn power_of_two(self, n: Quarters) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        n.map(|n| unsafe { exponent(n) })
    }
    #[inline(always)]
    fn sum(self, x: Quarters) -> f32 {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { halving_sum(x) }
    }

    #[inline(always)]
    fn load_part(self, x: &Sixteen, part: usize) -> float32x4_t {
        let quarter: &[f32; 4] = &x.as_chunks().0[part];
        // SAFETY: every AArch64 machine has NEON; four readable floats.
        unsafe { vld1q_f32(quarter.as_ptr()) }
    }
    #[inline(always)]
    fn store_part(self, x: float32x4_t, out: &mut Sixteen, part: usize) {
        let quarter: &mut [f32; 4] = &mut out.as_chunks_mut().0[part];
        // SAFETY: every AArch64 machine has NEON; four writable floats.
        unsafe { vst1q_f32(quarter.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn fma_part(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn f32(self, bytes: &[u8; 64]) -> Quarters {
        // SAFETY: every AArch64 machine has NEON; sixteen readable bytes of any alignment.
        array::from_fn(|i| unsafe { vreinterpretq_f32_u8(vld1q_u8(bytes[16 * i..].as_ptr())) })
    }
    #[inline(always)]
    fn f16(self, bytes: &[u8; 32]) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        array::from_fn(|i| unsafe { widen_f16(halves(bytes, i)) })
    }
    #[inline(always)]
    fn bf16(self, bytes: &[u8; 32]) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        array::from_fn(|i| unsafe { widen_bf16(halves(bytes, i)) })
    }

    #[inline(always)]
    fn bf16_pair(self, bytes: [u8; 4]) -> (Quarters, Quarters) {
        // A bf16 is the upper half of an f32.
        let both = u32::from_le_bytes(bytes);
        let number = |bits| self.splat(f32::from_bits(bits));
        (number(both << 16), number(both & 0xffff_0000))
    }
    #[inline(always)]
    fn f16_splat(self, bytes: [u8; 2]) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        [unsafe { widen_f16(vdup_n_u16(u16::from_le_bytes(bytes))) }; 4]
    }
    #[inline(always)]
    fn palette<const BITS: usize, const EXACT: bool>(
        self,
        scale: Quarters,
        bias: Quarters,
    ) -> (float32x4_t, float32x4_t) {
        (scale[0], bias[0])
    }

    #[inline(always)]
    fn affine<const BITS: usize, const EXACT: bool>(
        self,
        (scale, bias): (float32x4_t, float32x4_t),
        block: &[u8],
        at: usize,
    ) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        let codes = unsafe { spread::<BITS>(block, at) };
        self.line::<EXACT>(self.unsigned(codes), [scale; 4], [bias; 4])
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; 16]) -> uint8x16_t {
        // SAFETY: every AArch64 machine has NEON; sixteen readable bytes.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }
    #[inline(always)]
    fn right(self, bytes: uint8x16_t, count: usize, mask: u8) -> uint8x16_t {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { vandq_u8(vshlq_u8(bytes, vdupq_n_s8(-(count as i8))), vdupq_n_u8(mask)) }
    }
    #[inline(always)]
    fn left(self, bytes: uint8x16_t, count: usize, mask: u8) -> uint8x16_t {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { vandq_u8(vshlq_u8(bytes, vdupq_n_s8(count as i8)), vdupq_n_u8(mask)) }
    }
    #[inline(always)]
    fn or(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { vorrq_u8(a, b) }
    }
    #[inline(always)]
    fn look_up(self, table: &[i8; 16], codes: uint8x16_t) -> uint8x16_t {
        // SAFETY: every AArch64 machine has NEON; sixteen readable bytes.
        unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr().cast()), codes) }
    }
    #[inline(always)]
    fn negated(self, bytes: uint8x16_t, signs: u16) -> uint8x16_t {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { negate_marked(bytes, signs) }
    }
    #[inline(always)]
    fn in_turns(self, a: uint8x16_t, b: uint8x16_t, half: usize) -> uint8x16_t {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { if half == 0 { vzip1q_u8(a, b) } else { vzip2q_u8(a, b) } }
    }
    #[inline(always)]
    fn unsigned(self, bytes: uint8x16_t) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { widen_u8(bytes) }
    }
    #[inline(always)]
    fn signed(self, bytes: uint8x16_t) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        unsafe { widen_i8(vreinterpretq_s8_u8(bytes)) }
    }

    #[inline(always)]
    fn nibbles(self, (scale, bias): (float32x4_t, float32x4_t), codes: uint8x16_t) -> Quarters {
        self.fma(self.unsigned(self.right(codes, 0, 15)), [scale; 4], [bias; 4])
    }

    #[inline(always)]
    fn ask_for_here(self, at: *const u8, into: Cache) {
        match into {
            // SAFETY: a prefetch of any address is a hint and never faults.
            Cache::First => unsafe {
                asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
            },
            // SAFETY: as above.
            Cache::Second => unsafe {
                asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
            },
        }
    }
}

/// `a` where all bits are set, `b` elsewhere.
#[target_feature(enable = "neon")]
#[inline]
fn chosen(mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(mask, a, b)
}

#[target_feature(enable = "neon")]
#[inline]
fn exponent(n: float32x4_t) -> float32x4_t {
    let biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
}

#[target_feature(enable = "neon")]
#[inline]
fn halving_sum([a, b, c, d]: Quarters) -> f32 {
    let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
}

/// Four halves of words, from half 4 · `quarter` on.
///
/// # Panics
/// If there are not so many.
#[target_feature(enable = "neon")]
#[inline]
fn halves(bytes: &[u8; 32], quarter: usize) -> uint16x4_t {
    let bytes: &[u8; 8] = bytes[8 * quarter..].first_chunk().expect("four halves");
    // SAFETY: eight readable bytes of any alignment.
    vreinterpret_u16_u8(unsafe { vld1_u8(bytes.as_ptr()) })
}

#[target_feature(enable = "neon")]
#[inline]
fn widen_f16(halves: uint16x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(halves))
}

/// A bf16 is the upper half of an f32.
#[target_feature(enable = "neon")]
#[inline]
fn widen_bf16(halves: uint16x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshll_n_u16::<16>(halves))
}

/// Lane `i` gets code `i`.
#[target_feature(enable = "neon")]
#[inline]
fn spread<const BITS: usize>(block: &[u8], at: usize) -> uint8x16_t {
    match BITS {
        2 => {
            let four: &[u8; 4] = block[at..].first_chunk().expect("a word of codes");
            let four = vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(*four)));
            // SAFETY: sixteen readable bytes.
            let picks = unsafe { vld1q_u8(PAIR_PICKS.as_ptr()) };
            // SAFETY: as above.
            let shifts = unsafe { vld1q_s8(PAIR_SHIFTS.as_ptr()) };
            vandq_u8(vshlq_u8(vqtbl1q_u8(four, picks), shifts), vdupq_n_u8(3))
        }
        4 => {
            let eight: &[u8; 8] = block[at..].first_chunk().expect("eight bytes of codes");
            // SAFETY: eight readable bytes.
            let eight = unsafe { vld1_u8(eight.as_ptr()) };
            let (low, high) = (vand_u8(eight, vdup_n_u8(15)), vshr_n_u8::<4>(eight));
            vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high))
        }
        _ => {
            let (window, start) = code_window(block, at);
            // SAFETY: sixteen readable bytes.
            let window = unsafe { vld1q_u8(window.as_ptr()) };
            let low = pick::<BITS>(window, start, 0);
            vcombine_u8(low, pick::<BITS>(window, start, 1))
        }
    }
}

/// Half of the codes of a window.
#[target_feature(enable = "neon")]
#[inline]
fn pick<const BITS: usize>(window: uint8x16_t, start: usize, half: usize) -> uint8x8_t {
    // SAFETY: sixteen readable bytes.
    let picks = unsafe { vld1q_u8(Codes::<BITS>::PICKS[start][half].as_ptr()) };
    // SAFETY: as above.
    let shifts = unsafe { vld1q_s16(Codes::<BITS>::SHIFTS[half].as_ptr()) };
    let codes = vshlq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(window, picks)), shifts);
    vmovn_u16(vandq_u16(codes, vdupq_n_u16((1 << BITS) - 1)))
}

#[target_feature(enable = "neon")]
#[inline]
fn negate_marked(bytes: uint8x16_t, signs: u16) -> uint8x16_t {
    // SAFETY: sixteen readable bytes.
    let each = unsafe { vld1q_u8(BITS_OF_BYTES.as_ptr()) };
    let [low, high] = signs.to_le_bytes();
    let own = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
    let flip = vtstq_u8(own, each);
    vsubq_u8(veorq_u8(bytes, flip), flip)
}

#[target_feature(enable = "neon")]
#[inline]
fn widen_u8(bytes: uint8x16_t) -> Quarters {
    let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
    [
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
        vcvtq_f32_u32(vmovl_high_u16(low)),
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
        vcvtq_f32_u32(vmovl_high_u16(high)),
    ]
}

#[target_feature(enable = "neon")]
#[inline]
fn widen_i8(bytes: int8x16_t) -> Quarters {
    let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
    [
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
        vcvtq_f32_s32(vmovl_high_s16(low)),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_high_s16(high)),
    ]
}
