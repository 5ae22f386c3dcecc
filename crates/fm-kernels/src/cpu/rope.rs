//! Rotary position embedding of one row: every angle is computed once for all heads.

use crate::{
    backend::{Rope, RopeLayout},
    host::HostBuf,
};

use super::lanes::{LANES, Lanes, Sixteen, Work, load_some, store_some};

/// Rotates the heads of one row, see [`crate::Backend::rope`].
pub(super) struct RopeRow<'a> {
    pub(super) spec: &'a Rope<'a, HostBuf>,
    pub(super) position: u32,
    pub(super) x: &'a mut [f32],
}

impl Work for RopeRow<'_> {
    type Out = ();

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) {
        let Self { spec, position, x } = self;
        for (i, inv_freq) in spec.inv_freq[..spec.pairs].chunks(LANES).enumerate() {
            let (mut sin, mut cos) = ([0.0; LANES], [0.0; LANES]);
            for (i, freq) in inv_freq.iter().enumerate() {
                let (s, c) = (position as f32 * freq).sin_cos();
                (sin[i], cos[i]) = (s * spec.amplitude, c * spec.amplitude);
            }
            let (at, len) = (i * LANES, inv_freq.len());
            for head in x.chunks_exact_mut(spec.head_dim) {
                let rotated = &mut head[spec.start..][..2 * spec.pairs];
                match spec.layout {
                    RopeLayout::HalfSplit => {
                        let (first, second) = rotated.split_at_mut(spec.pairs);
                        let pairs = (&mut first[at..][..len], &mut second[at..][..len]);
                        half_split(lanes, (&sin, &cos), pairs);
                    }
                    RopeLayout::Interleaved => {
                        interleaved((&sin, &cos), &mut rotated[2 * at..][..2 * len]);
                    }
                }
            }
        }
    }
}

/// Up to sixteen pairs, the first and the second values of which lie apart.
#[inline(always)]
fn half_split<L: Lanes>(
    lanes: L,
    (sin, cos): (&Sixteen, &Sixteen),
    (first, second): (&mut [f32], &mut [f32]),
) {
    let (sin, cos) = (lanes.load(sin), lanes.load(cos));
    let (a, b) = (load_some(lanes, first), load_some(lanes, second));
    store_some(lanes, lanes.sub(lanes.mul(a, cos), lanes.mul(b, sin)), first);
    store_some(lanes, lanes.add(lanes.mul(b, cos), lanes.mul(a, sin)), second);
}

/// Up to sixteen pairs side by side.
#[inline(always)]
fn interleaved((sin, cos): (&Sixteen, &Sixteen), rotated: &mut [f32]) {
    let (pairs, _) = rotated.as_chunks_mut();
    for (([a, b], sin), cos) in pairs.iter_mut().zip(sin).zip(cos) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
