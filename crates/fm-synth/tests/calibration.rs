//! The figures in the documentation of `fm_synth::tape`.

use fm_synth::{Bits, GEOMETRIES, Geometry, tape::{Repetition, Tape}};

fn figures(geometry: &Geometry, bits: u8, layers: usize) -> Repetition {
    let tape = Tape::new(geometry, Bits::new(bits).unwrap(), 1);
    let tokens: Vec<u32> = (0..tape.steps() as u32).collect();
    let layers: Vec<Repetition> = (0..layers)
        .map(|layer| Repetition::measure(&tape.routes(layer, &tokens), geometry.experts))
        .collect();
    Repetition::mean(&layers)
}

#[test]
#[ignore]
fn scan() {
    for name in ["qwen3-30b", "qwen3.5-35b", "qwen3.5-397b"] {
        let geometry = Geometry::by_name(name).unwrap();
        let alphas: &[f64] = match geometry.experts { 128 => &[0.48, 0.5, 0.52, 0.54], 256 => &[0.69, 0.708, 0.72], _ => &[0.78, 0.8, 0.82, 0.84] };
        for alpha in alphas {
            let g = Geometry { tape_alpha: *alpha, ..geometry.clone() };
            println!("{name} {alpha} {:?}", figures(&g, 16, 4));
        }
    }
}
