//! Attention of some query heads, block by block.

use crate::{
    backend::{AttentionShape, KV_BLOCK_TOKENS, KvView, View},
    host::QUERIES_PER_TASK_MAX,
};

use super::{
    activation::{exp_sum, largest},
    lanes::{LANES, Lanes, Sixteen, Work, padded},
};

/// Keys that run side by side: they share the query and hide each other's latency.
const KEYS: usize = 4;

/// Vectors of the output that stay in registers while the values of a block stream by.
const COLUMNS: usize = 4;

/// Queries that run side by side where registers hold [`KEYS`] sums of each: a key or value is loaded
/// once for all of them. How many does not change a bit.
const QUERIES: usize = 4;

/// Query heads of some rows, see [`crate::reference::attention::attend`]: the same equations in the
/// same order of blocks and positions. Every query meets a block before the next block is read.
pub(super) struct Attend<'a> {
    pub(super) shape: AttentionShape,
    /// `[rows, heads · k_dim]`
    pub(super) q: View<'a, Vec<f32>>,
    pub(super) kv: &'a KvView<'a, Vec<f32>>,
    /// The first of the heads.
    pub(super) head: usize,
    /// Of the first row.
    pub(super) position: usize,
    /// `[rows, heads · v_dim]`
    pub(super) out: &'a mut [f32],
}

impl Work for Attend<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { shape, q, kv, head, position, out } = self;
        let AttentionShape { k_dim, v_dim, .. } = shape;
        let (share, heads) = (shape.heads / shape.kv_heads, q.cols / k_dim);
        let stride = heads * v_dim;
        out.fill(0.0);
        let mut done = 0;
        while done < heads {
            let kv_head = (head + done) / share;
            let last = ((kv_head + 1) * share).min(head + heads);
            let count = (last - (head + done)).min(QUERIES_PER_TASK_MAX / q.rows);
            let q = q.columns(done * k_dim, count * k_dim);
            let sinks = kv.sinks.map(|sinks| &sinks[head + done..][..count]);
            let queries = Queries { shape, q, kv, kv_head, sinks, count, position, stride };
            let out = &mut out[done * v_dim..];
            if L::CHAINS >= QUERIES * KEYS {
                queries.attend::<L, QUERIES>(lanes, out);
            } else {
                queries.attend::<L, 1>(lanes, out);
            }
            done += count;
        }
    }
}

/// Queries that read one key/value head, row by row.
struct Queries<'a> {
    shape: AttentionShape,
    /// `[rows, count · k_dim]`
    q: View<'a, Vec<f32>>,
    kv: &'a KvView<'a, Vec<f32>>,
    kv_head: usize,
    /// `[count]`
    sinks: Option<&'a [f32]>,
    /// Heads of a row.
    count: usize,
    /// Of the first row.
    position: usize,
    /// Values of the output from one row to the next.
    stride: usize,
}

/// The softmax of a query so far.
#[derive(Clone, Copy)]
struct Softmax {
    peak: f32,
    sum: f32,
}

/// What is seen of a block: positions in it, from the first to behind the last.
#[derive(Clone, Copy, PartialEq)]
struct Seen {
    from: usize,
    to: usize,
}

