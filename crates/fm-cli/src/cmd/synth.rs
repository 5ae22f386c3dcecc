//! `synth`: noise weights of a true geometry, so that true shapes can be measured.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, builder::PossibleValuesParser, value_parser};
use fm_engine::bytes::Bytes;
use fm_synth::{Bits, GEOMETRIES, Geometry, Progress, Synth};

use super::valued;
use crate::console::{self, Interrupt, Unit};

pub(super) fn command() -> Command {
    let names = GEOMETRIES.iter().map(|geometry| geometry.name);
    Command::new("synth")
        .about("Write a checkpoint of noise with the shapes of a real model, to measure with")
        .long_about(
            "Writes a checkpoint of noise with the shapes of a real model. It has no tokenizer: run \
             it with --prompt-tokens. Its router has the skew and repetition of a real one, and \
             greedy decoding walks the tokens 0, 1, 2, … on every engine, so that all of them see \
             the same experts.",
        )
        .arg(
            Arg::new("out")
                .value_name("OUT")
                .help("Directory to write; absent or empty")
                .required(true)
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            valued("geometry", "NAME", "Whose shapes")
                .required(true)
                .value_parser(PossibleValuesParser::new(names)),
        )
        .arg(
            valued("layers", "N", "Layers to write [default: as many as the model has]")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            valued("bits", "B", "Bits of a weight: 2, 3, 4, 5, 6, 8, or 16 for bf16")
                .default_value("4")
                .value_parser(value_parser!(u8)),
        )
        .arg(
            valued("seed", "S", "Start of the random numbers")
                .default_value("1")
                .value_parser(value_parser!(u64)),
        )
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let name: &String = matches.get_one("geometry").expect("clap requires it");
    let geometry = Geometry::by_name(name).expect("clap knows the names");
    let layers = matches.get_one("layers").copied().unwrap_or(geometry.layers);
    let bits = Bits::new(*matches.get_one("bits").expect("it has a default"))?;
    let seed = *matches.get_one("seed").expect("it has a default");
    let out: &PathBuf = matches.get_one("out").expect("clap requires it");
    let synth = Synth::new(geometry, layers, bits, seed)?;
    let bar = console::progress("writing", Unit::Bytes);
    let interrupt = Interrupt::install();
    bar.set_length(synth.bytes());
    synth.write(out, &mut |Progress { bytes_done, .. }| {
        bar.set_position(bytes_done);
        interrupt.flow()
    })?;
    bar.finish_and_clear();
    console::say!("wrote {} to {}", Bytes(synth.bytes()), out.display());
    Ok(())
}
