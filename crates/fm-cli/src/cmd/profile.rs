//! `profile`: what the routers of a model choose, and what caches would make of it.

mod record;
mod replay;

use clap::{ArgMatches, Command};

pub(super) fn command() -> Command {
    Command::new("profile")
        .about("Record which experts a model uses, and try cache policies on that")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(record::command())
        .subcommand(replay::command())
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    match matches.subcommand() {
        Some(("record", matches)) => record::run(matches),
        Some(("replay", matches)) => replay::run(matches),
        _ => unreachable!("clap refuses other commands"),
    }
}
