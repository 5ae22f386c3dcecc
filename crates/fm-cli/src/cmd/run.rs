//! `run`: a prompt in, an answer out, a report at the end.

use std::{
    fs,
    io::{self, IsTerminal, Read, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use fm_engine::{
    Engine, EngineError, Load, Places,
    bytes::Bytes,
    engine::LoadTimes,
    generate::{Event, FinishReason, Generated, Generation, Request},
    grammar::{Constraint, Grammar, Grammars},
    limits::{Limits, MEMORY_PROBE_BYTES, ProbeMemory, Watched},
    machine::peak_held_bytes,
    options::{ENGINE, SAMPLING},
    report::{Report, RunOutput, SCHEMA, Timing},
    session::Conversation,
    warm_start::WarmStart,
};
use fm_text::{
    AnswerForm, ChatTemplate, Message, RenderRequest, SpecialTokens, ThinkingState, ThinkingTags,
    thinking,
};

use super::{json_arg, model_arg, model_path};
use crate::{
    console::{self, AnswerStream, Interrupt, Unit},
    flags::{self, Usage},
    places,
};

/// Prompts shorter than this are over before a progress bar is understood.
const PROGRESS_TOKENS: u64 = 64;

pub(super) fn command() -> Command {
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
    };
    let valued = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let command = Command::new("run")
        .about("Answer a prompt")
        .arg(model_arg())
        .arg(
            Arg::new("stdin")
                .value_name("-")
                .help("Read the prompt from stdin")
                .value_parser(["-"])
                .hide_possible_values(true)
                .conflicts_with_all(["prompt", "prompt-file", "prompt-tokens"]),
        )
        .arg(valued("prompt", "TEXT", "What to say; `-` reads stdin").short('p'))
        .arg(
            valued(
                "prompt-file",
                "FILE",
                "Take the prompt from a file, bytes as they are; `-` is stdin",
            )
            .conflicts_with("prompt"),
        )
        .arg(
            valued("prompt-tokens", "IDS", "Start from these tokens, as 5,17,9")
                .conflicts_with_all(["prompt", "prompt-file", "system"]),
        )
        .arg(switch(
            "raw",
            "Continue the prompt as it stands, without the chat template; control tokens that it \
             spells are tokens",
        ))
        .arg(valued("system", "FILE", "Take the system message from a file").conflicts_with("raw"))
        .arg(
            valued("max-tokens", "N", "Tokens to generate [default: until the model ends]")
                .alias("tokens")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            valued("stop", "TEXT", "End the answer before this text; may be given several times")
                .action(ArgAction::Append),
        )
        .arg(switch("think", "Let the model think first").conflicts_with("no-think"))
        .arg(switch("no-think", "Let the model answer at once"))
        .arg(
            valued("think-budget", "N", "Close the thinking block after N tokens")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            valued("think-min", "N", "Keep the thinking block open for N tokens")
                .value_parser(value_parser!(usize)),
        )
        .args(grammar_args(valued))
        .arg(
            valued("session", "FILE", "Continue the conversation in FILE, and save it there")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(switch("timing", "Show where the time went, by phase and kind of layer"))
        .arg(switch("quiet", "Print the answer only").short('q'))
        .arg(json_arg())
        .arg(switch("greedy", "Always take the most likely token").help_heading("Sampling"));
    flags::add(flags::add(command, &SAMPLING, "Sampling"), &ENGINE, "Engine")
}

/// What the answer must be.
fn grammar_args(
    valued: impl Fn(&'static str, &'static str, &'static str) -> Arg,
) -> impl IntoIterator<Item = Arg> {
    [
        valued("json-schema", "FILE", "Answer with JSON that is valid under the schema in FILE")
            .conflicts_with_all(["grammar", "regex"]),
        valued(
            "grammar",
            "FILE",
            "Answer within the context-free grammar in FILE, written in Lark",
        )
        .conflicts_with("regex"),
        valued("regex", "REGEX", "Answer with a text that REGEX matches as a whole"),
    ]
}

fn grammar(matches: &ArgMatches) -> anyhow::Result<Option<Grammar>> {
    let text = |name: &str| matches.get_one::<String>(name);
    let read = |file: &String| fs::read_to_string(file).with_context(|| format!("reading {file}"));
    Ok(if let Some(file) = text("json-schema") {
        let schema = serde_json::from_str(&read(file)?);
        Some(Grammar::JsonSchema(schema.with_context(|| format!("{file} is not JSON"))?))
    } else if let Some(file) = text("grammar") {
        Some(Grammar::Lark(read(file)?))
    } else {
        text("regex").cloned().map(Grammar::Regex)
    })
}

/// The grammar, for this model's tokens.
fn constraint(engine: &Engine, grammar: Grammar) -> Result<Constraint, EngineError> {
    let no_tokenizer = || EngineError::NoTokenizer { path: engine.path.clone() };
    let tokenizer = engine.tokenizer.as_ref().ok_or_else(no_tokenizer)?;
    let grammars = Grammars::build(tokenizer, engine.runner.vocab(), &engine.eos)?;
    Ok(grammars.constraint(grammar)?)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let places = places::places();
    let mut options = flags::engine_options(matches)?;
    options.warm_start.get_or_insert(WarmStart::On);
    let (input, grammar) = (Input::read(matches)?, grammar(matches)?);
    let load = Load { grammars: grammar.is_some(), ..Load::default() };
    let mut engine = Engine::open(&model_path(matches)?, &options, load, &places)?;
    warn(&engine);
    let constraint = grammar.map(|grammar| constraint(&engine, grammar)).transpose()?;
    let (mut conversation, session) = continue_or_open(&mut engine, matches)?;
    let prompt = tokens_of(&engine, matches, &input, &mut conversation)?;
    let session = reuse(&mut engine, session, &conversation, &prompt)?;
    let tags = ThinkingTags::new(thinking::OPEN, thinking::CLOSE).map_err(EngineError::from)?;
    let template = engine.template.as_ref().filter(|_| prompt.text.is_some());
    let request = Request {
        thinking: prompt
            .text
            .as_ref()
            .map_or(ThinkingState::None, |text| tags.state_at_end_of(text)),
        prompt: prompt.tokens,
        sampling: flags::sampling(matches, &SAMPLING, engine.generation.sampling())?,
        max_tokens: matches.get_one("max-tokens").copied(),
        eos: engine.eos.clone(),
        stop: matches.get_many("stop").map_or_else(Vec::new, |stops| stops.cloned().collect()),
        think_budget: matches.get_one("think-budget").copied(),
        think_min: matches.get_one("think-min").copied().unwrap_or(0),
        answer: AnswerForm { dialect: template.and_then(ChatTemplate::dialect), calls: None },
        context: engine.plan.context,
        constraint,
        ..Request::default()
    };
    let prompt_tokens = request.prompt.clone();
    let generated = generate(&mut engine, session, request, matches.get_flag("json"))?;
    // An answer is shown even if it cannot be kept, and kept even if it cannot be shown.
    let shown = show(&engine, matches, &places, (&prompt_tokens, &generated));
    save(&mut engine, matches, conversation, (&prompt_tokens, &generated), session)?;
    shown
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
            report,
        });
    }
    if generated.text.is_none() {
        let numbers: Vec<String> = generated.tokens.iter().map(u32::to_string).collect();
        writeln!(io::stdout(), "{}", numbers.join(","))?;
    }
    if !matches.get_flag("quiet") {
        console::say!("\n{report}");
    }
    if matches.get_flag("timing") {
        print_timing(engine.load_times, &report.timing);
    }
    Ok(())
}

