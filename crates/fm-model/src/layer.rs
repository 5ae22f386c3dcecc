//! The building blocks of a decoder. A family does not write them again; it says which it has.

pub(crate) mod attention;
pub(crate) mod delta_net;
pub(crate) mod mla;
pub(crate) mod mlp;
pub(crate) mod moe;
mod rotation;

use std::ops::Range;

use fm_format::key::LayerIndex;
use fm_kernels::{
    Backend,
    backend::{DeviceResult, View, ViewMut},
};

use crate::{
    runner::SpoiledReason,
    state::{Session, kv_blocks::KvPool},
};

/// The rows of one step, and the state they advance.
#[derive(Debug)]
pub(crate) struct StepRows<'a, B: Backend> {
    /// Consecutive rows of one session each.
    pub(crate) segments: &'a [Segment],
    /// Position of every row.
    pub(crate) positions: &'a [u32],
    /// Sessions, addressed by [`Segment::session`].
    pub(crate) sessions: &'a mut [Session<B>],
    /// Keys and values of all of them.
    pub(crate) pool: &'a mut KvPool<B>,
    /// The layer that they pass through.
    pub(crate) layer: LayerIndex,
    /// Which sessions are spoiled and why, by segment.
    pub(crate) spoiled: &'a mut [Option<SpoiledReason>],
}

impl<B: Backend> StepRows<'_, B> {
    /// Keeps keys and values of segment `at` in those of layer `kv_layer`. What their format cannot hold
    /// spoils the session.
    pub(crate) fn keep(
        &mut self,
        device: &B,
        (kv_layer, at): (usize, usize),
        keys: View<'_, B::Buf>,
        values: Option<View<'_, B::Buf>>,
    ) -> DeviceResult {
        let segment = &self.segments[at];
        let place = (kv_layer, &self.sessions[segment.session].table);
        let overflow = self.pool.write(device, place, segment.position, keys, values)?;
        if let Some(source) = overflow {
            let reason = SpoiledReason::KvOverflow { layer: self.layer, source };
            self.spoiled[at].get_or_insert(reason);
        }
        Ok(())
    }
}

/// Consecutive rows of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Place of the session in the runner's list.
    pub(crate) session: usize,
    /// Its rows in the batch.
    pub(crate) rows: Range<usize>,
    /// Position of the first of them.
    pub(crate) position: u32,
}

impl Segment {
    /// Those of its rows that stand at some of its positions.
    pub(crate) fn part(&self, positions: Range<u32>) -> Self {
        let row = |position: u32| self.rows.start + (position - self.position) as usize;
        let rows = row(positions.start)..row(positions.end);
        Self { session: self.session, rows, position: positions.start }
    }

    /// The segment's rows of a matrix that has one row per row of the batch.
    pub(crate) fn of<'a, Buf>(&self, buf: &'a Buf, cols: usize) -> View<'a, Buf> {
        View::new(buf, self.rows.end, cols).rows(self.rows.start, self.rows.len())
    }

    /// As [`Segment::of`], to write.
    pub(crate) fn of_mut<'a, Buf>(&self, buf: &'a mut Buf, cols: usize) -> ViewMut<'a, Buf> {
        ViewMut::new(buf, self.rows.end, cols).rows(self.rows.start, self.rows.len())
    }
}
