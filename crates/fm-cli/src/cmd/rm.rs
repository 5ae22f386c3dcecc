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
                .value_name("ORG/NAME")
                .help("The model, as `flash-moe list` names it")
                .required(true),
        )
        .arg(switch("yes", "Do not ask").short('y'))
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let given: &String = matches.get_one("name").expect("clap requires it");
    let name: ModelName = given.parse()?;
    if name.revision.is_some() || name.file.is_some() {
        return Err(Usage("rm takes ORG/NAME: a model goes with all its revisions".into()).into());
    }
    let cache = hub::cache()?;
    let bytes = match cache.size(&name.id) {
        Err(HubError::NotCached { .. }) => {
            let cache = cache.root().display();
            bail!("no {} is in {cache}; `flash-moe list` shows what is", name.id);
        }
        size => size?,
    };
    if !matches.get_flag("yes") {
        if !io::stdin().is_terminal() {
            return Err(Usage("nobody is there to be asked: give --yes".into()).into());
        }
        console::say_part(format_args!("remove {}, {}? [y/N] ", name.id, Bytes(bytes)));
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            bail!("{} stays", name.id);
        }
    }
    let freed = cache.remove(&name.id)?;
    console::say!("removed {}: {} freed", name.id, Bytes(freed));
    Ok(())
}