impl Queries<'_> {
    /// All of them over all blocks, `N` at a time where they see the same positions.
    #[inline(always)]
    fn attend<L: Lanes, const N: usize>(&self, lanes: L, out: &mut [f32]) {
        let queries = self.q.rows * self.count;
        let mut states = [Softmax { peak: f32::NEG_INFINITY, sum: 0.0 }; QUERIES_PER_TASK_MAX];
        let states = &mut states[..queries];
        if let Some(sinks) = self.sinks {
            for (state, sink) in states.iter_mut().zip(sinks.iter().cycle()) {
                *state = Softmax { peak: *sink, sum: 1.0 };
            }
        }
        let first = self.shape.first_seen(self.position) / KV_BLOCK_TOKENS;
        for block in first..(self.position + self.q.rows).div_ceil(KV_BLOCK_TOKENS) {
            let mut at = 0;
            while at < queries {
                let seen = self.seen(at, block);
                // What is seen moves on with the rows: if first and last see the same, all do.
                if at + N <= queries && self.seen(at + N - 1, block) == seen {
                    self.meet::<L, N>(lanes, at, (block, seen), states, out);
                    at += N;
                } else {
                    self.meet::<L, 1>(lanes, at, (block, seen), states, out);
                    at += 1;
                }
            }
        }
        for (at, state) in states.iter().enumerate() {
            let share = 1.0 / state.sum;
            let out = &mut out[self.place(at)..][..self.shape.v_dim];
            out.iter_mut().for_each(|out| *out *= share);
        }
    }

    /// What query `at` sees of a block.
    #[inline(always)]
    fn seen(&self, at: usize, block: usize) -> Seen {
        let (position, first) = (self.position + at / self.count, block * KV_BLOCK_TOKENS);
        let to = KV_BLOCK_TOKENS.min((position + 1).saturating_sub(first));
        Seen { from: self.shape.first_seen(position).saturating_sub(first).min(to), to }
    }

    /// Where the output of query `at` begins.
    #[inline(always)]
    fn place(&self, at: usize) -> usize {
        at / self.count * self.stride + at % self.count * self.shape.v_dim
    }

    /// Query `at`.
    #[inline(always)]
    fn query(&self, at: usize) -> &[f32] {
        let k_dim = self.shape.k_dim;
        &self.q.row(at / self.count)[at % self.count * k_dim..][..k_dim]
    }

    /// Queries `at ..` and what they see of a block.
    #[inline(always)]
    fn meet<L: Lanes, const N: usize>(
        &self,
        lanes: L,
        at: usize,
        (block, Seen { from, to }): (usize, Seen),
        states: &mut [Softmax],
        out: &mut [f32],
    ) {
        if from == to {
            return;
        }
        let AttentionShape { kv_heads, k_dim, v_dim, scale, .. } = self.shape;
        let lane =
            (self.kv.table[block] as usize * kv_heads + self.kv_head) * KV_BLOCK_TOKENS + from;
        let keys = &self.kv.keys[lane * k_dim..][..(to - from) * k_dim];
        let values = self.kv.values(self.shape, lane);
        let ahead = if at == 0 { self.ahead(keys, values.0, block) } else { [None; 2] };
        let (mut q, mut places) = ([self.query(at); N], [self.place(at); N]);
        for n in 1..N {
            (q[n], places[n]) = (self.query(at + n), self.place(at + n));
        }
        let mut scores = [[0.0; KV_BLOCK_TOKENS]; N];
        score(lanes, scale, q, (keys, ahead[0]), &mut scores);
        let mut fades = [0.0; N];
        for n in 0..N {
            let (state, scores) = (&mut states[at + n], &mut scores[n][..to - from]);
            let higher = largest(lanes, scores, state.peak);
            fades[n] = (state.peak - higher).exp(); // e^-∞ = 0 for the first block
            state.peak = higher;
            state.sum = state.sum * fades[n] + exp_sum(lanes, higher, scores);
        }
        let shares = Shares { fades, scores: &scores, tokens: to - from, ahead: ahead[1] };
        gather(lanes, shares, values, out, (places, v_dim));
    }

    /// What the first queries of a block ask for, and how far behind what they read it is: while they
    /// meet its keys its values, and while they gather its values the keys of the next one.
    #[inline(always)]
    fn ahead(&self, keys: &[f32], values: &[f32], block: usize) -> [Option<usize>; 2] {
        let next = (block + 1) * KV_BLOCK_TOKENS < self.position + self.q.rows;
        let next = next.then(|| self.kv.table[block + 1] as usize * self.shape.kv_heads);
        let next = next.map(|lane| (lane + self.kv_head) * KV_BLOCK_TOKENS * self.shape.k_dim);
        let next = next.map(|first| &self.kv.keys[first..]);
        let far = |to: &[f32], from: &[f32]| to.as_ptr().addr().wrapping_sub(from.as_ptr().addr());
        match self.kv.values {
            Some(_) => [Some(far(values, keys)), next.map(|next| far(next, values))],
            None => [next.map(|next| far(next, keys)), None],
        }
    }
}

