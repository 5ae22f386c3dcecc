//! `verify`: re-reads a whole model and compares it with its checksums.

use std::path::Path;

use anyhow::Context;
use clap::{ArgMatches, Command};
use fm_convert::{
    ConvertError, Progress, record,
    verify::{Checked, Mismatch, Report, Touched, verify},
};
use fm_engine::bytes::Bytes;
use fm_format::{
    FormatError,
    error::{FileChange, MEND},
};
use serde_json::json;

use super::{json_arg, model_arg, model_path, switch};
use crate::{
    console::{self, Hinted, Interrupt, Interrupted, Unit},
    places::{self, NO_CACHE},
};

pub(super) fn command() -> Command {
    Command::new("verify")
        .about("Read a whole model again and compare it with its checksums")
        .arg(model_arg())
        .arg(switch(
            "record",
            "Make checksums for a checkpoint that was published without, and keep them in \
             the cache directory: from then on every expert is checked when it is read",
        ))
        .arg(json_arg())
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let places = places::places();
    let bar = console::progress("reading", Unit::Bytes);
    let interrupt = Interrupt::install();
    let mut report = |Progress { phase, bytes_done, bytes_total, .. }| {
        bar.set_length(bytes_total);
        bar.set_position(bytes_done);
        bar.set_message(phase.to_string());
        interrupt.flow()
    };
    let dir = &model_path(matches)?;
    if matches.get_flag("record") {
        let cache_dir = places.cache_dir.context(NO_CACHE)?;
        let written = record::record(dir, &cache_dir, &mut report).map_err(broken_off)?;
        bar.finish_and_clear();
        if matches.get_flag("json") {
            console::print_json(&json!({
                "schema": "flash-moe.record/1",
                "model": dir.display().to_string(),
                "experts": written.records,
                "tensors": written.tensors,
                "files": written.files,
                "checksums": written.path.display().to_string(),
            }))?;
        }
        console::say!(
            "recorded {}, {} and {} in {}",
            console::counted(written.records, "expert"),
            console::counted(written.tensors, "tensor"),
            console::counted(written.files, "file"),
            written.path.display()
        );
        return Ok(());
    }
    let checked = verify(dir, places.cache_dir.as_deref(), &mut report).map_err(broken_off)?;
    bar.finish_and_clear();
    let printed = matches.get_flag("json").then(|| console::print_json(&as_json(dir, &checked)));
    if let Some(first) = &checked.first {
        let (wrong, all) = (checked.mismatches, things(&checked));
        let said = format!("{wrong} of {all} things are wrong; first: {first}");
        return Err(Hinted { said, hint: hint(&checked, first) }.into());
    }
    printed.transpose()?;
    console::say!(
        "{}: {}, {} and {}, {} in all, are what they were",
        dir.display(),
        console::counted(checked.records, "expert"),
        console::counted(checked.tensors, "tensor"),
        console::counted(checked.files, "file"),
        Bytes(checked.bytes)
    );
    let now = match checked.touched {
        Touched::No => None,
        Touched::Renewed => Some("they are known as they are now"),
        Touched::NotRenewed => {
            Some("that could not be written down, so it is still opened without its checksums")
        }
    };
    if let Some(now) = now {
        console::say!("its files were touched since they were recorded, and are the same: {now}");
    }
    if checked.small_files_unknown {
        console::say!(
            "config.json, the tokenizer and other small files were not recorded: an older build did it; \
             `flash-moe verify --record MODEL` records them"
        );
    }
    Ok(())
}

/// A small file of a checkpoint may have been edited on purpose, since it was recorded.
fn hint(checked: &Report, first: &Mismatch) -> Option<&'static str> {
    if checked.is_container || first.what != Checked::File {
        return Some(MEND);
    }
    let (path, change) = (first.path.clone(), FileChange::Other);
    FormatError::RecordedFile { path, change }.hint()
}

fn things(report: &Report) -> u64 {
    report.files + report.tensors + report.parts
}

fn as_json(dir: &Path, report: &Report) -> serde_json::Value {
    json!({
        "schema": "flash-moe.verify/1",
        "model": dir.display().to_string(),
        "experts": report.records,
        "tensors": report.tensors,
        "files": report.files,
        "small_files_unknown": report.small_files_unknown,
        "touched": report.touched != Touched::No,
        "renewed": report.touched == Touched::Renewed,
        "bytes": report.bytes,
        "mismatches": report.mismatches,
        "first": report.first.as_ref().map(ToString::to_string),
    })
}

/// Nothing is kept of what was read until then.
fn broken_off(error: ConvertError) -> anyhow::Error {
    match error {
        ConvertError::Cancelled => Interrupted.into(),
        error => error.into(),
    }
}