/// What the user gave as prompt.
enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

impl Input {
    fn read(matches: &ArgMatches) -> anyhow::Result<Self> {
        if let Some(tokens) = matches.get_one::<String>("prompt-tokens") {
            return Ok(Self::Tokens(flags::parse_tokens(tokens).map_err(Usage)?));
        }
        if let Some(text) = matches.get_one::<String>("prompt").filter(|text| *text != "-") {
            return Ok(Self::Text(text.clone()));
        }
        let file = matches.get_one::<String>("prompt-file").filter(|file| *file != "-");
        let bytes = if let Some(file) = file {
            fs::read(file).with_context(|| format!("reading {file}"))?
        } else {
            let asked = ["stdin", "prompt", "prompt-file"].iter().any(|id| matches.contains_id(id));
            if !asked && io::stdin().is_terminal() {
                return Err(EngineError::EmptyPrompt.into());
            }
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).context("reading stdin")?;
            bytes
        };
        String::from_utf8(bytes).map(Self::Text).context("the prompt is not UTF-8")
    }
}

/// What a user should know before the work begins.
pub(super) fn warn(engine: &Engine) {
    for lossy in &engine.lossy {
        console::say!("warning: lossy: {lossy}");
    }
    let (planned, allowed) = (engine.plan.total(), engine.plan.allowed);
    if planned > allowed {
        console::say!(
            "warning: the plan takes {}, free memory and cgroups allow {}: the machine may swap or \
             end the program",
            Bytes(planned),
            Bytes(allowed)
        );
    }
    if let Some(fallback) = &engine.reader.fallback {
        console::say!("note: reading through {}: {fallback}", engine.reader.kind.name());
    }
    if let Some(ignored) = &engine.heat_ignored {
        console::say!("note: {ignored}");
    }
}

