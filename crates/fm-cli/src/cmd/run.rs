//! `run`: a prompt in, an answer out, a report at the end.

mod grammar;
mod input;
mod saved;

use std::{
    io::{self, Write},
    ops::ControlFlow,
    path::PathBuf,
};

use clap::{Arg, ArgAction, ArgMatches, Command, builder::NonEmptyStringValueParser, value_parser};
use fm_engine::{
    Engine, EngineError, Load, Places,
    bytes::Bytes,
    engine::{Checks, LoadTimes},
    generate::{Event, FinishReason, Generated, Generation, Request},
    limits::{Limits, MEMORY_PROBE_BYTES, ProbeMemory, Watched},
    machine::peak_held_bytes,
    options::{ENGINE, SAMPLING},
    report::{Report, RunOutput, SCHEMA, Timing},
    sampler::Sampling,
    warm_start::WarmStart,
};
use fm_text::{AnswerForm, ChatTemplate, ThinkingState, ThinkingTags, thinking};

use self::{input::Input, saved::Session};
use super::{json_arg, model_arg, model_path, switch, valued};
use crate::{
    console::{self, AnswerStream, Interrupt, Interrupted, Unit},
    flags::{self, Usage},
    places,
};

/// Prompts shorter than this are over before a progress bar is understood.
const PROGRESS_TOKENS: usize = 64;

pub(super) fn command() -> Command {
    let command = Command::new("run")
        .about("Answer a prompt")
        .arg(model_arg())
        .args(input::args())
        .arg(switch(
            "raw",
            "Continue the prompt as it stands, without the chat template; control tokens that it \
             spells are tokens",
        ))
        .arg(
            valued("max-tokens", "N", "Tokens to generate [default: until the model ends]")
                .alias("tokens")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            valued("stop", "TEXT", "End the answer before this text; may be given several times")
                .allow_hyphen_values(true)
                .value_parser(NonEmptyStringValueParser::new())
                .action(ArgAction::Append),
        )
        .args(thinking_args())
        .args(grammar::args())
        .arg(
            valued("session", "FILE", "Continue the conversation in FILE, and save it there")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(switch("timing", "Show where the time went, by phase and kind of layer"))
        .arg(
            switch("quiet", "Print the answer only: no thoughts, no progress, no report")
                .short('q'),
        )
        .arg(json_arg())
        .arg(
            switch("greedy", "Always take the most likely token")
                .conflicts_with("temperature")
                .help_heading("Sampling"),
        );
    flags::add(flags::add(command, &SAMPLING, "Sampling"), &ENGINE, "Engine")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let places = places::places();
    let mut options = flags::engine_options(matches)?;
    options.warm_start.get_or_insert(WarmStart::On);
    let (think_budget, think_min) = thinking_bounds(matches)?;
    // What is wrong with flags and files is said before the weights are read.
    flags::sampling(matches, &SAMPLING, Sampling::default())?;
    let (input, grammar) = (Input::read(matches)?, grammar::of(matches)?);
    saved::check(matches)?;
    let load = Load { grammars: grammar.is_some(), ..Load::default() };
    let mut engine = Engine::open(&model_path(matches)?, &options, load, &places)?;
    warn(&engine);
    let constraint = grammar.map(|grammar| grammar::constraint(&engine, grammar)).transpose()?;
    let (mut conversation, session, stamp) = saved::continue_or_open(&mut engine, matches)?;
    let prompt = input::tokens_of(&engine, matches, &input, &mut conversation)?;
    let session = saved::reuse(&mut engine, session, &conversation, &prompt)?;
    let tags = ThinkingTags::new(thinking::OPEN, thinking::CLOSE).map_err(EngineError::from)?;
    let template = engine.template.as_ref().filter(|_| prompt.text.is_some());
    let begins = template.is_some() && !matches.get_flag("raw");
    let mut thinking = ThinkingState::None;
    if let Some(text) = &prompt.text {
        thinking = tags.state_at_end_of(text);
    }
    // Without a turn, a text of a given form is that form from its first letter on.
    if !begins && constraint.is_some() && thinking == ThinkingState::None {
        thinking = ThinkingState::Absent;
    }
    let request = Request {
        thinking,
        prompt: prompt.tokens,
        sampling: flags::sampling(matches, &SAMPLING, engine.generation.sampling())?,
        max_tokens: matches.get_one("max-tokens").copied(),
        eos: engine.eos.clone(),
        stop: matches.get_many("stop").map_or_else(Vec::new, |stops| stops.cloned().collect()),
        think_budget,
        think_min,
        begins,
        answer: AnswerForm { dialect: template.and_then(ChatTemplate::dialect), calls: None },
        context: engine.plan.context,
        constraint,
        ..Request::default()
    };
    let prompt_tokens = request.prompt.clone();
    let Generating { generated, failed, interrupt } =
        generate(&mut engine, session, request, Shown::of(matches))?;
    // An answer is shown even if it cannot be kept, and kept even if it cannot be shown.
    let cut = generated.finish == FinishReason::Cancelled;
    let shown = match failed {
        Some(error) if cut && matches.contains_id("session") => {
            Err(console::unfinished(error, "the answer was broken off"))
        }
        Some(error) => Err(error.into()),
        None => show(&engine, matches, &places, (&prompt_tokens, &generated)),
    };
    let saved = (conversation, stamp);
    saved::save(&mut engine, matches, saved, (&prompt_tokens, &generated), session)?;
    shown?;
    if cut && interrupt.is_set() { Err(Interrupted.into()) } else { Ok(()) }
}

fn thinking_args() -> [Arg; 4] {
    let tokens = |name, help| {
        let arg = valued(name, "N", help).value_parser(value_parser!(usize));
        arg.conflicts_with_all(["prompt-tokens", "no-think"])
    };
    [
        switch("think", "Let the model think first").conflicts_with_all([
            "no-think",
            "raw",
            "prompt-tokens",
        ]),
        switch("no-think", "Let the model answer at once")
            .conflicts_with_all(["raw", "prompt-tokens"]),
        tokens("think-budget", "Close the thinking block after N tokens"),
        tokens("think-min", "Keep the thinking block open for N tokens"),
    ]
}

/// How long a thinking block is at most and at least.
fn thinking_bounds(matches: &ArgMatches) -> Result<(Option<usize>, usize), Usage> {
    let [most, least] =
        ["think-budget", "think-min"].map(|name| matches.get_one::<usize>(name).copied());
    match (most, least) {
        (Some(most), Some(least)) if least > most => {
            Err(Usage(format!("--think-min {least} is more than --think-budget {most}")))
        }
        _ => Ok((most, least.unwrap_or(0))),
    }
}

/// What of an answer is shown as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    All,
    Answer,
    Nothing,
}

