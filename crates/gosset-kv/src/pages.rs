//! Coded vectors of one role of one layer: sealed pages, and the open rows behind them.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::{KvMemory, arc_bytes};
use crate::{Budget, KvCodec, KvError, PageBits, Place, Role};

/// Bytes of a length, an offset or an index in a page.
const WORD: usize = 4;

/// By how much a slot of a fixed budget is wider than the codec's expected rate: 1/50. An overflow costs a word and an allocation, unused
/// bytes cost themselves in every page.
const MARGIN: f64 = 0.02;

/// A sealed page of all heads. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    /// Variable budget: the ends of the heads' bytes, one word each, then the bytes. Fixed budget: one slot per head, which is the length, then,
    /// if they fit, the bytes, otherwise the index of a spill and the first bytes.
    bytes: Arc<[u8]>,
    /// Position of its first vector.
    pub(crate) first: usize,
    /// Bits of codes of all heads.
    codes: u32,
    /// Bits of scales of all heads.
    scales: u32,
    /// Vectors that were packed.
    packed: u16,
    /// Vectors that still count: a rewind may have ended inside the page.
    used: u16,
}

impl Page {
    /// Vectors that were packed.
    pub(crate) fn packed(&self) -> usize {
        usize::from(self.packed)
    }

    /// Positions whose vectors still count.
    pub(crate) fn positions(&self) -> Range<usize> {
        self.first..self.first + usize::from(self.used)
    }
}

/// Whose vectors, how they are coded, and how pages lie: the same for all layers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coding<'a> {
    pub(crate) codec: &'a dyn KvCodec,
    pub(crate) layer: usize,
    pub(crate) role: Role,
    pub(crate) heads: usize,
    /// Vectors of a page.
    pub(crate) page: usize,
    pub(crate) budget: Budget,
}

impl Coding<'_> {
    pub(crate) fn place(&self, head: usize) -> Place {
        Place { layer: self.layer as u32, role: self.role, head: head as u32 }
    }

    /// Bytes of the rows of one position.
    fn row_bytes(&self) -> usize {
        self.heads * self.codec.row_bytes()
    }

    /// Bytes of a head in a page of fixed budget.
    fn slot_bytes(&self) -> usize {
        let bits = (self.page * self.codec.head_dim()) as f64 * self.codec.expected_bps() * (1.0 + MARGIN);
        // Codecs that promise nonsense get slots that hold nothing but spills.
        WORD + ((bits / 8.0).ceil() as usize).clamp(WORD, self.page * self.codec.head_dim() * 4 + WORD)
    }
}

/// Sealed pages and open rows of consecutive positions.
#[derive(Debug, Clone)]
pub(crate) struct Coded {
    pages: Vec<Page>,
    /// Bytes that did not fit into slots, in the order of pages and heads.
    spills: Vec<Arc<[u8]>>,
    /// How many spills were dropped at the front: their indices stay.
    spills_dropped: usize,
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
    pages: Vec<Page>,
    spills: Vec<Arc<[u8]>>,
    /// Rows behind the new pages; if there are none, behind the open rows.
    open: Vec<u8>,
    end: usize,
}

impl Coded {
    /// Nothing, with `start` as the position of the first row to come.
    pub(crate) fn new(start: usize) -> Self {
        Self {
            pages: Vec::new(),
            spills: Vec::new(),
            spills_dropped: 0,
            open: Vec::new(),
            open_first: start,
            end: start,
        }
    }

    /// One past the last position.
    pub(crate) const fn end(&self) -> usize {
        self.end
    }

