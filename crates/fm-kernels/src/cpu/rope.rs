//! Rotary position embedding of one row: every angle is computed once for all heads.

use super::lanes::{LANES, Lanes, Work, load_some, store_some};

/// Rotates the heads of one row, see [`crate::Backend::rope`].
pub(super) struct RopeRow<'a> {
    pub(super) head_dim: usize,
    pub(super) position: u32,
    pub(super) inv_freq: &'a [f32],
    pub(super) x: &'a mut [f32],
}

impl Work for RopeRow<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { head_dim, position, inv_freq, x } = self;
        let pairs = inv_freq.len();
        for (i, inv_freq) in inv_freq.chunks(LANES).enumerate() {
            let (mut sin, mut cos) = ([0.0; LANES], [0.0; LANES]);
            for (i, freq) in inv_freq.iter().enumerate() {
                (sin[i], cos[i]) = (position as f32 * freq).sin_cos();
            }
            let (sin, cos) = (lanes.load(&sin), lanes.load(&cos));
            let (at, len) = (i * LANES, inv_freq.len());
            for head in x.chunks_exact_mut(head_dim) {
                let (first, second) = head.split_at_mut(pairs);
                let (first, second) = (&mut first[at..][..len], &mut second[at..][..len]);
                let (a, b) = (load_some(lanes, first), load_some(lanes, second));
                let turned = lanes.sub(lanes.mul(a, cos), lanes.mul(b, sin));
                store_some(lanes, turned, first);
                let turned = lanes.add(lanes.mul(b, cos), lanes.mul(a, sin));
                store_some(lanes, turned, second);
            }
        }
    }
}
