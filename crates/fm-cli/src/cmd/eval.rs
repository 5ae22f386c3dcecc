//! `eval`: how well a model predicts a text, and how far it is from another on it.

mod found;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command, builder::NonEmptyStringValueParser, value_parser};
use fm_engine::{
    Engine, EngineError, Load,
    backends::{DeviceChoice, Numerics},
    bytes::Bytes,
    engine::plan,
    eval::{
        Computed, Cutting, EvalError, Logits, ROWS, Text, WINDOW,
        dump::{DumpHeader, DumpReader, DumpWriter, is_dump},
        evaluate,
    },
    machine::MemoryLimits,
    memory_plan::default_budget,
    options::{ENGINE, EngineOptions},
};
use fm_text::SpecialTokens;

use self::found::{Found, Named};
use super::{json_arg, model_arg, model_path, resolve, run::warn, valued};
use crate::{
    console::{self, Interrupt, Unit},
    flags::{self, Usage},
    input, places, results,
};

const LOAD: Load =
    Load { sessions: 1, logits_rows: ROWS, marks: 0, grammars: false, prefix_disk: false };

pub(super) fn command() -> Command {
    let count = |name: &'static str, help: &'static str| {
        valued(name, "TOKENS", help).value_parser(value_parser!(usize))
    };
    let numerics: Vec<_> = Numerics::ALL.iter().map(|numerics| numerics.name()).collect();
    let against = format!(
        "Also compare with the same model in other numerics ({}) or without its lossy options \
         ({EXACT}), with another model of the same tokenizer, or with logits that --dump has written",
        numerics.join(", ")
    );
    let command = Command::new("eval")
        .about("Measure perplexity on a text, and the distance to other numerics or another model")
        .long_about(
            "Measures the perplexity of a model on a text and, with --against, mean KL and top-1 \
             agreement, all with 95 % confidence intervals. Method: docs/eval.md.",
        )
        .arg(model_arg())
        .arg(
            valued("text", "FILE", "The text, UTF-8; `-` is stdin")
                .required(true)
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("against")
                .long("against")
                .value_name("NUMERICS|exact|MODEL|DUMP")
                .help(against),
        )
        .arg(
            valued(
                "dump",
                "FILE",
                "Write the logits of MODEL, 4 bytes each, to compare with later",
            )
            .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            valued(
                "split",
                "TEXT",
                "What stands between documents that know nothing of each other",
            )
            .allow_hyphen_values(true)
            .value_parser(NonEmptyStringValueParser::new()),
        )
        .arg(count(
            "window",
            "Tokens that are computed together as one text [default: 512, or the model's context]",
        ))
        .arg(count(
            "warm-up",
            "Tokens of context for windows inside a document [default: a quarter of a window]",
        ))
        .arg(
            count(
                "tokens",
                "Stop after this many tokens of the text [default: all, or the dump's]",
            )
            .value_parser(flags::positive),
        )
        .arg(json_arg());
    flags::add(command, &ENGINE, "Engine")
}

/// What stands for the same model without its lossy options.
const EXACT: &str = "exact";

/// What the model is held to.
enum Against {
    Numerics(Numerics),
    Exact,
    Model(PathBuf),
    Dump(Box<DumpReader>),
}

impl Against {
    fn of(matches: &ArgMatches) -> anyhow::Result<Option<Self>> {
        let Some(given) = matches.get_one::<String>("against") else { return Ok(None) };
        if let Some(numerics) = Numerics::ALL.iter().find(|numerics| numerics.name() == given) {
            return Ok(Some(Self::Numerics(*numerics)));
        }
        if given == EXACT {
            return Ok(Some(Self::Exact));
        }
        let path = PathBuf::from(given);
        if is_dump(&path) {
            let dump = DumpReader::open(&path).map_err(EngineError::from)?;
            return Ok(Some(Self::Dump(Box::new(dump))));
        }
        Ok(Some(Self::Model(resolve(&path)?)))
    }

    fn dumped(&self) -> Option<&DumpHeader> {
        match self {
            Self::Dump(dump) => Some(&dump.header),
            _ => None,
        }
    }
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let text: &PathBuf = matches.get_one("text").expect("clap requires it");
    let read = read_text(text)?;
    let split = matches.get_one::<String>("split");
    if let Some(between) = split.filter(|between| !read.contains(between.as_str())) {
        console::say!("note: --split {between:?} is nowhere in the text, which is one document");
    }
    let against = Against::of(matches)?;
    let path = model_path(matches)?;
    results::file(matches, "dump", (Some(&path), &[Some(text)]))?;
    let mut options = flags::engine_options(matches)?;
    let cutting = cut(matches, &path, &mut options, against.as_ref())?;
    let dumped = against.as_ref().and_then(Against::dumped).map(DumpHeader::tokens);
    let most = matches.get_one("tokens").copied().or(dumped);
    if matches!(against, Some(Against::Numerics(_) | Against::Exact | Against::Model(_))) {
        // Two models side by side share the memory.
        let limits = MemoryLimits::read(&places::places().root);
        options.memory = Some(options.memory.unwrap_or_else(|| default_budget(&limits)) / 2);
    }
    let mut engine = open(&path, &options, against.is_some())?;
    let tokenized = |engine: &Engine| tokenize(matches, engine, &read, (cutting, most));
    let text = tokenized(&engine)?;
    let mut other = match &against {
        Some(Against::Numerics(numerics)) => {
            let (numerics, device) = (Some(*numerics), DeviceChoice::Auto);
            let options = EngineOptions { numerics, device, ..options };
            Other::Engine(Box::new(open(&path, &options, true)?))
        }
        Some(Against::Exact) => Other::Engine(Box::new(open(&path, &options.exact(), true)?)),
        Some(Against::Model(path)) => {
            let other = open(path, &options, true)?;
            text.same_tokens(&tokenized(&other)?).map_err(EngineError::from)?;
            Other::Engine(Box::new(other))
        }
        Some(Against::Dump(_)) | None => Other::None,
    };
    if let Some(Against::Dump(dump)) = against {
        dump.check(&text).map_err(EngineError::from)?;
        other = Other::Dump(dump);
    }
    measure(matches, &mut engine, &mut other, &text)
}

