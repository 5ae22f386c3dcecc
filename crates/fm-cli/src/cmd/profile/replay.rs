//! `profile replay`: hit rates and bytes per token of every policy, without a model.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command, value_parser};
use fm_engine::{
    EngineError, PolicyKind,
    bytes::Bytes,
    replay::{Judge, Outcome, Replay, Scenario, Sharing},
    trace::Trace,
};
use fm_model::experts::ARRIVAL_ROWS_MAX;
use serde_json::{Value, json};

use crate::{
    cmd::{json_arg, switch, valued},
    console,
    flags::Usage,
};

/// Shares of all experts that are tried unless something else is asked for.
const SHARES: [f64; 5] = [0.03, 0.06, 0.12, 0.25, 0.5];

/// By so many points a policy has to be better than `auto`, on every trace, to be worth choosing
/// in its place at some capacity.
const BETTER_POINTS: f64 = 1.0;

pub(super) fn command() -> Command {
    let listed = |name: &'static str, value: &'static str, help: &'static str| {
        valued(name, value, help).value_delimiter(',')
    };
    Command::new("replay")
        .about("Try cache policies on traces")
        .long_about(
            "Replays traces of `profile record` with the policies of the expert store and prints \
             hit rates and bytes read per token. `observe` sees the scores of all experts, if the trace has \
             them; `belady` knows the future: no policy can do better.",
        )
        .arg(
            Arg::new("trace")
                .value_name("TRACE")
                .help("Files of `profile record`")
                .required(true)
                .num_args(1..)
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            listed("slots", "N,…", "Slots for experts of all layers together")
                .value_parser(value_parser!(u64).range(1..))
                .conflicts_with("memory"),
        )
        .arg(listed(
            "memory",
            "SIZE,…",
            "Memory for slots [default: for 3, 6, 12, 25 and 50 % of the experts]",
        ))
        .arg(
            listed("policy", "POLICY,…", "Policies to try [default: all]")
                .value_parser(clap::builder::PossibleValuesParser::new(Judge::names())),
        )
        .arg(switch(
            "per-layer",
            "Give every layer slots of its own; the store lets all layers share",
        ))
        .arg(switch("together", "Take the traces for sessions that decode together"))
        .arg(
            valued("warm-up", "STEPS", "Steps that fill the cache before anything is counted")
                .default_value("0")
                .value_parser(value_parser!(usize)),
        )
        .arg(json_arg())
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let paths: Vec<&PathBuf> = matches.get_many("trace").into_iter().flatten().collect();
    let traces = paths.iter().map(|path| Trace::read(path));
    let traces = traces.collect::<Result<Vec<_>, _>>().map_err(EngineError::from)?;
    let names = paths.iter().map(|path| path.display().to_string());
    let named: Vec<(String, Trace)> = if matches.get_flag("together") {
        let all = Trace::together(&traces).map_err(EngineError::from)?;
        vec![(names.collect::<Vec<_>>().join(" + "), all)]
    } else {
        names.zip(traces).collect()
    };
    let mut tables = Vec::new();
    for (name, trace) in &named {
        let table = Table::new(name, trace, matches)?;
        if !matches.get_flag("json") {
            table.print(&mut io::stdout().lock())?;
        }
        tables.push(table);
    }
    let better = better_than_auto(&tables);
    if matches.get_flag("json") {
        let traces: Vec<Value> = tables.iter().map(Table::as_json).collect();
        let better: Vec<Value> = better.iter().map(Better::as_json).collect();
        let schema = "flash-moe.replay/1";
        console::print_json(
            &json!({"schema": schema, "traces": traces, "better_than_auto": better}),
        )?;
    } else if tables.len() > 1 {
        print_better(&better, &mut io::stdout().lock())?;
    }
    Ok(())
}

/// A policy that is better than `auto` at some capacity, on every trace.
struct Better {
    /// Of the experts of the first trace.
    share: f64,
    policy: &'static str,
    /// On the trace where it gains least.
    points: f64,
}

impl Better {
    fn as_json(&self) -> Value {
        json!({"share": self.share, "policy": self.policy, "points": self.points})
    }
}