/// `scores[n][t] = scale · q[n]·keys[t]`; asks for what lies `ahead` of the keys.
#[inline(always)]
fn score<L: Lanes, const N: usize>(
    lanes: L,
    scale: f32,
    q: [&[f32]; N],
    (keys, ahead): (&[f32], Option<usize>),
    scores: &mut [[f32; KV_BLOCK_TOKENS]; N],
) {
    let k_dim = q[0].len();
    let tokens = keys.len() / k_dim;
    let full = tokens / KEYS * KEYS;
    let q = Rows::new(q, k_dim);
    for t in (0..full).step_by(KEYS) {
        let mut rows = [&keys[t * k_dim..][..k_dim]; KEYS];
        for i in 1..KEYS {
            rows[i] = &keys[(t + i) * k_dim..][..k_dim];
        }
        let sums = products(lanes, &q, (&Rows::new(rows, k_dim), ahead));
        if N == QUERIES {
            let mut all = [sums[0]; QUERIES];
            all[..N].copy_from_slice(&sums);
            let mut tile = [0.0; QUERIES * KEYS];
            lanes.store(lanes.mul(lanes.splat(scale), lanes.sums_of_tile(all)), &mut tile);
            for (scores, tile) in scores.iter_mut().zip(tile.as_chunks::<KEYS>().0) {
                scores[t..t + KEYS].copy_from_slice(tile);
            }
        } else {
            for n in 0..N {
                let sums = lanes.sums(sums[n]);
                for i in 0..KEYS {
                    scores[n][t + i] = scale * sums[i];
                }
            }
        }
    }
    for t in full..tokens {
        let key = Rows::new([&keys[t * k_dim..][..k_dim]], k_dim);
        let sums = products(lanes, &q, (&key, ahead));
        for n in 0..N {
            scores[n][t] = scale * lanes.sum(sums[n][0]);
        }
    }
}

/// Some rows as vectors; what is left of them fills a last one up.
struct Rows<'a, const N: usize> {
    vectors: [&'a [Sixteen]; N],
    tails: Option<[Sixteen; N]>,
}

