//! Sealed pages, sixteen to a shelf: what they are made of and how they lie in memory.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::{KvMemory, arc_bytes};
use crate::{Budget, KvCodec, KvError, PageBits, Place, Role};

/// Bytes of a length in a page.
const LEN: usize = 3;

/// By how much a slot of a fixed budget is wider than the codec's expected rate: 1/50. An overflow costs nothing but itself, unused bytes
/// are lost in every page.
const MARGIN: f64 = 0.02;

/// Pages that share an allocation. One of its own costs a page of three heads of 64 elements 2 % at 2.25 bits: counters, a pointer, a
/// position. The last shelf is copied when a page is sealed, which is 16 pages at most.
pub(crate) const SHELF: usize = 16;

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
    pub(crate) fn row_bytes(&self) -> usize {
        self.heads * self.codec.row_bytes()
    }

    /// Bytes of a head in a page of fixed budget, its length included.
    fn slot_bytes(&self) -> usize {
        let bits = (self.page * self.codec.head_dim()) as f64 * self.codec.expected_bps() * (1.0 + MARGIN);
        // Codecs that promise nonsense get slots for nothing, or for floats.
        LEN + ((bits / 8.0).ceil() as usize).min(self.page * self.codec.head_dim() * size_of::<f32>())
    }
}

/// A page as it comes from the codec.
#[derive(Debug)]
pub(crate) struct SealedPage {
    /// Variable budget: the lengths of the heads' bytes, then the bytes. Fixed budget: a slot per head, its length and as many of its bytes
    /// as fit.
    region: Vec<u8>,
    /// Fixed budget: what did not fit, head after head.
    spill: Vec<u8>,
    bits: PageBits,
    packed: usize,
}

impl SealedPage {
    /// Packs rows of all heads, `[n, heads, row_bytes]`.
    pub(crate) fn new(coding: &Coding<'_>, rows: &[u8]) -> Result<Self, KvError> {
        let (all, one) = (coding.row_bytes(), coding.codec.row_bytes());
        let packed = rows.len() / all;
        let mut page = Self { region: Vec::new(), spill: Vec::new(), bits: PageBits::default(), packed };
        let (mut of_head, mut body) = (Vec::with_capacity(packed * one), Vec::new());
        if coding.budget == Budget::Variable {
            page.region.resize(coding.heads * LEN, 0);
        }
        for head in 0..coding.heads {
            of_head.clear();
            of_head.extend(rows.chunks_exact(all).flat_map(|row| &row[head * one..(head + 1) * one]));
            body.clear();
            let bits = coding.codec.pack(coding.place(head), &of_head, &mut body)?;
            page.bits.codes += bits.codes;
            page.bits.scales += bits.scales;
            let len = u32::try_from(body.len()).ok().filter(|len| len >> (8 * LEN) == 0).ok_or_else(|| {
                let reason = format!("head {head} has {} bytes, expected less than 2^24", body.len());
                KvError::Page { n: packed, reason }
            })?;
            let len = &len.to_le_bytes()[..LEN];
            match coding.budget {
                Budget::Variable => {
                    page.region[head * LEN..(head + 1) * LEN].copy_from_slice(len);
                    page.region.extend_from_slice(&body);
                }
                Budget::Fixed => {
                    let slot_bytes = coding.slot_bytes();
                    let (here, rest) = body.split_at(body.len().min(slot_bytes - LEN));
                    page.region.extend_from_slice(len);
                    page.region.extend_from_slice(here);
                    page.region.resize((head + 1) * slot_bytes, 0);
                    page.spill.extend_from_slice(rest);
                }
            }
        }
        Ok(page)
    }
}

/// Pages of consecutive positions, all heads of each, in one allocation that clones share: their regions, then their spills.
#[derive(Debug, Clone)]
pub(crate) struct Shelf {
    bytes: Arc<[u8]>,
    /// Position of the first vector.
    first: usize,
    /// Bits of codes.
    codes: u64,
    /// Bits of scales.
    scales: u64,
    /// Vectors that were packed: whole pages, or a single shorter one.
    packed: u32,
    /// Vectors that still count: a rewind may have ended inside the last page.
    used: u32,
}

/// One page of a shelf.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageRef<'a> {
    shelf: &'a Shelf,
    index: usize,
    /// Position of the first vector.
    pub(crate) first: usize,
    /// Vectors that were packed.
    pub(crate) packed: usize,
    used: usize,
}

/// Where a page lies in the bytes of its shelf.
struct Span {
    region: Range<usize>,
    spill: Range<usize>,
}

impl Shelf {
    pub(crate) fn new(first: usize, page: SealedPage) -> Self {
        let bytes = [page.region, page.spill].concat().into();
        let packed = page.packed as u32;
        Self { bytes, first, codes: page.bits.codes, scales: page.bits.scales, packed, used: packed }
    }

