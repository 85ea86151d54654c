//! From words to points and values.

use std::ops::Range;

use gosset_entropy::STREAM_LEN;
use gosset_lattice::{BitStrip, LatticeKind, LatticeVisitor};

use super::ans::ANS_STREAM_LEN;
use super::ans::decode::AnsDecoder;
use super::rice::RiceDecoder;
use super::{LENGTHS, WORDS};
use crate::decode::DecodeScratch;
use crate::plane::{PlaneSet, required};
use crate::scheme::StreamError;
use crate::{CodeHeader, CodecError, LatticeHeader};

/// Checked planes of the lattice scheme.
#[derive(Debug)]
pub(crate) struct LatticeDecoder<'a> {
    lattice: LatticeKind,
    step: f32,
    code: CodeDecoder<'a>,
}

#[derive(Debug)]
enum CodeDecoder<'a> {
    Rice(RiceDecoder<'a>),
    Ans(AnsDecoder<'a>),
}

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
        let n_padded = n.next_multiple_of(lattice.dim() as u64);
        let code = match &header.code {
            CodeHeader::Rice { ks } => CodeDecoder::Rice(RiceDecoder::new(lattice, ks, n_padded, planes)?),
            &CodeHeader::Ans { table, raw_bits } => {
                let words = required(WORDS, planes.u32s(WORDS)?)?;
                let lengths = required(LENGTHS, planes.u16s(LENGTHS)?)?;
                CodeDecoder::Ans(AnsDecoder::new(lattice, (table, raw_bits), n_padded, words, &lengths)?)
            }
        };
        Ok(Self { lattice, step: header.step, code })
    }

    /// Values per stream.
    pub(crate) fn stream_len(&self) -> usize {
        match self.code {
            CodeDecoder::Rice(_) => STREAM_LEN,
            CodeDecoder::Ans(_) => ANS_STREAM_LEN,
        }
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
        self.lattice.dispatch(Units { code: &self.code, range, scratch, sink })
    }

    /// Hands the points of the values in `range` to `sink`.
    pub(crate) fn decode_points(
        &self,
        range: Range<usize>,
        scratch: &mut DecodeScratch,
        sink: impl FnMut(usize, &[i32]),
    ) -> Result<(), StreamError> {
        self.lattice.dispatch(Points { code: &self.code, range, scratch, sink })
    }
}

/// Decoding of embedded points, to be dispatched on the lattice.
struct Units<'s, 'a, F> {
    code: &'s CodeDecoder<'a>,
    range: Range<usize>,
    scratch: &'s mut DecodeScratch,
    sink: F,
}

impl<F: FnMut(usize, &[f32])> LatticeVisitor for Units<'_, '_, F> {
    type Out = Result<(), StreamError>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
        let Self { code, range, scratch, mut sink } = self;
        let DecodeScratch { symbols, points, values, .. } = scratch;
        match code {
            CodeDecoder::Rice(decoder) => decoder.for_each_stream::<N, L>(range, symbols, |symbols, first, part| {
                for (s, value) in symbols.as_chunks::<N>().0.iter().zip(values.as_chunks_mut::<N>().0) {
                    *value = L::embed(&L::unstrip(*s));
                }
                sink(first + part.start, &values[part]);
            }),
            CodeDecoder::Ans(decoder) => decoder.for_each_run::<N>(range, points, |points, first, part| {
                for (y, value) in points.iter().zip(values.as_chunks_mut::<N>().0) {
                    *value = L::embed(y);
                }
                sink(first + part.start, &values[part]);
            }),
        }
    }
}

/// Decoding of integer points, to be dispatched on the lattice.
struct Points<'s, 'a, F> {
    code: &'s CodeDecoder<'a>,
    range: Range<usize>,
    scratch: &'s mut DecodeScratch,
    sink: F,
}

impl<F: FnMut(usize, &[i32])> LatticeVisitor for Points<'_, '_, F> {
    type Out = Result<(), StreamError>;

    fn visit<const N: usize, L: BitStrip<N>>(self) -> Self::Out {
        let Self { code, range, scratch, mut sink } = self;
        let DecodeScratch { symbols, points, .. } = scratch;
        match code {
            CodeDecoder::Rice(decoder) => decoder.for_each_stream::<N, L>(range, symbols, |symbols, first, part| {
                for (s, point) in symbols.as_chunks::<N>().0.iter().zip(points.as_chunks_mut::<N>().0) {
                    *point = L::unstrip(*s);
                }
                sink(first + part.start, &points[part]);
            }),
            CodeDecoder::Ans(decoder) => decoder.for_each_run::<N>(range, points, |points, first, part| {
                sink(first + part.start, &points.as_flattened()[part]);
            }),
        }
    }
}
