//! `serve`: the model behind HTTP, until Ctrl-C or SIGTERM.

mod prefixes;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, builder::NonEmptyStringValueParser, value_parser};
use fm_engine::{
    Engine, EngineError, Load, Places,
    bytes::Bytes,
    engine::{Planned, plan},
    gauges::Gauges,
    generate::Loops,
    grammar::Grammars,
    limits::Limits,
    options::{ENGINE, EngineOptions, OptionRow, SAMPLING},
    sampler::Sampling,
    schedule::{Driven, ScheduleOptions, Scheduler},
    warm_start::WarmStart,
};
use fm_server::{Bounds, Door, Model, Patience, Server, Service};

use super::{model_arg, model_path, run::warn, switch, valued};
use crate::{
    console::{self, Interrupt, Lines},
    flags::{self, Usage},
    hub, places,
};

/// Sessions that are planned for if nobody says how many, the first that leaves each enough room.
const SESSIONS: [usize; 3] = [4, 2, 1];

/// Recurrent memories that are kept for later requests, for each session.
const MARKS: usize = 8;

/// Room for a conversation with an agent; fewer sessions are better than less.
const CONTEXT_ENOUGH: u32 = 16_384;

pub(super) fn command() -> Command {
    let number = |name: &'static str, help: &'static str, default: &'static str| {
        valued(name, "N", help).default_value(default).value_parser(value_parser!(u32).range(1..))
    };
    let command = Command::new("serve")
        .about("Serve the OpenAI and Anthropic interfaces over HTTP")
        .arg(model_arg())
        .args(door())
        .arg(
            valued("served-name", "NAME", "Name of the model [default: that of its directory]")
                .value_parser(NonEmptyStringValueParser::new()),
        )
        .arg(valued(
            "system",
            "FILE",
            "System message for conversations without one [default: flash-moe/system.md in the \
             configuration directory, else ~/.flash-moe/system.md, if there]",
        ))
        .arg(sessions_arg())
        .arg(number("queue", "Requests that may wait for a session; others hear 429", "64"))
        .arg(
            valued(
                "stall-max",
                "SECONDS",
                "The longest that an answer waits for somebody else's prompt between two tokens",
            )
            .default_value("2")
            .value_parser(parse_seconds),
        )
        .args(bounds())
        .arg(switch("quiet", "Say nothing of requests").short('q'))
        .arg(
            switch("greedy", "Take the most likely token unless a request says otherwise")
                .conflicts_with("temperature")
                .help_heading("Sampling"),
        );
    let command = prefixes::options(command);
    flags::add(flags::add(command, of_requests(), "Sampling"), &ENGINE, "Engine")
}

/// What may be said of how words are chosen where requests leave it open. Each of them has a seed of its own.
fn of_requests() -> &'static [OptionRow<Sampling>] {
    let [rows @ .., seed] = &SAMPLING;
    assert_eq!(seed.name, "seed", "it is the last row");
    rows
}

/// Where it listens, and who may come in.
fn door() -> [Arg; 5] {
    [
        valued("host", "HOST", "Address to listen on; any but this machine's own needs a key")
            .default_value("127.0.0.1"),
        valued("port", "PORT", "Port to listen on; 0 takes any that is free")
            .default_value("8080")
            .value_parser(value_parser!(u16)),
        valued(
            "api-key",
            "KEY",
            "Key that requests must carry [default: $FLASH_MOE_API_KEY, else none]",
        )
        .value_parser(NonEmptyStringValueParser::new()),
        valued(
            "allow-origin",
            "ORIGIN",
            "Serve pages of this origin too, as https://name:port; may be given several times",
        )
        .value_parser(parse_origin)
        .action(ArgAction::Append),
        valued(
            "allow-host",
            "NAME",
            "Go by this name too, if a proxy here passes it on; may be given several times",
        )
        .value_parser(parse_host)
        .action(ArgAction::Append),
    ]
}

