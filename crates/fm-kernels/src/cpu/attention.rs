//! Attention of some query heads, block by block.

mod ahead;
mod gather;

use crate::{
    backend::{AttentionShape, KV_BLOCK_TOKENS, View},
    host::{Half, HostBuf, Kept, KvLanes, QUERIES_PER_TASK_MAX},
};

use self::{
    ahead::Ahead,
    gather::{Shares, gather},
};
use super::{
    activation::{exp_sum, largest},
    lanes::{LANES, Lanes, Sixteen, Work, padded},
};

/// Sums of a tile that takes all the registers of AVX-512: of queries and keys, or of queries and vectors of
/// their outputs. Elsewhere a tile has [`FEW_SUMS`]. What a tile is made of does not change a bit.
const MANY_SUMS: usize = 16;

/// Sums of a tile that fits where a vector takes several of few registers.
const FEW_SUMS: usize = 4;

/// Whether a tile has [`FEW_SUMS`].
const fn few_sums<L: Lanes>() -> bool {
    MANY_SUMS * L::PARTS > L::CHAINS
}

/// [`Kept`] numbers that are turned into f32 sixteen at a time.
pub(super) trait KeptLanes: Kept + Default {
    /// What sixteen of them stand for.
    fn load<L: Lanes>(lanes: L, x: &[Self; LANES]) -> L::F;
}

impl KeptLanes for f32 {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, x: &Sixteen) -> L::F {
        lanes.load(x)
    }
}

impl KeptLanes for Half {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, x: &[Self; LANES]) -> L::F {
        lanes.f16(x.as_flattened().try_into().expect("two bytes each"))
    }
}

/// Query heads of some rows, see [`crate::reference::attention::attend`]: the same equations in the
/// same order of blocks and positions. Every query meets a block before the next block is read.
pub(super) struct Attend<'a, E> {
    pub(super) shape: AttentionShape,
    /// `[rows, heads · k_dim]`
    pub(super) q: View<'a, HostBuf>,
    pub(super) kv: KvLanes<'a, E>,
    /// The first of the heads.
    pub(super) head: usize,
    /// Of the first row.
    pub(super) position: usize,
    /// `[rows, heads · v_dim]`
    pub(super) out: &'a mut [f32],
}

impl<E: KeptLanes> Work for Attend<'_, E> {
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
            queries.attend(lanes, &mut out[done * v_dim..]);
            done += count;
        }
    }
}

/// Queries that read one key/value head, row by row.
struct Queries<'a, E> {
    shape: AttentionShape,
    /// `[rows, count · k_dim]`
    q: View<'a, HostBuf>,
    kv: KvLanes<'a, E>,
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

