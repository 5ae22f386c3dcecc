//! What `serve` keeps of prompts on disk, and what it computes before the first client comes.

use std::{
    fs,
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, mpsc},
};

use anyhow::Context;
use clap::{ArgAction, ArgMatches, Command};
use fm_engine::{
    bytes::Bytes,
    error::chain,
    generate::Request,
    schedule::{DiskOptions, Driven, Job, ScheduleOptions, Scheduler, Update},
};
use fm_server::Model;

use crate::{cmd::valued, console, places};

pub(super) fn options(command: Command) -> Command {
    command
        .arg(
            valued(
                "prefill",
                "FILE",
                "A request as a client sends it, in JSON: what it has in common with those that differ \
                 in the last message is computed before the first one comes, and stays in memory",
            )
            .action(ArgAction::Append),
        )
        .arg(valued(
            "prefix-cache",
            "DIR",
            "Keep prompts that have been computed in this directory; `off` for none on disk \
             [default: flash-moe/prefixes in the cache directory]",
        ))
        .arg(
            valued(
                "prefix-disk",
                "SIZE",
                "What they may take there; never more than half of what is free at the start",
            )
            .default_value("16GB")
            .value_parser(parse_bytes),
        )
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    Bytes::parse(text).map(|bytes| bytes.0).ok_or_else(|| "a size as 6GB or 6GiB".to_owned())
}

/// Where prompts are kept on disk, if they are.
pub(super) fn dir(matches: &ArgMatches) -> Option<PathBuf> {
    match matches.get_one::<String>("prefix-cache").map(String::as_str) {
        Some("off") => None,
        Some(dir) => Some(PathBuf::from(dir)),
        None => {
            let dir = places::prefix_dir();
            if dir.is_none() {
                console::say!("warning: {}; prompts are kept in memory only", places::NO_CACHE);
            }
            dir
        }
    }
}

/// What is kept in `dir`, and who hears of it.
pub(super) fn disk(
    matches: &ArgMatches,
    dir: PathBuf,
    fingerprint: u128,
    tell: impl Fn(String) + Send + Sync + 'static,
) -> DiskOptions {
    DiskOptions {
        dir,
        bytes_max: *matches.get_one("prefix-disk").expect("it has a default"),
        fingerprint,
        notices: Arc::new(move |notice| tell(format!("warning: {}", chain(notice)))),
    }
}

/// Starts the engine's thread. A directory that nobody has asked for may be missing.
pub(super) fn start(
    matches: &ArgMatches,
    driven: Driven,
    schedule: ScheduleOptions,
) -> anyhow::Result<Scheduler> {
    let asked_for = matches.get_one::<String>("prefix-cache").is_some();
    Scheduler::start(driven, schedule).or_else(|(error, driven)| {
        if asked_for {
            return Err(error.into());
        }
        console::say!("warning: {}; prompts are kept in memory only", chain(&error));
        let driven = Driven { disk: None, ..*driven };
        Ok(Scheduler::start(driven, schedule).map_err(|(error, _)| error)?)
    })
}

/// What is computed before the first client comes: of files, and of the system message.
pub(super) fn beginnings(matches: &ArgMatches, model: &Model) -> anyhow::Result<Vec<Request>> {
    let mut beginnings = Vec::new();
    if model.system.is_some() && model.template.is_some() {
        beginnings.extend(model.prefill(None)?);
    }
    for file in matches.get_many::<String>("prefill").into_iter().flatten() {
        let read = || anyhow::Ok(model.prefill(Some(&fs::read(file)?))?);
        beginnings.extend(read().with_context(|| format!("reading {file}"))?);
    }
    Ok(beginnings)
}

/// Computes them, or reads them from disk.
pub(super) fn take_in(scheduler: &Scheduler, beginnings: Vec<Request>) -> anyhow::Result<()> {
    for request in beginnings {
        let tokens = request.prompt.len() - 1;
        console::say!("taking in {tokens} tokens that conversations begin with");
        let (send, end) = mpsc::channel();
        let listener = Box::new(move |update: Update<'_>| {
            let sent = match update {
                Update::Done(_) => send.send(Ok(())),
                Update::Failed(error) => send.send(Err(error)),
                _ => Ok(()),
            };
            if sent.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        scheduler.queue().push(vec![Job { request, listener }])?;
        end.recv().context("the engine broke off")??;
    }
    Ok(())
}