fn parse_origin(text: &str) -> Result<String, String> {
    let (scheme, name) = text.split_once("://").unwrap_or_default();
    if scheme.is_empty() || name.is_empty() || name.contains('/') {
        return Err("an origin is https://name or http://name:port, without a path".to_owned());
    }
    Ok(text.to_owned())
}

/// A name as it stands in the head of a request: nothing else would ever match.
fn parse_host(text: &str) -> Result<String, String> {
    let strange = |letter: char| letter.is_whitespace() || matches!(letter, '/' | '@' | ',' | '*');
    if text.is_empty() || text.contains(strange) {
        return Err("a host is name, or name:port, without http:// and without a path".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "between 0.01 and 3600 seconds".to_owned())
}

/// What ends an answer before the model does.
fn bounds() -> [Arg; 2] {
    let timeout = Arg::new("request-timeout")
        .long("request-timeout")
        .value_name("SECONDS")
        .help("Time that a request has, from its arrival to its last token [default: any]")
        .value_parser(parse_timeout);
    let loops = switch(
        "allow-loops",
        "Let texts go on that repeat the same tokens again and again, or are noise",
    );
    [timeout, loops]
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=1e6).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "between 0.1 and 1000000 seconds".to_owned())
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    // The address first: whether it is free is known before the weights are read.
    let (server, door) = open(matches)?;
    let address = server.address()?;
    let path = model_path(matches)?;
    let places = places::places();
    let mut options = flags::engine_options(matches)?;
    options.warm_start.get_or_insert(WarmStart::On);
    // What is wrong with flags is said before the weights are read.
    flags::sampling(matches, of_requests(), Sampling::default())?;
    let system = system(matches)?;
    let prefixes = prefixes::dir(matches);
    let sessions = matches.get_one::<u32>("sessions");
    let planned = planned(&path, &options, (sessions, prefixes.is_some()), &places)?;
    let limits = Limits::before_loading(&planned, &places);
    let engine = Engine::load(planned, &places)?;
    warn(&engine);
    let sampling = flags::sampling(matches, of_requests(), engine.generation.sampling())?;
    let number = |name: &str| *matches.get_one::<u32>(name).expect("it has a default") as usize;
    let schedule = ScheduleOptions {
        sessions: engine.plan.sessions,
        queue: number("queue"),
        stall_max: *matches.get_one("stall-max").expect("it has a default"),
    };
    let named = matches.get_one::<String>("served-name").cloned();
    let given: &PathBuf = matches.get_one("model").expect("clap requires it");
    let name = named.unwrap_or_else(|| name_of(given, &path));
    let greeting = greeting(&engine, &name, (address, door.key.is_some()), schedule);
    let fingerprint = engine.state_fingerprint(places::program().as_deref());
    let (stats, gauges) = (engine.stats_handle(), Gauges::of(&engine, limits, &places));
    let no_tokenizer = EngineError::NoTokenizer { path };
    let tokenizer = Arc::new(engine.tokenizer.ok_or(no_tokenizer)?);
    let vocab = engine.runner.vocab();
    let grammars =
        Grammars::new(Arc::clone(&tokenizer), vocab, engine.eos.clone(), engine.plan.grammars);
    let model = Model {
        name,
        tokenizer: Arc::clone(&tokenizer),
        template: engine.template,
        sampling,
        eos: engine.eos,
        context: engine.plan.context,
        system,
        grammars,
        marks_turns: !engine.runner.forks_anywhere(),
    };
    let beginnings = prefixes::beginnings(matches, &model)?;
    let lines = Lines::new().context(NO_THREAD)?;
    let disk = prefixes.map(|dir| prefixes::disk(matches, dir, fingerprint, lines.teller()));
    let driven = Driven { runner: engine.runner, tokenizer: Some(tokenizer), stats, disk };
    let scheduler = prefixes::start(matches, driven, schedule)?;
    prefixes::take_in(&scheduler, beginnings)?;
    let (tell, quiet) = (lines.teller(), matches.get_flag("quiet"));
    let service = Service {
        model,
        submit: scheduler.queue(),
        activity: scheduler.activity(),
        gauges,
        door,
        patience: Patience::default(),
        bounds: Bounds {
            time: matches.get_one("request-timeout").copied(),
            loops: if matches.get_flag("allow-loops") { Loops::Allow } else { Loops::End },
        },
        log: Box::new(move |requested| {
            if !quiet {
                tell(requested.to_string());
            }
        }),
    };
    serve(server, scheduler, service, (&greeting, lines))
}

