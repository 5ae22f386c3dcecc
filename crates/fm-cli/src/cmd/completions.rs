//! `completions`: a script by which a shell completes this command line.

use std::io::{self, Write};

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

pub(super) fn command() -> Command {
    Command::new("completions")
        .about("Print a script by which a shell completes commands and options")
        .after_help(
            "bash: flash-moe completions bash > ~/.local/share/bash-completion/completions/flash-moe\n\
             zsh:  flash-moe completions zsh > DIR/_flash-moe, with DIR in $fpath\n\
             fish: flash-moe completions fish > ~/.config/fish/completions/flash-moe.fish",
        )
        .arg(
            Arg::new("shell")
                .value_name("SHELL")
                .help("The shell")
                .required(true)
                .value_parser(value_parser!(Shell)),
        )
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let shell = *matches.get_one::<Shell>("shell").expect("clap requires it");
    let (mut command, mut script) = (super::command(), Vec::new());
    clap_complete::generate(shell, &mut command, "flash-moe", &mut script);
    io::stdout().write_all(&script)?;
    Ok(())
}
