//! `plan`: who would get how much memory, before anything is loaded.

use clap::{ArgMatches, Command};
use fm_engine::{
    Load,
    bytes::Bytes,
    engine::{Planned, plan},
    options::ENGINE,
};
use serde_json::json;

use super::{json_arg, model_arg, model_dir};
use crate::{console, flags, places};

pub(super) fn command() -> Command {
    let command = Command::new("plan")
        .about("Show how a model would use memory, without loading it")
        .arg(model_arg())
        .arg(json_arg());
    flags::add(command, &ENGINE, "Engine")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let options = flags::engine_options(matches)?;
    let planned = plan(model_dir(matches), &options, Load::default(), &places::places())?;
    if matches.get_flag("json") {
        return console::print_json(&as_json(&planned));
    }
    print(&planned);
    Ok(())
}

fn as_json(planned: &Planned) -> serde_json::Value {
    let plan = &planned.plan;
    json!({
        "schema": "flash-moe.plan/1",
        "model": planned.path,
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
        "context": plan.context,
        "context_model": plan.context_model,
        "prefill_chunk": plan.decoder.rows_max,
        "device": planned.device.name(),
        "threads": planned.threads,
    })
}

fn print(planned: &Planned) {
    let plan = &planned.plan;
    let slots: usize = plan.store.classes.iter().map(|class| class.slots).sum();
    let experts: usize = plan.store.classes.iter().map(|class| class.experts).sum();
    let share = 100.0 * slots as f64 / experts.max(1) as f64;
    let rows = [
        ("program, tokenizer, catalog", plan.overhead, String::new()),
        ("trunk", plan.trunk, "all weights but the routed experts".to_owned()),
        (
            "keys and values",
            plan.kv,
            format!("context {} of the model's {} tokens", plan.context, plan.context_model),
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
    println!("{} · {}", planned.path.display(), planned.spec.model_type);
    for (what, bytes, note) in rows {
        println!("  {what:<28} {:>10}   {note}", Bytes(bytes).to_string());
    }
    println!(
        "  {:<28} {:>10}   of a budget of {}",
        "together",
        Bytes(plan.total()).to_string(),
        Bytes(plan.budget)
    );
    println!(
        "  {:<28} {:>10}   {} of it routed experts",
        "read per token",
        Bytes(planned.footprint.active).to_string(),
        Bytes(planned.footprint.active_experts)
    );
}