/// What the system refused.
const NO_THREAD: &str = "starting a thread";

/// Greets, and serves until it is told to end.
fn serve(
    server: Server,
    scheduler: Scheduler,
    service: Service,
    (greeting, lines): (&str, Lines),
) -> anyhow::Result<()> {
    let (stopper, tell) = (server.stopper(), lines.teller());
    Interrupt::install_with(move || {
        tell("finishing what is being answered; Ctrl-C again does not wait".to_owned());
        stopper.stop();
    });
    // Only now: whoever reads it may end the server at once, and be heard.
    console::say!("{greeting}");
    // A server without an engine would refuse everybody for ever.
    let stopper = server.stopper();
    let engine_end = thread::Builder::new().spawn(move || {
        let end = scheduler.wait();
        stopper.stop();
        end
    });
    let engine_end = engine_end.context(NO_THREAD)?;
    server.run(service)?;
    let end = engine_end.join().expect("it only waits");
    lines.end();
    Ok(end?)
}

/// The address, and who may come in.
fn open(matches: &ArgMatches) -> anyhow::Result<(Server, Door)> {
    let host: &String = matches.get_one("host").expect("it has a default");
    let port = *matches.get_one("port").expect("it has a default");
    let key = matches.get_one::<String>("api-key").cloned().or_else(places::server_key);
    let key = key.map(|key| sendable(&key)).transpose()?;
    let server = Server::bind(host, port)?;
    let address = server.address()?;
    let listed = |name: &str| matches.get_many(name).into_iter().flatten().cloned().collect();
    let door = Door {
        key,
        loopback: address.ip().is_loopback(),
        hosts: listed("allow-host"),
        origins: listed("allow-origin"),
    };
    if !door.loopback && door.key.is_none() {
        let reason = format!("{host} can be reached by others, so requests must carry a key");
        return Err(Usage(format!("{reason}; give --api-key or FLASH_MOE_API_KEY")).into());
    }
    Ok((server, door))
}

/// A key as clients can send it: white space around it, as behind the line of a file, is lost on the way.
fn sendable(key: &str) -> anyhow::Result<String> {
    let key = key.trim();
    if !key.is_empty() && key.chars().all(|letter| letter.is_ascii_graphic() || letter == ' ') {
        return Ok(key.to_owned());
    }
    Err(Usage(
        "the API key is blank, or has letters that no head of a request can carry".to_owned(),
    )
    .into())
}

/// Of `serve`, and of a plan for it.
pub(super) fn sessions_arg() -> Arg {
    valued(
        "sessions",
        "N",
        "Answers that are written at once; memory is planned for all of them [default: 4, \
         or fewer if each could hold less than 16384 tokens]",
    )
    .value_parser(value_parser!(u32).range(1..=64))
}

