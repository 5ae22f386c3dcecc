//! Gated delta net: tokens of one head, and one row of the convolution before it.

use crate::{
    host::{ConvWeight, DELTA_TOKENS_MAX},
    reference::delta_net::DeltaStep,
};

use super::{
    activation::silu,
    lanes::{Cache, LANES, Lanes, OnLines, Sixteen, Work, load_some, store_some},
};

/// Rows of the memory that run side by side: they share the key and hide each other's latency.
const ROWS: usize = 4;

/// The same where tokens follow each other, of which each waits for the one before.
const ROWS_OF_MANY: usize = 8;

/// How far ahead the memory is asked for, in bytes; from 4 to 16 KB it is the same, measured in `docs/experiments/0061`.
const PREFETCH_BYTES: usize = 8 << 10;

/// Vectors of a row that can stay in registers for all tokens: those of 128 keys, which every known family has.
const HELD: usize = 8;

/// Rows that stay there side by side; measured in `docs/experiments/0071`.
const HELD_ROWS: usize = 2;

/// Floats of keys and queries that there is room for side by side.
const GATHERED: usize = DELTA_TOKENS_MAX * 2 * HELD * LANES;

/// Tokens of one head in order, see [`crate::reference::delta_net::delta_step`].
///
/// ```text
/// first pass     d ← S · key            u ← beta · (value − decay · d)
/// second pass    S ← decay · S + u ⊗ key      out ← S · query
/// ```
///
/// Two passes over a row instead of four. All tokens meet some rows of the memory, which are in registers or the first
/// cache, before other rows meet one.
pub(super) struct Steps<'a> {
    pub(super) inputs: &'a [DeltaStep<'a>],
    pub(super) state: &'a mut [f32],
    pub(super) out: &'a mut [f32],
}

impl Work for Steps<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { inputs: steps, state, out } = self;
        let (k_dim, v_dim) = (steps[0].key.len(), steps[0].value.len());
        assert_eq!(state.len(), v_dim * k_dim, "state is [v_dim, k_dim]");
        assert_eq!(out.len(), steps.len() * v_dim, "out is [steps, v_dim]");
        if let [_] = steps {
            return in_memory::<L, ROWS>(lanes, steps, state, out);
        }
        let mut room = OnLines([0.0; GATHERED]);
        let mut gathered = [steps[0]; DELTA_TOKENS_MAX];
        let gathered = &mut gathered[..steps.len()];
        gathered.copy_from_slice(steps);
        gather(gathered, &mut room.0);
        if const { HELD_ROWS * HELD * L::PARTS <= L::CHAINS } && k_dim == HELD * LANES {
            in_registers(lanes, gathered, state.as_chunks_mut().0.as_chunks_mut().0, out);
        } else {
            in_memory::<L, ROWS_OF_MANY>(lanes, gathered, state, out);
        }
    }
}

/// Brings keys and queries side by side, if there is room: those of tokens often lie a power of two apart, and a
/// cache has few places for such.
fn gather<'a>(steps: &mut [DeltaStep<'a>], mut room: &'a mut [f32]) {
    if steps.len() * 2 * steps[0].key.len() > room.len() {
        return;
    }
    for step in steps {
        for x in [&mut step.key, &mut step.query] {
            let (copy, rest) = room.split_at_mut(x.len());
            copy.copy_from_slice(x);
            (*x, room) = (copy, rest);
        }
    }
}

/// `u` of a row, of which `d` is known.
#[inline(always)]
fn written(step: &DeltaStep<'_>, value: f32, d: f32) -> f32 {
    step.beta * (value - step.decay * d)
}

/// A row of the memory that fits into registers.
type HeldRow = [Sixteen; HELD];

