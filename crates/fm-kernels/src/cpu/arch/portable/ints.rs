//! Integer lanes in plain Rust.

use std::array;

use fm_format::quant::ggml::fp4::half_of_e8m0;
use half::{bf16, f16};

use crate::cpu::{
    ints::{HalfLine, Ints, Line},
    lanes::{LANES, Sixteen},
};

use super::Portable;

/// Sixteen words.
type Words = [u32; LANES];

impl Ints for Portable {
    type F = Sixteen;
    type I = Words;
    type Dots = Words;

    #[inline(always)]
    fn words(self, line: &Line) -> Words {
        let (words, _) = line.as_chunks();
        array::from_fn(|i| u32::from_le_bytes(words[i]))
    }
    #[inline(always)]
    fn store_words(self, words: Words, line: &mut Line) {
        for (stored, word) in line.as_chunks_mut().0.iter_mut().zip(words) {
            *stored = word.to_le_bytes();
        }
    }
    #[inline(always)]
    fn half_words(self, line: &HalfLine) -> Words {
        let (halves, _) = line.as_chunks();
        array::from_fn(|i| u32::from(u16::from_le_bytes(halves[i])))
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Words {
        [x as u32; LANES]
    }
    #[inline(always)]
    fn field(self, words: Words, count: u32, mask: u8) -> Words {
        words.map(|word| word >> count & u32::from_ne_bytes([mask; 4]))
    }
    #[inline(always)]
    fn shifted(self, words: Words, count: i32, mask: u32) -> Words {
        words.map(|word| if count < 0 { word << -count } else { word >> count } & mask)
    }
    #[inline(always)]
    fn moved(self, words: Words, from: u32, to: u32, mask: u8) -> Words {
        let mask = u32::from_ne_bytes([mask; 4]);
        words.map(|word| word.rotate_right(from.wrapping_sub(to) & 31) & mask)
    }
    #[inline(always)]
    fn mapped(self, table: &[u8; 16], codes: Words) -> Words {
        let value = |code: u8| table[usize::from(code & 15)];
        codes.map(|word| u32::from_le_bytes(word.to_le_bytes().map(value)))
    }
    #[inline(always)]
    fn union(self, a: Words, b: Words) -> Words {
        array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn dots(self, start: Words) -> Words {
        start
    }
    /// Products of a code and an activation fit 16 bits, for which every baseline has a multiplication.
    #[inline(always)]
    fn dot(self, _: u8, codes: Words, x: [i8; 4], mut sum: Words) -> Words {
        for (at, x) in x.into_iter().enumerate() {
            let codes: [i16; LANES] = array::from_fn(|i| (codes[i] >> (8 * at) & 0xff) as i16);
            for (sum, code) in sum.iter_mut().zip(codes) {
                *sum = sum.wrapping_add(i32::from(code * i16::from(x)) as u32);
            }
        }
        sum
    }
    #[inline(always)]
    fn dots_words(self, dots: Words) -> Words {
        dots
    }
    #[inline(always)]
    fn sum_words(self, a: Words, b: Words) -> Words {
        array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn join(self, high: Words, low: Words) -> Words {
        array::from_fn(|i| (high[i] << 7).wrapping_add(low[i]))
    }
    #[inline(always)]
    fn to_float(self, x: Words) -> Sixteen {
        x.map(|x| x as i32 as f32)
    }
    #[inline(always)]
    fn byte(self, words: Words, at: u32) -> Sixteen {
        words.map(|word| f32::from((word >> (8 * at)) as u8))
    }
    #[inline(always)]
    fn signed_byte(self, words: Words, at: u32) -> Sixteen {
        words.map(|word| f32::from((word >> (8 * at)) as i8))
    }
    #[inline(always)]
    fn half_power(self, words: Words, at: u32) -> Sixteen {
        words.map(|word| half_of_e8m0((word >> (8 * at)) as u8))
    }
    #[inline(always)]
    fn f16_halves(self, words: Words) -> (Sixteen, Sixteen) {
        let float = |bits: u32| f16::from_bits(bits as u16).to_f32();
        (words.map(float), words.map(|word| float(word >> 16)))
    }
    #[inline(always)]
    fn bf16_halves(self, words: Words) -> (Sixteen, Sixteen) {
        let float = |bits: u32| bf16::from_bits(bits as u16).to_f32();
        (words.map(float), words.map(|word| float(word >> 16)))
    }
}
