//! Exact vectors of one role of one layer: a ring of rows, one per position.

use std::iter::repeat_n;
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::ExactType;
use crate::memory::arc_bytes;

/// Rows of consecutive positions, all heads of a position behind one another. Clones share the elements until one of them writes.
#[derive(Debug, Clone)]
pub(crate) struct ExactRows {
    /// `[capacity, width]`; position j lies in row `j % capacity`.
    elements: Elements,
    width: usize,
    capacity: usize,
    /// First position held.
    start: usize,
    /// One past the last position held.
    end: usize,
}

#[derive(Debug, Clone)]
enum Elements {
    F32(Arc<[f32]>),
    Bf16(Arc<[bf16]>),
    F16(Arc<[f16]>),
}

impl Elements {
    fn zeros(ty: ExactType, n: usize) -> Self {
        match ty {
            ExactType::F32 => Self::F32(repeat_n(0.0, n).collect()),
            ExactType::Bf16 => Self::Bf16(repeat_n(bf16::ZERO, n).collect()),
            ExactType::F16 => Self::F16(repeat_n(f16::ZERO, n).collect()),
        }
    }

    const fn ty(&self) -> ExactType {
        match self {
            Self::F32(_) => ExactType::F32,
            Self::Bf16(_) => ExactType::Bf16,
            Self::F16(_) => ExactType::F16,
        }
    }

    fn write(&mut self, at: usize, x: &[f32]) {
        match self {
            Self::F32(own) => Arc::make_mut(own)[at..at + x.len()].copy_from_slice(x),
            Self::Bf16(own) => Arc::make_mut(own)[at..at + x.len()].convert_from_f32_slice(x),
            Self::F16(own) => Arc::make_mut(own)[at..at + x.len()].convert_from_f32_slice(x),
        }
    }

    fn read(&self, at: usize, out: &mut [f32]) {
        match self {
            Self::F32(own) => out.copy_from_slice(&own[at..at + out.len()]),
            Self::Bf16(own) => own[at..at + out.len()].convert_to_f32_slice(out),
            Self::F16(own) => own[at..at + out.len()].convert_to_f32_slice(out),
        }
    }

    /// Copies `n` elements at `from` of `other`, which has the same type.
    fn copy(&mut self, to: usize, other: &Self, from: usize, n: usize) {
        match (self, other) {
            (Self::F32(own), Self::F32(other)) => {
                Arc::make_mut(own)[to..to + n].copy_from_slice(&other[from..from + n])
            }
            (Self::Bf16(own), Self::Bf16(other)) => {
                Arc::make_mut(own)[to..to + n].copy_from_slice(&other[from..from + n]);
            }
            (Self::F16(own), Self::F16(other)) => {
                Arc::make_mut(own)[to..to + n].copy_from_slice(&other[from..from + n])
            }
            _ => unreachable!("elements of one ring have one type"),
        }
    }
}

/// Rounds to what is stored as `ty`.
pub(crate) fn round(ty: ExactType, x: &mut [f32]) {
    match ty {
        ExactType::F32 => {}
        ExactType::Bf16 => x.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
        ExactType::F16 => x.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
    }
}

impl ExactRows {
    /// No positions, no allocation.
    pub(crate) fn new(ty: ExactType, width: usize) -> Self {
        Self { elements: Elements::zeros(ty, 0), width, capacity: 0, start: 0, end: 0 }
    }

    pub(crate) const fn start(&self) -> usize {
        self.start
    }

    pub(crate) const fn end(&self) -> usize {
        self.end
    }

    pub(crate) const fn rows(&self) -> usize {
        self.end - self.start
    }