    /// Positions whose vectors count.
    pub(crate) fn positions(&self) -> Range<usize> {
        self.first..self.first + self.used as usize
    }

    /// Its pages that hold vectors that count.
    pub(crate) fn pages(&self, page: usize) -> impl Iterator<Item = PageRef<'_>> {
        let (packed, used) = (self.packed as usize, self.used as usize);
        (0..used.div_ceil(page)).map(move |index| {
            let at = index * page;
            PageRef {
                shelf: self,
                index,
                first: self.first + at,
                packed: page.min(packed - at),
                used: page.min(used - at),
            }
        })
    }

    /// The page of a position that it holds.
    pub(crate) fn page_at(&self, position: usize, page: usize) -> Option<PageRef<'_>> {
        self.pages(page).nth(position.checked_sub(self.first)? / page)
    }

    /// Whether another page belongs on it.
    pub(crate) fn has_room(&self, page: usize) -> bool {
        let packed = self.packed as usize;
        self.used == self.packed && packed.is_multiple_of(page) && packed < SHELF * page
    }

    /// Puts a page on it, which takes a new allocation. `self` has room.
    pub(crate) fn push(&mut self, coding: &Coding<'_>, page: SealedPage) {
        let (regions, spills) = self.bytes.split_at(self.regions_end(coding));
        self.bytes = [regions, &page.region, spills, &page.spill].concat().into();
        self.codes += page.bits.codes;
        self.scales += page.bits.scales;
        self.packed += page.packed as u32;
        self.used = self.packed;
    }

    /// Lets only the first `used` vectors count, and gives pages beyond them back.
    pub(crate) fn cut(&mut self, coding: &Coding<'_>, used: usize) -> Result<(), KvError> {
        let pages = (self.packed as usize).div_ceil(coding.page);
        let kept = used.div_ceil(coding.page);
        if kept < pages {
            self.keep(coding, 0..kept)?;
        }
        self.used = self.used.min(used as u32);
        Ok(())
    }

    /// Gives back whole pages at the front, whose positions end at `position` or before it.
    pub(crate) fn drop_before(&mut self, coding: &Coding<'_>, position: usize) -> Result<(), KvError> {
        let pages = (self.packed as usize).div_ceil(coding.page);
        let gone = position.saturating_sub(self.first) / coding.page;
        if gone > 0 && gone < pages {
            self.keep(coding, gone..pages)?;
        }
        Ok(())
    }

    /// Keeps a range of pages.
    fn keep(&mut self, coding: &Coding<'_>, pages: Range<usize>) -> Result<(), KvError> {
        let damaged =
            || KvError::Page { n: self.packed as usize, reason: "a page of the shelf has no bytes".to_owned() };
        let (mut regions, mut spills) = (Vec::new(), Vec::new());
        let mut bits = PageBits::default();
        for index in pages.clone() {
            let span = self.span(coding, index).ok_or_else(damaged)?;
            regions.extend_from_slice(&self.bytes[span.region]);
            spills.extend_from_slice(&self.bytes[span.spill]);
            // Bits by cause are not kept per page: packing again tells them.
            let page = self.page(coding, index);
            let mut joined = Vec::new();
            for head in 0..coding.heads {
                let mut rows = vec![0; page.packed * coding.codec.row_bytes()];
                coding.codec.unpack(coding.place(head), page.body(coding, head, &mut joined)?, &mut rows)?;
                let own = coding.codec.pack(coding.place(head), &rows, &mut Vec::new())?;
                bits.codes += own.codes;
                bits.scales += own.scales;
            }
        }
        let at = |pages: usize| pages * coding.page;
        let (packed, used) = (self.packed as usize, self.used as usize);
        let held = |vectors: usize| (vectors.min(at(pages.end)) - at(pages.start).min(vectors)) as u32;
        (self.packed, self.used) = (held(packed), held(used));
        self.first += at(pages.start);
        self.bytes = [regions, spills].concat().into();
        (self.codes, self.scales) = (bits.codes, bits.scales);
        Ok(())
    }

    fn page(&self, coding: &Coding<'_>, index: usize) -> PageRef<'_> {
        let at = index * coding.page;
        let packed = coding.page.min((self.packed as usize).saturating_sub(at));
        let used = packed.min((self.used as usize).saturating_sub(at));
        PageRef { shelf: self, index, first: self.first + at, packed, used }
    }

    /// Where regions end and spills begin.
    fn regions_end(&self, coding: &Coding<'_>) -> usize {
        match coding.budget {
            Budget::Variable => self.bytes.len(),
            Budget::Fixed => (self.packed as usize).div_ceil(coding.page) * coding.heads * coding.slot_bytes(),
        }
    }

    /// Where the page at `index` lies: by the lengths of those before it, which are few.
    fn span(&self, coding: &Coding<'_>, index: usize) -> Option<Span> {
        match coding.budget {
            Budget::Variable => {
                let mut start = 0;
                for before in 0..=index {
                    let lens = self.bytes.get(start..start + coding.heads * LEN)?;
                    let end = start + lens.len() + lens.chunks_exact(LEN).map(length).sum::<usize>();
                    if before == index {
                        self.bytes.get(start..end)?;
                        return Some(Span { region: start..end, spill: end..end });
                    }
                    start = end;
                }
                None
            }
            Budget::Fixed => {
                let (slot_bytes, mut spill) = (coding.slot_bytes(), self.regions_end(coding));
                let region_bytes = coding.heads * slot_bytes;
                for before in 0..=index {
                    let region = before * region_bytes..(before + 1) * region_bytes;
                    let rest = |slot: &[u8]| length(slot).saturating_sub(slot_bytes - LEN);
                    let end = spill + self.bytes.get(region.clone())?.chunks_exact(slot_bytes).map(rest).sum::<usize>();
                    if before == index {
                        self.bytes.get(spill..end)?;
                        return Some(Span { region, spill: spill..end });
                    }
                    spill = end;
                }
                None
            }
        }
    }

    /// Adds what is allocated for it.
    pub(crate) fn count(&self, coding: &Coding<'_>, memory: &mut KvMemory) {
        let allocated = arc_bytes(self.bytes.len()) as u64;
        let mut slack = 0;
        if coding.budget == Budget::Fixed {
            let slot_bytes = coding.slot_bytes();
            for slot in self.bytes[..self.regions_end(coding).min(self.bytes.len())].chunks_exact(slot_bytes) {
                let len = length(slot);
                slack += (slot_bytes - LEN).saturating_sub(len) as u64;
                memory.spills += u64::from(len > slot_bytes - LEN);
            }
        }
        let (codes, scales) = (self.codes.div_ceil(8), self.scales.div_ceil(8));
        memory.codes += codes;
        memory.scales += scales;
        memory.slack += slack;
        // Everything in pages that is neither of these is overhead.
        memory.overhead += allocated.saturating_sub(slack + codes + scales);
        memory.shared += if Arc::strong_count(&self.bytes) > 1 { allocated } else { 0 };
        memory.pages += u64::from(self.packed).div_ceil(coding.page as u64);
        memory.page_scalars += u64::from(self.used) * (coding.heads * coding.codec.head_dim()) as u64;
    }
}

