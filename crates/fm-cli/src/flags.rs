//! Flags from the engine's option tables.

use clap::{Arg, ArgMatches, Command};
use fm_engine::{
    options::{ENGINE, EngineOptions, OptionRow, SAMPLING},
    sampler::Sampling,
};

use crate::{config::Config, places};

/// The flags cannot mean anything; ends with exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Adds a flag for every row.
pub(crate) fn add<T>(command: Command, rows: &[OptionRow<T>], heading: &'static str) -> Command {
    rows.iter().fold(command, |command, row| {
        let mut arg = Arg::new(row.name)
            .long(row.name)
            .value_name(row.value)
            .help(row.help)
            .help_heading(heading);
        let choices = (row.choices)();
        if !choices.is_empty() {
            arg = arg.value_parser(clap::builder::PossibleValuesParser::new(choices));
        }
        command.arg(arg)
    })
}

fn apply<T>(matches: &ArgMatches, rows: &[OptionRow<T>], options: &mut T) -> anyhow::Result<()> {
    for row in rows {
        if let Some(value) = matches.get_one::<String>(row.name) {
            row.apply(options, value).map_err(|error| Usage(error.to_string()))?;
        }
    }
    Ok(())
}

/// Options of the engine: `config.toml`, then flags.
pub(crate) fn engine_options(matches: &ArgMatches) -> anyhow::Result<EngineOptions> {
    let mut options = EngineOptions::default();
    let mut config = Config::read(places::config_file().as_deref())?;
    config.apply(&ENGINE, &mut options)?;
    config.apply(&SAMPLING, &mut Sampling::default())?;
    config.refuse_rest()?;
    apply(matches, &ENGINE, &mut options)?;
    Ok(options)
}

/// How words are chosen: the model's way, then `config.toml`, then the flags of these rows.
pub(crate) fn sampling(
    matches: &ArgMatches,
    rows: &[OptionRow<Sampling>],
    model: Sampling,
) -> anyhow::Result<Sampling> {
    let mut sampling = model;
    let mut config = Config::read(places::config_file().as_deref())?;
    config.apply(&SAMPLING, &mut sampling)?;
    apply(matches, rows, &mut sampling)?;
    if matches.get_flag("greedy") {
        sampling.temperature = 0.0;
    }
    Ok(sampling)
}

/// `5,17,9` as tokens.
pub(crate) fn parse_tokens(text: &str) -> Result<Vec<u32>, String> {
    let numbers = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    numbers.map(|number| number.parse().map_err(|_| format!("`{number}` is no token"))).collect()
}

/// A number that may not be 0.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("it takes a number from 1 on".to_owned()),
        Ok(number) => Ok(number),
    }
}