impl Shown {
    fn of(matches: &ArgMatches) -> Self {
        match (matches.get_flag("json"), matches.get_flag("quiet")) {
            (true, _) => Self::Nothing,
            (_, true) => Self::Answer,
            _ => Self::All,
        }
    }
}

/// Prints what was generated, as far as it is not on the screen, and the report.
fn show(
    engine: &Engine,
    matches: &ArgMatches,
    places: &Places,
    (prompt, generated): (&[u32], &Generated),
) -> anyhow::Result<()> {
    let report = report(engine, generated, places);
    if matches.get_flag("json") {
        return console::print_json(&RunOutput {
            schema: SCHEMA,
            model: engine.path.display().to_string(),
            prompt_tokens: prompt.to_vec(),
            tokens: generated.tokens.clone(),
            text: generated.text.clone(),
            thinking: generated.thinking.clone(),
            finish_reason: generated.finish.name(),
            warnings: warnings(engine),
            report,
        });
    }
    if generated.text.is_none() {
        writeln!(io::stdout())?;
    }
    if let Some(why) = why_cut(engine, generated.finish) {
        console::say!("note: the answer ends here because {why}");
    }
    if !matches.get_flag("quiet") {
        console::say!("\n{report}");
    }
    if matches.get_flag("timing") {
        print_timing(engine.load_times, &report.timing);
    }
    Ok(())
}

/// Why an answer ended that neither the model nor the user ended.
fn why_cut(engine: &Engine, finish: FinishReason) -> Option<String> {
    Some(match finish {
        FinishReason::Context => format!(
            "the context of {} tokens is full; more --context or --memory holds more",
            engine.plan.context
        ),
        FinishReason::Repetition => "it repeated itself again and again".to_owned(),
        FinishReason::Noise => "it was no text any more".to_owned(),
        FinishReason::Deadline => "its time was over".to_owned(),
        FinishReason::Grammar => "its grammar could be followed no further".to_owned(),
        FinishReason::Stop
        | FinishReason::StopString(_)
        | FinishReason::Length
        | FinishReason::Cancelled => return None,
    })
}

fn warnings(engine: &Engine) -> Vec<String> {
    let ignored = engine.generation.ignored.join(", ");
    let generation = format!(
        "the model asks for {ignored}, which flash-moe does not do: other programs may choose \
         other tokens"
    );
    let (planned, allowed) = (engine.plan.total(), engine.plan.allowed);
    let memory = format!(
        "the plan takes {}, free memory and cgroups allow {}: the machine may swap or end the program",
        Bytes(planned),
        Bytes(allowed)
    );
    let stale = "the checksums that were recorded of this model are of other files, or damaged: only lengths are \
                 checked; `flash-moe verify` says what has changed, `verify --record` records it anew"
        .to_owned();
    let said = [
        (!ignored.is_empty(), generation),
        (planned > allowed, memory),
        (engine.checks == Checks::Stale, stale),
    ];
    said.into_iter().filter_map(|(holds, warning)| holds.then_some(warning)).collect()
}