/// The policies of the store that should be chosen in place of `auto`, by capacity.
fn better_than_auto(tables: &[Table<'_>]) -> Vec<Better> {
    let Some(first) = tables.first() else { return Vec::new() };
    let capacities = 0..first.outcomes.len();
    let all = capacities.flat_map(|at| {
        PolicyKind::names().filter_map(move |policy| {
            let gains = tables.iter().map(|table| table.gain(at, policy));
            let points =
                gains.collect::<Option<Vec<f64>>>()?.into_iter().fold(f64::INFINITY, f64::min);
            Some(Better { share: first.share(&first.outcomes[at].1), policy, points })
        })
    });
    all.filter(|better| better.points >= BETTER_POINTS).collect()
}

fn print_better(better: &[Better], out: &mut impl Write) -> io::Result<()> {
    if better.is_empty() {
        return writeln!(out, "no policy is better than auto by a point on all of these traces");
    }
    better.iter().try_for_each(|Better { share, policy, points }| {
        let share = 100.0 * share;
        writeln!(out, "{policy} is better than auto at {share:.1} %: by {points:.1} points or more")
    })
}

/// All that was tried on one trace.
struct Table<'a> {
    name: &'a str,
    trace: &'a Trace,
    policies: Vec<&'static str>,
    /// By capacity, by policy.
    outcomes: Vec<(u64, Vec<Outcome>)>,
}

impl<'a> Table<'a> {
    fn new(name: &'a str, trace: &'a Trace, matches: &ArgMatches) -> anyhow::Result<Self> {
        let chosen: Option<Vec<&String>> = matches.get_many("policy").map(Iterator::collect);
        let tried = |name: &&str| match &chosen {
            Some(chosen) => chosen.iter().any(|it| it == name),
            None => trace.header.scores || Judge::by_name(name) != Some(Judge::Observe),
        };
        let policies: Vec<&'static str> = Judge::names().filter(tried).collect();
        let warm_up = *matches.get_one("warm-up").expect("it has a default");
        if warm_up >= trace.steps() {
            let steps = trace.steps();
            return Err(Usage(format!("--warm-up {warm_up}: {name} has {steps} steps")).into());
        }
        let per_layer = matches.get_flag("per-layer");
        let sharing = if per_layer { Sharing::PerLayer } else { Sharing::Global };
        let replay = Replay::new(trace);
        let mut outcomes = Vec::new();
        for slot_bytes in capacities(trace, matches)? {
            let tried = policies.iter().map(|policy| {
                let judge = Judge::by_name(policy).expect("names are of judges");
                let arrival_rows_max = ARRIVAL_ROWS_MAX;
                replay.run(Scenario { judge, sharing, slot_bytes, arrival_rows_max, warm_up })
            });
            let tried: Result<Vec<_>, _> = tried.collect();
            let tried =
                tried.map_err(EngineError::from).with_context(|| format!("replaying {name}"))?;
            outcomes.push((slot_bytes, tried));
        }
        Ok(Self { name, trace, policies, outcomes })
    }

    /// Points of hit rate that a policy gains over `auto`, if both were tried at this capacity.
    fn gain(&self, capacity: usize, policy: &str) -> Option<f64> {
        let outcomes = &self.outcomes.get(capacity)?.1;
        let hit_rate = |name: &str| {
            let at = self.policies.iter().position(|policy| *policy == name)?;
            Some(outcomes[at].hit_rate())
        };
        Some(100.0 * (hit_rate(policy)? - hit_rate("auto")?))
    }

    fn experts(&self) -> usize {
        self.trace.header.layers.iter().flatten().map(|layer| layer.experts).sum()
    }

