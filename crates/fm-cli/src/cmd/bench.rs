//! `bench`: how fast a model is here, every figure beside what the machine could do in the same
//! second.

mod checks;
mod output;
mod parts;
mod record;
mod setup;
mod speed;
mod table;

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use fm_engine::{EngineError, options::ENGINE};

use self::{output::Output, setup::Setup};
use super::{json_arg, model_arg, switch, valued};
use crate::{
    console::{self, Interrupt},
    flags::{self, Usage, positive},
    results,
};

/// Tokens of the prompt that is taken in by default.
const PREFILL: usize = 512;

/// Tokens that are written by default.
const DECODE: usize = 64;

/// Position of the first written token by default.
const DEPTH: usize = 16;

pub(super) fn command() -> Command {
    let command = Command::new("bench")
        .about("Measure speed, beside what the machine can do at that moment")
        .long_about(
            "Measures how fast a model takes prompts in and writes, by default a prompt of 512 \
             tokens and 64 written ones. Every measurement stands between two probes of memory \
             bandwidth, and of the disk if not all experts fit; one during which the memory changed \
             its speed is made again. What is taken in and written is given: the tokens 0, 1, 2, …, \
             or --text, which says more of a model that is not a tape.\n\nA figure counts only with its logits hash: it must equal \
             that of a run with everything in memory.",
        )
        .arg(model_arg())
        .args(workload_args())
        .args(part_args())
        .group(ArgGroup::new("part").args(PARTS))
        .arg(json_arg())
        .arg(
            valued("record", "FILE", "Append a line for every figure to a table (tab-separated)")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(valued("note", "TEXT", "What the recorded lines are about").requires("record"));
    flags::add(command, &ENGINE, "Engine")
}

fn count(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    valued(name, value, help).value_parser(positive)
}

fn list(name: &'static str, help: &'static str) -> Arg {
    count(name, "N,…", help).value_delimiter(',').action(ArgAction::Append)
}

/// More sessions than any machine has memory for.
const SESSIONS_MAX: usize = 4096;

fn sessions(text: &str) -> Result<usize, String> {
    let within = positive(text).ok().filter(|number| *number <= SESSIONS_MAX);
    within.ok_or_else(|| format!("it takes a number from 1 to {SESSIONS_MAX}"))
}

/// What takes no tokens.
const WITHOUT_TEXT: [&str; 3] = ["io-only", "moe-only", "kernels"];

fn workload_args() -> [Arg; 10] {
    [
        list(
            "prefill",
            "Take in prompts of these lengths [default: 512; none with --decode or --context-at]",
        )
        .conflicts_with_all(PARTS),
        count("decode", "N", "Write N tokens per repeat [default: 64]")
            .conflicts_with_all(WITHOUT_TEXT),
        list("context-at", "Write at these positions [default: 16]")
            .conflicts_with_all(WITHOUT_TEXT)
            .conflicts_with("turns"),
        valued("sessions", "N", "Write in N sessions at once")
            .value_parser(sessions)
            .conflicts_with_all(WITHOUT_TEXT)
            .conflicts_with("turns")
            .default_value("1"),
        switch("same-text", "Give all sessions the same prompt")
            .requires("sessions")
            .conflicts_with_all(WITHOUT_TEXT)
            .conflicts_with("turns"),
        count("repeats", "N", "Measurements that must count, of at most twice as many")
            .default_value("5"),
        valued("warm-up", "N", "Take in N tokens before anything is measured [default: 512]")
            .value_parser(value_parser!(usize))
            .conflicts_with_all(PARTS),
        switch("cold", "Forget all experts before every prompt: each one that it needs is read")
            .conflicts_with_all(PARTS),
        valued("text", "FILE", "Take prompts from a text instead of the vocabulary's order")
            .value_parser(value_parser!(PathBuf))
            .conflicts_with_all(WITHOUT_TEXT),
        valued("layer", "N", "The layer of --moe-only [default: the first with experts]")
            .value_parser(value_parser!(u16))
            .requires("moe-only"),
    ]
}

/// What is measured instead of the whole model's speed.
const PARTS: [&str; 5] = ["io-only", "moe-only", "kernels", "determinism", "turns"];

fn part_args() -> [Arg; 6] {
    let heading = "Instead of the whole model's speed";
    [
        switch("io-only", "Only read experts: what the reader reaches of the disk"),
        switch("moe-only", "Only the routed experts of one layer, all in memory"),
        switch("verify", "Also compare them with the reference device").requires("moe-only"),
        switch("kernels", "Only matrix times vector, for every format of the model"),
        count("determinism", "N", "Write the same text N times; all logits must be equal"),
        count("turns", "N", "One conversation of N turns, with its memory after each"),
    ]
    .map(|arg| arg.help_heading(heading))
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    // With a flag that excludes --moe-only, clap does not ask for it.
    if !matches.get_flag("moe-only") && (matches.get_flag("verify") || matches.contains_id("layer"))
    {
        return Err(Usage("--verify and --layer go with --moe-only alone".into()).into());
    }
    // There is nothing to keep of what was measured so far.
    Interrupt::install_with(console::leave);
    let setup = Setup::new(matches)?;
    let record = results::file(matches, "record", (None, &[matches.get_one("text")]))?;
    record.map_or(Ok(()), |file| record::check(file))?;
    let (output, verdict) = measure(setup, matches)?;
    let printed = if matches.get_flag("json") {
        console::print_json(&output)
    } else {
        writeln!(io::stdout().lock(), "{output}").map_err(Into::into)
    };
    let note = matches.get_one::<String>("note").map_or("", String::as_str);
    let recorded = record.map_or(Ok(()), |file| record::append(file, &output, note));
    verdict.and(printed).and(recorded)
}

/// The figures, and whether what they are of is right.
fn measure(setup: Setup, matches: &ArgMatches) -> anyhow::Result<(Output, anyhow::Result<()>)> {
    let fine = |output| (output, Ok(()));
    if matches.get_flag("io-only") {
        return Ok(fine(parts::io_only(&setup)?));
    }
    if matches.get_flag("kernels") {
        return Ok(fine(parts::kernels(&setup)?));
    }
    if matches.get_flag("moe-only") {
        let layer = matches.get_one::<u16>("layer").copied();
        return parts::moe_only(&setup, layer, matches.get_flag("verify"));
    }
    if let Some(runs) = matches.get_one::<usize>("determinism") {
        return checks::determinism(setup, *runs);
    }
    if let Some(turns) = matches.get_one::<usize>("turns") {
        return Ok(fine(checks::turns(setup, *turns)?));
    }
    speed::speed(setup)
}

/// The numbers of a list flag.
fn numbers(matches: &ArgMatches, name: &str) -> Vec<usize> {
    matches.get_many(name).map_or_else(Vec::new, |numbers| numbers.copied().collect())
}

/// A model without the part that was to be measured.
fn no_experts(setup: &Setup) -> anyhow::Error {
    EngineError::NoExperts { path: setup.path.clone() }.into()
}