/// What a user should know before the work begins.
pub(super) fn warn(engine: &Engine) {
    for lossy in &engine.lossy {
        console::say!("warning: lossy: {lossy}");
    }
    for warning in warnings(engine) {
        console::say!("warning: {warning}");
    }
    if let Some(fallback) = &engine.reader.fallback {
        console::say!("note: reading through {}: {fallback}", engine.reader.kind.name());
    }
    if let Some(ignored) = &engine.heat_ignored {
        console::say!("note: {ignored}");
    }
}

/// Tokens of a model without a tokenizer, as they come.
#[derive(Default)]
struct Numbers {
    are_more: bool,
}

impl Numbers {
    fn show(&mut self, token: u32) -> io::Result<()> {
        let separator = if std::mem::replace(&mut self.are_more, true) { "," } else { "" };
        let mut out = io::stdout();
        write!(out, "{separator}{token}")?;
        out.flush()
    }
}

/// What came of a prompt.
struct Generating {
    generated: Generated,
    /// Why it could not be shown as it came, which ended it.
    failed: Option<io::Error>,
    interrupt: Interrupt,
}

fn generate(
    engine: &mut Engine,
    session: Session,
    request: Request,
    shown: Shown,
) -> anyhow::Result<Generating> {
    let interrupt = Interrupt::install();
    let mut answer = match shown {
        Shown::All => AnswerStream::new(),
        Shown::Answer | Shown::Nothing => AnswerStream::of_answer(),
    };
    let long = shown == Shown::All && request.prompt.len() > PROGRESS_TOKENS;
    let bar = console::progress("reading the prompt", Unit::Share);
    let (mut failed, mut released) = (None, 0);
    let (tokenizer, mut numbers) = (engine.tokenizer.as_ref(), Numbers::default());
    let stats = engine.stats_handle();
    let read_stats = || fm_engine::local::read_stats(&stats);
    let generation =
        Generation::new(engine.runner.as_mut(), session, request, tokenizer, &read_stats)?;
    let generated = generation.run(&mut |event| {
        match event {
            Event::Prefill { done, total } => {
                if long {
                    bar.set_length(total);
                    bar.set_position(done);
                }
            }
            Event::Token(chosen) => {
                bar.finish_and_clear();
                if let (None, true) = (tokenizer, shown != Shown::Nothing)
                    && let Err(error) = numbers.show(chosen.token)
                {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
                let now = read_stats().released_bytes;
                if now > released {
                    let bytes = Bytes(now - released);
                    console::say!("note: memory is short: {bytes} of expert slots were given back");
                    released = now;
                }
            }
            // Nobody is told of tools here, so there are no calls, and nobody asks which tokens are text.
            Event::Call(..) | Event::Said { .. } => {}
            Event::Text(..) if shown == Shown::Nothing => {}
            Event::Text(channel, text) => {
                if let Err(error) = answer.show(channel, text) {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
        }
        interrupt.flow()
    })?;
    bar.finish_and_clear();
    if shown != Shown::Nothing && failed.is_none() {
        failed = answer.end().err();
    }
    Ok(Generating { generated, failed, interrupt })
}

fn report(engine: &Engine, generated: &Generated, places: &Places) -> Report {
    let room = engine.plan.budget.saturating_sub(engine.plan.total());
    let memory =
        if room >= MEMORY_PROBE_BYTES as u64 { ProbeMemory::Allocate } else { ProbeMemory::Leave };
    let peak_bytes = peak_held_bytes(&places.root);
    let probes = (memory, Watched::Yes);
    let limits = Limits::get(&engine.files, engine.threads, probes, places.cache_dir.as_deref());
    Report::new(engine, generated, limits, peak_bytes)
}

fn print_timing(load: LoadTimes, timing: &Timing) {
    let LoadTimes { weights, text, total } = load;
    console::say!(
        "\nload {:.3} s: weights {:.3}, beside them tokenizer and template {:.3}",
        total.as_secs_f64(),
        weights.as_secs_f64(),
        text.as_secs_f64()
    );
    console::say!(
        "{:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "seconds",
        "total",
        "attention",
        "delta_net",
        "moe",
        "wait",
        "mlp",
        "head"
    );
    for (name, phase) in [("prefill", timing.prefill), ("decode", timing.decode)] {
        console::say!(
            "{name:>10} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3}",
            phase.total_s,
            phase.attention_s,
            phase.delta_net_s,
            phase.moe_s,
            phase.wait_s,
            phase.mlp_s,
            phase.head_s
        );
    }
}
