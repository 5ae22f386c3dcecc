//! `pull`: a model of the hub into the cache that all programs share.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use clap::{Arg, ArgAction, ArgMatches, Command};
use fm_engine::bytes::Bytes;
use fm_format::source::Checkpoint;
use fm_hub::{Event, HubError, ModelName, Need, Pull, Pulled, Repository, Selection};
use fm_model::arch::describe;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use serde_json::json;

use super::json_arg;
use crate::{
    console::{self, Interrupt, Unit},
    flags::Usage,
    hub,
};

/// Time between two lines of progress for programs.
const LINE_EVERY: Duration = Duration::from_secs(1);

pub(super) fn command() -> Command {
    let patterns = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("GLOB").help(help).action(ArgAction::Append)
    };
    let command = Command::new("pull")
        .about("Download a model from the hub, or go on with a download")
        .long_about(
            "Downloads a model into the cache that all programs of this machine share ($HF_HUB_CACHE, \
             $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub); \
             `flash-moe run ORG/NAME` finds it there. It takes what flash-moe needs: safetensors \
             files with configuration and tokenizer, or one GGUF model. Interrupted, \
             the same command goes on where it stopped. Every file is compared with its checksum.",
        )
        .arg(
            Arg::new("name")
                .value_name("ORG/NAME")
                .help("The model; ORG/NAME/FILE.gguf for one of several")
                .required(true),
        )
        .arg(patterns("include", "Take the files that match instead; may be given several times"))
        .arg(patterns("exclude", "Leave the files that match; may be given several times"))
        .arg(
            Arg::new("revision")
                .long("revision")
                .value_name("R")
                .help("Branch, tag or commit [default: main]"),
        )
        .arg(json_arg().help("Print events as lines of JSON"));
    hub::add_args(command)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let name = name_and_revision(matches)?;
    let patterns =
        |id| matches.get_many(id).map_or_else(Vec::new, |globs| globs.cloned().collect());
    let selection = Selection {
        include: patterns("include"),
        exclude: patterns("exclude"),
        file: name.file.clone(),
    };
    let interrupt = Interrupt::install();
    let (client, cache) = (hub::client(matches, &interrupt)?, hub::cache()?);
    let repository = &Repository::open(&client, &name.id, name.revision())?;
    let files = &selection.choose(repository)?;
    let pull = Pull { client: &client, cache: &cache, repository, files };
    let need = pull.need()?;
    let view = if matches.get_flag("json") { View::Lines } else { View::bars(need) };
    view.begin(&pull, need)?;
    let progress = Progress { need, view, here: Mutex::default() };
    let unsaid = Mutex::new(None);
    let pulled = pull.run(&|event| {
        if let Err(error) = progress.show(event) {
            *unsaid.lock().expect("nothing panics with it") = Some(error);
            return ControlFlow::Break(());
        }
        interrupt.flow()
    });
    // Nobody has cancelled a pull that ended because nothing could be said of it.
    if let Some(error) = unsaid.into_inner().expect("nothing panics with it") {
        return Err(console::unfinished(error, "the download ended; what has come is kept"));
    }
    let pulled = pulled?;
    progress.view.end(&pulled, need)?;
    warn(&pulled.path, &cache.resolve(&name));
    Ok(())
}

fn name_and_revision(matches: &ArgMatches) -> anyhow::Result<ModelName> {
    let given: &String = matches.get_one("name").expect("clap requires it");
    let name: ModelName = given.parse()?;
    let Some(revision) = matches.get_one::<String>("revision") else { return Ok(name) };
    if name.revision.is_some() {
        return Err(Usage("the revision is given twice".to_owned()).into());
    }
    Ok(name.at(revision)?)
}

/// Says so if what came is nothing that this program runs.
fn warn(snapshot: &Path, resolved: &Result<std::path::PathBuf, HubError>) {
    let Ok(path) = resolved else { return };
    let described = Checkpoint::open(path).map_err(anyhow::Error::from);
    let described = described.and_then(|checkpoint| Ok(describe(&checkpoint).map(drop)?));
    if let Err(error) = described {
        console::say!("warning: flash-moe cannot run {}: {error:#}", snapshot.display());
    }
}

/// How the user sees what happens.
enum View {
    /// One line of JSON for each event.
    Lines,
    /// A bar for everything and one for each file on its way.
    Bars { bars: MultiProgress, all: ProgressBar },
}

struct Progress {
    need: Need,
    view: View,
    here: Mutex<Here>,
}

/// What is here of each file that has begun.
#[derive(Default)]
struct Here {
    files: HashMap<String, (u64, Option<ProgressBar>)>,
    latest: Option<Instant>,
}