/// Where the logits to compare with come from.
enum Other {
    None,
    Engine(Box<Engine>),
    Dump(Box<DumpReader>),
}

impl Other {
    fn named(&self) -> Option<Named> {
        match self {
            Self::None => None,
            Self::Engine(engine) => Some(Named::of(engine)),
            Self::Dump(dump) => {
                let DumpHeader { model, numerics, lossy, .. } = dump.header.clone();
                Some(Named { model, numerics, lossy })
            }
        }
    }
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let text = input::text(path)?;
    if text.is_empty() { Err(EngineError::from(EvalError::EmptyText).into()) } else { Ok(text) }
}

/// The cutting that was asked for, that of the dump, or what suits the model. Sets the context.
fn cut(
    matches: &ArgMatches,
    path: &Path,
    options: &mut EngineOptions,
    against: Option<&Against>,
) -> anyhow::Result<Cutting> {
    let dumped = against.and_then(Against::dumped).map(|dumped| dumped.cutting);
    let context = match options.context {
        Some(context) => context as usize,
        None => plan(path, options, LOAD, &places::places())?.spec.context_max as usize,
    };
    let wish = |name: &str| matches.get_one::<usize>(name).copied();
    let window = wish("window").or(dumped.map(|cutting| cutting.window));
    let window = window.unwrap_or(WINDOW.min(context));
    if window > context {
        let message = format!("--window {window}: the context holds {context} tokens");
        return Err(Usage(message).into());
    }
    options.context.get_or_insert(window as u32);
    let warm_up = wish("warm-up").or(dumped.map(|cutting| cutting.warm_up));
    Ok(Cutting { window, warm_up: warm_up.unwrap_or((window / 4).max(1)) })
}

fn open(path: &Path, options: &EngineOptions, compared: bool) -> anyhow::Result<Engine> {
    let engine = Engine::open(path, options, LOAD, &places::places());
    let engine = if compared {
        engine.with_context(|| {
            format!("opening {} beside another (or --dump one, then compare)", path.display())
        })?
    } else {
        engine?
    };
    warn(&engine);
    Ok(engine)
}

/// The documents of a text as tokens.
fn tokenize(
    matches: &ArgMatches,
    engine: &Engine,
    text: &str,
    (cutting, most): (Cutting, Option<usize>),
) -> anyhow::Result<Text> {
    let none = || EvalError::NoTokenizer { path: engine.path.clone() };
    let tokenizer = engine.tokenizer.as_ref().ok_or_else(none).map_err(EngineError::from)?;
    let parts: Vec<&str> = match matches.get_one::<String>("split") {
        Some(between) => text.split(between.as_str()).collect(),
        None => vec![text],
    };
    let mut left = most.unwrap_or(usize::MAX);
    let mut documents = Vec::new();
    for part in parts {
        let mut tokens = tokenizer.encode(part, SpecialTokens::Parse).map_err(EngineError::from)?;
        tokens.truncate(left);
        left -= tokens.len();
        documents.push(tokens);
    }
    Ok(Text::new(tokenizer.prefix(), &documents, cutting).map_err(EngineError::from)?)
}

/// Computes everything and prints it.
fn measure(
    matches: &ArgMatches,
    engine: &mut Engine,
    other: &mut Other,
    text: &Text,
) -> anyhow::Result<()> {
    let ours = Named::of(engine);
    let theirs = other.named();
    let mut dump = match matches.get_one::<PathBuf>("dump") {
        Some(path) => Some(begin_dump(path, engine, &ours, text)?),
        None => None,
    };
    let interrupt = Interrupt::install();
    let cancelled = || interrupt.is_set();
    let window = text.cutting().window as u32;
    let mut model = Computed::new(engine.runner.as_mut(), text, window, &cancelled);
    let mut computed;
    let against: Option<&mut dyn Logits> = match other {
        Other::None => None,
        Other::Dump(dump) => Some(dump.as_mut()),
        Other::Engine(engine) => {
            computed = Computed::new(engine.runner.as_mut(), text, window, &cancelled);
            Some(&mut computed)
        }
    };
    let bar = console::progress("evaluating", Unit::Share);
    bar.set_length(text.scored() as u64);
    let evaluation = evaluate(text, &mut model, against, dump.as_mut(), &mut |done| {
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    if let Some(dump) = dump {
        dump.finish().map_err(EngineError::from)?;
    }
    let found = Found { ours, theirs, text, evaluation };
    if matches.get_flag("json") {
        return console::print_json(&found.as_json());
    }
    Ok(write!(io::stdout().lock(), "{found}")?)
}

fn begin_dump(
    path: &Path,
    engine: &Engine,
    model: &Named,
    text: &Text,
) -> anyhow::Result<DumpWriter> {
    let vocab = engine.runner.vocab();
    let header = DumpHeader::new(model.model.clone(), &model.numerics, &model.lossy, vocab, text);
    let bytes = 4 * (text.scored() * vocab) as u64;
    console::say!("note: writing {} to {}", Bytes(bytes), path.display());
    Ok(DumpWriter::create(path, &header).map_err(EngineError::from)?)
}
