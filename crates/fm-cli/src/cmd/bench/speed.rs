//! Prompts and written tokens per second.

use anyhow::anyhow;
use fm_engine::{
    EngineError,
    backends::KvFormat,
    measure::{
        Discarded, Probe, Repeat, is_steady, repeat,
        walk::{Prompted, Walk, Window, combined_hash},
    },
    report::ReadAhead,
};
use fm_model::{footprint::state_bytes, spec::ModelSpec};

use super::{
    output::{About, Counted, Output, SessionOutput, SpeedRepeat, SpeedTest, hash_text},
    setup::{Bench, Setup},
};

/// Everything that was asked for, prompts first.
pub(super) fn speed(setup: Setup) -> anyhow::Result<(Output, anyhow::Result<()>)> {
    let planned = setup.plan()?;
    setup.check_context(planned.plan.context)?;
    let spec = planned.spec.clone();
    let about = About::new(&setup, &planned);
    let mut bench = Bench::open(setup, planned)?;
    let about = about.with_engine(bench.engine());
    bench.warm_up()?;
    let mut speed = Vec::new();
    let mut verdict = Ok(());
    for tokens in bench.setup.work.prefill.clone() {
        let test = prefill(&mut bench, tokens)?;
        let hashes = test.repeats.iter().map(|repeat| &repeat.logits_hash);
        if hashes.clone().any(|hash| *hash != test.logits_hash) {
            verdict = Err(anyhow!("{}: the same prompt gave different logits", test.test));
        }
        speed.push(test);
    }
    for depth in bench.setup.work.depths.clone() {
        speed.push(decode(&mut bench, &spec, depth)?);
    }
    Ok((Output { speed, peak_bytes: bench.peak_bytes, ..Output::new(about) }, verdict))
}

/// The same prompt again and again, each time in a session of its own.
fn prefill(bench: &mut Bench, tokens: usize) -> Result<SpeedTest, EngineError> {
    let (prober, cold) = (bench.prober.clone(), bench.setup.work.cold);
    let (resident, wanted) = (!bench.out_of_core, bench.setup.work.repeats);
    let prompt = bench.tokens(0, tokens);
    let measure = || {
        let engine = bench.engine();
        if cold {
            engine.forget_experts();
        }
        let (walk, prompted) = Walk::start(engine, [prompt.clone()], tokens)?;
        walk.end(engine);
        bench.note_memory();
        Ok(prompted[0])
    };
    // Arithmetic decides, not the memory's mode.
    let discard = |prompted: &Prompted, _: [Probe; 2]| {
        let misses = prompted.store.misses() > 0;
        (resident && !cold && misses).then_some(Discarded::ColdExperts)
    };
    let repeats = repeat(&prober, wanted, measure, discard)?;
    let rows = repeats.iter().map(|repeat| {
        let Prompted { tokens, elapsed, store, logits_hash } = repeat.measured;
        let counted = Counted { tokens, elapsed, store, logits_hash };
        SpeedRepeat::new(&counted, None, repeat)
    });
    let ahead = ReadAhead::of(bench.engine(), repeats.iter().map(|r| r.measured.store).sum());
    let name = format!("{} {tokens}", if cold { "cold prefill" } else { "prefill" });
    let hash = repeats.first().map_or(0, |first| first.measured.logits_hash);
    let mut test = SpeedTest::new(name, (rows.collect(), ahead), hash);
    test.ttft_s = test.tok_s.map(|tok_s| tokens as f64 / tok_s.median);
    Ok(test)
}

/// One text, written on and on: a repeat continues where the last one ended.
fn decode(bench: &mut Bench, spec: &ModelSpec, depth: usize) -> Result<SpeedTest, EngineError> {
    let prober = bench.prober.clone();
    let (steps, wanted, sessions) =
        (bench.setup.work.decode, bench.setup.work.repeats, bench.setup.work.sessions);
    let resident = !bench.out_of_core;
    let length = depth + bench.setup.work.written();
    let texts = bench.texts(length);
    let (mut walk, prompted) = Walk::start(bench.engine(), texts, depth)?;
    walk.write(bench.engine(), steps)?;
    let weights = Weights::of(bench, spec);
    let measure = || {
        let window = walk.write(bench.engine(), steps)?;
        bench.note_memory();
        Ok(window)
    };
    let discard = |window: &Window, around: [Probe; 2]| {
        let cold = (resident && window.store.misses() > 0).then_some(Discarded::ColdExperts);
        let flipped = (resident && !is_steady(around)).then_some(Discarded::MemoryMode);
        cold.or(flipped)
    };
    let repeats = repeat(&prober, wanted, measure, discard)?;
    walk.end(bench.engine());
    let ahead = ReadAhead::of(bench.engine(), repeats.iter().map(|r| r.measured.store).sum());
    let rows = repeats.iter().map(|repeat| {
        let &Window { steps, elapsed, store, logits_hash, .. } = &repeat.measured;
        let tokens = steps * sessions;
        let counted = Counted { tokens, elapsed, store, logits_hash };
        SpeedRepeat::new(&counted, Some(weights.read_by(spec, repeat, sessions)), repeat)
    });
    let several = if sessions > 1 { format!("{sessions} x ") } else { String::new() };
    // Those that do not count were written too, so the first ones are of the same text always.
    let written = || repeats.iter().take(wanted).map(|repeat| &repeat.measured);
    let mut test = SpeedTest::new(
        format!("decode {several}{steps} at {depth}"),
        (rows.collect(), ahead),
        combined_hash(written().map(|window| window.logits_hash)),
    );
    for session in 0..sessions {
        let hash = combined_hash(written().map(|window| window.session_hashes[session]));
        let first = bench.first_token(session);
        test.sessions.push(SessionOutput { first, logits_hash: hash_text(hash) });
    }
    test.text_came_again = length > bench.distinct();
    test.ttft_s = Some(prompted.iter().map(|prompt| prompt.elapsed.as_secs_f64()).sum());
    Ok(test)
}

/// Bytes of weights that steps read from memory.
struct Weights {
    /// All but routed experts, once per step.
    trunk: f64,
    /// One expert, on average over the layers.
    expert: f64,
    /// What keys and values are kept in.
    kv: KvFormat,
}

impl Weights {
    fn of(bench: &mut Bench, spec: &ModelSpec) -> Self {
        let engine = bench.engine();
        let footprint = engine.footprint;
        let layers = spec.catalog.layers.iter().flatten().count();
        let chosen = layers * engine.plan.store_options.top_k;
        Self {
            trunk: (footprint.active - footprint.active_experts) as f64,
            expert: footprint.active_experts as f64 / chosen.max(1) as f64,
            kv: engine.kv,
        }
    }

    /// Weights, and the keys, values and memories of every session.
    fn read_by(&self, spec: &ModelSpec, repeat: &Repeat<Window>, sessions: usize) -> f64 {
        let &Window { steps, position, store, .. } = &repeat.measured;
        // Sessions of a step share what both of them chose: the store is asked for it once.
        let experts = (store.hits + store.misses()) as f64 * self.expert;
        let positions = (position as usize..).take(steps);
        let state: u64 = positions.map(|position| state_bytes(spec, position, self.kv)).sum();
        steps as f64 * self.trunk + experts + (state * sessions as u64) as f64
    }
}
