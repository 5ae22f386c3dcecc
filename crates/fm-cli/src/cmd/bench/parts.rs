//! Parts of the work by themselves: reading experts, computing them, multiplying with matrices.

use std::time::Duration;

use anyhow::anyhow;
use fm_engine::{
    EngineError,
    engine::Planned,
    limits::Watched,
    measure::{
        Discarded, Probe, Prober, Rate, Rated, experts, is_steady, kernels, records::Records,
        repeat,
    },
};
use fm_format::key::LayerIndex;

use super::{
    no_experts,
    output::{About, Limit, Output, RateTest},
    setup::Setup,
};
use crate::flags::Usage;

/// How long the reader reads in one repeat.
const READ_TIME: Duration = Duration::from_millis(700);

/// What the reader reaches on the model's records, beside plain reads of the same file.
pub(super) fn io_only(setup: &Setup) -> anyhow::Result<Output> {
    let planned = setup.plan()?;
    if experts::first_layer(&planned).is_none() {
        return Err(no_experts(setup));
    }
    let mut records = Records::open(&planned)?;
    let about = About::new(setup, &planned).with_reader(records.reader());
    let prober = Prober::new(&planned, Watched::Yes, &setup.places);
    records.read(READ_TIME)?;
    let measure = || records.read(READ_TIME);
    let repeats = repeat(&prober, setup.work.repeats, measure, |_, _| None)?;
    let test = RateTest::new("experts from disk".to_owned(), Limit::Disk, &repeats);
    Ok(Output { rates: vec![test], ..Output::new(about) })
}

/// All experts of one layer, and whether they are right.
pub(super) fn moe_only(
    setup: &Setup,
    layer: Option<u16>,
    verify: bool,
) -> anyhow::Result<(Output, anyhow::Result<()>)> {
    let planned = setup.plan()?;
    let first = experts::first_layer(&planned).ok_or_else(|| no_experts(setup))?;
    let layer = layer.map_or(first, LayerIndex);
    if !experts::has_experts(&planned, layer) {
        return Err(Usage(format!("--layer {}: no such layer with experts", layer.0)).into());
    }
    let verified = verify.then(|| experts::verify(&planned, layer)).transpose()?;
    let round = experts::round(&planned, layer)?;
    let name = format!("experts of layer {}", layer.0);
    let test = from_memory(setup, &planned, name, round)?;
    let wrong = verified.filter(|verified| !verified.is_right()).map(|verified| {
        anyhow!(
            "the experts of layer {} are wrong: {:.1e} away from the reference, {:.1e} is rounding",
            layer.0,
            verified.difference,
            verified.tolerance
        )
    });
    let test = RateTest { verified: verified.map(Into::into), ..test };
    let output = Output { rates: vec![test], ..Output::new(About::new(setup, &planned)) };
    Ok((output, wrong.map_or(Ok(()), Err)))
}

/// Matrix times vector, for every format of the model.
pub(super) fn kernels(setup: &Setup) -> anyhow::Result<Output> {
    let planned = setup.plan()?;
    let mut rates = Vec::new();
    for shape in kernels::shapes(&planned.spec) {
        let name = format!("{} [{}, {}]", shape.format.name, shape.rows, shape.cols);
        let matvec = kernels::matvec(&planned, shape)?;
        rates.push(from_memory(setup, &planned, name, matvec)?);
    }
    Ok(Output { rates, ..Output::new(About::new(setup, &planned)) })
}

/// Something that memory limits, after one round that does not count.
fn from_memory(
    setup: &Setup,
    planned: &Planned,
    name: String,
    rated: Rated,
) -> Result<RateTest, EngineError> {
    let Rated { numerics, mut round } = rated;
    let prober = Prober::new(planned, Watched::No, &setup.places);
    round()?;
    let discard =
        |_: &Rate, around: [Probe; 2]| (!is_steady(around)).then_some(Discarded::MemoryMode);
    let repeats = repeat(&prober, setup.work.repeats, round, discard)?;
    let test = RateTest::new(name, Limit::Memory, &repeats);
    Ok(RateTest { numerics: Some(numerics.name()), ..test })
}
