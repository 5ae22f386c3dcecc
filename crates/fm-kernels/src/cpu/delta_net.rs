//! Gated delta net: one token of one head, and one row of the convolution before it.

use crate::{host::ConvWeight, reference::delta_net::DeltaStep};

use super::{
    activation::silu,
    lanes::{Cache, LANES, Lanes, Work, load_some, store_some},
};

/// Rows of the memory that run side by side: they share the key and hide each other's latency.
const ROWS: usize = 4;

/// How far ahead the memory is asked for, in bytes; from 4 to 16 KB it is the same, measured in `docs/experiments/0061`.
const PREFETCH_BYTES: usize = 8 << 10;

/// One token of one head, see [`crate::reference::delta_net::delta_step`].
///
/// ```text
/// first pass     d ← S · key            u ← beta · (value − decay · d)
/// second pass    S ← decay · S + u ⊗ key      out ← S · query
/// ```
///
/// Two passes over a row instead of four; the second finds it in the L1 cache.
pub(super) struct Step<'a> {
    pub(super) inputs: DeltaStep<'a>,
    pub(super) state: &'a mut [f32],
    pub(super) out: &'a mut [f32],
}

impl Work for Step<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { inputs: step, state, out } = self;
        let k_dim = step.key.len();
        assert_eq!(step.query.len(), k_dim, "query and key share k_dim");
        assert_eq!(step.value.len(), out.len(), "value and out share v_dim");
        assert_eq!(state.len(), out.len() * k_dim, "state is [v_dim, k_dim]");
        let full = out.len() / ROWS * ROWS;
        let (rows, last_rows) = state.split_at_mut(full * k_dim);
        let (values, last_values) = step.value.split_at(full);
        let (out, last_out) = out.split_at_mut(full);
        let groups = rows.chunks_exact_mut(ROWS * k_dim).zip(values.chunks_exact(ROWS));
        for ((rows, values), out) in groups.zip(out.chunks_exact_mut(ROWS)) {
            rows_step::<L, ROWS>(lanes, &step, rows, values, out);
        }
        let singles = last_rows.chunks_exact_mut(k_dim).zip(last_values.chunks_exact(1));
        for ((row, value), out) in singles.zip(last_out.chunks_exact_mut(1)) {
            rows_step::<L, 1>(lanes, &step, row, value, out);
        }
    }
}

/// `R` rows; what happens to a row does not depend on `R`.
#[inline(always)]
fn rows_step<L: Lanes, const R: usize>(
    lanes: L,
    step: &DeltaStep<'_>,
    state: &mut [f32],
    values: &[f32],
    out: &mut [f32],
) {
    let k_dim = step.key.len();
    let mut sums = [lanes.splat(0.0); R];
    for (i, key) in step.key.chunks(LANES).enumerate() {
        let (at, len, key) = (i * LANES, key.len(), load_some(lanes, key));
        for r in 0..R {
            let row = &state[r * k_dim + at..][..len];
            lanes.prefetch_here(row, PREFETCH_BYTES, Cache::Second);
            sums[r] = lanes.fma(load_some(lanes, row), key, sums[r]);
        }
    }
    let mut writes = sums;
    for r in 0..R {
        let wrong = values[r] - step.decay * lanes.sum(sums[r]);
        writes[r] = lanes.splat(step.beta * wrong);
        sums[r] = lanes.splat(0.0);
    }
    let decay = lanes.splat(step.decay);
    let pairs = step.key.chunks(LANES).zip(step.query.chunks(LANES));
    for (i, (key, query)) in pairs.enumerate() {
        let (at, len) = (i * LANES, key.len());
        let (key, query) = (load_some(lanes, key), load_some(lanes, query));
        for r in 0..R {
            let row = &mut state[r * k_dim + at..][..len];
            let s = lanes.fma(writes[r], key, lanes.mul(decay, load_some(lanes, row)));
            store_some(lanes, s, row);
            sums[r] = lanes.fma(s, query, sums[r]);
        }
    }
    for r in 0..R {
        out[r] = lanes.sum(sums[r]);
    }
}

/// One row of the causal convolution, see [`crate::Backend::causal_conv`].
pub(super) struct ConvRow<'a, 'p> {
    pub(super) weight: ConvWeight<'a>,
    pub(super) history: &'a mut [&'p mut [f32]],
    pub(super) x: &'a mut [f32],
}

impl Work for ConvRow<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { weight, history, x } = self;
        let taps = history.len();
        for (i, x) in x.chunks_mut(LANES).enumerate() {
            let (at, len) = (i * LANES, x.len());
            let current = load_some(lanes, x);
            let mut sum = lanes.mul(load_some(lanes, weight.at(taps, at, len)), current);
            for tap in 0..taps {
                let past = load_some(lanes, &history[tap][at..][..len]);
                sum = lanes.fma(load_some(lanes, weight.at(tap, at, len)), past, sum);
                if tap > 0 {
                    store_some(lanes, past, &mut history[tap - 1][at..][..len]);
                }
            }
            if let Some(newest) = history.last_mut() {
                store_some(lanes, current, &mut newest[at..][..len]);
            }
            store_some(lanes, silu(lanes, sum), x);
        }
    }
}
