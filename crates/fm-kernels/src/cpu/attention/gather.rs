//! The second half of attention: what the values of a block add to the outputs.

use crate::{
    backend::KV_BLOCK_TOKENS,
    cpu::lanes::{Cache, LANES, Lanes, Sixteen, padded},
};

use super::{KeptLanes, ahead::Ahead};

/// How many vectors ahead values are asked for into the first cache, see [`Lanes::near`].
const NEAR_VECTORS: usize = 32;

/// What the values of a block count for `G` queries.
#[derive(Clone, Copy)]
pub(super) struct Shares<'a, E, const G: usize> {
    /// Factors on what was gathered before.
    pub(super) fades: [f32; G],
    pub(super) scores: &'a [[f32; KV_BLOCK_TOKENS]; G],
    pub(super) tokens: usize,
    /// What comes next.
    pub(super) ahead: Ahead<E>,
}

impl<E, const G: usize> Shares<'_, E, G> {
    /// For values from `column` on, when those before have been gathered.
    #[inline(always)]
    fn after(mut self, column: usize) -> Self {
        self.ahead = self.ahead.behind(column * self.tokens);
        self
    }
}

/// Values of tokens, one row behind the other, from a column on.
#[derive(Clone, Copy)]
struct Columns<'a, E> {
    values: &'a [E],
    stride: usize,
    first: usize,
}

impl<E> Columns<'_, E> {
    /// Those from `column` on.
    #[inline(always)]
    fn after(self, column: usize) -> Self {
        Self { first: self.first + column, ..self }
    }
}

/// `out[n] = fade[n] · out[n] + Σ shares[n][t] · values[t]`, positions ascending; `values` come with
/// their stride, and output `n` has `v_dim` values from `places[n]` on.
#[inline(always)]
pub(super) fn gather<L: Lanes, E: KeptLanes, const G: usize, const N: usize, const C: usize>(
    lanes: L,
    shares: Shares<'_, E, G>,
    (values, stride): (&[E], usize),
    out: &mut [f32],
    (mut places, v_dim): ([usize; G], usize),
) {
    let columns = Columns { values, stride, first: 0 };
    let mut at = 0;
    while at + C * LANES <= v_dim {
        let next = (shares.after(at), columns.after(at));
        gather_columns::<L, E, G, N, C>(lanes, next, out, places);
        at += C * LANES;
        places.iter_mut().for_each(|place| *place += C * LANES);
    }
    while at + LANES <= v_dim {
        let next = (shares.after(at), columns.after(at));
        gather_columns::<L, E, G, N, 1>(lanes, next, out, places);
        at += LANES;
        places.iter_mut().for_each(|place| *place += LANES);
    }
    if at < v_dim {
        let next = (shares.after(at), columns.after(at));
        gather_tail::<L, E, G, N>(lanes, next, out, (places, v_dim - at));
    }
}

/// `C` vectors of each output.
#[inline(always)]
fn gather_columns<L: Lanes, E: KeptLanes, const G: usize, const N: usize, const C: usize>(
    lanes: L,
    (shares, columns): (Shares<'_, E, G>, Columns<'_, E>),
    out: &mut [f32],
    places: [usize; G],
) {
    let Shares { fades, scores, tokens, ahead } = shares;
    for first in (0..G).step_by(N) {
        let ahead = ahead.of_first(first);
        let mut sums = [[lanes.splat(0.0); C]; N];
        let mut of_tile = [&scores[first]; N];
        for n in 0..N {
            of_tile[n] = &scores[first + n];
            for (c, sum) in sums[n].iter_mut().enumerate() {
                let before = lanes.load(sixteen(out, places[first + n] + c * LANES));
                *sum = lanes.mul(lanes.splat(fades[first + n]), before);
            }
        }
        sums = if const { L::ASKS } && ahead.asks() {
            add_tokens::<L, E, N, C, true>(lanes, (columns, tokens), (of_tile, ahead), sums)
        } else {
            add_tokens::<L, E, N, C, false>(lanes, (columns, tokens), (of_tile, ahead), sums)
        };
        for n in 0..N {
            for (c, sum) in sums[n].iter().enumerate() {
                let out = out[places[first + n] + c * LANES..].first_chunk_mut();
                lanes.store(*sum, out.expect("a whole vector"));
            }
        }
    }
}

