//! Streams and pages: the layout that every entropy code of Gosset shares.
//!
//! A sequence of symbols is cut into **streams** of [`STREAM_LEN`] symbols, the last one possibly shorter; a stream is the unit
//! that one thread decodes from its first bit to its last. [`STREAMS_PER_PAGE`] streams form a **page**. Inside a page,
//! streams follow each other without alignment; a page starts at a word boundary, and the bits between its last stream
//! and the next word are zero. The side information is one 16-bit length per stream (in bits) and one 64-bit base per page
//! (in bits, a multiple of 32): 16/512 + 64/32768 = 0.033 bits per symbol. To find a stream, sum the lengths before it in its
//! page.
//!
//! Nothing here knows how symbols become bits: a page is built from closures that write one stream each, so pages are
//! encoded independently and in parallel, by any code whose streams fit 16-bit lengths.

use alloc::vec::Vec;

use crate::{BitWriter, EntropyError};

/// Symbols per stream.
pub const STREAM_LEN: usize = 512;
/// Streams per page.
pub const STREAMS_PER_PAGE: usize = 64;
/// Symbols per page.
pub const PAGE_LEN: usize = STREAM_LEN * STREAMS_PER_PAGE;

/// One encoded page, ready for [`StreamTable::assemble`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedPage {
    /// Bits of the streams, padded with zeros to a whole word.
    pub words: Vec<u32>,
    /// Length of each stream in bits.
    pub lengths: Vec<u16>,
}

/// Encodes one page, stream by stream.
///
/// ```
/// use gosset_entropy::{PageBuilder, rice};
/// let mut builder = PageBuilder::new();
/// builder.push_stream(|writer| rice::encode(writer, &[0; 512], &[1]))?;
/// builder.push_stream(|writer| rice::encode(writer, &[3; 100], &[1]))?;
/// let page = builder.finish();
/// assert_eq!(page.lengths, [1024, 300]);
/// assert_eq!(page.words.len(), 42);
/// # Ok::<(), gosset_entropy::EntropyError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct PageBuilder {
    writer: BitWriter,
    lengths: Vec<u16>,
}

impl PageBuilder {
    /// An empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty page with room for `capacity_bits` bits.
    pub fn with_capacity_bits(capacity_bits: u64) -> Self {
        Self { writer: BitWriter::with_capacity_bits(capacity_bits), lengths: Vec::with_capacity(STREAMS_PER_PAGE) }
    }

    /// Appends the stream that `write` writes.
    ///
    /// # Errors
    /// [`EntropyError::PageFull`] before anything is written; [`EntropyError::StreamTooLong`] if the stream took more than
    /// 65535 bits, after which the page is of no use.
    pub fn push_stream(&mut self, write: impl FnOnce(&mut BitWriter)) -> Result<(), EntropyError> {
        if self.lengths.len() == STREAMS_PER_PAGE {
            return Err(EntropyError::PageFull { capacity: STREAMS_PER_PAGE });
        }
        let start = self.writer.len_bits();
        write(&mut self.writer);
        let len_bits = self.writer.len_bits() - start;
        let length = u16::try_from(len_bits)
            .map_err(|_| EntropyError::StreamTooLong { stream_idx: self.lengths.len(), len_bits })?;
        self.lengths.push(length);
        Ok(())
    }

    /// Number of streams so far.
    pub fn n_streams(&self) -> usize {
        self.lengths.len()
    }

    /// The page.
    pub fn finish(self) -> EncodedPage {
        EncodedPage { words: self.writer.into_words(), lengths: self.lengths }
    }
}

/// Side information of a sequence of streams, as written to disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamTable {
    /// Length of each stream in bits.
    pub lengths: Vec<u16>,
    /// First bit of each page, a multiple of 32.
    pub bases: Vec<u64>,
}

impl StreamTable {
    /// Joins pages in order into one sequence of words and its table.
    ///
    /// # Errors
    /// [`EntropyError::ShortPage`] if a page other than the last is not full.
    pub fn assemble(pages: Vec<EncodedPage>) -> Result<(Vec<u32>, StreamTable), EntropyError> {
        let mut words = Vec::with_capacity(pages.iter().map(|page| page.words.len()).sum());
        let mut table = StreamTable {
            lengths: Vec::with_capacity(pages.iter().map(|page| page.lengths.len()).sum()),
            bases: Vec::with_capacity(pages.len()),
        };
        let n_pages = pages.len();
        for (page_idx, page) in pages.into_iter().enumerate() {
            let n_streams = page.lengths.len();
            if page_idx + 1 < n_pages && n_streams != STREAMS_PER_PAGE {
                return Err(EntropyError::ShortPage { page_idx, n_streams, expected: STREAMS_PER_PAGE });
            }
            table.bases.push(words.len() as u64 * 32);
            table.lengths.extend_from_slice(&page.lengths);
            words.extend_from_slice(&page.words);
        }
        Ok((words, table))
    }

    /// Bits of all streams, without padding: the payload.
    pub fn payload_bits(&self) -> u64 {
        self.lengths.iter().map(|&length| u64::from(length)).sum()
    }