impl<E: KeptLanes> Queries<'_, E> {
    /// All of them over all blocks, eight or four at a time where they see the same positions.
    #[inline(always)]
    fn attend<L: Lanes>(&self, lanes: L, out: &mut [f32]) {
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
                let alike = |n| at + n <= queries && self.seen(at + n - 1, block) == seen;
                // With tiles of sixteen sums, four queries and four keys read least where a block comes from
                // the first cache, eight and two where it comes from memory and goes.
                let group = if alike(8) && (const { few_sums::<L>() } || queries == 8) {
                    8
                } else if alike(4) {
                    4
                } else {
                    1
                };
                let part = (block, seen);
                // Decided where it is compiled: tiles that a set never takes are long to build.
                if group == 1 {
                    self.meet::<L, 1, 1, 4>(lanes, at, part, states, out);
                } else if const { few_sums::<L>() } {
                    if group == 8 {
                        self.meet::<L, 8, 2, 2>(lanes, at, part, states, out);
                    } else {
                        self.meet::<L, 4, 2, 2>(lanes, at, part, states, out);
                    }
                } else if group == 8 {
                    self.meet::<L, 8, 8, 2>(lanes, at, part, states, out);
                } else {
                    self.meet::<L, 4, 4, 4>(lanes, at, part, states, out);
                }
                at += group;
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

    /// `G` queries from `at` on and what they see of a block, in tiles of `N` queries and `T` keys or
    /// vectors of the output: all of them read what a tile reads while the first cache has it.
    #[inline(always)]
    fn meet<L: Lanes, const G: usize, const N: usize, const T: usize>(
        &self,
        lanes: L,
        at: usize,
        (block, Seen { from, to }): (usize, Seen),
        states: &mut [Softmax],
        out: &mut [f32],
    ) {
        const { assert!(G.is_multiple_of(N) && N * T <= MANY_SUMS) };
        if from == to {
            return;
        }
        let AttentionShape { kv_heads, k_dim, v_dim, scale, .. } = self.shape;
        let lane =
            (self.kv.table[block] as usize * kv_heads + self.kv_head) * KV_BLOCK_TOKENS + from;
        let keys = &self.kv.keys[lane * k_dim..][..(to - from) * k_dim];
        let values = self.kv.values(self.shape, lane);
        let [ahead, behind] = self.ahead(values.0, block).map(|ahead| ahead.of_first(at));
        let (mut q, mut places) = ([self.query(at); G], [self.place(at); G]);
        for n in 1..G {
            (q[n], places[n]) = (self.query(at + n), self.place(at + n));
        }
        let mut scores = [[0.0; KV_BLOCK_TOKENS]; G];
        score::<L, E, G, N, T>(lanes, scale, q, (keys, ahead), &mut scores);
        let mut fades = [0.0; G];
        for n in 0..G {
            let (state, scores) = (&mut states[at + n], &mut scores[n][..to - from]);
            let higher = largest(lanes, scores, state.peak);
            // e^-∞ = 0 for the first block, and e^0 = 1 for most others, which is not worth a call.
            fades[n] = if state.peak == higher { 1.0 } else { (state.peak - higher).exp() };
            state.peak = higher;
            state.sum = state.sum * fades[n] + exp_sum(lanes, higher, scores);
        }
        let shares = Shares { fades, scores: &scores, tokens: to - from, ahead: behind };
        gather::<L, E, G, N, T>(lanes, shares, values, out, (places, v_dim));
    }

    /// What the first queries of a block ask for: while they meet its keys its values, and while they
    /// gather its values the keys of the next one.
    #[inline(always)]
    fn ahead(&self, values: &[E], block: usize) -> [Ahead<E>; 2] {
        let next = (block + 1) * KV_BLOCK_TOKENS < self.position + self.q.rows;
        let next = next.then(|| self.kv.table[block + 1] as usize * self.shape.kv_heads);
        let next = next.map(|lane| (lane + self.kv_head) * KV_BLOCK_TOKENS * self.shape.k_dim);
        let next = Ahead::of(next.map(|first| &self.kv.keys[first..]));
        match self.kv.values {
            Some(_) => [Ahead::of(Some(values)), next],
            None => [next, Ahead::NOTHING],
        }
    }
}

/// `scores[n][t] = scale · q[n]·keys[t]`; asks for what comes next.
#[inline(always)]
fn score<L: Lanes, E: KeptLanes, const G: usize, const N: usize, const T: usize>(
    lanes: L,
    scale: f32,
    q: [&[f32]; G],
    (keys, ahead): (&[E], Ahead<E>),
    scores: &mut [[f32; KV_BLOCK_TOKENS]; G],
) {
    let k_dim = q[0].len();
    let q = Rows::new(q, k_dim);
    let mut t = 0;
    let mut tiles = keys.chunks_exact(T * k_dim);
    for keys in &mut tiles {
        let ahead = ahead.behind(t * k_dim);
        score_keys::<L, E, G, N, T>(lanes, scale, &q, (keys, ahead), (scores, t));
        t += T;
    }
    for key in tiles.remainder().chunks_exact(k_dim) {
        let ahead = ahead.behind(t * k_dim);
        score_keys::<L, E, G, N, 1>(lanes, scale, &q, (key, ahead), (scores, t));
        t += 1;
    }
}

/// `T` keys, whose scores are those from `t` on.
#[inline(always)]
fn score_keys<L: Lanes, E: KeptLanes, const G: usize, const N: usize, const T: usize>(
    lanes: L,
    scale: f32,
    q: &Rows<'_, f32, G>,
    (keys, ahead): (&[E], Ahead<E>),
    (scores, t): (&mut [[f32; KV_BLOCK_TOKENS]; G], usize),
) {
    let k_dim = keys.len() / T;
    let mut rows = [&keys[..k_dim]; T];
    for i in 1..T {
        rows[i] = &keys[i * k_dim..][..k_dim];
    }
    let keys = Rows::new(rows, k_dim);
    for first in (0..G).step_by(N) {
        let ahead = ahead.of_first(first);
        // The many that ask for nothing do not spend half of their instructions on not asking.
        let sums = if const { L::ASKS } && ahead.asks() {
            products::<L, E, G, N, T, true>(lanes, (q, first), (&keys, ahead))
        } else {
            products::<L, E, G, N, T, false>(lanes, (q, first), (&keys, ahead))
        };
        let mut tile = [[0.0; T]; N];
        add_lanes(lanes, scale, sums, tile.as_flattened_mut());
        for (scores, tile) in scores[first..].iter_mut().zip(tile) {
            scores[t..t + T].copy_from_slice(&tile);
        }
    }
}

