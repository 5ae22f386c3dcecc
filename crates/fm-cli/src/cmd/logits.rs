//! `logits`: the model's raw output for given tokens, to compare with other implementations.

use std::{
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command, value_parser};
use fm_engine::{Engine, EngineError, Load, options::ENGINE, sampler::NotANumber};
use fm_format::{key::LayerIndex, new_file::NewFile};
use fm_model::runner::{Batch, Row, RowInput, Wants};
use serde_json::json;

use super::{model_arg, model_path, run::warn};
use crate::{
    console::Interrupt,
    flags::{self, Usage},
    places, results,
};

/// Rows whose logits are in memory at once.
const ROWS: usize = 16;

pub(super) fn command() -> Command {
    let command = Command::new("logits")
        .about("Write logits of given tokens to a safetensors file")
        .long_about(
            "Writes `logits`, f32 [tokens, vocab], row i after token i, to a safetensors file; \
             with --hidden also `hidden`, f32 [tokens, hidden], the residual stream after a layer.",
        )
        .arg(model_arg())
        .arg(
            Arg::new("prompt-tokens")
                .long("prompt-tokens")
                .value_name("IDS")
                .help("The tokens, as 5,17,9")
                .required(true),
        )
        .arg(
            Arg::new("out")
                .long("out")
                .value_name("FILE")
                .help("Where to write")
                .required(true)
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("hidden")
                .long("hidden")
                .value_name("LAYER")
                .help("Also write the residual stream after this layer, counted from 0")
                .value_parser(value_parser!(u16)),
        );
    flags::add(command, &ENGINE, "Engine")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let text: &String = matches.get_one("prompt-tokens").expect("clap requires it");
    let tokens = flags::parse_tokens(text).map_err(Usage)?;
    if tokens.is_empty() {
        return Err(Usage("--prompt-tokens has no token".to_owned()).into());
    }
    let options = flags::engine_options(matches)?;
    let load = Load { logits_rows: ROWS, ..Load::default() };
    let model = model_path(matches)?;
    let path = results::file(matches, "out", (Some(&model), &[]))?.expect("clap requires it");
    let mut engine = Engine::open(&model, &options, load, &places::places())?;
    warn(&engine);
    let context = engine.plan.context;
    if tokens.len() > context as usize {
        return Err(EngineError::PromptTooLong { tokens: tokens.len(), context }.into());
    }
    let layer = matches.get_one::<u16>("hidden").copied();
    if let Some(layer) = layer.filter(|layer| usize::from(*layer) >= engine.layers) {
        let layers = engine.layers;
        return Err(
            Usage(format!("--hidden {layer}: the model has layers 0 to {}", layers - 1)).into()
        );
    }
    write(&mut engine, &tokens, layer, path).with_context(|| format!("writing {}", path.display()))
}

/// Writes the file row by row: long outputs do not fit memory.
fn write(
    engine: &mut Engine,
    tokens: &[u32],
    layer: Option<u16>,
    path: &Path,
) -> anyhow::Result<()> {
    let (vocab, hidden) = (engine.runner.vocab(), engine.hidden);
    let logits_bytes = 4 * tokens.len() * vocab;
    let mut header = json!({
        "logits": {"dtype": "F32", "shape": [tokens.len(), vocab], "data_offsets": [0, logits_bytes]},
    });
    if layer.is_some() {
        let end = logits_bytes + 4 * tokens.len() * hidden;
        header["hidden"] = json!({
            "dtype": "F32", "shape": [tokens.len(), hidden], "data_offsets": [logits_bytes, end],
        });
    }
    let mut header = header.to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    // Before there is a file that would be left behind.
    let interrupt = Interrupt::install();
    let mut file = NewFile::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let data = 8 + header.len() as u64;

    let session = engine.runner.open(engine.plan.context).map_err(EngineError::from)?;
    let rows_max = engine.runner.logits_rows_max().min(engine.runner.rows_max());
    let mut broken = None;
    for (i, chunk) in tokens.chunks(rows_max).enumerate() {
        let wants = Wants { logits: true, hidden: layer.is_some(), ..Wants::default() };
        let rows = (i * rows_max..).zip(chunk).map(|(position, token)| Row {
            session,
            input: RowInput::Token(*token),
            position: position as u32,
            wants,
        });
        let batch = Batch { rows: rows.collect(), hidden_layer: layer.map(LayerIndex) };
        let output =
            engine.runner.step(&batch, &mut |_| interrupt.flow()).map_err(EngineError::from)?;
        if let Some(spoiled) = output.spoiled.into_iter().next() {
            return Err(EngineError::from(spoiled.reason).into());
        }
        let first = output.logits.iter().position(|logit| !logit.is_finite());
        broken = broken.or(first.map(|at| (i * rows_max + at / vocab, at % vocab)));
        let row = (i * rows_max) as u64;
        write_at(&mut file, data + row * 4 * vocab as u64, output.logits)?;
        let hidden_at = data + logits_bytes as u64 + row * 4 * hidden as u64;
        write_at(&mut file, hidden_at, output.hidden)?;
    }
    file.finish()?;
    // Written all the same: where it begins is what one compares with others.
    match broken {
        Some((row, token)) => {
            let error = EngineError::from(NotANumber { token });
            Err(error).with_context(|| format!("row {row}"))
        }
        None => Ok(()),
    }
}

fn write_at(file: &mut NewFile, at: u64, values: &[f32]) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes()))
}
