//! From the words of Rice codes to symbols.

use std::borrow::Cow;
use std::ops::Range;

use gosset_entropy::{EntropyError, STREAM_LEN, STREAMS_PER_PAGE, StreamIndex, rice};
use gosset_lattice::{BitStrip, LatticeKind};

use super::{BASES, LENGTHS, WORDS};
use crate::CodecError;
use crate::plane::{PlaneSet, required};
use crate::scheme::StreamError;

/// Symbols have less than this many bits; larger ones come from damage, as the encoder limits values to half of it.
const SYMBOL_BITS: u32 = 26;

/// Checked planes of Rice codes.
#[derive(Debug)]
pub(crate) struct RiceDecoder<'a> {
    /// Parameter of each symbol class; the unused rest is 0.
    ks: [u32; MAX_CLASSES],
    words: Cow<'a, [u32]>,
    lengths: Cow<'a, [u16]>,
    bases: Cow<'a, [u64]>,
    /// Symbols of all streams: values rounded up to whole blocks.
    n_symbols: usize,
}

const MAX_CLASSES: usize = 2;

impl<'a> RiceDecoder<'a> {
    /// Checks the parameters `found` and the planes of `n_symbols` symbols in whole blocks of `lattice`.
    pub(crate) fn new(
        lattice: LatticeKind,
        found: &[u8],
        n_symbols: u64,
        planes: &PlaneSet<'_, 'a>,
    ) -> Result<Self, CodecError> {
        if found.len() != lattice.n_classes() || found.iter().any(|&k| u32::from(k) > rice::MAX_K) {
            return Err(CodecError::Header {
                field: "ks",
                found: format!("{found:?}"),
                expected: format!("{} parameters of at most {}", lattice.n_classes(), rice::MAX_K),
            });
        }
        let mut ks = [0; MAX_CLASSES];
        ks.iter_mut().zip(found).for_each(|(k, &found)| *k = u32::from(found));
        let words = required(WORDS, planes.u32s(WORDS)?)?;
        let lengths = required(LENGTHS, planes.u16s(LENGTHS)?)?;
        let bases = required(BASES, planes.u64s(BASES)?)?;
        StreamIndex::new(&lengths, &bases, n_symbols, words.len()).map_err(CodecError::Streams)?;
        Ok(Self { ks, words, lengths, bases, n_symbols: n_symbols as usize })
    }

    /// Decodes the streams that hold values of `range` and calls `visit` after each with the symbols, the place of the
    /// first value and the part of the stream that lies in the range.
    ///
    /// Streams are decoded two at a time, since one alone waits for its own bits most of the time.
    pub(crate) fn for_each_stream<const N: usize, L: BitStrip<N>>(
        &self,
        range: Range<usize>,
        buffers: &mut [[u32; STREAM_LEN]; 2],
        mut visit: impl FnMut(&[u32], usize, Range<usize>),
    ) -> Result<(), StreamError> {
        let ks: [u32; N] = std::array::from_fn(|i| self.ks[L::SYMBOL_CLASS[i]]);
        let (mut stream, end) = (range.start / STREAM_LEN, range.end.div_ceil(STREAM_LEN));
        if range.is_empty() {
            return Ok(());
        }
        let mut next_bit = self.start_bit(stream);
        while stream < end {
            let n_lanes = if stream + 2 <= end && (stream + 2) * STREAM_LEN <= self.n_symbols { 2 } else { 1 };
            let mut spans = [(0, 0); 2];
            for (lane, span) in spans[..n_lanes].iter_mut().enumerate() {
                if (stream + lane).is_multiple_of(STREAMS_PER_PAGE) {
                    next_bit = self.bases[(stream + lane) / STREAMS_PER_PAGE];
                }
                *span = (next_bit, u64::from(self.lengths[stream + lane]));
                next_bit += span.1;
            }
            let [a, b] = &mut *buffers;
            // A pair that fails is decoded again one by one, to tell which of the two it was.
            let decoded = n_lanes == 2 && rice::decode_pair(&self.words, spans, &ks, [a, b]).is_ok();
            for (lane, symbols) in buffers[..n_lanes].iter_mut().enumerate() {
                let first = (stream + lane) * STREAM_LEN;
                let symbols = &mut symbols[..(self.n_symbols - first).min(STREAM_LEN)];
                if !decoded {
                    self.decode_stream(stream + lane, spans[lane], &ks, symbols)?;
                }
                if symbols.iter().fold(0, |bits, z| bits | z) >> SYMBOL_BITS != 0 {
                    return Err(oversized(stream + lane, symbols, &ks));
                }
                let part = range.start.saturating_sub(first)..(range.end - first).min(symbols.len());
                visit(symbols, first, part);
            }
            stream += n_lanes;
        }
        Ok(())
    }

    /// First bit of a stream.
    fn start_bit(&self, stream: usize) -> u64 {
        let page = stream / STREAMS_PER_PAGE;
        let before = &self.lengths[page * STREAMS_PER_PAGE..stream];
        self.bases[page] + before.iter().map(|&length| u64::from(length)).sum::<u64>()
    }

    /// Decodes one stream that lies at `span`, a first bit and a length.
    fn decode_stream<const N: usize>(
        &self,
        stream: usize,
        span: (u64, u64),
        ks: &[u32; N],
        symbols: &mut [u32],
    ) -> Result<(), StreamError> {
        rice::decode(&self.words, span.0, span.1, ks, symbols).map_err(|error| {
            let (bit, what) = match error {
                EntropyError::LengthMismatch { expected, consumed, .. } => {
                    (consumed.min(expected), format!("symbols end after {consumed} bits, expected {expected}"))
                }
                other => (0, other.to_string()),
            };
            StreamError { first: stream * STREAM_LEN, stream, bit, what }
        })
    }
}

/// The error about the first symbol of a stream that is too large.
#[cold]
fn oversized<const N: usize>(stream: usize, symbols: &[u32], ks: &[u32; N]) -> StreamError {
    let at = symbols.iter().position(|z| z >> SYMBOL_BITS != 0).unwrap_or(0);
    let bit = symbols[..at].iter().enumerate().map(|(i, &z)| u64::from(rice::len_bits(z, ks[i % N]))).sum();
    let what = format!("symbol is {}, expected less than 2^{SYMBOL_BITS}", symbols[at]);
    StreamError { first: stream * STREAM_LEN, stream, bit, what }
}
