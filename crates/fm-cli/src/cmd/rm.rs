//! `rm`: removes a model from the cache.

use std::io::{self, BufRead, IsTerminal};

use anyhow::bail;
use clap::{Arg, ArgMatches, Command};
use fm_engine::bytes::Bytes;
use fm_hub::{HubError, ModelName};

use super::switch;
use crate::{console, flags::Usage, hub};

pub(super) fn command() -> Command {
    Command::new("rm")
        .about("Remove a model that was pulled, with all its revisions")
        .arg(
            Arg::new("name")
                .value_name("ORG/NAME[/FILE]")
                .help("The model, as `flash-moe list` names it")
                .required(true),
        )
        .arg(switch("yes", "Do not ask").short('y'))
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let given: &String = matches.get_one("name").expect("clap requires it");
    let name: ModelName = given.parse()?;
    if name.revision.is_some() {
        let wrong = "rm takes ORG/NAME or ORG/NAME/FILE: a model goes with all its revisions";
        return Err(Usage(wrong.into()).into());
    }
    let (cache, file) = (hub::cache()?, name.file.as_deref());
    let bytes = match cache.size(&name.id, file) {
        Err(HubError::NotCached { .. } | HubError::FileNotCached { .. }) => {
            let cache = cache.root().display();
            bail!("no {name} is in {cache}; `flash-moe list` shows what is");
        }
        size => size?,
    };
    if !matches.get_flag("yes") {
        if !io::stdin().is_terminal() {
            return Err(Usage("nobody is there to be asked: give --yes".into()).into());
        }
        console::say_part(format_args!("remove {name}, {}? [y/N] ", Bytes(bytes)));
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            bail!("{name} stays");
        }
    }
    let freed = cache.remove(&name.id, file)?;
    console::say!("removed {name}: {} freed", Bytes(freed));
    Ok(())
}
