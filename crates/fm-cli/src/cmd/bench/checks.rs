//! What must not change from run to run, and from turn to turn.

use anyhow::anyhow;
use fm_engine::{
    machine::held_bytes,
    measure::walk::{Walk, generate},
};

use super::{
    output::{About, Determinism, Output, Turn, hash_text},
    setup::{Bench, Setup, TURN_PROMPT},
};

/// Writes the same text several times: with cold experts first, then with warm ones.
pub(super) fn determinism(
    setup: Setup,
    runs: usize,
) -> anyhow::Result<(Output, anyhow::Result<()>)> {
    let planned = setup.plan()?;
    let about = About::new(&setup, &planned);
    let mut bench = Bench::open(setup, planned)?;
    let about = about.with_engine(bench.engine());
    let (steps, depth) = (bench.setup.work.decode, bench.setup.work.first_depth());
    let mut hashes = Vec::new();
    for _ in 0..runs {
        let texts = bench.texts(depth + steps);
        let (mut walk, _) = Walk::start(bench.engine(), texts, depth)?;
        hashes.push(walk.write(bench.engine(), steps)?.logits_hash);
        walk.end(bench.engine());
        bench.note_memory();
    }
    let equal = hashes.windows(2).all(|pair| pair[0] == pair[1]);
    let verdict = if equal { Ok(()) } else { Err(anyhow!("{runs} runs gave different logits")) };
    let hashes = hashes.into_iter().map(hash_text).collect();
    let determinism = Some(Determinism { steps, equal, hashes });
    Ok((Output { determinism, peak_bytes: bench.peak_bytes, ..Output::new(about) }, verdict))
}

/// One conversation: every turn continues the same session.
pub(super) fn turns(setup: Setup, turns: usize) -> anyhow::Result<Output> {
    let planned = setup.plan()?;
    let about = About::new(&setup, &planned);
    let mut bench = Bench::open(setup, planned)?;
    let about = about.with_engine(bench.engine());
    let steps = bench.setup.work.decode;
    let said = bench.tokens(0, turns * TURN_PROMPT);
    let context = bench.engine().plan.context;
    let session = bench.engine().runner.open(context)?;
    let (mut text, mut rows) = (Vec::new(), Vec::new());
    for said in said.chunks(TURN_PROMPT) {
        text.extend_from_slice(said);
        let generated = generate(bench.engine(), session, text.clone(), steps)?;
        text.extend_from_slice(&generated.tokens);
        bench.note_memory();
        let (prefill, decode) = (generated.prefill, generated.decode);
        let seconds = decode.elapsed.as_secs_f64();
        rows.push(Turn {
            context: text.len(),
            reused: generated.reused,
            ttft_s: prefill.elapsed.as_secs_f64(),
            tok_s: (decode.tokens > 0).then(|| decode.tokens as f64 / seconds),
            read_bytes: prefill.store.read_bytes + decode.store.read_bytes,
            held_bytes: held_bytes(&bench.setup.places.root),
            logits_hash: hash_text(generated.logits_hash),
        });
    }
    Ok(Output { turns: rows, peak_bytes: bench.peak_bytes, ..Output::new(about) })
}