    /// Appends rows `[n, width]` at `first`, which is where the rows end unless there are none. `limit` is how many rows there will
    /// be in the long run: single rows make the ring grow in steps up to it.
    pub(crate) fn push(&mut self, first: usize, x: &[f32], limit: usize) {
        let n = x.len() / self.width;
        if n == 0 {
            return;
        }
        if self.start == self.end {
            (self.start, self.end) = (first, first);
        }
        debug_assert_eq!(self.end, first, "rows are appended in order");
        let needed = self.rows() + n;
        if needed > self.capacity {
            let step = self.capacity + (self.capacity / 8).max(8);
            self.set_capacity(needed.max(step.min(limit)));
        }
        for (i, row) in x.chunks_exact(self.width).enumerate() {
            self.elements.write((first + i) % self.capacity * self.width, row);
        }
        self.end += n;
    }

    /// Forgets positions before `position`.
    pub(crate) fn drop_before(&mut self, position: usize) {
        self.start = self.start.max(position);
        self.end = self.end.max(self.start);
    }

    /// Forgets positions from `end` on.
    pub(crate) fn truncate(&mut self, end: usize) {
        self.end = self.end.min(end);
        self.start = self.start.min(self.end);
    }

    /// Gives back what a chunk took: nothing stays allocated beyond the larger of `limit` and what is held.
    pub(crate) fn shrink(&mut self, limit: usize) {
        if self.capacity > limit.max(self.rows()) {
            self.set_capacity(self.rows());
        }
    }

    /// Elements `at..at + out.len()` of the row of `position`, which is held.
    pub(crate) fn read(&self, position: usize, at: usize, out: &mut [f32]) {
        debug_assert!((self.start..self.end).contains(&position), "position is held");
        self.elements.read(position % self.capacity * self.width + at, out);
    }

    /// Bytes on the heap.
    pub(crate) fn allocated(&self) -> usize {
        arc_bytes(self.capacity * self.row_bytes())
    }

    /// Bytes of the rows held.
    pub(crate) const fn held_bytes(&self) -> usize {
        self.rows() * self.row_bytes()
    }

    const fn row_bytes(&self) -> usize {
        self.width * self.elements.ty().bytes()
    }

    /// Whether clones share the elements.
    pub(crate) fn is_shared(&self) -> bool {
        1 < match &self.elements {
            Elements::F32(own) => Arc::strong_count(own),
            Elements::Bf16(own) => Arc::strong_count(own),
            Elements::F16(own) => Arc::strong_count(own),
        }
    }

    fn set_capacity(&mut self, capacity: usize) {
        let mut elements = Elements::zeros(self.elements.ty(), capacity * self.width);
        for position in self.start..self.end {
            let (to, from) = (position % capacity * self.width, position % self.capacity * self.width);
            elements.copy(to, &self.elements, from, self.width);
        }
        (self.elements, self.capacity) = (elements, capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_holds_the_positions_between_start_and_end() {
        for ty in [ExactType::F32, ExactType::Bf16, ExactType::F16] {
            let mut rows = ExactRows::new(ty, 3);
            for position in 0..50usize {
                rows.push(position, &[position as f32, 1.0, -2.0], 7);
                rows.drop_before((position + 1).saturating_sub(7));
                rows.shrink(7);
                assert_eq!(rows.rows(), (position + 1).min(7));
                for held in rows.start()..rows.end() {
                    let mut out = [0.0; 3];
                    rows.read(held, 0, &mut out);
                    assert_eq!(out, [held as f32, 1.0, -2.0]);
                }
                assert!(rows.capacity <= 8);
            }
            rows.truncate(45);
            assert_eq!((rows.start(), rows.end()), (43, 45));
            rows.truncate(10);
            assert_eq!(rows.rows(), 0);
            rows.push(10, &[1.0; 3], 7);
            assert_eq!((rows.start(), rows.end()), (10, 11));
        }
    }

    #[test]
    fn clones_share_until_one_writes() {
        let mut one = ExactRows::new(ExactType::F16, 2);
        one.push(0, &[1.0, 2.0], 8);
        let mut two = one.clone();
        assert!(one.is_shared());
        two.push(1, &[3.0, 4.0], 8);
        assert!(!one.is_shared());
        assert_eq!((one.end(), two.end()), (1, 2));
    }
}