impl<'a, const N: usize> Rows<'a, N> {
    #[inline(always)]
    fn new(rows: [&'a [f32]; N], len: usize) -> Self {
        let mut vectors: [&[Sixteen]; N] = [&[]; N];
        for n in 0..N {
            vectors[n] = &rows[n].as_chunks().0[..len / LANES];
        }
        if len.is_multiple_of(LANES) {
            return Self { vectors, tails: None };
        }
        let mut tails = [[0.0; LANES]; N];
        for n in 0..N {
            tails[n] = padded(rows[n].as_chunks::<LANES>().1);
        }
        Self { vectors, tails: Some(tails) }
    }
}

/// Products of `N` queries and `T` keys, whose lanes are still to be added; one does not depend on
/// `N` or `T`.
#[inline(always)]
fn products<L: Lanes, const N: usize, const T: usize>(
    lanes: L,
    q: &Rows<'_, N>,
    (keys, ahead): (&Rows<'_, T>, Option<usize>),
) -> [[L::F; T]; N] {
    let mut sums = [[lanes.splat(0.0); T]; N];
    for at in 0..keys.vectors[0].len() {
        let mut vectors = [lanes.splat(0.0); N];
        for (vector, q) in vectors.iter_mut().zip(&q.vectors) {
            *vector = lanes.load(&q[at]);
        }
        for (t, key) in keys.vectors.iter().enumerate() {
            let key = &key[at];
            if let Some(ahead) = ahead {
                lanes.prefetch(key, ahead);
            }
            let key = lanes.load(key);
            for n in 0..N {
                sums[n][t] = lanes.fma(vectors[n], key, sums[n][t]);
            }
        }
    }
    if let (Some(heads), Some(tails)) = (&q.tails, &keys.tails) {
        for n in 0..N {
            let head = lanes.load(&heads[n]);
            for t in 0..T {
                sums[n][t] = lanes.fma(head, lanes.load(&tails[t]), sums[n][t]);
            }
        }
    }
    sums
}

/// Sixteen values from `at` on.
#[inline(always)]
fn sixteen(x: &[f32], at: usize) -> &Sixteen {
    x[at..].first_chunk().expect("a whole vector")
}

/// What the values of a block count for `N` queries.
#[derive(Clone, Copy)]
struct Shares<'a, const N: usize> {
    /// Factors on what was gathered before.
    fades: [f32; N],
    scores: &'a [[f32; KV_BLOCK_TOKENS]; N],
    tokens: usize,
    /// How far behind the values lies what will be read next.
    ahead: Option<usize>,
}

/// `out[n] = fade[n] · out[n] + Σ shares[n][t] · values[t]`, positions ascending; `values` come with
/// their stride, and output `n` has `v_dim` values from `places[n]` on.
#[inline(always)]
fn gather<L: Lanes, const N: usize>(
    lanes: L,
    shares: Shares<'_, N>,
    (values, stride): (&[f32], usize),
    out: &mut [f32],
    (mut places, v_dim): ([usize; N], usize),
) {
    let mut at = 0;
    while at + COLUMNS * LANES <= v_dim {
        gather_columns::<L, N, COLUMNS>(lanes, shares, (&values[at..], stride), out, places);
        at += COLUMNS * LANES;
        places.iter_mut().for_each(|place| *place += COLUMNS * LANES);
    }
    while at + LANES <= v_dim {
        gather_columns::<L, N, 1>(lanes, shares, (&values[at..], stride), out, places);
        at += LANES;
        places.iter_mut().for_each(|place| *place += LANES);
    }
    if at < v_dim {
        gather_tail(lanes, shares, (&values[at..], stride), out, (places, v_dim - at));
    }
}

/// `C` vectors of each output.
#[inline(always)]
fn gather_columns<L: Lanes, const N: usize, const C: usize>(
    lanes: L,
    Shares { fades, scores, tokens, ahead }: Shares<'_, N>,
    (values, stride): (&[f32], usize),
    out: &mut [f32],
    places: [usize; N],
) {
    let mut sums = [[lanes.splat(0.0); C]; N];
    for n in 0..N {
        for (c, sum) in sums[n].iter_mut().enumerate() {
            let before = lanes.load(sixteen(out, places[n] + c * LANES));
            *sum = lanes.mul(lanes.splat(fades[n]), before);
        }
    }
    for t in 0..tokens {
        let mut columns = [lanes.splat(0.0); C];
        let values = &values[t * stride..][..C * LANES];
        for (values, column) in values.as_chunks().0.iter().zip(&mut columns) {
            *column = lanes.load(values);
            if let Some(ahead) = ahead {
                lanes.prefetch(values, ahead);
            }
        }
        for (sums, scores) in sums.iter_mut().zip(scores) {
            let share = lanes.splat(scores[t]);
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = lanes.fma(share, column, *sum);
            }
        }
    }
    for n in 0..N {
        for (c, sum) in sums[n].iter().enumerate() {
            let out = out[places[n] + c * LANES..].first_chunk_mut().expect("a whole vector");
            lanes.store(*sum, out);
        }
    }
}

/// The last `len` values of each output, fewer than a vector: by way of copies that are filled up.
#[inline(always)]
fn gather_tail<L: Lanes, const N: usize>(
    lanes: L,
    shares: Shares<'_, N>,
    (values, stride): (&[f32], usize),
    out: &mut [f32],
    (places, len): ([usize; N], usize),
) {
    let (mut block, mut outs) = ([[0.0; LANES]; KV_BLOCK_TOKENS], [[0.0; LANES]; N]);
    for (t, value) in block[..shares.tokens].iter_mut().enumerate() {
        *value = padded(&values[t * stride..][..len]);
    }
    let mut firsts = [0; N];
    for n in 0..N {
        firsts[n] = n * LANES;
        outs[n] = padded(&out[places[n]..][..len]);
    }
    let values = (block.as_flattened(), LANES);
    gather_columns::<L, N, 1>(lanes, shares, values, outs.as_flattened_mut(), firsts);
    for n in 0..N {
        out[places[n]..][..len].copy_from_slice(&outs[n][..len]);
    }
}
