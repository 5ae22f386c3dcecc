//! Activations as integers.
//!
//! A block of 64 activations shares one scale, the largest of them over the largest code, and every
//! activation is the nearest multiple of it. `int8` has codes of ±127. `int15` has codes of ±16256,
//! written as `128 · high + low` with two numbers of 8 bits, since that is what machines multiply;
//! the idea is our own, its error on noise about 5e-5 of the result.

/// Activations that share a scale.
pub const BLOCK: usize = 64;

/// Neighbours whose sums weights ask for.
pub(crate) const RUN: usize = 16;

/// Blocks whose values are all smaller than this are zero: the inverse of the scale would overflow.
const SMALLEST: f32 = 1e-30;

/// Added to a float of at most 2^22 in size, it leaves the nearest integer in the lower bits, ties to
/// even: the sum's last bit counts ones.
const ROUNDER: f32 = 12_582_912.0;

/// 64 codes of 8 bits: a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub struct CodeLine(pub [i8; BLOCK]);

/// A block: one line of codes, or two, the high ones first.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Block<const LINES: usize> {
    /// Value of code 1. It is not a number if one of the values was not finite.
    pub scale: f32,
    /// Sums of the codes of every 16, then of every 32, then of all.
    sums: [i32; 7],
    /// The same times the scale.
    scaled_sums: [f32; 7],
    /// The codes.
    pub codes: [CodeLine; LINES],
}

impl<const LINES: usize> Block<LINES> {
    /// All zeros.
    pub const ZERO: Self = Self {
        scale: 0.0,
        sums: [0; 7],
        scaled_sums: [0.0; 7],
        codes: [CodeLine([0; BLOCK]); LINES],
    };

    /// The largest code.
    const CODE_MAX: f32 = if LINES == 2 { 127.0 * 128.0 } else { 127.0 };

    /// Up to [`BLOCK`] values, filled up with zeros.
    pub fn of(values: &[f32]) -> Self {
        let mut x = [0.0; BLOCK];
        x[..values.len()].copy_from_slice(values);
        let (scale, inverse) = Self::scale_of(&x);
        let mut codes = [0; BLOCK];
        if let Some(inverse) = inverse {
            codes = x.map(|x| nearest(x * inverse));
        }
        let mut sums = [0; BLOCK / RUN];
        for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<RUN>().0) {
            *sum = codes.iter().sum();
        }
        Self::of_codes(scale, &codes, sums)
    }

    /// The scale of a block and what its values are multiplied with; `None` if all codes are zero.
    #[inline(always)]
    pub(crate) fn scale_of(x: &[f32; BLOCK]) -> (f32, Option<f32>) {
        // What is not finite is larger than all that is, as bits, too.
        let mut largest = 0;
        for x in x {
            largest = largest.max(x.to_bits() & 0x7fff_ffff);
        }
        let largest = f32::from_bits(largest);
        if (SMALLEST..=f32::MAX).contains(&largest) {
            return (largest / Self::CODE_MAX, Some(Self::CODE_MAX / largest));
        }
        (if largest < SMALLEST { 0.0 } else { f32::NAN }, None)
    }

    /// A block of these codes, with their sums of every [`RUN`].
    #[inline(always)]
    pub(crate) fn of_codes(scale: f32, codes: &[i32; BLOCK], sums: [i32; BLOCK / RUN]) -> Self {
        let [a, b, c, d] = sums;
        let sums = [a, b, c, d, a + b, c + d, a + b + c + d];
        let mut block = Self { scale, sums, ..Self::ZERO };
        // Loops, not closures: kernels compile this for the instructions at hand.
        for (scaled, sum) in block.scaled_sums.iter_mut().zip(block.sums) {
            *scaled = sum as f32 * scale;
        }
        if let [high, low] = &mut block.codes[..] {
            for (i, code) in codes.iter().enumerate() {
                let above = (code + 64) >> 7;
                high.0[i] = above as i8;
                low.0[i] = (code - (above << 7)) as i8;
            }
        } else {
            for (i, code) in codes.iter().enumerate() {
                block.codes[0].0[i] = *code as i8;
            }
        }
        block
    }

    /// Where the sums of runs of `len` begin.
    const fn first_sum(len: usize) -> usize {
        match len {
            RUN => 0,
            BLOCK => BLOCK / RUN + 2,
            _ => BLOCK / RUN,
        }
    }

    /// Sum of the codes of run `index` of the runs of `len`, which is 16, 32 or 64.
    #[inline(always)]
    pub fn sum(&self, len: usize, index: usize) -> i32 {
        self.sums[Self::first_sum(len) + index]
    }

    /// The same times the scale.
    #[inline(always)]
    pub fn scaled_sum(&self, len: usize, index: usize) -> f32 {
        self.scaled_sums[Self::first_sum(len) + index]
    }

    /// The value that code `i` stands for.
    pub fn value(&self, i: usize) -> f32 {
        let code = self.codes.iter().fold(0, |code, line| code * 128 + i32::from(line.0[i]));
        code as f32 * self.scale
    }
}