    /// Bits that the table itself takes on disk: 16 per stream and 64 per page.
    pub fn length_bits(&self) -> u64 {
        16 * self.lengths.len() as u64 + 64 * self.bases.len() as u64
    }
}

/// Where one stream lies and which symbols it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamSpan {
    /// Index of the stream in the sequence.
    pub stream_idx: usize,
    /// First bit.
    pub start_bit: u64,
    /// Length in bits.
    pub len_bits: u64,
    /// Index of its first symbol in the sequence.
    pub first_symbol: u64,
    /// Symbols in it: [`STREAM_LEN`], or fewer in the last stream.
    pub n_symbols: usize,
}

/// A checked view of the tables of untrusted streams: every span it hands out lies inside the words.
///
/// ```
/// use gosset_entropy::StreamIndex;
/// let index = StreamIndex::new(&[1024, 300], &[0], 612, 42)?;
/// assert_eq!(index.locate(1), (1024, 300));
/// assert!(StreamIndex::new(&[1024, 300], &[0], 612, 41).is_err());
/// # Ok::<(), gosset_entropy::EntropyError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct StreamIndex<'a> {
    lengths: &'a [u16],
    bases: &'a [u64],
    n_symbols: u64,
}

impl<'a> StreamIndex<'a> {
    /// Checks the tables of `n_symbols` symbols whose streams lie in `n_words` words.
    ///
    /// # Errors
    /// [`EntropyError::TableLength`] for wrong counts, [`EntropyError::UnalignedPage`], [`EntropyError::OverlappingPages`] and
    /// [`EntropyError::RangeOutsideWords`] for pages that cannot be.
    pub fn new(lengths: &'a [u16], bases: &'a [u64], n_symbols: u64, n_words: usize) -> Result<Self, EntropyError> {
        let n_streams = n_symbols.div_ceil(STREAM_LEN as u64);
        let n_pages = n_streams.div_ceil(STREAMS_PER_PAGE as u64);
        for (table, expected, found) in [("lengths", n_streams, lengths.len()), ("bases", n_pages, bases.len())] {
            if expected != found as u64 {
                return Err(EntropyError::TableLength { table, expected, found: found as u64 });
            }
        }
        let available_bits = n_words as u64 * 32;
        let mut previous_end = 0;
        for (page_idx, (&base, lengths)) in bases.iter().zip(lengths.chunks(STREAMS_PER_PAGE)).enumerate() {
            if base % 32 != 0 {
                return Err(EntropyError::UnalignedPage { page_idx, base });
            }
            if base < previous_end {
                return Err(EntropyError::OverlappingPages { page_idx, base, previous_end });
            }
            let len_bits = lengths.iter().map(|&length| u64::from(length)).sum();
            match base.checked_add(len_bits) {
                Some(end) if end <= available_bits => previous_end = end,
                _ => return Err(EntropyError::RangeOutsideWords { start_bit: base, len_bits, available_bits }),
            }
        }
        Ok(Self { lengths, bases, n_symbols })
    }

    /// Number of symbols.
    pub fn n_symbols(&self) -> u64 {
        self.n_symbols
    }

    /// Number of streams.
    pub fn n_streams(&self) -> usize {
        self.lengths.len()
    }

    /// Number of pages.
    pub fn n_pages(&self) -> usize {
        self.bases.len()
    }