/// `sums[n] + Σ scores[n][t] · columns[t]`. `ASKS` says whether `ahead` does.
#[inline(always)]
fn add_tokens<L: Lanes, E: KeptLanes, const N: usize, const C: usize, const ASKS: bool>(
    lanes: L,
    (from, tokens): (Columns<'_, E>, usize),
    (scores, ahead): ([&[f32; KV_BLOCK_TOKENS]; N], Ahead<E>),
    mut sums: [[L::F; C]; N],
) -> [[L::F; C]; N] {
    let near = ahead.near(lanes, NEAR_VECTORS) > 0;
    let mut rows = from.values.chunks_exact(from.stride);
    // There are no more than that, which the compiler is told: it asks for no bound of the scores then.
    for t in 0..tokens.min(KV_BLOCK_TOKENS) {
        if ASKS && near {
            ask_near::<L, E, C>(lanes, t, from, tokens);
        }
        let row = rows.next().expect("a row for every token");
        let mut columns = [lanes.splat(0.0); C];
        for (c, values) in row[from.first..][..C * LANES].as_chunks().0.iter().enumerate() {
            if ASKS {
                ahead.ask(lanes, t * C + c);
            }
            columns[c] = E::load(lanes, values);
        }
        for (sums, scores) in sums.iter_mut().zip(scores) {
            let share = lanes.splat(scores[t]);
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = lanes.fma(share, column, *sum);
            }
        }
    }
    sums
}

/// Asks for `C` vectors of a later token than `t`, or of one of the first in the columns behind these.
#[inline(always)]
fn ask_near<L: Lanes, E, const C: usize>(
    lanes: L,
    t: usize,
    Columns { values, stride, first }: Columns<'_, E>,
    tokens: usize,
) {
    let later = t + NEAR_VECTORS / C;
    let wraps = usize::from(later >= tokens);
    let place = (later - wraps * tokens) * stride + first + wraps * C * LANES;
    for c in 0..C {
        let vector = values.as_ptr().wrapping_add(place + c * LANES);
        lanes.ask_for(vector.cast(), Cache::First);
    }
}

/// The last `len` values of each output, fewer than a vector: by way of copies that are filled up.
#[inline(always)]
fn gather_tail<L: Lanes, E: KeptLanes, const G: usize, const N: usize>(
    lanes: L,
    (shares, Columns { values, stride, first }): (Shares<'_, E, G>, Columns<'_, E>),
    out: &mut [f32],
    (places, len): ([usize; G], usize),
) {
    let (mut block, mut outs) = ([[E::default(); LANES]; KV_BLOCK_TOKENS], [[0.0; LANES]; G]);
    for (t, value) in block[..shares.tokens].iter_mut().enumerate() {
        *value = padded(&values[t * stride + first..][..len]);
    }
    let mut firsts = [0; G];
    for n in 0..G {
        firsts[n] = n * LANES;
        outs[n] = padded(&out[places[n]..][..len]);
    }
    let columns = Columns { values: block.as_flattened(), stride: LANES, first: 0 };
    gather_columns::<L, E, G, N, 1>(lanes, (shares, columns), outs.as_flattened_mut(), firsts);
    for n in 0..G {
        out[places[n]..][..len].copy_from_slice(&outs[n][..len]);
    }
}

/// Sixteen values from `at` on.
#[inline(always)]
fn sixteen(x: &[f32], at: usize) -> &Sixteen {
    x[at..].first_chunk().expect("a whole vector")
}
