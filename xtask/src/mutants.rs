//! `cargo xtask mutants [--list] [NAME...]`: plants every mistake of `xtask/mutants/*.toml` into a
//! copy of the tree, one at a time, and demands that tests go red. All of them, or those whose name
//! contains a NAME; `--list` only checks that they still apply.
//!
//! A mutant that survives is a gap in the tests. One whose text is gone is as bad: the code was
//! changed and the table no longer asks what it seems to ask.

mod scratch;
mod suite;
mod table;

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use self::{
    scratch::Scratch,
    suite::{STAGES, Suite, Verdict},
    table::Mutant,
};

/// Where the mistakes are listed.
const TABLE_DIR: &str = "xtask/mutants";

/// Runs the chore in the current directory, which is the root of the workspace.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    match check(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every mutant was killed.
fn check(arguments: &[String]) -> Result<bool> {
    let only_list = arguments.iter().any(|argument| argument == "--list");
    let names: Vec<&String> = arguments.iter().filter(|name| *name != "--list").collect();
    let unknown = names.iter().find(|name| name.starts_with('-'));
    ensure!(unknown.is_none(), "{unknown:?} is no option: there is --list, and names");
    let mut mutants = table::load(Path::new(TABLE_DIR))?;
    if !names.is_empty() {
        mutants.retain(|mutant| names.iter().any(|name| mutant.name.contains(name.as_str())));
        ensure!(!mutants.is_empty(), "no mutant is called {names:?}");
    }
    let scratch = Scratch::copy(Path::new("target/mutants"))?;
    if only_list {
        return Ok(list(&mutants, &scratch));
    }
    let suite = Suite::new(&scratch)?;
    check_untouched(&mutants, &suite)?;
    let started = Instant::now();
    let mut fates = Vec::new();
    for (at, mutant) in mutants.iter().enumerate() {
        let planted = Instant::now();
        let fate = try_mutant(mutant, &scratch, &suite)?;
        report(&fate, mutant, (at + 1, mutants.len()), planted.elapsed());
        fates.push(fate);
    }
    let killed = fates.iter().filter(|fate| matches!(fate, Fate::Killed(_))).count();
    println!("{killed} of {} mutants killed in {} s", mutants.len(), started.elapsed().as_secs());
    for (mutant, fate) in mutants.iter().zip(&fates) {
        if !matches!(fate, Fate::Killed(_)) {
            println!("  {}: {}", fate.word(), mutant.name);
        }
    }
    Ok(killed == mutants.len())
}

/// Prints what there is and whether it still applies.
fn list(mutants: &[Mutant], scratch: &Scratch) -> bool {
    let mut all_apply = true;
    for mutant in mutants {
        let state = match scratch.find(mutant) {
            Ok(_) => "applies".to_owned(),
            Err(error) => {
                all_apply = false;
                format!("STALE: {error:#}")
            }
        };
        println!("{} [{}]: {state}", mutant.name, mutant.families.join(" "));
    }
    all_apply
}

/// Red tests in the untouched tree would kill every mutant.
fn check_untouched(mutants: &[Mutant], suite: &Suite<'_>) -> Result<()> {
    let mut packages: Vec<&str> = mutants.iter().map(|mutant| mutant.package.as_str()).collect();
    packages.sort_unstable();
    packages.dedup();
    for package in packages {
        for stage in STAGES {
            match suite.run(package, stage)? {
                Verdict::Ran { red } => {
                    ensure!(red.is_empty(), "red without any mutant: {}", red.join(", "));
                }
                Verdict::DoesNotBuild { errors } => anyhow::bail!("does not build:\n{errors}"),
            }
        }
    }
    Ok(())
}

/// What became of a mutant.
enum Fate {
    /// The first red test for each family.
    Killed(Vec<String>),
    /// No red test in these families.
    Survived(Vec<String>),
    /// The text to replace is not there exactly once.
    Stale(String),
    /// The compiler caught it, so the tests were not asked.
    DoesNotBuild(String),
}

impl Fate {
    fn word(&self) -> &'static str {
        match self {
            Self::Killed(_) => "killed",
            Self::Survived(_) => "SURVIVED",
            Self::Stale(_) => "STALE",
            Self::DoesNotBuild(_) => "DOES NOT BUILD",
        }
    }
}

/// Plants a mutant, runs stage after stage until every family has its red test, takes it out again.
fn try_mutant(mutant: &Mutant, scratch: &Scratch, suite: &Suite<'_>) -> Result<Fate> {
    let place = match scratch.find(mutant) {
        Ok(place) => place,
        Err(error) => return Ok(Fate::Stale(format!("{error:#}"))),
    };
    let _until_the_end = scratch.plant(mutant, &place).context("planting it")?;
    let mut all_red = Vec::new();
    for stage in STAGES {
        match suite.run(&mutant.package, stage)? {
            Verdict::Ran { red } => all_red.extend(red),
            Verdict::DoesNotBuild { errors } => return Ok(Fate::DoesNotBuild(errors)),
        }
        if mutant.survivors(&all_red).is_empty() {
            break;
        }
    }
    let survivors = mutant.survivors(&all_red);
    Ok(if survivors.is_empty() {
        Fate::Killed(mutant.killers(&all_red))
    } else {
        Fate::Survived(survivors)
    })
}

fn report(fate: &Fate, mutant: &Mutant, (at, count): (usize, usize), took: Duration) {
    let seconds = took.as_secs_f64();
    println!("[{at}/{count}] {} in {seconds:.0} s: {}", fate.word(), mutant.name);
    let details = match fate {
        Fate::Killed(tests) => tests.join("\n"),
        Fate::Survived(families) => format!("no red test: {}", families.join(", ")),
        Fate::Stale(why) => why.clone(),
        Fate::DoesNotBuild(errors) => errors.clone(),
    };
    details.lines().for_each(|line| println!("      {line}"));
}
