//! Integer lanes of NEON.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::{
    arch::{aarch64::*, asm},
    array,
};

use crate::cpu::ints::{HalfLine, Ints, Line};

use super::{Neon, Quarters, halves, widen_f16};

/// Four registers of four words.
type Words = [uint32x4_t; 4];

/// `op` on every quarter.
#[inline(always)]
fn pairs(a: Words, b: Words, op: impl Fn(uint32x4_t, uint32x4_t) -> uint32x4_t) -> Words {
    array::from_fn(|i| op(a[i], b[i]))
}

impl Ints for Neon {
    type F = Quarters;
    type I = Words;
    type Dots = Words;

    const SUMS: usize = 16;
    const TURNS: usize = 2;

    #[inline(always)]
    fn words(self, line: &Line) -> Words {
        // SAFETY: every AArch64 machine has NEON; sixteen readable bytes of any alignment.
        array::from_fn(|i| unsafe { vreinterpretq_u32_u8(vld1q_u8(line[16 * i..].as_ptr())) })
    }
    #[inline(always)]
    fn store_words(self, words: Words, line: &mut Line) {
        for (words, bytes) in words.into_iter().zip(line.as_chunks_mut::<16>().0) {
            // SAFETY: every AArch64 machine has NEON; sixteen writable bytes of any alignment.
            unsafe { vst1q_u8(bytes.as_mut_ptr(), vreinterpretq_u8_u32(words)) };
        }
    }
    #[inline(always)]
    fn half_words(self, line: &HalfLine) -> Words {
        // SAFETY: every AArch64 machine has NEON.
        array::from_fn(|i| unsafe { vmovl_u16(halves(line, i)) })
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Words {
        // SAFETY: every AArch64 machine has NEON.
        [unsafe { vdupq_n_u32(x.cast_unsigned()) }; 4]
    }
    #[inline(always)]
    fn field(self, words: Words, count: u32, mask: u8) -> Words {
        self.shifted(words, count as i32, u32::from_ne_bytes([mask; 4]))
    }
    #[inline(always)]
    fn shifted(self, words: Words, count: i32, mask: u32) -> Words {
        // SAFETY: every AArch64 machine has NEON.
        words.map(|words| unsafe { shifted(words, count, mask) })
    }
    #[inline(always)]
    fn moved(self, words: Words, from: u32, to: u32, mask: u8) -> Words {
        self.shifted(words, from as i32 - to as i32, u32::from_ne_bytes([mask; 4]))
    }
    #[inline(always)]
    fn mapped(self, table: &[u8; 16], codes: Words) -> Words {
        // SAFETY: every AArch64 machine has NEON; sixteen readable bytes.
        let table = unsafe { vld1q_u8(table.as_ptr()) };
        // SAFETY: every AArch64 machine has NEON.
        codes.map(|codes| unsafe { mapped(table, codes) })
    }
    #[inline(always)]
    fn union(self, a: Words, b: Words) -> Words {
        // SAFETY: every AArch64 machine has NEON.
        pairs(a, b, |a, b| unsafe { vorrq_u32(a, b) })
    }
    #[inline(always)]
    fn dots(self, start: Words) -> Words {
        start
    }
    #[inline(always)]
    fn dot(self, max: u8, codes: Words, x: [i8; 4], sum: Words) -> Words {
        let four = u32::from_le_bytes(x.map(i8::cast_unsigned));
        // SAFETY: every AArch64 machine has NEON.
        let four = unsafe { vdupq_n_u32(four) };
        if max > 127 {
            // The instruction wants signs: codes are moved down by 128, and the sum of what they were
            // short of is added again.
            let short = x.into_iter().map(i32::from).sum::<i32>() * 128;
            let sum = self.sum_words(sum, self.splat_int(short));
            let all = self.splat_int(i32::from_ne_bytes([0x80; 4]));
            // SAFETY: every AArch64 machine has NEON.
            let codes = pairs(codes, all, |codes, upper| unsafe { veorq_u32(codes, upper) });
            pairs(codes, sum, |codes, sum| self.signed_dot(codes, four, sum))
        } else {
            pairs(codes, sum, |codes, sum| self.signed_dot(codes, four, sum))
        }
    }
    #[inline(always)]
    fn dots_words(self, dots: Words) -> Words {
        dots
    }
    #[inline(always)]
    fn sum_words(self, a: Words, b: Words) -> Words {
        // SAFETY: every AArch64 machine has NEON.
        pairs(a, b, |a, b| unsafe { vaddq_u32(a, b) })
    }
    #[inline(always)]
    fn join(self, high: Words, low: Words) -> Words {
        // SAFETY: every AArch64 machine has NEON.
        pairs(high, low, |high, low| unsafe { vaddq_u32(vshlq_n_u32::<7>(high), low) })
    }
    #[inline(always)]
    fn to_float(self, x: Words) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        x.map(|x| unsafe { vcvtq_f32_s32(vreinterpretq_s32_u32(x)) })
    }
    #[inline(always)]
    fn byte(self, words: Words, at: u32) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        words.map(|words| unsafe { vcvtq_f32_u32(shifted(words, 8 * at as i32, 0xff)) })
    }
    #[inline(always)]
    fn signed_byte(self, words: Words, at: u32) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        words.map(|words| unsafe { signed_byte(words, at) })
    }
    #[inline(always)]
    fn half_power(self, words: Words, at: u32) -> Quarters {
        // SAFETY: every AArch64 machine has NEON.
        words.map(|words| unsafe { half_power(shifted(words, 8 * at as i32, 0xff)) })
    }
    #[inline(always)]
    fn f16_halves(self, words: Words) -> (Quarters, Quarters) {
        // SAFETY: every AArch64 machine has NEON.
        let low = words.map(|words| unsafe { widen_f16(vmovn_u32(words)) });
        // SAFETY: as above.
        (low, words.map(|words| unsafe { widen_f16(vshrn_n_u32::<16>(words)) }))
    }
    #[inline(always)]
    fn bf16_halves(self, words: Words) -> (Quarters, Quarters) {
        let low = self.shifted(words, -16, u32::MAX);
        let high = self.shifted(words, 0, 0xffff_0000);
        // SAFETY: every AArch64 machine has NEON.
        let float = |words| unsafe { vreinterpretq_f32_u32(words) };
        (low.map(float), high.map(float))
    }
}

