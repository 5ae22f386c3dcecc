//! A body of any bytes, for every interface: the first byte says which.
//!
//! Run it from the repository: the tokenizer and the template are those of `models/demo`.

#![no_main]

use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};

use fm_engine::{
    Engine, Load, Places,
    gauges::Gauges,
    grammar::Grammars,
    limits::Limits,
    options::EngineOptions,
    schedule::{Driven, ScheduleOptions, Scheduler},
};
use fm_server::{Bounds, Door, Model, Patience, Reader, Service};
use libfuzzer_sys::fuzz_target;

static READER: LazyLock<Reader> = LazyLock::new(|| {
    let options = EngineOptions {
        memory: Some(300_000_000),
        context: Some(1024),
        threads: Some(1),
        ..EngineOptions::default()
    };
    let places = Places { root: "/".into(), cache_dir: None };
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    let load = Load { grammars: true, ..Load::default() };
    let engine = Engine::open(&demo, &options, load, &places).expect("the model is there");
    let (stats, gauges) = (engine.stats_handle(), Gauges::of(&engine, Limits::default(), &places));
    let tokenizer = Arc::new(engine.tokenizer.expect("it has a tokenizer"));
    let vocab = engine.runner.vocab();
    let model = Model {
        name: "demo".to_owned(),
        grammars: Grammars::new(
            Arc::clone(&tokenizer),
            vocab,
            engine.eos.clone(),
            engine.plan.grammars,
        ),
        tokenizer: Arc::clone(&tokenizer),
        template: engine.template,
        sampling: engine.generation.sampling(),
        eos: engine.eos,
        context: engine.plan.context,
        system: None,
        marks_turns: !engine.runner.forks_anywhere(),
    };
    let options = ScheduleOptions { sessions: 1, queue: 1, stall_max: Duration::from_secs(2) };
    let driven = Driven { runner: engine.runner, tokenizer: Some(tokenizer), stats, disk: None };
    let scheduler = Scheduler::start(driven, options).expect("nothing is kept on disk");
    Reader::new(Service {
        model,
        submit: scheduler.queue(),
        activity: scheduler.activity(),
        gauges,
        door: Door::default(),
        patience: Patience::default(),
        bounds: Bounds::default(),
        log: Box::new(|_| {}),
    })
});

fuzz_target!(|data: &[u8]| {
    let Some((which, body)) = data.split_first() else { return };
    let paths: Vec<&str> = Reader::paths().collect();
    let path = paths[usize::from(*which) % paths.len()];
    // Whether it is taken is another question; the answer must not be a panic.
    let _ = READER.takes(path, body);
});