    fn share(&self, outcomes: &[Outcome]) -> f64 {
        let slots = outcomes.first().map_or(0, |outcome| outcome.slots);
        slots as f64 / self.experts().max(1) as f64
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let header = &self.trace.header;
        let steps = self.trace.steps();
        writeln!(
            out,
            "{}: {} ({}, {}), {} steps, {} experts in {} layers, {} per token",
            self.name,
            header.model,
            header.model_type,
            header.numerics,
            steps,
            self.experts(),
            header.layers.iter().flatten().count(),
            header.top_k
        )?;
        write!(out, "{:>12}", "slots")?;
        for (_, outcomes) in &self.outcomes {
            let slots = outcomes.first().map_or(0, |outcome| outcome.slots);
            write!(out, " {slots:>9} {:>6.1} %", 100.0 * self.share(outcomes))?;
        }
        writeln!(out)?;
        for (at, policy) in self.policies.iter().enumerate() {
            write!(out, "{policy:>12}")?;
            for outcome in self.outcomes.iter().map(|(_, outcomes)| &outcomes[at]) {
                let bytes = Bytes(outcome.bytes_per_token() as u64).to_string();
                write!(out, " {:>6.1} % {bytes:>9}", 100.0 * outcome.hit_rate())?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn as_json(&self) -> Value {
        let capacity = |(slot_bytes, outcomes): &(u64, Vec<Outcome>)| {
            let policies = self.policies.iter().zip(outcomes).map(|(policy, outcome)| {
                json!({
                    "policy": policy,
                    "hit_rate": outcome.hit_rate(),
                    "bytes_per_token": outcome.bytes_per_token(),
                    "hits": outcome.hits,
                    "cold_misses": outcome.cold_misses,
                    "capacity_misses": outcome.capacity_misses,
                    "sacrifices": outcome.sacrifices,
                    "read_bytes": outcome.read_bytes,
                    "steps": outcome.steps,
                    "tokens": outcome.tokens,
                })
            });
            json!({
                "slot_bytes": slot_bytes,
                "slots": outcomes.first().map(|outcome| outcome.slots),
                "share": self.share(outcomes),
                "policies": policies.collect::<Vec<_>>(),
            })
        };
        json!({
            "trace": self.name,
            "header": self.trace.header,
            "steps": self.trace.steps(),
            "capacities": self.outcomes.iter().map(capacity).collect::<Vec<_>>(),
        })
    }
}

/// Bytes of slots to try.
fn capacities(trace: &Trace, matches: &ArgMatches) -> anyhow::Result<Vec<u64>> {
    let layers = || trace.header.layers.iter().flatten();
    if let Some(slots) = matches.get_many::<u64>("slots") {
        let largest = layers().map(|layer| layer.slot_bytes).max().unwrap_or(0);
        return Ok(slots.map(|slots| slots * largest).collect());
    }
    if let Some(sizes) = matches.get_many::<String>("memory") {
        let parse = |text: &String| {
            let bytes = Bytes::parse(text).map(|bytes| bytes.0);
            bytes.ok_or_else(|| Usage(format!("`{text}` is no size, as 6GB or 6GiB")).into())
        };
        return sizes.map(parse).collect();
    }
    let all: u64 = layers().map(|layer| layer.experts as u64 * layer.slot_bytes).sum();
    let one_token = layers().map(|layer| trace.header.top_k as u64 * layer.slot_bytes).max();
    let least = one_token.unwrap_or(0);
    Ok(SHARES.iter().map(|share| ((all as f64 * share) as u64).max(least)).collect())
}

#[cfg(test)]
mod tests {
    use fm_engine::trace::TraceHeader;

    use super::*;

    #[test]
    fn a_policy_has_to_be_better_on_every_trace() {
        let trace = Trace::new(TraceHeader::of_layers(Vec::new(), 1));
        let table = |hits: [[u64; 3]; 2]| {
            let outcome = |hits| Outcome { hits, cold_misses: 1000 - hits, ..Outcome::default() };
            let outcomes = hits.map(|hits| (0, hits.map(outcome).to_vec()));
            let policies = vec!["auto", "lru", "arc"];
            Table { name: "", trace: &trace, policies, outcomes: outcomes.to_vec() }
        };
        let one = table([[300, 320, 290], [500, 505, 530]]);
        let other = table([[400, 409, 450], [500, 530, 517]]);
        let found = |tables: &[Table<'_>]| {
            let better = better_than_auto(tables).into_iter();
            better.map(|it| (it.policy, it.points.round() as u8)).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[table([[300, 320, 290], [500, 505, 530]])]), [("lru", 2), ("arc", 3)]);
        assert_eq!(found(&[one, other]), [("arc", 2)]);
        let without = Table { policies: vec!["lru", "arc"], ..table([[1; 3]; 2]) };
        assert_eq!(found(&[without]), [], "auto was not tried");
    }
}
