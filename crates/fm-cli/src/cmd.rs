//! One file per command.

mod bench;
mod completions;
mod convert;
mod eval;
mod inspect;
mod list;
mod logits;
mod plan;
mod profile;
mod pull;
mod rm;
mod run;
mod serve;
mod synth;
mod verify;

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::{hub, version};

/// What a command takes, and what it does.
type Entry = (fn() -> Command, fn(&ArgMatches) -> anyhow::Result<()>);

/// Every command, in the order of help.
const COMMANDS: [Entry; 15] = [
    (run::command, run::run),
    (serve::command, serve::run),
    (pull::command, pull::run),
    (list::command, list::run),
    (rm::command, rm::run),
    (plan::command, plan::run),
    (inspect::command, inspect::run),
    (convert::command, convert::run),
    (verify::command, verify::run),
    (bench::command, bench::run),
    (profile::command, profile::run),
    (logits::command, logits::run),
    (eval::command, eval::run),
    (synth::command, synth::run),
    (completions::command, completions::run),
];

/// The whole command line.
pub(crate) fn command() -> Command {
    taking_numbers(commands())
}

/// `--max-tokens -1` is a number that is refused, not an option that is not known.
fn taking_numbers(command: Command) -> Command {
    let take = |arg: Arg| {
        let takes = arg.get_action().takes_values() && !arg.is_allow_hyphen_values_set();
        if takes { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(take).mut_subcommands(taking_numbers)
}

fn commands() -> Command {
    Command::new("flash-moe")
        .version(env!("CARGO_PKG_VERSION"))
        .long_version(version::long())
        .about("Runs Mixture-of-Experts language models far larger than memory, exactly")
        .subcommand_required(true)
        .arg_required_else_help(true)
        // An alias has options that its user may give again.
        .args_override_self(true)
        .subcommands(COMMANDS.iter().map(|(describe, _)| describe()))
}

/// Runs the command that was given.
pub(crate) fn dispatch(matches: &ArgMatches) -> anyhow::Result<()> {
    let (name, matches) = matches.subcommand().expect("clap requires one");
    let known = COMMANDS.iter().find(|(describe, _)| describe().get_name() == name);
    let (_, run) = known.expect("clap refuses others");
    run(matches)
}

/// `--name VALUE`.
fn valued(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// `--name`.
fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

/// The argument that most commands have.
fn model_arg() -> Arg {
    Arg::new("model")
        .value_name("MODEL")
        .help(
            "Directory of a checkpoint as published or of a converted model, a GGUF file, or the \
             ORG/NAME of a model that was pulled, also as ORG/NAME@REVISION or ORG/NAME/FILE",
        )
        .required(true)
        .value_parser(clap::value_parser!(std::path::PathBuf))
}

fn json_arg() -> Arg {
    switch("json", "Print one JSON object instead of text")
}

/// Where the model of the command line lies.
fn model_path(matches: &ArgMatches) -> anyhow::Result<PathBuf> {
    resolve(matches.get_one::<PathBuf>("model").expect("clap requires it"))
}

/// Where a model lies: what was given if it exists, or else the hub's model of that name.
fn resolve(given: &Path) -> anyhow::Result<PathBuf> {
    // The system takes `model.gguf/` for a directory.
    let plain: PathBuf = given.components().collect();
    if plain.is_file() {
        return Ok(plain);
    }
    match hub::name_of(given) {
        Some(name) => Ok(hub::cache()?.resolve(&name)?),
        None => Ok(given.to_path_buf()),
    }
}
