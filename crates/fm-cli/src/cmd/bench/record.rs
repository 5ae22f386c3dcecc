//! A table that grows by a line per figure: what was tried, and what came of it.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Seek, Write},
    path::Path,
};

use anyhow::Context;
use fm_engine::measure::Spread;

use super::output::{About, Determinism, Output, RateTest, SpeedTest, Turn};

/// The first line is no longer than this.
const LINE_BYTES_MAX: u64 = 4096;

const COLUMNS: [&str; 12] = [
    "commit",
    "model",
    "geometry",
    "settings",
    "tok/s",
    "GB/s",
    "TTFT s",
    "share of limit",
    "memory bytes",
    "kept/discarded",
    "logits hash",
    "description",
];

/// Whether a file is such a table, or none yet, asked before the work.
pub(super) fn check(file: &Path) -> anyhow::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(dir) = dir {
        anyhow::ensure!(
            dir.is_dir(),
            "recording in {}: there is no such directory",
            file.display()
        );
    }
    let Ok(found) = File::open(file) else { return Ok(()) };
    let mut first = String::new();
    // A line that is no text is no line of ours.
    let read = BufReader::new(found).take(LINE_BYTES_MAX).read_line(&mut first);
    anyhow::ensure!(
        read.is_ok() && (first.is_empty() || first.trim_end() == COLUMNS.join("\t")),
        "{} is no table that `bench --record` has begun; choose another name",
        file.display()
    );
    Ok(())
}

/// Adds a line for every figure, and the names of the columns to an empty file.
pub(super) fn append(file: &Path, output: &Output, note: &str) -> anyhow::Result<()> {
    let context = || format!("recording in {}", file.display());
    let mut lines = String::new();
    for row in rows(output, note) {
        lines.push_str(&row.map(|cell| one_line(&cell)).join("\t"));
        lines.push('\n');
    }
    let mut table =
        OpenOptions::new().append(true).create(true).open(file).with_context(context)?;
    if table.stream_position().with_context(context)? == 0
        && table.metadata().with_context(context)?.len() == 0
    {
        lines.insert_str(0, &format!("{}\n", COLUMNS.join("\t")));
    }
    table.write_all(lines.as_bytes()).with_context(context)
}

fn one_line(cell: &str) -> String {
    cell.replace(['\t', '\n', '\r'], " ")
}

fn rows(output: &Output, note: &str) -> Vec<[String; 12]> {
    let peak = output.peak_bytes;
    let row = |test: &str, numerics: Option<&str>, figures: Figures, memory: Option<u64>| {
        let [tok_s, gb_s, ttft, share, kept, hash] = figures.0;
        [
            output.commit.to_owned(),
            output.about.model.clone(),
            output.about.geometry.clone(),
            settings(&output.about, test, numerics),
            tok_s,
            gb_s,
            ttft,
            share,
            memory.map_or(String::new(), |bytes| bytes.to_string()),
            kept,
            hash,
            note.to_owned(),
        ]
    };
    let speed = output.speed.iter().map(|test| row(&test.test, None, test.into(), peak));
    let rates = output.rates.iter().map(|test| row(&test.test, test.numerics, test.into(), peak));
    let turns = output.turns.iter().zip(1..);
    let turns = turns.map(|(turn, i)| {
        // What is held after each turn, and not the most of the run: whether it grows.
        let test = format!("turn {i}, {} tokens then", turn.context);
        row(&test, None, turn.into(), turn.held_bytes)
    });
    let runs = output.determinism.iter();
    let runs = runs
        .map(|of| row(&format!("{} runs of {}", of.hashes.len(), of.steps), None, of.into(), peak));
    speed.chain(rates).chain(turns).chain(runs).collect()
}

/// Everything that a line needs to be measured again.
fn settings(about: &About, test: &str, numerics: Option<&str>) -> String {
    let numerics = numerics.or(about.numerics).unwrap_or("no numerics");
    let reader = about.reader.as_deref().unwrap_or("no reader");
    let mut settings = format!(
        "{test}; {numerics} on {}; {} threads; memory {} bytes, {} of them in slots; context {}; kv {}; io {}: {reader}; \
         policy {}; look-ahead {}; chunk {}; warm-up {}; repeats {}; text {}",
        about.device,
        about.threads,
        about.budget_bytes,
        about.slot_bytes,
        about.context,
        about.kv,
        about.io,
        about.policy,
        about.look_ahead,
        about.prefill_chunk,
        about.warm_up,
        about.repeats,
        about.text
    );
    let lossy = about.lossy.iter().map(|lossy| format!("lossy: {lossy}"));
    for other in about.others.iter().cloned().chain(lossy) {
        settings += "; ";
        settings += &other;
    }
    settings
}

/// The columns that differ between kinds of figures.
struct Figures([String; 6]);

fn median(spread: Option<Spread>, factor: f64) -> String {
    spread.map_or(String::new(), |spread| format!("{:.4}", factor * spread.median))
}

impl From<&SpeedTest> for Figures {
    fn from(test: &SpeedTest) -> Self {
        Self([
            median(test.tok_s, 1.0),
            String::new(),
            test.ttft_s.map_or(String::new(), |seconds| format!("{seconds:.4}")),
            median(test.disk_share.or(test.memory_share), 1.0),
            format!("{}/{}", test.kept, test.discarded),
            test.logits_hash.clone(),
        ])
    }
}

impl From<&RateTest> for Figures {
    fn from(test: &RateTest) -> Self {
        Self([
            String::new(),
            median(test.bytes_per_s, 1e-9),
            String::new(),
            median(test.share, 1.0),
            format!("{}/{}", test.kept, test.discarded),
            String::new(),
        ])
    }
}

impl From<&Turn> for Figures {
    fn from(turn: &Turn) -> Self {
        Self([
            turn.tok_s.map_or(String::new(), |tok_s| format!("{tok_s:.4}")),
            String::new(),
            format!("{:.4}", turn.ttft_s),
            String::new(),
            String::new(),
            turn.logits_hash.clone(),
        ])
    }
}

impl From<&Determinism> for Figures {
    fn from(runs: &Determinism) -> Self {
        let first = runs.hashes.first().filter(|_| runs.equal);
        let hash = first.map_or("different logits", String::as_str).to_owned();
        Self([String::new(), String::new(), String::new(), String::new(), String::new(), hash])
    }
}