type Session = fm_model::runner::SessionId;

/// The conversation of `--session`, if the file is there, and its session.
fn continue_or_open(
    engine: &mut Engine,
    matches: &ArgMatches,
) -> anyhow::Result<(Conversation, Option<Session>)> {
    match matches.get_one::<PathBuf>("session").filter(|path| path.exists()) {
        Some(path) => {
            let (conversation, session) = Conversation::load(engine, path)?;
            Ok((conversation, Some(session)))
        }
        None => Ok((Conversation::default(), None)),
    }
}

/// A prompt as the model sees it.
struct Prompt {
    tokens: Vec<u32>,
    /// The rendered text, if there is one.
    text: Option<String>,
}

fn tokens_of(
    engine: &Engine,
    matches: &ArgMatches,
    input: &Input,
    conversation: &mut Conversation,
) -> anyhow::Result<Prompt> {
    let text = match input {
        Input::Tokens(tokens) => {
            let tokens = [conversation.tokens.as_slice(), tokens].concat();
            return Ok(Prompt { tokens, text: None });
        }
        Input::Text(text) if text.is_empty() => return Err(EngineError::EmptyPrompt.into()),
        Input::Text(text) => text,
    };
    let path = || engine.path.clone();
    let tokenizer =
        engine.tokenizer.as_ref().ok_or_else(|| EngineError::NoTokenizer { path: path() })?;
    if matches.get_flag("raw") {
        let tokens = tokenizer.encode(text, SpecialTokens::Parse).map_err(EngineError::from)?;
        // What goes on has its beginning already.
        let past = &conversation.tokens;
        let past = if past.is_empty() { tokenizer.prefix() } else { past };
        let tokens = [past, &tokens].concat();
        return Ok(Prompt { tokens, text: Some(text.clone()) });
    }
    let template =
        engine.template.as_ref().ok_or_else(|| EngineError::NoTemplate { path: path() })?;
    if let Some(file) = matches.get_one::<String>("system") {
        let system = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
        conversation.messages.retain(|message| message.role != "system");
        conversation.messages.insert(0, Message::new("system", system));
    }
    conversation.messages.push(Message::new("user", text.as_str()));
    let enable_thinking = match (matches.get_flag("think"), matches.get_flag("no-think")) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let mut messages = conversation.messages.clone();
    messages.iter_mut().for_each(|message| message.guard(tokenizer));
    let request = RenderRequest { enable_thinking, ..RenderRequest::new(&messages) };
    let rendered = template.render(&request).map_err(EngineError::from)?;
    let special = SpecialTokens::ParseTemplate;
    let tokens = tokenizer.encode(&rendered, special).map_err(EngineError::from)?;
    Ok(Prompt { tokens, text: Some(rendered) })
}