    /// First bit and length in bits of a stream, by summing up to 63 lengths.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn locate(&self, stream_idx: usize) -> (u64, u64) {
        let page_idx = stream_idx / STREAMS_PER_PAGE;
        let before = &self.lengths[page_idx * STREAMS_PER_PAGE..stream_idx];
        let offset: u64 = before.iter().map(|&length| u64::from(length)).sum();
        (self.bases[page_idx] + offset, u64::from(self.lengths[stream_idx]))
    }

    /// Number of symbols in a stream.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn stream_n_symbols(&self, stream_idx: usize) -> usize {
        assert!(stream_idx < self.n_streams(), "stream {stream_idx} of {}", self.n_streams());
        // At most 512 by the minimum.
        (self.n_symbols - (stream_idx * STREAM_LEN) as u64).min(STREAM_LEN as u64) as usize
    }

    /// The streams of a page in order.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page_streams(&self, page_idx: usize) -> impl ExactSizeIterator<Item = StreamSpan> + use<'a> {
        let index = *self;
        let first = page_idx * STREAMS_PER_PAGE;
        let last = (first + STREAMS_PER_PAGE).min(self.lengths.len());
        let mut start_bit = self.bases[page_idx];
        (first..last).map(move |stream_idx| {
            let len_bits = u64::from(index.lengths[stream_idx]);
            let span = StreamSpan {
                stream_idx,
                start_bit,
                len_bits,
                first_symbol: (stream_idx * STREAM_LEN) as u64,
                n_symbols: index.stream_n_symbols(stream_idx),
            };
            start_bit += len_bits;
            span
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds the pages of streams with the given lengths; each stream holds ones only.
    fn assemble(lengths: &[u16]) -> (Vec<u32>, StreamTable) {
        let pages = lengths.chunks(STREAMS_PER_PAGE).map(|lengths| {
            let mut builder = PageBuilder::new();
            for &length in lengths {
                builder.push_stream(|writer| (0..length).for_each(|_| writer.write(1, 1))).unwrap();
            }
            builder.finish()
        });
        StreamTable::assemble(pages.collect()).unwrap()
    }

    proptest! {
        #[test]
        fn located_streams_tile_each_page(lengths in proptest::collection::vec(0u16..600, 1..200), last in 1u64..=512) {
            let (words, table) = assemble(&lengths);
            let n_symbols = (lengths.len() as u64 - 1) * 512 + last;
            let index = StreamIndex::new(&table.lengths, &table.bases, n_symbols, words.len()).unwrap();
            let mut n_spans = 0;
            for page_idx in 0..index.n_pages() {
                let mut end = table.bases[page_idx];
                for span in index.page_streams(page_idx) {
                    prop_assert_eq!((span.start_bit, span.len_bits), index.locate(span.stream_idx));
                    prop_assert_eq!(span.start_bit, end);
                    prop_assert_eq!(span.len_bits, u64::from(lengths[span.stream_idx]));
                    end += span.len_bits;
                    n_spans += 1;
                }
                prop_assert!(end <= words.len() as u64 * 32);
            }
            prop_assert_eq!(n_spans, lengths.len());
            prop_assert_eq!(index.stream_n_symbols(lengths.len() - 1) as u64, last);
            // Exactly the stream bits are ones; the padding is zero.
            let n_ones: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
            prop_assert_eq!(n_ones, table.payload_bits());
        }

        #[test]
        fn any_tables_are_rejected_or_safe(lengths in proptest::collection::vec(any::<u16>(), 0..140), bases in proptest::collection::vec(any::<u64>(), 0..4), n_symbols: u64, n_words in 0usize..1 << 20) {
            for n_symbols in [n_symbols, lengths.len() as u64 * 512] {
                if let Ok(index) = StreamIndex::new(&lengths, &bases, n_symbols, n_words) {
                    for stream_idx in 0..index.n_streams() {
                        let (start_bit, len_bits) = index.locate(stream_idx);
                        prop_assert!(start_bit + len_bits <= n_words as u64 * 32);
                    }
                }
            }
        }
    }

    #[test]
    fn bad_tables_are_rejected_with_the_reason() {
        let lengths = [100u16; 65];
        let n = 65 * 512;
        assert!(StreamIndex::new(&lengths, &[0, 6400], n, 204).is_ok());
        let reject =
            |lengths: &[u16], bases: &[u64], n, n_words| StreamIndex::new(lengths, bases, n, n_words).unwrap_err();
        assert!(matches!(reject(&lengths, &[0, 6400], n + 1, 204), EntropyError::TableLength { table: "lengths", .. }));
        assert!(matches!(reject(&lengths, &[0], n, 204), EntropyError::TableLength { table: "bases", .. }));
        assert!(matches!(reject(&lengths, &[0, 6401], n, 204), EntropyError::UnalignedPage { page_idx: 1, .. }));
        assert!(matches!(reject(&lengths, &[0, 6368], n, 204), EntropyError::OverlappingPages { page_idx: 1, .. }));
        assert!(matches!(reject(&lengths, &[0, 6400], n, 203), EntropyError::RangeOutsideWords { .. }));
        let far = u64::MAX - 31;
        assert!(matches!(reject(&lengths, &[0, far], n, 204), EntropyError::RangeOutsideWords { .. }));
        assert!(matches!(reject(&[], &[], u64::MAX, 0), EntropyError::TableLength { .. }));
        assert!(StreamIndex::new(&[], &[], 0, 0).is_ok());
    }

    #[test]
    fn pages_reject_too_many_and_too_long_streams() {
        let mut builder = PageBuilder::new();
        for _ in 0..STREAMS_PER_PAGE {
            builder.push_stream(|_| ()).unwrap();
        }
        assert_eq!(builder.push_stream(|_| ()), Err(EntropyError::PageFull { capacity: 64 }));
        let mut builder = PageBuilder::new();
        let long = builder.push_stream(|writer| (0..2048).for_each(|_| writer.write(0, 32)));
        assert_eq!(long, Err(EntropyError::StreamTooLong { stream_idx: 0, len_bits: 65536 }));
        let short = EncodedPage { words: Vec::new(), lengths: alloc::vec![0] };
        assert!(matches!(
            StreamTable::assemble(alloc::vec![short.clone(), short]),
            Err(EntropyError::ShortPage { .. })
        ));
    }

    #[test]
    fn side_information_is_16_bits_per_stream_and_64_per_page() {
        let (_, table) = assemble(&[40; 64]);
        assert_eq!(table.length_bits(), 64 * 16 + 64);
        assert_eq!((table.length_bits() - 64) as f64 / PAGE_LEN as f64, 16.0 / 512.0);
    }
}
