//! Views: matrices of f32 inside buffers.

/// A matrix of f32 inside a buffer: row `i` begins at `offset + i · stride`.
#[derive(Debug)]
pub struct View<'a, Buf> {
    /// The buffer.
    pub buf: &'a Buf,
    /// Position of the first value.
    pub offset: usize,
    /// Number of rows.
    pub rows: usize,
    /// Values in a row.
    pub cols: usize,
    /// Distance between the beginnings of two rows.
    pub stride: usize,
}

// By hand: `derive` would ask for `Buf: Copy`, and only the borrow is copied.
impl<Buf> Clone for View<'_, Buf> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<Buf> Copy for View<'_, Buf> {}

impl<'a, Buf> View<'a, Buf> {
    /// A matrix at the start of `buf`, rows one after the other.
    pub fn new(buf: &'a Buf, rows: usize, cols: usize) -> Self {
        Self { buf, offset: 0, rows, cols, stride: cols }
    }

    /// The same rows, but only `cols` columns from `first` on.
    pub fn columns(self, first: usize, cols: usize) -> Self {
        Self { offset: self.offset + first, cols, ..self }
    }

    /// The same columns, but only `rows` rows from `first` on.
    pub fn rows(self, first: usize, rows: usize) -> Self {
        Self { offset: self.offset + first * self.stride, rows, ..self }
    }
}

/// A [`View`] that can be written.
#[derive(Debug)]
pub struct ViewMut<'a, Buf> {
    /// The buffer.
    pub buf: &'a mut Buf,
    /// Position of the first value.
    pub offset: usize,
    /// Number of rows.
    pub rows: usize,
    /// Values in a row.
    pub cols: usize,
    /// Distance between the beginnings of two rows.
    pub stride: usize,
}

impl<'a, Buf> ViewMut<'a, Buf> {
    /// The same view for a while.
    pub fn reborrow(&mut self) -> ViewMut<'_, Buf> {
        let Self { offset, rows, cols, stride, .. } = *self;
        ViewMut { buf: &mut *self.buf, offset, rows, cols, stride }
    }

    /// A matrix at the start of `buf`, rows one after the other.
    pub fn new(buf: &'a mut Buf, rows: usize, cols: usize) -> Self {
        Self { buf, offset: 0, rows, cols, stride: cols }
    }

    /// The same rows, but only `cols` columns from `first` on.
    pub fn columns(self, first: usize, cols: usize) -> Self {
        Self { offset: self.offset + first, cols, ..self }
    }

    /// The same columns, but only `rows` rows from `first` on.
    pub fn rows(self, first: usize, rows: usize) -> Self {
        Self { offset: self.offset + first * self.stride, rows, ..self }
    }
}
