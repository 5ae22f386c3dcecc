//! `plan`: who would get how much memory, before anything is loaded.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::Context;
use clap::{ArgMatches, Command};
use fm_engine::{
    Load,
    bytes::Bytes,
    engine::{Planned, plan},
    options::ENGINE,
};
use fm_hub::HubError;
use serde_json::json;

use super::{json_arg, model_arg, model_path, serve, switch};
use crate::{
    console, flags,
    hub::{self, RemoteModel},
    places,
};

pub(super) fn command() -> Command {
    let command = Command::new("plan")
        .about("Show how a model would use memory, without loading or downloading it")
        .long_about(
            "Shows how a model would use memory, without loading it. Of an ORG/NAME that was not \
             pulled, configuration and headers are read from the hub, and the size of the download \
             is compared with the room on the disk.",
        )
        .arg(model_arg())
        .arg(json_arg())
        .arg(switch(
            "serve",
            "Plan for `serve`, which has several sessions, grammars and prompts on disk",
        ))
        .arg(serve::sessions_arg().requires("serve"));
    flags::add(hub::add_args(command), &ENGINE, "Engine")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let options = flags::engine_options(matches)?;
    let remote = remote(matches)?;
    let path = match &remote {
        Some(remote) => remote.path.clone(),
        None => model_path(matches)?,
    };
    let places = places::places();
    let planned = if matches.get_flag("serve") {
        serve::planned(&path, &options, (matches.get_one("sessions"), true), &places)
    } else {
        plan(&path, &options, Load::default(), &places)
    };
    let planned = match &remote {
        Some(remote) => planned.with_context(|| remote.to_string())?,
        None => planned?,
    };
    if matches.get_flag("json") {
        return console::print_json(&as_json(&planned, remote.as_ref()));
    }
    Ok(print(&planned, remote.as_ref(), &mut io::stdout().lock())?)
}

/// The model, if it is on the hub and not here.
fn remote(matches: &ArgMatches) -> anyhow::Result<Option<RemoteModel>> {
    let given: &PathBuf = matches.get_one("model").expect("clap requires it");
    let Some(name) = hub::name_of(given) else { return Ok(None) };
    match hub::cache()?.resolve(&name) {
        Err(
            HubError::NotCached { .. }
            | HubError::RevisionNotCached { .. }
            | HubError::FileNotCached { .. },
        ) => RemoteModel::peek(matches, name).map(Some),
        _ => Ok(None),
    }
}

fn as_json(planned: &Planned, remote: Option<&RemoteModel>) -> serde_json::Value {
    let plan = &planned.plan;
    json!({
        "schema": "flash-moe.plan/1",
        "model": title(planned, remote),
        "remote": remote.map(RemoteModel::as_json),
        "model_type": planned.spec.model_type,
        "budget_bytes": plan.budget,
        "allowed_bytes": plan.allowed,
        "total_bytes": plan.total(),
        "program_bytes": plan.overhead,
        "trunk_bytes": plan.trunk,
        "kv_bytes": plan.kv,
        "recurrent_bytes": plan.recurrent,
        "scratch_bytes": plan.scratch,
        "staging_bytes": plan.store.staging_bytes,
        "slot_bytes": plan.store.slot_bytes(),
        "expert_bytes": plan.experts,
        "slots": plan.store.classes.iter().map(|class| class.slots).sum::<usize>(),
        "experts": plan.store.classes.iter().map(|class| class.experts).sum::<usize>(),
        "sessions": plan.sessions,
        "context": plan.context,
        "context_model": plan.context_model,
        "prefill_chunk": plan.decoder.rows_max,
        "active_bytes_per_token": planned.footprint.active,
        "active_expert_bytes_per_token": planned.footprint.active_experts,
        "device": planned.device.name(),
        "threads": planned.threads,
        "lossy": planned.lossy(),
    })
}

/// What the user calls the model.
fn title(planned: &Planned, remote: Option<&RemoteModel>) -> String {
    remote.map_or_else(|| planned.path.display().to_string(), |remote| remote.name.to_string())
}

fn print(planned: &Planned, remote: Option<&RemoteModel>, out: &mut impl Write) -> io::Result<()> {
    let plan = &planned.plan;
    let slots: usize = plan.store.classes.iter().map(|class| class.slots).sum();
    let experts: usize = plan.store.classes.iter().map(|class| class.experts).sum();
    let share = 100.0 * slots as f64 / experts.max(1) as f64;
    let sessions = match plan.sessions {
        1 => String::new(),
        sessions => format!("{sessions} sessions, each with a "),
    };
    let rows = [
        ("program, tokenizer, catalog", plan.overhead, String::new()),
        ("trunk", plan.trunk, "all weights but the routed experts".to_owned()),
        (
            "keys and values",
            plan.kv,
            format!(
                "{sessions}context {} of the model's {} tokens",
                plan.context, plan.context_model
            ),
        ),
        ("recurrent state", plan.recurrent, String::new()),
        (
            "work space",
            plan.scratch,
            format!("prompts in chunks of {} tokens", plan.decoder.rows_max),
        ),
        ("reading", plan.store.staging_bytes, String::new()),
        (
            "expert slots",
            plan.store.slot_bytes(),
            format!("{slots} of {experts} experts ({share:.1} %), {} in all", Bytes(plan.experts)),
        ),
    ];
    writeln!(out, "{} · {}", title(planned, remote), planned.spec.model_type)?;
    if let Some(remote) = remote {
        writeln!(out, "  {remote}")?;
    }
    for lossy in planned.lossy() {
        writeln!(out, "  lossy: {lossy}")?;
    }
    for (what, bytes, note) in rows {
        writeln!(out, "  {what:<28} {:>10}   {note}", Bytes(bytes).to_string())?;
    }
    writeln!(
        out,
        "  {:<28} {:>10}   of a budget of {}",
        "together",
        Bytes(plan.total()).to_string(),
        Bytes(plan.budget)
    )?;
    writeln!(
        out,
        "  {:<28} {:>10}   {} of it routed experts",
        "read per token",
        Bytes(planned.footprint.active).to_string(),
        Bytes(planned.footprint.active_experts)
    )?;
    Ok(())
}
