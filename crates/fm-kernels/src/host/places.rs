//! Lists of the places that the tasks of an operation write to.

use std::{cell::RefCell, mem};

use crate::backend::{ExpertRow, ViewMut};

use super::HostBuf;

/// Room for such lists, kept from operation to operation: a steady step allocates nothing. There are as
/// many as one operation has at a time, each as long as the longest there was.
#[derive(Debug, Default)]
pub(super) struct PlaceLists(RefCell<Vec<Vec<&'static mut [f32]>>>);

impl PlaceLists {
    /// Gives `work` an empty list.
    pub(super) fn with<'p, T: 'p>(&self, work: impl FnOnce(&mut Vec<&'p mut [T]>)) {
        let mut list = recycled(self.0.borrow_mut().pop().unwrap_or_default());
        work(&mut list);
        self.0.borrow_mut().push(recycled(list));
    }
}

/// An empty list in the memory of another one: the standard library collects in place what is as large
/// and aligned alike. If it did not, every list would be allocated anew.
fn recycled<'a, 'b, A, B>(mut list: Vec<&'a mut [A]>) -> Vec<&'b mut [B]> {
    list.clear();
    let none = list.into_iter().map(|_| -> &'b mut [B] { unreachable!("the list is empty") });
    none.collect()
}

/// Cuts rows of one length into parts of `len`, and lists the first parts of all rows, then the second
/// ones, and so on. Nothing is left of the rows.
pub(super) fn cut<'p, T>(rows: &mut [&'p mut [T]], len: usize, places: &mut Vec<&'p mut [T]>) {
    while rows.first().is_some_and(|row| !row.is_empty()) {
        for row in &mut *rows {
            let part = len.min(row.len());
            places.extend(row.split_off_mut(..part));
        }
    }
}

/// Lists the rows of a result.
pub(super) fn list_rows<'p>(of: &'p mut ViewMut<'_, HostBuf>, rows: &mut Vec<&'p mut [f32]>) {
    let (cols, stride) = (of.cols, of.stride);
    if of.rows > 0 {
        rows.extend(of.spread().chunks_mut(stride).map(|row| &mut row[..cols]));
    }
}

/// Takes the target of a row out of such a list.
///
/// # Panics
/// If it is gone: every row has a target of its own.
pub(super) fn take_target<'p>(rows: &mut [&'p mut [f32]], row: &ExpertRow) -> &'p mut [f32] {
    let target = mem::take(&mut rows[row.target as usize]);
    assert!(!target.is_empty(), "every row has a target of its own");
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_where_the_one_before_was() {
        let lists = PlaceLists::default();
        let (mut values, mut bytes, mut first) = ([0.0_f32; 8], [0_u8; 8], None);
        lists.with(|list| {
            list.extend(values.chunks_mut(2));
            first = Some(list.as_ptr().addr());
        });
        lists.with(|list: &mut Vec<&mut [u8]>| {
            assert!(list.is_empty() && list.capacity() >= 4);
            list.push(&mut bytes);
            assert_eq!(Some(list.as_ptr().addr()), first);
        });
    }

    #[test]
    fn parts_are_listed_side_by_side() {
        let (mut a, mut b) = ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9]);
        let mut places = Vec::new();
        cut(&mut [&mut a, &mut b], 2, &mut places);
        assert_eq!(places, [&[0, 1][..], &[5, 6], &[2, 3], &[7, 8], &[4], &[9]]);
    }
}