/// The nearest integer to a float of at most 2^22 in size, ties to even.
#[inline(always)]
pub(crate) fn nearest(x: f32) -> i32 {
    (x + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()) as i32
}

/// The blocks of a row.
///
/// # Panics
/// If there is no room for them.
pub fn quantise<const LINES: usize>(row: &[f32], blocks: &mut [Block<LINES>]) {
    assert_eq!(blocks.len(), row.len().div_ceil(BLOCK), "room for a row");
    for (values, block) in row.chunks(BLOCK).zip(blocks) {
        *block = Block::of(values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, size: f32) -> Vec<f32> {
        (0..len).map(|i| ((i + 1) as f32 * 1.37).sin() * size).collect()
    }

    fn check<const LINES: usize>(codes: f32) {
        for (len, size) in [(64, 1.0), (64, 3e8), (64, 2e-20), (40, 1.0), (1, 5.0), (0, 1.0)] {
            let x = noise(len, size);
            let block = Block::<LINES>::of(&x);
            let largest = x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            for i in 0..BLOCK {
                let (want, got) = (x.get(i).copied().unwrap_or(0.0), block.value(i));
                // Half a code, and the rounding of scale and product.
                assert!((want - got).abs() <= largest * (0.5 / codes + 2e-7), "{want} {got}");
            }
            let code = |i: usize| {
                block.codes.iter().fold(0, |code, line| code * 128 + i32::from(line.0[i]))
            };
            let sum = |from: usize, len: usize| (from..from + len).map(code).sum::<i32>();
            for at in 0..4 {
                assert_eq!(block.sum(16, at), sum(at * 16, 16));
                assert_eq!(block.sum(32, at / 2), sum(at / 2 * 32, 32));
            }
            assert_eq!(block.sum(64, 0), sum(0, 64));
            assert_eq!(block.scaled_sum(64, 0), sum(0, 64) as f32 * block.scale);
            assert_eq!(block.scaled_sum(32, 1), sum(32, 32) as f32 * block.scale);
            assert_eq!(block.scaled_sum(16, 3), sum(48, 16) as f32 * block.scale);
        }
    }

    #[test]
    fn a_value_is_at_most_half_a_code_off() {
        check::<1>(127.0);
        check::<2>(16256.0);
    }

    #[test]
    fn the_largest_value_gets_the_largest_code() {
        let mut x = noise(64, 0.5);
        x[17] = -1.0;
        assert_eq!(Block::<2>::of(&x).codes.map(|line| line.0[17]), [-127, 0]);
        assert_eq!(Block::<1>::of(&x).codes[0].0[17], -127);
    }

    #[test]
    fn what_is_not_finite_does_not_vanish() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = noise(64, 0.5);
            x[40] = bad;
            assert!(Block::<1>::of(&x).scale.is_nan());
            assert!(Block::<2>::of(&x).scale.is_nan());
            assert!(Block::<2>::of(&x).scaled_sum(16, 0).is_nan());
        }
        assert_eq!(Block::<2>::of(&[1e-38; 64]), Block::ZERO);
    }
}
