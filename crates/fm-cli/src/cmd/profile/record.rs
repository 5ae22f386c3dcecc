//! `profile record`: a text through the model, and what its routers chose into a file.

use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgGroup, ArgMatches, Command, value_parser};
use fm_engine::{
    Engine, EngineError, Load,
    options::ENGINE,
    sampler::{Sampler, Sampling},
    trace::TraceWriter,
};
use fm_model::runner::{Batch, Row, RowInput, SessionId, Wants};
use fm_text::SpecialTokens;

use crate::{
    cmd::{model_arg, model_path, run::warn, switch, valued},
    console::{self, Interrupt, Unit},
    flags::{self, Usage},
    input, places, results,
};

pub(super) fn command() -> Command {
    let command = Command::new("record")
        .about("Write the experts that a text uses to a trace")
        .long_about(
            "Computes a text, token by token as in decoding, and writes which experts every layer \
             used to a trace for `profile replay`. A text that is longer than the context goes on \
             in a new session each time. docs/trace.md describes the file.",
        )
        .arg(model_arg())
        .arg(
            valued("prompt-file", "FILE", "The text, bytes as they are; `-` is stdin")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(valued("prompt-tokens", "IDS", "The tokens, as 5,17,9"))
        .group(ArgGroup::new("text").args(["prompt-file", "prompt-tokens"]).required(true))
        .arg(
            valued(
                "generate",
                "N",
                "Go on with the N likeliest tokens after the text [default: 0]",
            )
            .value_parser(value_parser!(usize)),
        )
        .arg(
            valued("tokens", "N", "Take no more than N tokens of the text")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            valued("chunk", "N", "Compute N tokens of the text together, as in a prompt")
                .default_value("1")
                .value_parser(value_parser!(u16).range(1..)),
        )
        .arg(switch("scores", "Write the routers' scores of all experts too: much larger"))
        .arg(
            valued("out", "FILE", "Where to write")
                .required(true)
                .value_parser(value_parser!(PathBuf)),
        );
    flags::add(command, &ENGINE, "Engine")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let options = flags::engine_options(matches)?;
    let model = model_path(matches)?;
    let read = &[matches.get_one("prompt-file")];
    let out = results::file(matches, "out", (Some(&model), read))?.expect("clap requires it");
    let mut engine = Engine::open(&model, &options, Load::default(), &places::places())?;
    warn(&engine);
    let mut tokens = tokens(&engine, matches)?;
    if let Some(most) = matches.get_one::<usize>("tokens") {
        tokens.truncate(*most);
    }
    check(&tokens, engine.runner.vocab())?;
    let mut header = engine.trace_header().clone();
    header.scores = matches.get_flag("scores");
    let interrupt = Interrupt::install();
    let writer = TraceWriter::create(out, &header).map_err(EngineError::from)?;
    engine.record(Some(writer)).map_err(EngineError::from)?;
    let chunk = usize::from(*matches.get_one::<u16>("chunk").expect("it has a default"));
    let generate = matches.get_one::<usize>("generate").copied().unwrap_or(0);
    // A trace that is not ended is never put in its place.
    Walk::new(&mut engine, tokens.len() + generate, interrupt)?
        .along(&tokens, chunk, generate)
        .with_context(|| format!("recording {}", out.display()))?;
    Ok(engine.record(None).map_err(EngineError::from)?)
}

fn check(tokens: &[u32], vocab: usize) -> anyhow::Result<()> {
    if tokens.is_empty() {
        return Err(Usage("the text has no token".to_owned()).into());
    }
    match tokens.iter().find(|token| **token as usize >= vocab) {
        Some(&token) => Err(EngineError::UnknownToken { token, vocab }.into()),
        None => Ok(()),
    }
}

fn tokens(engine: &Engine, matches: &ArgMatches) -> anyhow::Result<Vec<u32>> {
    if let Some(tokens) = matches.get_one::<String>("prompt-tokens") {
        return Ok(flags::parse_tokens(tokens).map_err(Usage)?);
    }
    let file: &PathBuf = matches.get_one("prompt-file").expect("clap requires one of both");
    let text = input::text(file)?;
    let tokenizer = engine
        .tokenizer
        .as_ref()
        .ok_or_else(|| EngineError::NoTokenizer { path: engine.path.clone() })?;
    let tokens = tokenizer.encode(&text, SpecialTokens::Parse).map_err(EngineError::from)?;
    Ok([tokenizer.prefix(), &tokens].concat())
}

/// A walk through tokens; a full context begins a new session.
struct Walk<'a> {
    engine: &'a mut Engine,
    session: SessionId,
    sampler: Sampler,
    bar: indicatif::ProgressBar,
    interrupt: Interrupt,
}

impl<'a> Walk<'a> {
    fn new(engine: &'a mut Engine, tokens: usize, interrupt: Interrupt) -> anyhow::Result<Self> {
        let context = engine.plan.context;
        let session = engine.runner.open(context).map_err(EngineError::from)?;
        let sampler = Sampler::new(Sampling::default(), engine.runner.vocab(), &[]);
        let bar = console::progress("recording", Unit::Share);
        bar.set_length(tokens as u64);
        Ok(Self { engine, session, sampler, bar, interrupt })
    }

    fn along(mut self, tokens: &[u32], chunk: usize, generate: usize) -> anyhow::Result<()> {
        let rows_max = self.engine.runner.rows_max().min(self.engine.plan.context as usize);
        let mut next = 0;
        for tokens in tokens.chunks(chunk.min(rows_max)) {
            next = self.step(tokens)?;
        }
        for _ in 0..generate {
            next = self.step(&[next])?;
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    /// Computes tokens and returns the likeliest after the last of them.
    fn step(&mut self, tokens: &[u32]) -> anyhow::Result<u32> {
        let context = self.engine.plan.context;
        let runner = self.engine.runner.as_mut();
        let mut position = runner.position(self.session).map_err(EngineError::from)?;
        if position as usize + tokens.len() > context as usize {
            runner.close(self.session);
            self.session = runner.open(context).map_err(EngineError::from)?;
            position = 0;
        }
        let rows = tokens.iter().enumerate().map(|(at, token)| Row {
            session: self.session,
            input: RowInput::Token(*token),
            position: position + at as u32,
            wants: Wants { logits: at + 1 == tokens.len(), ..Wants::default() },
        });
        let batch = Batch { rows: rows.collect(), hidden_layer: None };
        let output =
            runner.step(&batch, &mut |_| self.interrupt.flow()).map_err(EngineError::from)?;
        if let Some(spoiled) = output.spoiled.into_iter().next() {
            return Err(EngineError::from(spoiled.reason).into());
        }
        self.bar.inc(tokens.len() as u64);
        Ok(self.sampler.sample(output.logits).map_err(EngineError::from)?)
    }
}