/// The saved session if the prompt continues it token by token, else a fresh one: a template may
/// write earlier turns differently than they were generated.
fn reuse(
    engine: &mut Engine,
    session: Option<Session>,
    conversation: &Conversation,
    prompt: &Prompt,
) -> anyhow::Result<Session> {
    if let Some(session) = session {
        let held = engine.runner.position(session).map_err(EngineError::from)? as usize;
        let continues = held < prompt.tokens.len()
            && conversation.tokens.get(..held) == prompt.tokens.get(..held);
        if continues {
            return Ok(session);
        }
        console::say!(
            "note: the template changed earlier turns, so the conversation is computed anew"
        );
        engine.runner.close(session);
    }
    Ok(engine.runner.open(engine.plan.context).map_err(EngineError::from)?)
}

fn generate(
    engine: &mut Engine,
    session: Session,
    request: Request,
    silent: bool,
) -> anyhow::Result<Generated> {
    let interrupt = Interrupt::install();
    let mut answer = AnswerStream::new();
    let bar = console::progress("reading the prompt", Unit::Share);
    let (mut failed, mut released) = (None, 0);
    let stats = engine.stats_handle();
    let read_stats = || fm_engine::local::read_stats(&stats);
    let generation = Generation::new(
        engine.runner.as_mut(),
        session,
        request,
        engine.tokenizer.as_ref(),
        &read_stats,
    )?;
    let generated = generation.run(&mut |event| {
        match event {
            Event::Prefill { done, total } => {
                if total > PROGRESS_TOKENS && !silent {
                    bar.set_length(total);
                    bar.set_position(done);
                }
            }
            Event::Token(_) => {
                bar.finish_and_clear();
                let now = read_stats().released_bytes;
                if now > released {
                    let bytes = Bytes(now - released);
                    console::say!("note: memory is short: {bytes} of expert slots were given back");
                    released = now;
                }
            }
            // Nobody is told of tools here, so there are no calls, and nobody asks which tokens are text.
            Event::Call(..) | Event::Said { .. } => {}
            Event::Text(..) if silent => {}
            Event::Text(channel, text) => {
                if let Err(error) = answer.show(channel, text) {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
        }
        if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    bar.finish_and_clear();
    if let Some(error) = failed {
        return Err(error.into());
    }
    if !silent {
        answer.end()?;
    }
    Ok(generated)
}

fn save(
    engine: &mut Engine,
    matches: &ArgMatches,
    mut conversation: Conversation,
    (prompt, generated): (&[u32], &Generated),
    session: Session,
) -> anyhow::Result<()> {
    let Some(path) = matches.get_one::<PathBuf>("session") else { return Ok(()) };
    let messages = &mut conversation.messages;
    let asked = messages.last().is_some_and(|message| message.role == "user");
    // A question without an answer is no turn. Raw text that was read to its end is worth keeping.
    let read = !asked && generated.finish != FinishReason::Cancelled;
    if generated.tokens.is_empty() && !read {
        console::say!("note: nothing was generated, so {} was not written", path.display());
        return Ok(());
    }
    if asked {
        let mut answer = Message::new("assistant", generated.text.clone().unwrap_or_default());
        answer.reasoning_content.clone_from(&generated.thinking);
        messages.push(answer);
    } else if !messages.is_empty() {
        // Nobody says it in terms of the template, which could not write it again.
        console::say!(
            "note: raw text is no part of the chat: a turn without --raw goes on before it"
        );
    }
    let tokens = [prompt, &generated.tokens].concat();
    Conversation::new(conversation.messages, tokens).save(engine, session, Path::new(path))?;
    Ok(())
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
