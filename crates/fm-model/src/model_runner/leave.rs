//! Sessions that leave a batch between two layers.
//!
//! Rows do not see their neighbours, so the others become what they become anyway: the residual stream
//! closes ranks, and the layers that are left have fewer rows.

use fm_kernels::Backend;

use super::{ModelRunner, sweep::Pass};
use crate::{experts::RoutedExperts, layer::Segment, runner::StepError};

impl<B: Backend, E: RoutedExperts<B>> ModelRunner<B, E> {
    /// Lets those go who are to leave the batch in hand.
    ///
    /// # Errors
    /// If nobody is left.
    pub(super) fn drop_leavers(&mut self) -> Result<(), StepError> {
        if self.pass.leavers.is_empty() {
            return Ok(());
        }
        let in_stream = self.pass.kept.iter().enumerate();
        let stay = in_stream.filter(|(_, row)| !self.pass.leaves(**row));
        let stay: Vec<usize> = stay.map(|(at, _)| at).collect();
        self.decoder.keep_rows(&self.device, &stay, &mut self.workspace)?;
        for segment in &self.pass.segments {
            if self.pass.leaves(segment.rows.start) {
                self.sessions.fall_back(&self.device, segment.session)?;
            }
        }
        self.pass.strike(self.decoder.hidden);
        if self.pass.segments.is_empty() { Err(StepError::Cancelled) } else { Ok(()) }
    }
}

impl Pass {
    /// Whether a row is of a session that leaves.
    fn leaves(&self, row: usize) -> bool {
        self.leavers.contains(&self.batch.rows[row].session)
    }

    /// Forgets those who leave; `hidden` values are a row of the stream.
    fn strike(&mut self, hidden: usize) {
        let stays: Vec<bool> = (0..self.batch.rows.len()).map(|row| !self.leaves(row)).collect();
        // Rows that stay before each row, and before the end: its place from now on.
        let places: Vec<usize> = std::iter::once(0)
            .chain(stays.iter().scan(0, |place, stays| {
                *place += usize::from(*stays);
                Some(*place)
            }))
            .collect();
        // What was looked at so far is either of all rows that want it, or of none.
        if !self.hidden.is_empty() {
            let looked = self.batch.rows.iter().zip(&stays).filter(|(row, _)| row.wants.hidden);
            let seen = self.hidden.chunks_exact(hidden).zip(looked.map(|(_, stays)| *stays));
            self.hidden =
                seen.filter(|(_, stays)| *stays).flat_map(|(of, _)| of).copied().collect();
        }
        self.kept.retain(|row| stays[*row]);
        self.kept.iter_mut().for_each(|row| *row = places[*row]);
        let mut of_rows = stays.iter();
        self.positions.retain(|_| *of_rows.next().expect("every row has its position"));
        let mut of_segments = self.segments.iter().map(|of| stays[of.rows.start]);
        self.spoiled.retain(|_| of_segments.next().expect("every segment is spoiled or not"));
        self.segments.retain(|segment| stays[segment.rows.start]);
        for Segment { rows, .. } in &mut self.segments {
            *rows = places[rows.start]..places[rows.end];
        }
        let Self { batch, leavers, .. } = self;
        batch.rows.retain(|row| !leavers.contains(&row.session));
        leavers.clear();
    }
}
