//! Coded vectors of one role of one layer: shelves of sealed pages, and the open rows behind them.

use std::ops::Range;

use crate::KvError;
use crate::memory::KvMemory;
use crate::pages::{Coding, PageRef, SealedPage, Shelf};

/// Sealed pages and open rows of consecutive positions.
#[derive(Debug, Clone)]
pub(crate) struct Coded {
    shelves: Vec<Shelf>,
    /// Rows behind the pages, `[positions, heads, row_bytes]`.
    open: Vec<u8>,
    /// Position of the first open row.
    open_first: usize,
    /// One past the last position.
    end: usize,
}

/// What an append will add, made before anything changes.
#[derive(Debug)]
pub(crate) struct Staged {
    pages: Vec<SealedPage>,
    /// Rows behind the new pages; if there are none, behind the open rows.
    open: Vec<u8>,
    end: usize,
}

impl Coded {
    /// Nothing, with `start` as the position of the first row to come.
    pub(crate) fn new(start: usize) -> Self {
        Self { shelves: Vec::new(), open: Vec::new(), open_first: start, end: start }
    }

    /// One past the last position.
    pub(crate) const fn end(&self) -> usize {
        self.end
    }

    /// Sealed pages in order of positions, `page` vectors each.
    pub(crate) fn pages(&self, page: usize) -> impl Iterator<Item = PageRef<'_>> {
        self.shelves.iter().flat_map(move |shelf| shelf.pages(page))
    }

    /// The sealed page of a position.
    pub(crate) fn page_at(&self, position: usize, page: usize) -> Option<PageRef<'_>> {
        let index = self.shelves.partition_point(|shelf| shelf.positions().end <= position);
        self.shelves.get(index)?.page_at(position, page)
    }

    /// Positions of the open rows.
    pub(crate) const fn open_positions(&self) -> Range<usize> {
        self.open_first..self.end
    }

    /// Codes the positions from where this ends to `end`. `read` gives the vectors of a head at positions, `[n, head_dim]`.
    pub(crate) fn stage(
        &self,
        coding: &Coding<'_>,
        end: usize,
        mut read: impl FnMut(usize, Range<usize>, &mut [f32]),
    ) -> Result<Staged, KvError> {
        let (head_dim, row_bytes) = (coding.codec.head_dim(), coding.codec.row_bytes());
        let mut staged = Staged { pages: Vec::new(), open: Vec::new(), end: self.end.max(end) };
        if end <= self.end {
            return Ok(staged);
        }
        // As many positions at a time as make a page: what a long chunk takes beside its pages stays small.
        let seals = end - self.open_first >= coding.page;
        let (mut open, mut first) = if seals { (self.open.clone(), self.open_first) } else { (Vec::new(), self.end) };
        let mut position = self.end;
        let (mut x, mut rows) = (Vec::new(), Vec::new());
        while position < end {
            let to = if seals { end.min(first + coding.page) } else { end };
            let count = to - position;
            x.resize(count * head_dim, 0.0);
            rows.resize(count * row_bytes, 0);
            let at = open.len();
            open.resize(at + count * coding.row_bytes(), 0);
            for head in 0..coding.heads {
                read(head, position..to, &mut x);
                coding.codec.quantize(coding.place(head), position as u64, &x, &mut rows)?;
                let slots = open[at..].chunks_exact_mut(coding.row_bytes());
                for (row, slot) in rows.chunks_exact(row_bytes).zip(slots) {
                    slot[head * row_bytes..][..row_bytes].copy_from_slice(row);
                }
            }
            position = to;
            if position - first == coding.page {
                staged.pages.push(SealedPage::new(coding, &open)?);
                open.clear();
                first = position;
            }
        }
        staged.open = open;
        Ok(staged)
    }

    /// Takes what was staged. Cannot fail.
    pub(crate) fn commit(&mut self, coding: &Coding<'_>, staged: Staged) {
        if !staged.pages.is_empty() {
            // The rows of sealed pages go, capacity included.
            self.open = Vec::new();
            for page in staged.pages {
                self.put(coding, self.open_first, page);
                self.open_first += coding.page;
            }
        }
        grow(&mut self.open, staged.open.len(), coding.row_bytes() * coding.page.div_ceil(8));
        self.open.extend_from_slice(&staged.open);
        self.end = staged.end;
    }

    fn put(&mut self, coding: &Coding<'_>, first: usize, page: SealedPage) {
        match self.shelves.last_mut() {
            Some(shelf) if shelf.has_room(coding.page) => shelf.push(coding, page),
            _ => {
                let step = self.shelves.len() / 8;
                grow(&mut self.shelves, 1, step);
                self.shelves.push(Shelf::new(first, page));
            }
        }
    }

    /// Forgets positions from `len` on. Ends inside a page by remembering how many of its vectors count.
    ///
    /// Open rows of a block that is cut stay together: they are sealed into a short page. On an error this is to be thrown away.
    pub(crate) fn truncate(&mut self, coding: &Coding<'_>, len: usize) -> Result<(), KvError> {
        if len >= self.end {
            return Ok(());
        }
        let row_bytes = coding.row_bytes();
        if len >= self.open_first {
            let (rows, block) = (len - self.open_first, coding.codec.block().max(1));
            if rows.is_multiple_of(block) {
                self.open.truncate(rows * row_bytes);
            } else {
                let whole = rows.next_multiple_of(block);
                let page = SealedPage::new(coding, &self.open[..whole * row_bytes])?;
                let mut shelf = Shelf::new(self.open_first, page);
                shelf.cut(coding, rows)?;
                grow(&mut self.shelves, 1, 1);
                self.shelves.push(shelf);
                self.open = Vec::new();
                self.open_first = len;
            }
        } else {
            self.open = Vec::new();
            while self.shelves.pop_if(|shelf| shelf.positions().start >= len).is_some() {}
            if let Some(shelf) = self.shelves.last_mut() {
                let used = len - shelf.positions().start;
                if used < shelf.positions().len() {
                    shelf.cut(coding, used)?;
                }
            }
            self.open_first = len;
        }
        self.end = len;
        Ok(())
    }

    /// Forgets pages that end at `position` or before it.
    pub(crate) fn drop_before(&mut self, coding: &Coding<'_>, position: usize) {
        let gone = self.shelves.iter().take_while(|shelf| shelf.positions().end <= position).count();
        self.shelves.drain(..gone);
        if self.shelves.capacity() > self.shelves.len() + (self.shelves.len() / 8).max(8) {
            self.shelves.shrink_to_fit();
        }
        if let Some(shelf) = self.shelves.first_mut() {
            // A codec that cannot read its own page keeps it: reading it will tell.
            let mut rest = shelf.clone();
            if rest.drop_before(coding, position).is_ok() {
                *shelf = rest;
            }
        }
    }

    /// Open rows of a head at `positions`, which are open, `[n, row_bytes]`.
    pub(crate) fn open_rows(&self, coding: &Coding<'_>, head: usize, positions: Range<usize>, out: &mut Vec<u8>) {
        let (all, one) = (coding.row_bytes(), coding.codec.row_bytes());
        out.clear();
        for row in positions {
            out.extend_from_slice(&self.open[(row - self.open_first) * all + head * one..][..one]);
        }
    }

    /// Adds what is allocated here.
    pub(crate) fn count(&self, coding: &Coding<'_>, memory: &mut KvMemory) {
        for shelf in &self.shelves {
            shelf.count(coding, memory);
        }
        memory.overhead += (self.shelves.len() * size_of::<Shelf>()) as u64;
        memory.open += self.open.len() as u64;
        let spare_shelves = (self.shelves.capacity() - self.shelves.len()) * size_of::<Shelf>();
        memory.slack += (spare_shelves + self.open.capacity() - self.open.len()) as u64;
    }
}

/// Makes room for `n` more elements, and for `step` at least if there is none.
fn grow<T>(own: &mut Vec<T>, n: usize, step: usize) {
    let spare = own.capacity() - own.len();
    if n > spare {
        own.reserve_exact(n.next_multiple_of(step.max(1)));
    }
}