/// The plan with the sessions asked for, or with as many as leave each enough room.
pub(super) fn planned(
    path: &Path,
    options: &EngineOptions,
    (sessions, prefix_disk): (Option<&u32>, bool),
    places: &Places,
) -> Result<Planned, EngineError> {
    let plan_for = |sessions| {
        let marks = MARKS * sessions;
        let load = Load { sessions, logits_rows: sessions, marks, grammars: true, prefix_disk };
        plan(path, options, load, places)
    };
    if let Some(sessions) = sessions {
        return plan_for(*sessions as usize);
    }
    let enough = |planned: &Planned| {
        planned.plan.context >= CONTEXT_ENOUGH.min(planned.plan.context_model)
            || options.context.is_some()
    };
    let fewest = SESSIONS[SESSIONS.len() - 1];
    let more = SESSIONS.into_iter().filter(|sessions| *sessions > fewest);
    let roomy = more.into_iter().find_map(|sessions| plan_for(sessions).ok().filter(enough));
    roomy.map_or_else(|| plan_for(fewest), Ok)
}

/// What people call a model: its name at the hub, or the last part of its path.
fn name_of(given: &Path, path: &Path) -> String {
    if hub::name_of(given).is_some() {
        return given.display().to_string();
    }
    let name = path.file_stem().filter(|_| path.extension().is_some_and(|ending| ending == "gguf"));
    let name = name.or_else(|| path.file_name()).unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// The system message of conversations without one. A file without a word is none: a message of nothing
/// is a turn of its own to a template.
fn system(matches: &ArgMatches) -> anyhow::Result<Option<String>> {
    let read = |path: &Path| {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Some(text).filter(|text| !text.trim().is_empty()))
    };
    if let Some(file) = matches.get_one::<String>("system") {
        return read(Path::new(file));
    }
    let mut files = places::system_files().into_iter().filter(|file| file.is_file());
    files.find_map(|file| read(&file).transpose()).transpose()
}

fn greeting(
    engine: &Engine,
    name: &str,
    (address, has_key): (SocketAddr, bool),
    schedule: ScheduleOptions,
) -> String {
    let plan = &engine.plan;
    let forgets = if plan.marks == 0 && !engine.runner.forks_anywhere() {
        "  no memory is left to continue prompts, so every turn computes all of its conversation: give more --memory, \
         or fewer --sessions\n"
    } else {
        ""
    };
    let (mut here, mut reach) = (address, "");
    if address.ip().is_unspecified() {
        // Nobody has this address: a client here goes to its own machine.
        let own: IpAddr = match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        here.set_ip(own);
        reach = " and every other address of this machine";
    }
    // What it is stays out of the log.
    let key = if has_key { " -H \"authorization: Bearer $FLASH_MOE_API_KEY\"" } else { "" };
    let (path, body, bare) = match &engine.template {
        Some(_) => {
            let messages = r#"{"messages": [{"role": "user", "content": "Hello!"}]}"#;
            ("/v1/chat/completions", messages, "")
        }
        None => (
            "/v1/completions",
            r#"{"prompt": "Once upon a time"}"#,
            "  it has no chat template: prompts are answered, chats are refused\n",
        ),
    };
    format!(
        "serving {name} ({}, {}) at http://{here}{reach}\n  \
         {} sessions of {} tokens, up to {} requests wait; memory {} of a budget of {}\n{forgets}{bare}  \
         curl http://{here}{path} -H 'content-type: application/json'{key} -d '{body}'\n  \
         OPENAI_BASE_URL=http://{here}/v1   ANTHROPIC_BASE_URL=http://{here}",
        engine.model_type,
        engine.numerics.name(),
        schedule.sessions,
        plan.context,
        schedule.queue,
        Bytes(plan.total()),
        Bytes(plan.budget),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_the_hub_is_called_as_it_is_there() {
        let snapshot = "/cache/models--org--name/snapshots/0123456789abcdef";
        for (given, path, name) in [
            ("org/name", snapshot, "org/name"),
            ("/models/Pebble-Q4_K.gguf", "/models/Pebble-Q4_K.gguf", "Pebble-Q4_K"),
            ("/models/pebble", "/models/pebble", "pebble"),
        ] {
            assert_eq!(name_of(Path::new(given), Path::new(path)), name);
        }
    }
}
