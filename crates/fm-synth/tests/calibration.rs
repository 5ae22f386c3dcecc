//! The figures in the documentation of `fm_synth::tape`, from the weights as they are written.

#![allow(clippy::unwrap_used)] // a panic is how a test reports a problem

use fm_synth::{
    Bits, Geometry,
    tape::{Repetition, Tape},
};

fn figures(name: &str, bits: u8, layers: usize) -> Repetition {
    let geometry = Geometry::by_name(name).unwrap();
    let tape = Tape::new(geometry, Bits::new(bits).unwrap(), 1);
    let tokens: Vec<u32> = (0..tape.steps() as u32).collect();
    let layers: Vec<Repetition> = (0..layers)
        .map(|layer| Repetition::measure(&tape.routes(layer, &tokens), geometry.experts))
        .collect();
    Repetition::mean(&layers)
}

/// Layers the documented figures are means over: one alone may be 0.6 % off.
const LAYERS: usize = 8;
/// Figures are given in tenths of a percent.
const ROUNDING: f64 = 0.0006;

#[test]
fn repetition_is_what_the_documentation_says() {
    let documented = [
        ("qwen3-30b", [0.265, 0.112, 0.087, 0.464]),
        ("qwen3.5-35b", [0.265, 0.073, 0.048, 0.506]),
        ("qwen3-next-80b", [0.264, 0.055, 0.034, 0.537]),
    ];
    for (name, expected) in documented {
        let Repetition { lag_1, lag_8, lag_64, top_quarter } = figures(name, 4, LAYERS);
        for (found, expected) in [lag_1, lag_8, lag_64, top_quarter].iter().zip(expected) {
            assert!((found - expected).abs() < ROUNDING, "{name}: {found}, not {expected}");
        }
    }
}

#[test]
fn few_bits_keep_the_repetition() {
    let (few, all) = (figures("qwen3-next-80b", 2, LAYERS), figures("qwen3-next-80b", 16, LAYERS));
    assert!((few.lag_1 - all.lag_1).abs() < 0.01, "{few:?} {all:?}");
    assert!((few.lag_64 - all.lag_64).abs() < 0.002, "{few:?} {all:?}");
    assert!((few.top_quarter - all.top_quarter).abs() < 0.002, "{few:?} {all:?}");
}

#[test]
fn shuffled_steps_keep_the_skew_and_lose_the_repetition() {
    let geometry = Geometry::by_name("qwen3.5-35b").unwrap();
    let tape = Tape::new(geometry, Bits::new(4).unwrap(), 1);
    let steps = tape.steps() as u32;
    let tokens: Vec<u32> = (0..steps).map(|step| step * 1031 % steps).collect();
    let found = Repetition::measure(&tape.routes(0, &tokens), geometry.experts);
    assert!((0.04..0.06).contains(&found.lag_1), "{found:?}"); // peers.md §6: 4.9 %
    assert!((found.top_quarter - 0.506).abs() < 0.01, "{found:?}");
}