    pub(crate) fn pages(&self) -> &[Page] {
        &self.pages
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
        let mut staged = Staged { pages: Vec::new(), spills: Vec::new(), open: Vec::new(), end };
        let n = end.saturating_sub(self.end);
        if n == 0 {
            staged.end = self.end;
            return Ok(staged);
        }
        // As many positions at a time as make a page: what a long chunk takes beside its pages stays small.
        let seals = self.end + n - self.open_first >= coding.page;
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
                let spill = self.spills_dropped + self.spills.len() + staged.spills.len();
                staged.pages.push(seal(coding, first, &open, spill, &mut staged.spills)?);
                open.clear();
                first = position;
            }
        }
        staged.open = open;
        Ok(staged)
    }

    /// Takes what was staged. Cannot fail.
    pub(crate) fn commit(&mut self, coding: &Coding<'_>, staged: Staged) {
        let row_bytes = coding.row_bytes();
        if staged.pages.is_empty() {
            grow(&mut self.open, staged.open.len(), row_bytes * coding.page.div_ceil(8));
            self.open.extend_from_slice(&staged.open);
        } else {
            // The rows of sealed pages go, capacity included: what stays is rounded up to an eighth of a page.
            self.open = Vec::new();
            grow(&mut self.open, staged.open.len(), row_bytes * coding.page.div_ceil(8));
            self.open.extend_from_slice(&staged.open);
            self.open_first = staged.end - staged.open.len() / row_bytes;
            let step = self.pages.len() / 8;
            grow(&mut self.pages, staged.pages.len(), step);
            self.pages.extend(staged.pages);
            grow(&mut self.spills, staged.spills.len(), 1);
            self.spills.extend(staged.spills);
        }
        self.end = staged.end;
    }

    /// Forgets positions from `len` on. Ends inside a page by remembering how many of its vectors count.
    ///
    /// Open rows of a block that is cut stay together: they are sealed into a short page.
    pub(crate) fn truncate(&mut self, coding: &Coding<'_>, len: usize) -> Result<(), KvError> {
        if len >= self.end {
            return Ok(());
        }
        let row_bytes = coding.row_bytes();
        if len >= self.open_first {
            let (rows, block) = (len - self.open_first, coding.codec.block().max(1));
            if !rows.is_multiple_of(block) {
                let whole = rows.next_multiple_of(block);
                let spill = self.spills_dropped + self.spills.len();
                let mut spills = Vec::new();
                let mut page = seal(coding, self.open_first, &self.open[..whole * row_bytes], spill, &mut spills)?;
                page.used = rows as u16;
                let step = self.pages.len() / 8;
                grow(&mut self.pages, 1, step);
                self.pages.push(page);
                grow(&mut self.spills, spills.len(), 1);
                self.spills.extend(spills);
                self.open = Vec::new();
                self.open_first = len;
            } else {
                self.open.truncate(rows * row_bytes);
            }
        } else {
            self.open = Vec::new();
            while let Some(page) = self.pages.pop_if(|page| page.first >= len) {
                self.drop_spills_of(coding, &page);
            }
            if let Some(page) = self.pages.last_mut() {
                page.used = page.used.min((len - page.first) as u16);
            }
            self.open_first = len;
        }
        self.end = len;
        Ok(())
    }

    /// Forgets pages that end at `position` or before it.
    pub(crate) fn drop_before(&mut self, coding: &Coding<'_>, position: usize) {
        let gone = self.pages.iter().take_while(|page| page.positions().end <= position).count();
        if gone == 0 {
            return;
        }
        let spills: usize = self.pages[..gone].iter().map(|page| spills_of(coding, page).count()).sum();
        self.spills.drain(..spills);
        self.spills_dropped += spills;
        self.pages.drain(..gone);
        if self.pages.capacity() > self.pages.len() + (self.pages.len() / 8).max(8) {
            self.pages.shrink_to_fit();
        }
    }

    fn drop_spills_of(&mut self, coding: &Coding<'_>, page: &Page) {
        let kept = self.spills.len() - spills_of(coding, page).count();
        self.spills.truncate(kept);
    }

    /// Bytes of a head in a page, joined in `joined` if they do not lie together.
    pub(crate) fn body<'a>(
        &'a self,
        coding: &Coding<'_>,
        page: &'a Page,
        head: usize,
        joined: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], KvError> {
        let (here, rest) = self.parts(coding, page, head)?;
        if rest.is_empty() {
            return Ok(here);
        }
        joined.clear();
        joined.extend_from_slice(here);
        joined.extend_from_slice(rest);
        Ok(joined)
    }

    /// Bytes of a head in a page, for whoever moves pages elsewhere.
    pub(crate) fn body_owned<'a>(
        &'a self,
        coding: &Coding<'_>,
        page: &'a Page,
        head: usize,
    ) -> Result<Cow<'a, [u8]>, KvError> {
        let (here, rest) = self.parts(coding, page, head)?;
        Ok(if rest.is_empty() { here.into() } else { [here, rest].concat().into() })
    }

    /// Bytes of a head that lie in the page, and those that did not fit.
    fn parts<'a>(&'a self, coding: &Coding<'_>, page: &'a Page, head: usize) -> Result<(&'a [u8], &'a [u8]), KvError> {
        let damaged = || KvError::Page { n: page.packed(), reason: format!("head {head} has no bytes") };
        match coding.budget {
            Budget::Variable => {
                let from = if head == 0 { 0 } else { word(&page.bytes, (head - 1) * WORD).ok_or_else(damaged)? };
                let to = word(&page.bytes, head * WORD).ok_or_else(damaged)?;
                let bodies = page.bytes.get(coding.heads * WORD..).ok_or_else(damaged)?;
                Ok((bodies.get(from..to).ok_or_else(damaged)?, &[]))
            }
            Budget::Fixed => {
                let slot_bytes = coding.slot_bytes();
                let slot = page.bytes.get(head * slot_bytes..(head + 1) * slot_bytes).ok_or_else(damaged)?;
                let len = word(slot, 0).ok_or_else(damaged)?;
                if len <= slot_bytes - WORD {
                    return Ok((&slot[WORD..WORD + len], &[]));
                }
                let spill = word(slot, WORD).and_then(|index| self.spills.get(index.checked_sub(self.spills_dropped)?));
                Ok((&slot[2 * WORD..], spill.ok_or_else(damaged)?))
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
        let (mut codes, mut scales) = (0u64, 0u64);
        for page in &self.pages {
            let shared = Arc::strong_count(&page.bytes) > 1;
            let mut allocated = arc_bytes(page.bytes.len());
            (codes, scales) = (codes + u64::from(page.codes), scales + u64::from(page.scales));
            if coding.budget == Budget::Fixed {
                let slot_bytes = coding.slot_bytes();
                let unused = |slot: &[u8]| word(slot, 0).map_or(0, |len| (slot_bytes - WORD).saturating_sub(len));
                let slack: usize = page.bytes.chunks_exact(slot_bytes).map(unused).sum();
                memory.slack += slack as u64;
                memory.overhead += (allocated - slack) as u64;
            } else {
                memory.overhead += allocated as u64;
            }
            for index in spills_of(coding, page) {
                let spill = index.checked_sub(self.spills_dropped).and_then(|index| self.spills.get(index));
                let spill = arc_bytes(spill.map_or(0, |spill| spill.len()));
                memory.overhead += spill as u64;
                allocated += spill;
            }
            memory.shared += if shared { allocated as u64 } else { 0 };
            memory.page_scalars += (usize::from(page.used) * coding.heads * coding.codec.head_dim()) as u64;
        }
        // Everything in pages that is neither codes nor scales is overhead.
        let (codes, scales) = (codes.div_ceil(8), scales.div_ceil(8));
        memory.codes += codes;
        memory.scales += scales;
        memory.overhead = memory.overhead.saturating_sub(codes + scales);
        memory.overhead += (self.pages.len() * size_of::<Page>() + self.spills.len() * size_of::<Arc<[u8]>>()) as u64;
        memory.open += self.open.len() as u64;
        let spare_pages = (self.pages.capacity() - self.pages.len()) * size_of::<Page>();
        let spare_spills = (self.spills.capacity() - self.spills.len()) * size_of::<Arc<[u8]>>();
        memory.slack += (spare_pages + spare_spills + self.open.capacity() - self.open.len()) as u64;
        memory.spills += self.spills.len() as u64;
        memory.pages += self.pages.len() as u64;
    }
}

/// Indices of the spills of a page.
fn spills_of<'a>(coding: &Coding<'_>, page: &'a Page) -> impl Iterator<Item = usize> + 'a {
    let slot_bytes = if coding.budget == Budget::Fixed { coding.slot_bytes() } else { usize::MAX };
    let slots = page.bytes.chunks_exact(slot_bytes);
    slots
        .filter(move |slot| word(slot, 0).is_some_and(|len| len > slot_bytes - WORD))
        .filter_map(|slot| word(slot, WORD))
}

/// Packs rows of all heads, `[n, heads, row_bytes]`, into a page. Spills get indices from `spill` on.
fn seal(
    coding: &Coding<'_>,
    first: usize,
    rows: &[u8],
    spill: usize,
    spills: &mut Vec<Arc<[u8]>>,
) -> Result<Page, KvError> {
    let (all, one) = (coding.row_bytes(), coding.codec.row_bytes());
    let n = rows.len() / all;
    let mut bits = PageBits::default();
    let mut of_head = Vec::with_capacity(n * one);
    let mut body = Vec::new();
    let mut bytes = Vec::new();
    if coding.budget == Budget::Variable {
        bytes.resize(coding.heads * WORD, 0);
    }
    let spills_before = spills.len();
    for head in 0..coding.heads {
        of_head.clear();
        of_head.extend(rows.chunks_exact(all).flat_map(|row| &row[head * one..(head + 1) * one]));
        body.clear();
        let own = coding.codec.pack(coding.place(head), &of_head, &mut body)?;
        bits.codes += own.codes;
        bits.scales += own.scales;
        let too_long = || KvError::Page { n, reason: format!("{} bytes of head {head} exceed 4 GiB", body.len()) };
        match coding.budget {
            Budget::Variable => {
                bytes.extend_from_slice(&body);
                let end = u32::try_from(bytes.len() - coding.heads * WORD).map_err(|_| too_long())?;
                bytes[head * WORD..(head + 1) * WORD].copy_from_slice(&end.to_le_bytes());
            }
            Budget::Fixed => {
                let (slot_bytes, at) = (coding.slot_bytes(), bytes.len());
                let len = u32::try_from(body.len()).map_err(|_| too_long())?;
                bytes.extend_from_slice(&len.to_le_bytes());
                if body.len() <= slot_bytes - WORD {
                    bytes.extend_from_slice(&body);
                } else {
                    let index = u32::try_from(spill + spills.len() - spills_before).map_err(|_| too_long())?;
                    bytes.extend_from_slice(&index.to_le_bytes());
                    let (here, rest) = body.split_at(slot_bytes - 2 * WORD);
                    bytes.extend_from_slice(here);
                    spills.push(rest.into());
                }
                bytes.resize(at + slot_bytes, 0);
            }
        }
    }
    let narrow = |bits: u64| u32::try_from(bits).unwrap_or(u32::MAX);
    Ok(Page {
        bytes: bytes.into(),
        first,
        codes: narrow(bits.codes),
        scales: narrow(bits.scales),
        packed: n as u16,
        used: n as u16,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + WORD)?;
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
}

/// Makes room for `n` more elements, and for `step` at least if there is none.
fn grow<T>(own: &mut Vec<T>, n: usize, step: usize) {
    let spare = own.capacity() - own.len();
    if n > spare {
        own.reserve_exact(n.next_multiple_of(step.max(1)));
    }
}