impl<'a> PageRef<'a> {
    /// Positions whose vectors count.
    pub(crate) fn positions(&self) -> Range<usize> {
        self.first..self.first + self.used
    }

    /// Bytes of a head, joined in `joined` if they do not lie together.
    pub(crate) fn body<'b>(
        &self,
        coding: &Coding<'_>,
        head: usize,
        joined: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], KvError>
    where
        'a: 'b,
    {
        let (here, rest) = self.parts(coding, head)?;
        if rest.is_empty() {
            return Ok(here);
        }
        joined.clear();
        joined.extend_from_slice(here);
        joined.extend_from_slice(rest);
        Ok(joined)
    }

    /// Bytes of a head, for whoever moves pages elsewhere.
    pub(crate) fn body_owned(&self, coding: &Coding<'_>, head: usize) -> Result<Cow<'a, [u8]>, KvError> {
        let (here, rest) = self.parts(coding, head)?;
        Ok(if rest.is_empty() { here.into() } else { [here, rest].concat().into() })
    }

    /// Bytes of a head in the region of the page, and those that spilled.
    fn parts(&self, coding: &Coding<'_>, head: usize) -> Result<(&'a [u8], &'a [u8]), KvError> {
        self.find(coding, head)
            .ok_or_else(|| KvError::Page { n: self.packed, reason: format!("head {head} has no bytes") })
    }

    fn find(&self, coding: &Coding<'_>, head: usize) -> Option<(&'a [u8], &'a [u8])> {
        let span = self.shelf.span(coding, self.index)?;
        let (region, spill) = (self.shelf.bytes.get(span.region)?, self.shelf.bytes.get(span.spill)?);
        match coding.budget {
            Budget::Variable => {
                let mut lens = region.get(..coding.heads * LEN)?.chunks_exact(LEN).map(length);
                let start = coding.heads * LEN + lens.by_ref().take(head).sum::<usize>();
                Some((region.get(start..start + lens.next()?)?, &[]))
            }
            Budget::Fixed => {
                let room = coding.slot_bytes() - LEN;
                let mut slots = region.chunks_exact(coding.slot_bytes());
                let start: usize = slots.by_ref().take(head).map(|slot| length(slot).saturating_sub(room)).sum();
                let slot = slots.next()?;
                let len = length(slot);
                Some((&slot[LEN..LEN + len.min(room)], spill.get(start..start + len.saturating_sub(room))?))
            }
        }
    }
}

/// The length at the front of `bytes`, of which there are [`LEN`] at least.
fn length(bytes: &[u8]) -> usize {
    bytes[..LEN].iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte))
}
