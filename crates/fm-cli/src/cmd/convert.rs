//! `convert`: a published checkpoint into flash-moe's container.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use fm_convert::{BUFFER_BYTES, Conversion, Outcome, Progress};
use fm_engine::bytes::Bytes;

use super::{model_arg, model_path};
use crate::console::{self, Interrupt, Unit};

pub(super) fn command() -> Command {
    Command::new("convert")
        .about("Repack a checkpoint so that experts are read in one piece, with checksums")
        .long_about(
            "Repacks a checkpoint into a container (docs/container.md): every expert is one aligned \
             piece with checksums, so reads are direct and every wrong bit is caught. The checkpoint \
             is not changed. Interrupted, the same command goes on where it stopped.",
        )
        .arg(model_arg())
        .arg(
            Arg::new("out")
                .value_name("OUT")
                .help("Directory to write; absent, empty, or an interrupted conversion")
                .required(true)
                .value_parser(value_parser!(PathBuf)),
        )
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let out: &PathBuf = matches.get_one("out").expect("clap requires it");
    let checkpoint = &model_path(matches)?;
    let conversion = Conversion { checkpoint, out, buffer_bytes: BUFFER_BYTES };
    let bar = console::progress("converting", Unit::Bytes);
    let interrupt = Interrupt::install();
    let outcome = conversion.run(&mut |Progress { phase, bytes_done, bytes_total, .. }| {
        bar.set_length(bytes_total);
        bar.set_position(bytes_done);
        bar.set_message(phase.to_string());
        interrupt.flow()
    })?;
    bar.finish_and_clear();
    match outcome {
        Outcome::AlreadyDone => console::say!(
            "{0} was complete already; `flash-moe verify {0}` reads whether its bytes are what was written",
            out.display()
        ),
        Outcome::Converted { bytes, bytes_resumed: 0 } => {
            console::say!("wrote {} to {}", Bytes(bytes), out.display());
        }
        Outcome::Converted { bytes, bytes_resumed } => console::say!(
            "wrote {} to {}; {} of it stood there from before",
            Bytes(bytes),
            out.display(),
            Bytes(bytes_resumed)
        ),
    }
    Ok(())
}
