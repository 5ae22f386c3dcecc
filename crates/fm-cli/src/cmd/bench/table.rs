//! [`Output`] for people.

use std::fmt;

use fm_engine::{bytes::Bytes, measure::Spread};

use super::output::{Determinism, Limit, Output, RateTest, SpeedTest, Turn};

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        if !self.speed.is_empty() {
            speed_head(f)?;
            self.speed.iter().try_for_each(|test| speed_row(test, f))?;
        }
        if !self.rates.is_empty() {
            rate_head(f)?;
            self.rates.iter().try_for_each(|test| rate_row(test, f))?;
        }
        if !self.turns.is_empty() {
            turn_head(f)?;
            let turns = self.turns.iter().enumerate();
            turns.into_iter().try_for_each(|(at, turn)| turn_row(at + 1, turn, f))?;
        }
        match &self.determinism {
            Some(determinism) => determinism_rows(determinism, f),
            None => Ok(()),
        }
    }
}

impl Output {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = &self.about;
        let held = if about.out_of_core {
            format!(
                "{} of the experts' {} in slots",
                Bytes(about.slot_bytes),
                Bytes(about.expert_bytes)
            )
        } else {
            "all experts in memory".to_owned()
        };
        writeln!(f, "{} · {} · {held}", about.model, Bytes(about.model_bytes))?;
        writeln!(f, "{}", about.geometry)?;
        let numerics = about.numerics.map_or(String::new(), |name| format!("numerics {name} · "));
        let reader =
            about.reader.as_ref().map_or(String::new(), |name| format!(" · reader {name}"));
        writeln!(
            f,
            "{numerics}{} threads · {}{reader} · policy {} · look-ahead {} · {} · context {} · chunk {}",
            about.threads,
            about.cpu,
            about.policy,
            about.look_ahead,
            about.checks,
            about.context,
            about.prefill_chunk
        )?;
        for lossy in &about.lossy {
            writeln!(f, "lossy: {lossy}")?;
        }
        if let Some(peak) = self.peak_bytes {
            writeln!(f, "memory {} of {}", Bytes(peak), Bytes(about.budget_bytes))?;
        }
        write!(f, "commit {}", self.commit)?;
        match self.load() {
            Some(load) => writeln!(f, " · load {:.1} to {:.1}", load.min, load.max),
            None => writeln!(f),
        }
    }
}

const NOTHING: &str = "–";

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or(NOTHING.to_owned(), |value| format!("{value:.digits$}"))
}

/// The median, and what it lies between.
fn spread(value: Option<Spread>, factor: f64, digits: usize) -> (String, String) {
    let range = value.map_or(NOTHING.to_owned(), |s| {
        format!("{:.digits$}–{:.digits$}", factor * s.min, factor * s.max)
    });
    (number(value.map(|s| factor * s.median), digits), range)
}

/// A share with its range, and of what.
fn share(value: Option<Spread>, of: &str) -> String {
    value.map_or(NOTHING.to_owned(), |s| {
        let [median, min, max] = [s.median, s.min, s.max].map(|share| 100.0 * share);
        format!("{median:.0} % ({min:.0}–{max:.0}) of {of}")
    })
}

/// How many count, of how many.
fn kept(kept: usize, discarded: usize) -> String {
    format!("{kept}/{}", kept + discarded)
}

/// Why a row has no figure.
fn nothing_counts(kept: usize, discarded: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if kept > 0 || discarded == 0 {
        return Ok(());
    }
    write!(
        f,
        "\n  nothing counts: in each of {discarded} repeats memory changed its speed, or experts were read \
         that stay in memory (--json says which); try again, perhaps with more --repeats"
    )
}

fn speed_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "\n{:<22} {:>8} {:>15} {:>8} {:>25} {:>11} {:>7} {:>6}  logits",
        "", "tok/s", "range", "first s", "share", "read/token", "hits", "kept"
    )
}

fn speed_row(test: &SpeedTest, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (tok_s, range) = spread(test.tok_s, 1.0, 1);
    let limit = match test.disk_share {
        Some(disk) => share(Some(disk), "disk"),
        None => share(test.memory_share, "memory"),
    };
    let read = test.read_bytes_per_token.map(|bytes| Bytes(bytes.median as u64).to_string());
    write!(
        f,
        "\n{:<22} {tok_s:>8} {range:>15} {:>8} {limit:>25} {:>11} {:>7} {:>6}  {}",
        test.test,
        number(test.ttft_s, 2),
        read.unwrap_or(NOTHING.to_owned()),
        number(test.hit_rate.map(|rate| 100.0 * rate.median), 1),
        kept(test.kept, test.discarded),
        test.logits_hash
    )?;
    nothing_counts(test.kept, test.discarded, f)?;
    if test.ahead.foreseen_records > 0 {
        write!(f, "\n  read ahead {}", test.ahead)?;
    }
    if test.text_came_again {
        write!(
            f,
            "\n  the text was too short and began anew: its experts may have been in memory"
        )?;
    }
    Ok(())
}

fn rate_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "\n{:<26} {:>9} {:>7} {:>13} {:>25} {:>6}",
        "", "numerics", "GB/s", "range", "share", "kept"
    )
}

fn rate_row(test: &RateTest, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (rate, range) = spread(test.bytes_per_s, 1e-9, 2);
    let limit = match test.limit {
        Limit::Memory => "memory",
        Limit::Disk => "disk",
    };
    write!(
        f,
        "\n{:<26} {:>9} {rate:>7} {range:>13} {:>25} {:>6}",
        test.test,
        test.numerics.unwrap_or(NOTHING),
        share(test.share, limit),
        kept(test.kept, test.discarded)
    )?;
    nothing_counts(test.kept, test.discarded, f)?;
    match &test.verified {
        Some(verified) => write!(
            f,
            "\nagainst the reference: {:.1e} of the largest of {} values, {:.1e} is rounding",
            verified.difference, verified.values, verified.tolerance
        ),
        None => Ok(()),
    }
}

fn turn_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "\n{:>4} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10}  logits",
        "turn", "context", "reused", "first s", "tok/s", "read", "memory"
    )
}

fn turn_row(number_of: usize, turn: &Turn, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "\n{number_of:>4} {:>8} {:>8} {:>8.2} {:>8} {:>10} {:>10}  {}",
        turn.context,
        turn.reused,
        turn.ttft_s,
        number(turn.tok_s, 1),
        Bytes(turn.read_bytes).to_string(),
        turn.held_bytes.map_or(NOTHING.to_owned(), |bytes| Bytes(bytes).to_string()),
        turn.logits_hash
    )
}

fn determinism_rows(determinism: &Determinism, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Determinism { steps, equal, hashes } = determinism;
    let same = if *equal { "all logits equal" } else { "DIFFERENT LOGITS" };
    write!(f, "\n{} runs of {steps} tokens: {same}", hashes.len())?;
    let shown = if *equal { &hashes[..1.min(hashes.len())] } else { hashes };
    shown.iter().try_for_each(|hash| write!(f, "\n{hash}"))
}
