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
        let CodeHeader::Rice { ks: found } = &header.code;
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
    fn for_each_stream<const N: usize, L: BitStrip<N>>(
        &self,
        range: Range<usize>,
        symbols: &mut [u32; STREAM_LEN],
        mut visit: impl FnMut(&[u32], usize, Range<usize>),
    ) -> Result<(), StreamError> {
        let ks: [u32; N] = std::array::from_fn(|i| self.ks[L::SYMBOL_CLASS[i]]);
        let mut start_bit = 0;
        let streams = range.start / STREAM_LEN..range.end.div_ceil(STREAM_LEN);
        for stream in streams.clone() {
            let in_page = stream % STREAMS_PER_PAGE;
            if in_page == 0 || stream == streams.start {
                let before = &self.lengths[stream - in_page..stream];
                let offset: u64 = before.iter().map(|&length| u64::from(length)).sum();
                start_bit = self.bases[stream / STREAMS_PER_PAGE] + offset;
            }
            let len_bits = u64::from(self.lengths[stream]);
            let first = stream * STREAM_LEN;
            let symbols = &mut symbols[..(self.n_symbols - first).min(STREAM_LEN)];
            let failed = |bit, what| StreamError { first, stream, bit, what };
            rice::decode(&self.words, start_bit, len_bits, &ks, symbols).map_err(|error| match error {
                EntropyError::LengthMismatch { expected, consumed, .. } => {
                    failed(consumed.min(expected), format!("symbols end after {consumed} bits, expected {expected}"))
                }
                other => failed(0, other.to_string()),
            })?;
            if symbols.iter().fold(0, |bits, z| bits | z) >> SYMBOL_BITS != 0 {
                return Err(oversized(symbols, &ks, failed));
            }
            start_bit += len_bits;
            let part = range.start.saturating_sub(first)..(range.end - first).min(symbols.len());
            visit(symbols, first, part);
        }
        Ok(())
    }
}

/// The error about the first symbol that is too large.
#[cold]
fn oversized<const N: usize>(
    symbols: &[u32],
    ks: &[u32; N],
    failed: impl Fn(u64, String) -> StreamError,
) -> StreamError {
    let mut bit = 0;
    for (i, &z) in symbols.iter().enumerate() {
        if z >> SYMBOL_BITS != 0 {
            return failed(bit, format!("symbol is {z}, expected less than 2^{SYMBOL_BITS}"));
        }
        bit += u64::from(rice::len_bits(z, ks[i % N]));
    }
    failed(bit, "symbol is too large".to_owned())
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
