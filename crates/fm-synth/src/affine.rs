//! MLX affine groups made of noise: `weight = code · scale + bias`, codes drawn as random bits.
//!
//! Codes are uniform, not Gaussian: matrix products of such weights are Gaussian all the same, and
//! the bytes cost one random word per eight. Scales differ from group to group by up to 15 % and
//! biases by 3 % of the weights' deviation, so that a kernel that takes the wrong group's is seen.

use half::bf16;

use crate::error::SynthError;

/// Weights that share a scale and a bias.
pub(crate) const GROUP: usize = 64;

/// Width of the weights: affine codes of 2, 3, 4, 5, 6 or 8 bits, or plain bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits(u8);

impl Bits {
    /// What routers and shared expert gates are packed in, as mlx-lm insists.
    pub(crate) const ROUTER: Self = Self(8);

    /// # Errors
    /// If there is no published layout of that width.
    pub fn new(bits: u8) -> Result<Self, SynthError> {
        match bits {
            2 | 3 | 4 | 5 | 6 | 8 | 16 => Ok(Self(bits)),
            _ => Err(SynthError::Bits { bits }),
        }
    }

    /// Whether weights are bf16 in the layout of Hugging Face, not packed in that of MLX.
    pub fn is_plain(self) -> bool {
        self.0 == 16
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }

    /// Bytes of `weights` codes (or plain weights).
    pub(crate) fn code_bytes(self, weights: usize) -> usize {
        weights * usize::from(self.0) / 8
    }

    /// Half of the largest code.
    pub(crate) fn middle(self) -> f32 {
        f32::from((1_u16 << self.0) - 1) / 2.0
    }
}

/// Scale and bias of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupHead {
    pub(crate) scale: bf16,
    pub(crate) bias: bf16,
}

impl GroupHead {
    /// A group of zeros, whatever its codes.
    pub(crate) const SILENT: Self = Self { scale: bf16::ZERO, bias: bf16::ZERO };

    /// Codes stand for weights on both sides of zero, `scale` apart.
    pub(crate) fn symmetric(scale: f32, bits: Bits) -> Self {
        let scale = bf16::from_f32(scale);
        Self { scale, bias: bf16::from_f32(-bits.middle() * scale.to_f32()) }
    }

    /// What a code stands for, rounded as a reader does.
    pub(crate) fn weight(self, code: u8) -> f32 {
        f32::from(code) * self.scale.to_f32() + self.bias.to_f32()
    }
}

/// Heads that random codes of a given deviation may have.
pub(crate) fn noise_heads(deviation: f64, bits: Bits) -> [GroupHead; 16] {
    let codes = f64::from(1_u16 << bits.0);
    let deviation_of_codes = ((codes * codes - 1.0) / 12.0).sqrt();
    std::array::from_fn(|at| {
        let scale = deviation / deviation_of_codes * (0.85 + 0.02 * at as f64);
        let shift = deviation * if at % 2 == 0 { 0.03 } else { -0.03 };
        let bias = -f64::from(bits.middle()) * scale + shift;
        GroupHead { scale: bf16::from_f64(scale), bias: bf16::from_f64(bias) }
    })
}

/// 256 evenly spaced weights of a given deviation: what a random byte stands for in bf16.
pub(crate) fn noise_floats(deviation: f64) -> [bf16; 256] {
    let step = deviation / (f64::from(u16::MAX) / 12.0).sqrt();
    std::array::from_fn(|at| bf16::from_f64((at as f64 - 127.5) * step))
}

/// Packs one group's codes, LSB first, into `out` of `code_bytes(GROUP)` bytes.
pub(crate) fn pack(codes: &[u8], bits: Bits, out: &mut [u8]) {
    let (mut window, mut filled) = (0_u32, 0);
    let mut out = out.iter_mut();
    for code in codes {
        window |= u32::from(*code) << filled;
        filled += bits.0;
        while filled >= 8 {
            *out.next().expect("a group of codes is whole bytes") = window as u8;
            window >>= 8;
            filled -= 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fm_format::quant::affine::decode;

    #[test]
    fn a_reader_unpacks_what_was_packed() {
        let codes: Vec<u8> = (0..GROUP as u8).map(|at| at.wrapping_mul(37) & 31).collect();
        let head = GroupHead::symmetric(0.25, Bits(5));
        let mut block = [head.scale.to_le_bytes(), head.bias.to_le_bytes()].concat();
        block.resize(4 + Bits(5).code_bytes(GROUP), 0);
        pack(&codes, Bits(5), &mut block[4..]);
        let mut weights = [0.0; GROUP];
        decode::<5, false>(&block, &mut weights);
        let expected: Vec<f32> = codes.iter().map(|code| head.weight(*code)).collect();
        assert_eq!(weights.as_slice(), expected);
    }

    #[test]
    fn noise_has_the_deviation_asked_for() {
        for bits in [2, 3, 4, 5, 6, 8].map(Bits) {
            let heads = noise_heads(0.5, bits);
            let codes = 0..=((1_u16 << bits.0) - 1) as u8;
            let weights: Vec<f64> = heads
                .iter()
                .flat_map(|head| codes.clone().map(|code| f64::from(head.weight(code))))
                .collect();
            let mean = weights.iter().sum::<f64>() / weights.len() as f64;
            let square = weights.iter().map(|w| w * w).sum::<f64>() / weights.len() as f64;
            assert!(mean.abs() < 0.003, "{bits:?}: {mean}");
            assert!((square.sqrt() - 0.5).abs() < 0.01, "{bits:?}: {square}");
        }
    }
}
