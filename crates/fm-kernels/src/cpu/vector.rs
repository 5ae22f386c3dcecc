//! Dot products and sums of f32 vectors.

use super::lanes::{LANES, Lanes, Work, load_some, store_some};

/// Independent sums of a dot product: enough to hide the latency of a multiply-add.
const CHAINS: usize = 4;

/// `Σ a[i] · b[i]`: value `i` goes to lane `i % 16` of sum `i / 16 % 4`.
pub(super) struct Dot<'a> {
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
}

impl Work for Dot<'_> {
    type Out = f32;

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) -> f32 {
        dot(lanes, self.a, self.b)
    }
}

/// See [`Dot`].
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub(super) fn dot<L: Lanes>(lanes: L, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a dot product has two operands of one length");
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    let mut sums = [lanes.splat(0.0); CHAINS];
    let (a_runs, a_rest) = a.as_chunks::<CHAINS>();
    let (b_runs, b_rest) = b.as_chunks::<CHAINS>();
    for (a, b) in a_runs.iter().zip(b_runs) {
        for chain in 0..CHAINS {
            sums[chain] = lanes.fma(lanes.load(&a[chain]), lanes.load(&b[chain]), sums[chain]);
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum = lanes.fma(lanes.load(a), lanes.load(b), *sum);
    }
    if !a_tail.is_empty() {
        let last = &mut sums[CHAINS - 1];
        *last = lanes.fma(load_some(lanes, a_tail), load_some(lanes, b_tail), *last);
    }
    lanes.sum(lanes.add(lanes.add(sums[0], sums[1]), lanes.add(sums[2], sums[3])))
}

/// See [`crate::host::Kernels::ask_for`].
pub(super) struct AskFor<'a> {
    pub(super) values: &'a [f32],
}

impl Work for AskFor<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        for line in self.values.chunks(LANES) {
            lanes.prefetch(line, 0);
        }
    }
}

/// `acc += scale · x`.
pub(super) struct Axpy<'a> {
    pub(super) scale: f32,
    pub(super) x: &'a [f32],
    pub(super) acc: &'a mut [f32],
}

impl Work for Axpy<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let scale = lanes.splat(self.scale);
        zip_map(lanes, self.acc, self.x, |lanes, acc, x| lanes.fma(scale, x, acc));
    }
}

/// `a[i] = op(a[i], b[i])`. The last lanes are filled up, so that a value's place does not matter.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub(super) fn zip_map<L: Lanes>(
    lanes: L,
    a: &mut [f32],
    b: &[f32],
    op: impl Fn(L, L::F, L::F) -> L::F,
) {
    assert_eq!(a.len(), b.len(), "both operands have one length");
    for (a, b) in a.chunks_mut(LANES).zip(b.chunks(LANES)) {
        let x = op(lanes, load_some(lanes, a), load_some(lanes, b));
        store_some(lanes, x, a);
    }
}
