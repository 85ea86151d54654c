//! From words to symbols, points and values.

use std::borrow::Cow;
use std::ops::Range;

use gosset_entropy::{EntropyError, STREAM_LEN, STREAMS_PER_PAGE, StreamIndex, rice};
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

use super::{BASES, LENGTHS, WORDS};
use crate::decode::DecodeScratch;
use crate::plane::{PlaneSet, required};
use crate::scheme::StreamError;
use crate::{CodeHeader, CodecError, LatticeHeader};

/// Symbols have less than this many bits; larger ones come from damage, as the encoder limits values to half of it.
const SYMBOL_BITS: u32 = 26;

/// Checked planes of the lattice scheme.
#[derive(Debug)]
pub(crate) struct LatticeDecoder<'a> {
    lattice: LatticeKind,
    step: f32,
    /// Parameter of each symbol class; the unused rest is 0.
    ks: [u32; MAX_CLASSES],
    words: Cow<'a, [u32]>,
    lengths: Cow<'a, [u16]>,
    bases: Cow<'a, [u64]>,
    /// Symbols of all streams: values rounded up to whole blocks.
    n_symbols: usize,
}

const MAX_CLASSES: usize = 2;

impl<'a> LatticeDecoder<'a> {
    /// Checks the header and the planes of `n` values, `8 * n` being no overflow.
    pub(crate) fn new(header: &LatticeHeader, n: u64, planes: &PlaneSet<'_, 'a>) -> Result<Self, CodecError> {
        let lattice = header.lattice.0;
        for (field, value) in [("alpha", header.alpha), ("step", header.step)] {
            if !(value.is_normal() && value > 0.0) {
                let expected = "a positive normal number".to_owned();
                return Err(CodecError::Header { field, found: value.to_string(), expected });
            }
        }
        let CodeHeader::Rice { ks: found } = &header.code else {
            let (found, expected) = ("ans".to_owned(), "a code that this version knows".to_owned());
            return Err(CodecError::Header { field: "code", found, expected });
        };
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
        let n_symbols = n.next_multiple_of(lattice.dim() as u64);
        StreamIndex::new(&lengths, &bases, n_symbols, words.len()).map_err(CodecError::Streams)?;
        Ok(Self { lattice, step: header.step, ks, words, lengths, bases, n_symbols: n_symbols as usize })
    }

    /// Values per stream.
    pub(crate) fn stream_len(&self) -> usize {
        STREAM_LEN
    }

    /// Factor from embedded points to values of unit RMS per row.
    pub(crate) fn step(&self) -> f32 {
        self.step
    }

    /// Hands the embedded points of the values in `range` to `sink`.
    pub(crate) fn decode_units(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, &[f32]),
    ) -> Result<(), StreamError> {
        self.lattice.dispatch(Units { decoder: self, range, scratch, sink })
    }

    /// Hands the points of the values in `range` to `sink`.
    pub(crate) fn decode_points(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, &[i32]),
    ) -> Result<(), StreamError> {
        self.lattice.dispatch(Points { decoder: self, range, scratch, sink })
    }

    /// Decodes the streams that hold values of `range` and calls `visit` after each with the symbols, the place of the
    /// first value and the part of the stream that lies in the range.
    ///
    /// Streams are decoded two at a time, since one alone waits for its own bits most of the time.
    fn for_each_stream<const N: usize, L: BitStrip<N>>(
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

/// Decoding of embedded points, to be dispatched on the lattice.
struct Units<'s, 'a, F> {
    decoder: &'s LatticeDecoder<'a>,
    range: Range<usize>,
    scratch: &'s mut DecodeScratch,
    sink: F,
}

impl<F: FnMut(usize, &[f32])> LatticeVisitor for Units<'_, '_, F> {
    type Out = Result<(), StreamError>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
        let Self { decoder, range, scratch, mut sink } = self;
        let DecodeScratch { symbols, values, .. } = scratch;
        decoder.for_each_stream::<N, L>(range, symbols, |symbols, first, part| {
            for (s, value) in symbols.as_chunks::<N>().0.iter().zip(values.as_chunks_mut::<N>().0) {
                *value = L::embed(&L::unstrip(*s));
            }
            sink(first + part.start, &values[part]);
        })
    }
}

/// Decoding of integer points, to be dispatched on the lattice.
struct Points<'s, 'a, F> {
    decoder: &'s LatticeDecoder<'a>,
    range: Range<usize>,
    scratch: &'s mut DecodeScratch,
    sink: F,
}

impl<F: FnMut(usize, &[i32])> LatticeVisitor for Points<'_, '_, F> {
    type Out = Result<(), StreamError>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
        let Self { decoder, range, scratch, mut sink } = self;
        let DecodeScratch { symbols, points, .. } = scratch;
        decoder.for_each_stream::<N, L>(range, symbols, |symbols, first, part| {
            for (s, point) in symbols.as_chunks::<N>().0.iter().zip(points.as_chunks_mut::<N>().0) {
                *point = L::unstrip(*s);
            }
            sink(first + part.start, &points[part]);
        })
    }
}
