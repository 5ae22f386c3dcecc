//! Plain Rust for every machine; the compiler vectorises it for the baseline of its target.

use std::{array, convert::Infallible};

use fm_format::quant::fp8;
use half::{bf16, f16};

use crate::cpu::lanes::{Cache, LANES, Lanes, Sixteen, Work};

mod ints;

/// Needs nothing.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Portable;

/// Whether the baseline of the target has a fused multiply-add; without one it would be a call
/// into the C library for every weight.
pub(in crate::cpu) const FUSED: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn pairs(a: Sixteen, b: Sixteen, op: impl Fn(f32, f32) -> f32) -> Sixteen {
    array::from_fn(|i| op(a[i], b[i]))
}

impl Lanes for Portable {
    type Tiles = Infallible;
    type Part = [f32; 4];
    type Palette = (f32, f32);
    type Bytes = [u8; 16];

    const PARTS: usize = 4;
    const CHAINS: usize = 12;
    const ASKS: bool = false;
    const PRODUCTS_PER_FORMAT: bool = false;

    fn tiles(self) -> Option<Infallible> {
        None
    }

    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Out {
        work.on(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Sixteen {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &Sixteen) -> Sixteen {
        *x
    }
    #[inline(always)]
    fn store(self, x: Sixteen, out: &mut Sixteen) {
        *out = x;
    }

    #[inline(always)]
    fn add(self, a: Sixteen, b: Sixteen) -> Sixteen {
        pairs(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Sixteen, b: Sixteen) -> Sixteen {
        pairs(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Sixteen, b: Sixteen) -> Sixteen {
        pairs(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Sixteen, b: Sixteen) -> Sixteen {
        pairs(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Sixteen, b: Sixteen, c: Sixteen) -> Sixteen {
        array::from_fn(|i| multiply_add(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn min(self, a: Sixteen, b: Sixteen) -> Sixteen {
        pairs(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Sixteen, b: Sixteen) -> Sixteen {
        pairs(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn round(self, x: Sixteen) -> Sixteen {
        /// Adding it leaves no bits for a fraction, for magnitudes up to 2^22.
        const NO_FRACTION: f32 = 12_582_912.0; // 1.5 · 2^23
        x.map(|x| (x + NO_FRACTION) - NO_FRACTION)
    }
    #[inline(always)]
    fn power_of_two(self, n: Sixteen) -> Sixteen {
        n.map(|n| f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    fn sum(self, x: Sixteen) -> f32 {
        let eight: [f32; 8] = array::from_fn(|i| x[i] + x[i + 8]);
        let four: [f32; 4] = array::from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    fn load_part(self, x: &Sixteen, part: usize) -> [f32; 4] {
        x.as_chunks().0[part]
    }
    #[inline(always)]
    fn store_part(self, x: [f32; 4], out: &mut Sixteen, part: usize) {
        out.as_chunks_mut().0[part] = x;
    }
    #[inline(always)]
    fn fma_part(self, a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        array::from_fn(|i| multiply_add(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn f32(self, bytes: &[u8; 64]) -> Sixteen {
        let (values, _) = bytes.as_chunks::<4>();
        array::from_fn(|i| f32::from_le_bytes(values[i]))
    }
    #[inline(always)]
    fn f16(self, bytes: &[u8; 32]) -> Sixteen {
        let (values, _) = bytes.as_chunks::<2>();
        array::from_fn(|i| f16::from_le_bytes(values[i]).to_f32())
    }
    #[inline(always)]
    fn bf16(self, bytes: &[u8; 32]) -> Sixteen {
        let (values, _) = bytes.as_chunks::<2>();
        array::from_fn(|i| bf16::from_le_bytes(values[i]).to_f32())
    }
    #[inline(always)]
    fn e4m3(self, codes: &[u8; 16]) -> Sixteen {
        codes.map(fp8::e4m3)
    }

    #[inline(always)]
    fn bf16_pair(self, [a, b, c, d]: [u8; 4]) -> (Sixteen, Sixteen) {
        let number = |bytes| self.splat(bf16::from_le_bytes(bytes).to_f32());
        (number([a, b]), number([c, d]))
    }
    #[inline(always)]
    fn f16_splat(self, bytes: [u8; 2]) -> Sixteen {
        self.splat(f16::from_le_bytes(bytes).to_f32())
    }
    #[inline(always)]
    fn palette<const BITS: usize, const EXACT: bool>(
        self,
        scale: Sixteen,
        bias: Sixteen,
    ) -> (f32, f32) {
        (scale[0], bias[0])
    }
    #[inline(always)]
    fn affine<const BITS: usize, const EXACT: bool>(
        self,
        (scale, bias): (f32, f32),
        block: &[u8],
        at: usize,
    ) -> Sixteen {
        let mut bytes = [0; 16];
        bytes[..2 * BITS].copy_from_slice(&block[at..][..2 * BITS]);
        let stream = u128::from_le_bytes(bytes);
        array::from_fn(|i| {
            let code = (stream >> (i * BITS)) as u32 & ((1 << BITS) - 1);
            code as f32 * scale + bias
        })
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; 16]) -> [u8; 16] {
        *bytes
    }
    #[inline(always)]
    fn right(self, bytes: [u8; 16], count: usize, mask: u8) -> [u8; 16] {
        bytes.map(|byte| byte >> count & mask)
    }
    #[inline(always)]
    fn left(self, bytes: [u8; 16], count: usize, mask: u8) -> [u8; 16] {
        bytes.map(|byte| byte << count & mask)
    }
    #[inline(always)]
    fn or(self, a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
        array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn look_up(self, table: &[i8; 16], codes: [u8; 16]) -> [u8; 16] {
        codes.map(|code| table[usize::from(code & 15)].cast_unsigned())
    }
    #[inline(always)]
    fn negated(self, bytes: [u8; 16], signs: u16) -> [u8; 16] {
        array::from_fn(|i| if signs >> i & 1 == 1 { bytes[i].wrapping_neg() } else { bytes[i] })
    }
    #[inline(always)]
    fn in_turns(self, a: [u8; 16], b: [u8; 16], half: usize) -> [u8; 16] {
        array::from_fn(|i| if i % 2 == 0 { a[8 * half + i / 2] } else { b[8 * half + i / 2] })
    }
    #[inline(always)]
    fn unsigned(self, bytes: [u8; 16]) -> Sixteen {
        bytes.map(f32::from)
    }
    #[inline(always)]
    fn signed(self, bytes: [u8; 16]) -> Sixteen {
        bytes.map(|byte| f32::from(byte.cast_signed()))
    }

    #[inline(always)]
    fn nibbles(self, (scale, bias): (f32, f32), codes: [u8; 16]) -> Sixteen {
        codes.map(|code| f32::from(code & 15) * scale + bias)
    }

    #[inline(always)]
    fn ask_for_here(self, _: *const u8, _: Cache) {}
}
