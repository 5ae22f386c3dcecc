//! What no backend shows: blocks of activations, and scales that are powers of two.

use fm_format::quant::ggml::fp4::half_of_e8m0;

use crate::{
    cpu::{
        Cpu, Level,
        lanes::{Lanes, Work},
    },
    host::Kernels,
    reference::quantise::{BLOCK, Block},
};

/// Scales, codes and sums, of rows that end within a block, too, and of what is not finite.
#[test]
fn every_level_quantises_as_the_reference_does() {
    fn check<const LINES: usize>(device: &Cpu, row: &[f32]) {
        let mut blocks = vec![Block::<LINES>::ZERO; row.len().div_ceil(BLOCK)];
        device.kernels().quantise(row, &mut blocks);
        for (at, (block, values)) in blocks.iter().zip(row.chunks(BLOCK)).enumerate() {
            // As text: a scale that is not a number is itself.
            assert_eq!(format!("{block:?}"), format!("{:?}", Block::<LINES>::of(values)), "{at}");
        }
    }
    let mut row: Vec<f32> = (0..300).map(|i| ((i * i) as f32 * 0.37).sin() * i as f32).collect();
    row[64..128].fill(1e-38);
    row[130] = f32::NAN;
    row[200] = f32::INFINITY;
    for level in Level::all() {
        let device = Cpu::with_level(level, 1);
        for len in [0, 1, 40, 64, 65, 128, 300] {
            check::<1>(&device, &row[..len]);
            check::<2>(&device, &row[..len]);
        }
    }
}

/// Every byte of a word as half of an e8m0 scale.
struct HalfPowers<'a> {
    words: &'a [u8; 64],
    out: &'a mut [[f32; 16]; 4],
}

impl Work for HalfPowers<'_> {
    type Out = ();

    fn on<L: Lanes>(self, lanes: L) {
        for (at, out) in self.out.iter_mut().enumerate() {
            lanes.store(lanes.half_power(lanes.words(self.words), at as u32), out);
        }
    }
}

#[test]
fn every_level_knows_every_power_of_two() {
    for level in Level::all() {
        for first in (0..=255).step_by(64) {
            let words = std::array::from_fn(|i| first + i as u8);
            let mut out = [[0.0; 16]; 4];
            level.run(HalfPowers { words: &words, out: &mut out });
            for (i, byte) in words.into_iter().enumerate() {
                assert_eq!(out[i % 4][i / 4], half_of_e8m0(byte), "{level}, {byte}");
            }
        }
    }
}
