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
    let mut at = 0;
    while at + C * LANES <= v_dim {
        gather_columns::<L, E, G, N, C>(
            lanes,
            shares.after(at),
            (&values[at..], stride),
            out,
            places,
        );
        at += C * LANES;
        places.iter_mut().for_each(|place| *place += C * LANES);
    }
    while at + LANES <= v_dim {
        gather_columns::<L, E, G, N, 1>(
            lanes,
            shares.after(at),
            (&values[at..], stride),
            out,
            places,
        );
        at += LANES;
        places.iter_mut().for_each(|place| *place += LANES);
    }
    if at < v_dim {
        gather_tail::<L, E, G, N>(
            lanes,
            shares.after(at),
            (&values[at..], stride),
            out,
            (places, v_dim - at),
        );
    }
}

/// `C` vectors of each output.
#[inline(always)]
fn gather_columns<L: Lanes, E: KeptLanes, const G: usize, const N: usize, const C: usize>(
    lanes: L,
    Shares { fades, scores, tokens, ahead }: Shares<'_, E, G>,
    (values, stride): (&[E], usize),
    out: &mut [f32],
    places: [usize; G],
) {
    for first in (0..G).step_by(N) {
        let ahead = ahead.of_first(first);
        let mut sums = [[lanes.splat(0.0); C]; N];
        for n in 0..N {
            for (c, sum) in sums[n].iter_mut().enumerate() {
                let before = lanes.load(sixteen(out, places[first + n] + c * LANES));
                *sum = lanes.mul(lanes.splat(fades[first + n]), before);
            }
        }
        let near = ahead.near(lanes, NEAR_VECTORS) > 0;
        for t in 0..tokens {
            if near {
                ask_near::<L, E, C>(lanes, t, (values, stride), tokens);
            }
            let mut columns = [lanes.splat(0.0); C];
            let values = &values[t * stride..][..C * LANES];
            for (c, values) in values.as_chunks().0.iter().enumerate() {
                ahead.ask(lanes, t * C + c);
                columns[c] = E::load(lanes, values);
            }
            for (sums, scores) in sums.iter_mut().zip(&scores[first..]) {
                let share = lanes.splat(scores[t]);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = lanes.fma(share, column, *sum);
                }
            }
        }
        for n in 0..N {
            for (c, sum) in sums[n].iter().enumerate() {
                let out = out[places[first + n] + c * LANES..].first_chunk_mut();
                lanes.store(*sum, out.expect("a whole vector"));
            }
        }
    }
}

/// Asks for `C` vectors of a later token than `t`, or of one of the first in the columns behind these.
#[inline(always)]
fn ask_near<L: Lanes, E, const C: usize>(
    lanes: L,
    t: usize,
    (values, stride): (&[E], usize),
    tokens: usize,
) {
    let later = t + NEAR_VECTORS / C;
    let wraps = usize::from(later >= tokens);
    let place = (later - wraps * tokens) * stride + wraps * C * LANES;
    for c in 0..C {
        let vector = values.as_ptr().wrapping_add(place + c * LANES);
        lanes.ask_for(vector.cast(), Cache::First);
    }
}

/// The last `len` values of each output, fewer than a vector: by way of copies that are filled up.
#[inline(always)]
fn gather_tail<L: Lanes, E: KeptLanes, const G: usize, const N: usize>(
    lanes: L,
    shares: Shares<'_, E, G>,
    (values, stride): (&[E], usize),
    out: &mut [f32],
    (places, len): ([usize; G], usize),
) {
    let (mut block, mut outs) = ([[E::default(); LANES]; KV_BLOCK_TOKENS], [[0.0; LANES]; G]);
    for (t, value) in block[..shares.tokens].iter_mut().enumerate() {
        *value = padded(&values[t * stride..][..len]);
    }
    let mut firsts = [0; G];
    for n in 0..G {
        firsts[n] = n * LANES;
        outs[n] = padded(&out[places[n]..][..len]);
    }
    let values = (block.as_flattened(), LANES);
    gather_columns::<L, E, G, N, 1>(lanes, shares, values, outs.as_flattened_mut(), firsts);
    for n in 0..G {
        out[places[n]..][..len].copy_from_slice(&outs[n][..len]);
    }
}

/// Sixteen values from `at` on.
#[inline(always)]
fn sixteen(x: &[f32], at: usize) -> &Sixteen {
    x[at..].first_chunk().expect("a whole vector")
}