impl Neon {
    /// `sum + Σ codes[i] · x[i]` over the four bytes of every word, all with signs.
    #[inline(always)]
    fn signed_dot(self, codes: uint32x4_t, x: uint32x4_t, mut sum: uint32x4_t) -> uint32x4_t {
        // SAFETY: `self` proves the dot product, which touches these registers only. Its intrinsic is
        // not stable yet, and the assembler knows the instruction only where it is told to.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sum:v}.4s, {codes:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum,
                codes = in(vreg) codes,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }
}

/// A shift by a negative count moves to the right, so that ours has the other sign.
#[inline]
#[target_feature(enable = "neon")]
fn shifted(words: uint32x4_t, count: i32, mask: u32) -> uint32x4_t {
    vandq_u32(vshlq_u32(words, vdupq_n_s32(-count)), vdupq_n_u32(mask))
}

#[inline]
#[target_feature(enable = "neon")]
fn mapped(table: uint8x16_t, codes: uint32x4_t) -> uint32x4_t {
    vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(codes)))
}

#[inline]
#[target_feature(enable = "neon")]
fn signed_byte(words: uint32x4_t, at: u32) -> float32x4_t {
    let top = vshlq_u32(words, vdupq_n_s32(24 - 8 * at as i32));
    vcvtq_f32_s32(vshrq_n_s32::<24>(vreinterpretq_s32_u32(top)))
}

/// For a byte in every word.
#[inline]
#[target_feature(enable = "neon")]
fn half_power(byte: uint32x4_t) -> float32x4_t {
    let (byte, one) = (vreinterpretq_s32_u32(byte), vdupq_n_s32(1));
    // An exponent from 2 on, and below that the bits of a fraction, which are fewer.
    let normal = vshlq_n_s32::<23>(vsubq_s32(byte, one));
    let denormal = vshlq_n_s32::<21>(vaddq_s32(vminq_s32(byte, one), one));
    vreinterpretq_f32_s32(vmaxq_s32(normal, denormal))
}
