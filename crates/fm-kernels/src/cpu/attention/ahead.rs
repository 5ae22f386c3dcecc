//! What attention asks for ahead of its reads.
//!
//! A tile reads several keys, or columns of many values, side by side. Requests go in the order in which
//! lines lie: a core's own reading ahead, which sees them, then goes on with them, while the requests
//! alone are held up by how few lines can be on their way to a core (`docs/experiments/0077`).

use crate::cpu::lanes::{Cache, LANES, Lanes};

/// Vectors that will be read next.
#[derive(Clone, Copy)]
pub(super) struct Ahead<E> {
    /// Where they begin; a hint that is never read.
    next: Option<*const E>,
}

impl<E> Ahead<E> {
    /// Nothing.
    pub(super) const NOTHING: Self = Self { next: None };

    /// What begins there, if there is something.
    pub(super) fn of(next: Option<&[E]>) -> Self {
        Self { next: next.map(<[E]>::as_ptr) }
    }

    /// The same behind so many values.
    #[inline(always)]
    pub(super) fn behind(self, values: usize) -> Self {
        Self { next: self.next.map(|next| next.wrapping_add(values)) }
    }

    /// Nothing unless it is for the first of several groups that read the same.
    #[inline(always)]
    pub(super) fn of_first(self, group: usize) -> Self {
        if group == 0 { self } else { Self::NOTHING }
    }

    /// Whether there is something to ask for.
    #[inline(always)]
    pub(super) fn asks(self) -> bool {
        self.next.is_some()
    }

    /// How many bytes ahead so many vectors are, if it asks at all; see [`Lanes::near`].
    #[inline(always)]
    pub(super) fn near<L: Lanes>(self, lanes: L, vectors: usize) -> usize {
        if self.asks() { lanes.near(vectors * LANES * size_of::<E>()) } else { 0 }
    }

    /// Asks for vector `at`.
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(self, lanes: L, at: usize) {
        if let Some(next) = self.behind(at * LANES).next {
            lanes.ask_for(next.cast(), Cache::Second);
        }
    }
}