impl Progress {
    fn show(&self, event: &Event<'_>) -> std::io::Result<()> {
        let mut guard = self.here.lock().expect("nothing panics with it");
        let here = &mut *guard;
        match &self.view {
            View::Lines => self.line(here, event),
            View::Bars { bars, all } => {
                let length = |file: &fm_hub::RemoteFile, at| {
                    let bar = console::hidden_bar(file.name.clone(), Unit::Bytes);
                    bar.set_length(file.bytes);
                    let bar = bars.add(bar);
                    bar.set_position(at);
                    bar
                };
                note(here, event, length);
                all.set_position(here.files.values().map(|(bytes, _)| bytes).sum());
                match event {
                    Event::Again { file, source, .. } => {
                        bars.suspend(|| console::say!("note: {} goes on: {source}", file.name));
                    }
                    Event::Corrupt { file, kept, .. } => bars.suspend(|| {
                        console::say!(
                            "warning: {} came corrupt and is fetched again; what came is kept as {}",
                            file.name,
                            kept.display()
                        );
                    }),
                    _ => {}
                }
                Ok(())
            }
        }
    }

    fn line(&self, here: &mut Here, event: &Event<'_>) -> std::io::Result<()> {
        note(here, event, |_, _| ProgressBar::hidden());
        let value = match event {
            Event::Begin { file, here } => {
                json!({"event": "begin", "file": file.name, "bytes": file.bytes, "here": here})
            }
            Event::Again { file, here, source } => {
                json!({"event": "again", "file": file.name, "here": here, "why": source.to_string()})
            }
            Event::Corrupt { file, found, kept } => json!({
                "event": "corrupt",
                "file": file.name,
                "expected": file.checksum.digits(),
                "found": found,
                "kept": kept.display().to_string(),
            }),
            Event::Done { file } => json!({"event": "done", "file": file.name}),
            _ if here.latest.is_some_and(|latest| latest.elapsed() < LINE_EVERY) => return Ok(()),
            _ => {
                here.latest = Some(Instant::now());
                let bytes: u64 = here.files.values().map(|(bytes, _)| bytes).sum();
                json!({"event": "progress", "here": bytes, "bytes": self.need.bytes})
            }
        };
        console::print_json_line(&value)
    }
}

/// Keeps count of what is here.
fn note(
    all: &mut Here,
    event: &Event<'_>,
    bar: impl FnOnce(&fm_hub::RemoteFile, u64) -> ProgressBar,
) {
    let (file, bytes) = match event {
        Event::Begin { file, here } | Event::Bytes { file, here } => (file, *here),
        Event::Done { file } => (file, file.bytes),
        _ => return,
    };
    let entry = all.files.entry(file.name.clone()).or_default();
    entry.0 = bytes;
    if matches!(event, Event::Done { .. }) {
        if let Some(bar) = entry.1.take() {
            bar.finish_and_clear();
        }
        return;
    }
    entry.1.get_or_insert_with(|| bar(file, bytes)).set_position(bytes);
}

impl View {
    fn bars(need: Need) -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(5));
        let all = bars.add(console::hidden_bar("together".to_owned(), Unit::Bytes));
        all.set_length(need.bytes);
        Self::Bars { bars, all }
    }

    fn begin(&self, pull: &Pull<'_>, need: Need) -> anyhow::Result<()> {
        let Repository { id, revision, commit, .. } = pull.repository;
        match self {
            Self::Lines => console::print_json_line(&json!({
                "event": "plan",
                "schema": "flash-moe.pull/1",
                "model": id.to_string(),
                "revision": revision,
                "commit": commit,
                "files": pull.files.len(),
                "bytes": need.bytes,
                "here": need.here,
                "free_bytes": need.free,
            }))?,
            Self::Bars { .. } => console::say!(
                "{id} at {revision}: {}, {}, {} of it here; the disk has room for {}",
                console::counted(pull.files.len() as u64, "file"),
                Bytes(need.bytes),
                Bytes(need.here),
                Bytes(need.free)
            ),
        }
        Ok(())
    }

    fn end(&self, pulled: &Pulled, need: Need) -> anyhow::Result<()> {
        match self {
            Self::Lines => console::print_json_line(&json!({
                "event": "pulled",
                "path": pulled.path.display().to_string(),
                "fetched": pulled.fetched,
                "bytes": need.bytes,
            }))?,
            Self::Bars { bars, .. } => {
                bars.clear()?;
                match pulled.fetched {
                    0 => console::say!("everything was here: {}", pulled.path.display()),
                    fetched => {
                        let fetched = console::counted(fetched, "file");
                        console::say!("fetched {fetched}: {}", pulled.path.display());
                    }
                }
            }
        }
        Ok(())
    }
}