/// The lanes of each sum added up, times `scale`; as many at once as the tile allows.
#[inline(always)]
fn add_lanes<L: Lanes, const N: usize, const T: usize>(
    lanes: L,
    scale: f32,
    sums: [[L::F; T]; N],
    tile: &mut [f32],
) {
    let mut all = [[sums[0][0]; FEW_SUMS]; MANY_SUMS / FEW_SUMS];
    for (n, sums) in sums.iter().enumerate() {
        for (i, sum) in sums.iter().enumerate() {
            all[(n * T + i) / FEW_SUMS][(n * T + i) % FEW_SUMS] = *sum;
        }
    }
    if let Ok(tile) = tile.try_into() {
        lanes.store(lanes.mul(lanes.splat(scale), lanes.sums_of_tile(all)), tile);
    } else if let Ok(tile) = <&mut [f32; FEW_SUMS]>::try_from(&mut *tile) {
        *tile = lanes.sums(all[0]);
        tile.iter_mut().for_each(|sum| *sum *= scale);
    } else {
        for (score, sum) in tile.iter_mut().zip(all.as_flattened()) {
            *score = scale * lanes.sum(*sum);
        }
    }
}

/// Some rows as vectors; what is left of them fills a last one up.
struct Rows<'a, E, const N: usize> {
    vectors: [&'a [[E; LANES]]; N],
    tails: Option<[[E; LANES]; N]>,
}

impl<'a, E: KeptLanes, const N: usize> Rows<'a, E, N> {
    #[inline(always)]
    fn new(rows: [&'a [E]; N], len: usize) -> Self {
        let mut vectors: [&[[E; LANES]]; N] = [&[]; N];
        for n in 0..N {
            vectors[n] = &rows[n].as_chunks().0[..len / LANES];
        }
        if len.is_multiple_of(LANES) {
            return Self { vectors, tails: None };
        }
        let mut tails = [[E::default(); LANES]; N];
        for n in 0..N {
            tails[n] = padded(rows[n].as_chunks::<LANES>().1);
        }
        Self { vectors, tails: Some(tails) }
    }
}

/// Products of `N` queries from `first` on and `T` keys, whose lanes are still to be added; one does not
/// depend on `N` or `T`. `ASKS` says whether `ahead` does.
#[inline(always)]
fn products<
    L: Lanes,
    E: KeptLanes,
    const G: usize,
    const N: usize,
    const T: usize,
    const ASKS: bool,
>(
    lanes: L,
    (q, first): (&Rows<'_, f32, G>, usize),
    (keys, ahead): (&Rows<'_, E, T>, Ahead<E>),
) -> [[L::F; T]; N] {
    let mut sums = [[lanes.splat(0.0); T]; N];
    // All have this length, which the compiler sees only where they are cut.
    let len = keys.vectors[0].len();
    let (mut heads, mut rows) = ([&q.vectors[0][..len]; N], [&keys.vectors[0][..len]; T]);
    for (head, q) in heads.iter_mut().zip(&q.vectors[first..]) {
        *head = &q[..len];
    }
    for (row, key) in rows.iter_mut().zip(&keys.vectors) {
        *row = &key[..len];
    }
    let near = ahead.near(lanes, T * len);
    for at in 0..len {
        let mut vectors = [lanes.splat(0.0); N];
        for (vector, q) in vectors.iter_mut().zip(heads) {
            *vector = lanes.load(&q[at]);
        }
        for (t, key) in rows.iter().enumerate() {
            if const { ASKS && L::ASKS_FIRST } {
                lanes.prefetch_near(&key[at], near);
            }
            if ASKS {
                ahead.ask(lanes, at * T + t);
            }
            let key = E::load(lanes, &key[at]);
            for n in 0..N {
                sums[n][t] = lanes.fma(vectors[n], key, sums[n][t]);
            }
        }
    }
    if let (Some(heads), Some(tails)) = (&q.tails, &keys.tails) {
        for n in 0..N {
            let head = lanes.load(&heads[first + n]);
            for t in 0..T {
                sums[n][t] = lanes.fma(head, E::load(lanes, &tails[t]), sums[n][t]);
            }
        }
    }
    sums
}