/// Rows that are read once and written once for all tokens.
#[inline(always)]
fn in_registers<L: Lanes>(
    lanes: L,
    steps: &[DeltaStep<'_>],
    state: &mut [HeldRow],
    out: &mut [f32],
) {
    let (groups, last) = state.as_chunks_mut();
    for (group, rows) in groups.iter_mut().enumerate() {
        held_rows::<L, HELD_ROWS>(lanes, steps, rows, group * HELD_ROWS, out);
    }
    for row in last.as_chunks_mut().0 {
        held_rows::<L, 1>(lanes, steps, row, groups.len() * HELD_ROWS, out);
    }
}

/// All tokens and `R` rows from `first` on.
#[inline(always)]
fn held_rows<L: Lanes, const R: usize>(
    lanes: L,
    steps: &[DeltaStep<'_>],
    state: &mut [HeldRow; R],
    first: usize,
    out: &mut [f32],
) {
    let mut rows = [[lanes.splat(0.0); HELD]; R];
    for (row, held) in state.iter().zip(&mut rows) {
        for (from, to) in row.iter().zip(held) {
            *to = lanes.load(from);
        }
    }
    for (step, out) in steps.iter().zip(out.chunks_exact_mut(steps[0].value.len())) {
        let keys: &HeldRow = step.key.as_chunks().0.try_into().expect("keys are as long as rows");
        let queries: &HeldRow = step.query.as_chunks().0.try_into().expect("and so are queries");
        let values: &[f32; R] = step.value[first..].first_chunk().expect("a value per row");
        let out: &mut [f32; R] = out[first..].first_chunk_mut().expect("a result per row");
        let mut sums = [lanes.splat(0.0); R];
        for k in 0..HELD {
            let key = lanes.load(&keys[k]);
            for r in 0..R {
                sums[r] = lanes.fma(rows[r][k], key, sums[r]);
            }
        }
        let (mut writes, decay) = (sums, lanes.splat(step.decay));
        for r in 0..R {
            writes[r] = lanes.splat(written(step, values[r], lanes.sum(sums[r])));
            sums[r] = lanes.splat(0.0);
        }
        for k in 0..HELD {
            let (key, query) = (lanes.load(&keys[k]), lanes.load(&queries[k]));
            for r in 0..R {
                rows[r][k] = lanes.fma(writes[r], key, lanes.mul(decay, rows[r][k]));
                sums[r] = lanes.fma(rows[r][k], query, sums[r]);
            }
        }
        for r in 0..R {
            out[r] = lanes.sum(sums[r]);
        }
    }
    for (row, held) in state.iter_mut().zip(rows) {
        for (to, from) in row.iter_mut().zip(held) {
            lanes.store(from, to);
        }
    }
}

/// Rows of any length: `R` of them meet one token after the other, then the next ones do.
#[inline(always)]
fn in_memory<L: Lanes, const R: usize>(
    lanes: L,
    steps: &[DeltaStep<'_>],
    state: &mut [f32],
    out: &mut [f32],
) {
    let (k_dim, v_dim) = (steps[0].key.len(), steps[0].value.len());
    let full = v_dim / R * R;
    let (groups, last) = state.split_at_mut(full * k_dim);
    for (group, rows) in groups.chunks_exact_mut(R * k_dim).enumerate() {
        for (step, out) in steps.iter().zip(out.chunks_exact_mut(v_dim)) {
            rows_step::<L, R>(lanes, step, rows, group * R, out);
        }
    }
    for (row, state) in last.chunks_exact_mut(k_dim).enumerate() {
        for (step, out) in steps.iter().zip(out.chunks_exact_mut(v_dim)) {
            rows_step::<L, 1>(lanes, step, state, full + row, out);
        }
    }
}

/// One token and `R` rows from `first` on; what happens to a row does not depend on `R`.
#[inline(always)]
fn rows_step<L: Lanes, const R: usize>(
    lanes: L,
    step: &DeltaStep<'_>,
    state: &mut [f32],
    first: usize,
    out: &mut [f32],
) {
    let k_dim = step.key.len();
    assert_eq!(step.query.len(), k_dim, "query and key share k_dim");
    let (values, out) = (&step.value[first..][..R], &mut out[first..][..R]);
    let mut sums = [lanes.splat(0.0); R];
    let near = lanes.near(R * k_dim * size_of::<f32>());
    for (i, key) in step.key.chunks(LANES).enumerate() {
        let (at, len, key) = (i * LANES, key.len(), load_some(lanes, key));
        for r in 0..R {
            let row = &state[r * k_dim + at..][..len];
            if const { L::ASKS_FIRST } {
                lanes.prefetch_here(row, near, Cache::First);
            }
            lanes.prefetch_here(row, PREFETCH_BYTES, Cache::Second);
            sums[r] = lanes.fma(load_some(lanes, row), key, sums[r]);
        }
    }
    let mut writes = sums;
    for r in 0..R {
        writes[r] = lanes.splat(written(step, values[r], lanes.sum(sums[r])));
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
