//! `list`: the models in the cache.

use std::io::{self, Write};

use clap::{ArgMatches, Command};
use fm_engine::bytes::Bytes;
use fm_format::{FormatError, source::Checkpoint};
use fm_hub::{Cache, Cached, ModelName};
use fm_model::arch::describe;
use serde::Serialize;
use serde_json::json;

use super::json_arg;
use crate::{console, hub};

/// Digits of a commit that people compare.
const COMMIT_DIGITS: usize = 12;

pub(super) fn command() -> Command {
    Command::new("list").about("List the models that were pulled").arg(json_arg())
}

#[derive(Serialize)]
struct Row {
    name: String,
    revision: String,
    bytes: u64,
    /// The family, if it is one that runs.
    kind: Option<&'static str>,
    complete: bool,
    /// Why it does not run.
    problem: Option<String>,
    path: Option<String>,
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let cache = hub::cache()?;
    let rows: Vec<Row> = cache.list()?.into_iter().map(|cached| Row::of(&cache, cached)).collect();
    if matches.get_flag("json") {
        let (schema, cache) = ("flash-moe.list/1", cache.root().display().to_string());
        return console::print_json(&json!({"schema": schema, "cache": cache, "models": rows}));
    }
    if rows.is_empty() {
        console::say!("no models in {}", cache.root().display());
        return Ok(());
    }
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut out = io::stdout().lock();
    for row in rows {
        let revision: String = row.revision.chars().take(COMMIT_DIGITS).collect();
        let kind = row.kind.unwrap_or("–");
        let state = match (row.complete, row.problem) {
            (_, None) => "complete".to_owned(),
            (true, Some(problem)) => format!("complete; does not run: {problem}"),
            (false, Some(problem)) => format!("incomplete: {problem}"),
        };
        let bytes = Bytes(row.bytes).to_string();
        let line = format!("{:<width$}  {revision:<12}  {bytes:>9}  {kind:<14}  {state}", row.name);
        // Files that other programs put there may be called anything.
        writeln!(out, "{}", line.replace(char::is_control, "\u{fffd}"))?;
    }
    Ok(())
}

impl Row {
    fn of(cache: &Cache, cached: Cached) -> Self {
        let (kind, complete, problem) = match kind(cache, &cached) {
            Ok(kind) => (Some(kind), true, None),
            Err((complete, problem)) => (None, complete, Some(problem)),
        };
        let Cached { id, revision, file, path, bytes } = cached;
        let path = path.map(|path| path.display().to_string());
        // As `run` and `rm` take it.
        let name = ModelName { id, revision: None, file }.to_string();
        Self { name, revision, bytes, kind, complete, problem, path }
    }
}

/// The family of a model; or whether its files are there at least, and why it does not run.
fn kind(cache: &Cache, cached: &Cached) -> Result<&'static str, (bool, String)> {
    let parts = || (false, "`flash-moe pull` goes on with it".to_owned());
    let Some(path) = &cached.path else { return Err(parts()) };
    let Cached { id, revision, file, .. } = cached.clone();
    let name = ModelName { id, revision: Some(revision), file };
    let path = cache.resolve(&name).unwrap_or_else(|_| path.clone());
    let checkpoint = Checkpoint::open(&path).map_err(|error| {
        let none = matches!(error, FormatError::NoModel { .. });
        (none, if none { "no model".to_owned() } else { error.to_string() })
    })?;
    describe(&checkpoint).map(|spec| spec.model_type).map_err(|error| (true, error.to_string()))
}
